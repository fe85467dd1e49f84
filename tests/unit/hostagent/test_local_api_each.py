"""Fetches in any order and locks over the real socket, and between two agents."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from kvclient import messages
from kvclient.client import AgentClient, AgentError, ChunkSource, LeaseLostError, Status, Where
from kvclient.messages import FetchedChunk, Frame, Kind, MalformedFrameError
from tests.unit.hostagent.agent_harness import MIB, Cluster, cluster, key


@pytest.fixture
def two() -> Iterator[Cluster]:
    with cluster(2) as made:
        yield made


def test_each_chunk_comes_by_itself(two: Cluster) -> None:
    here, there = two.client(0), two.client(1)
    bodies = {number: os.urandom(MIB // 4 + number) for number in range(4)}
    for number in (0, 2):
        there.put(key(number), None, bodies[number])
        two.publish(number, 1)
    here.put(key(3), None, bodies[3])
    with here.fetch([key(number) for number in (3, 9, 0, 1, 2)], any_order=True, deadline_s=10) as got:
        assert got.present == [True, False, True, False, True]
        assert (got.count, got.outcome) == (3, Status.NOT_FOUND)
        assert [view and bytes(view) for view in got.views] == [bodies[3], None, bodies[0], None, bodies[2]]
        assert got.sources[0] is ChunkSource.LOCAL
        assert two.agents[0].core.pool.pins_count == 3
    two.until(lambda: two.agents[0].core.pool.pins_count == 0)


def test_locks_outlive_calls_and_end_with_the_connection(two: Cluster) -> None:
    keeper, client = two.client(0), two.client(0)
    for number in range(8):
        keeper.put(key(number), None, bytes(MIB - 4096))
    assert client.lock([key(0), key(99)], hold_s=30) == [True, False]
    assert keeper.unlock([key(0)]) == [False], "a lock belongs to its client"
    for number in range(8, 16):
        keeper.put(key(number), None, bytes(MIB - 4096))
    assert keeper.contains([key(0), key(1)]) == [Where.LOCAL, Where.NOWHERE]
    client.close()
    two.until(lambda: two.agents[0].core.engines.locks.count == 0)
    assert keeper.drop([key(0)]) == [True]


def test_what_makes_no_sense_is_refused(two: Cluster) -> None:
    client = two.client(0)
    with pytest.raises(ValueError, match="keys names a chunk twice"):
        client.fetch([key(1), key(1)], any_order=True, deadline_s=1)
    with pytest.raises(TypeError, match="a fetch in any order takes no 'recompute_s'"):
        client.fetch([key(1)], any_order=True, deadline_s=1, recompute_s=1.0)  # type: ignore[call-overload]
    with pytest.raises(AgentError, match="too many keys"):
        client.fetch([key(number) for number in range(messages.KEYS_MAX + 1)], any_order=True, deadline_s=1)
    assert client.contains([key(1)]) == [Where.NOWHERE], "the connection goes on"


def test_a_lease_that_the_agent_no_longer_holds_is_an_error_once(two: Cluster) -> None:
    client: AgentClient = two.client(0)
    client.put(key(1), None, b"x" * 1000)
    got = client.fetch([key(1)], any_order=True, deadline_s=1)
    client.close()
    with pytest.raises(LeaseLostError):
        got.release()
    got.release()
    assert got.views == [None]


@pytest.mark.parametrize(
    ("places", "sources", "keys_count"),
    [((5,), (1,), 2), ((0, 0), (1, 1), 2), ((0,), (200,), 2)],
    ids=["beyond the keys", "twice", "no such source"],
)
def test_answers_that_cannot_be_are_refused(places: tuple[int, ...], sources: tuple[int, ...], keys_count: int) -> None:
    chunks = [FetchedChunk(0, 1, ChunkSource.LOCAL) for _ in places]
    body = bytearray(messages.pack_found(7, places, chunks))
    for index, source in enumerate(sources):
        body[messages.LEASE.size + (index + 1) * messages.FOUND_CHUNK.size - 1] = source
    with pytest.raises(MalformedFrameError):
        messages.unpack_found(Frame(Kind.FETCH_EACH, 0, len(places), 1, bytes(body)), keys_count)
    with pytest.raises(MalformedFrameError):
        messages.unpack_found(Frame(Kind.FETCH_EACH, 0, len(places), 1, bytes(body[:-1])), keys_count)
