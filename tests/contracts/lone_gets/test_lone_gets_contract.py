"""A client gets one small chunk of another node by the thread of lone gets, and without it: the same comes of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest

from hostagent import limits
from kvclient import lone
from kvclient.client import AgentClient, AgentError, AgentUnavailableError, ChunkSource, LeaseLostError, Status, Where
from kvclient.lone import SLOT_BYTES, SLOTS
from tests.unit.hostagent.agent_harness import MIB, Cluster, cluster, key

Connect = Callable[[int], AgentClient]
FIRST = 999
"""Fetched to no end but a connection to its holder."""


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    # On a busy machine nobody is late, either.
    monkeypatch.setattr(limits, "LONE_GET_WAIT_S", 5.0)
    monkeypatch.setattr(lone, "WAIT_S", 10.0)
    with cluster(2) as made:
        yield made


@pytest.fixture(params=["lone", "not wanted"])
def connect(pair: Cluster, request: pytest.FixtureRequest) -> Connect:
    """Clients; by the time that there is one, lone gets reach the node 0, where they are wanted."""

    def connect(index: int) -> AgentClient:
        path = pair.agents[index].config.api_socket
        client = AgentClient(path, lone_gets=request.param == "lone")
        pair.clients.append((path, client))
        if request.param == "lone" and index:
            begin_lone(pair, client)
        return client

    return connect


def begin_lone(pair: Cluster, client: AgentClient) -> None:
    """Fetch chunks of the node 0 until they come by lone gets."""
    put(pair, FIRST, bytes(SLOT_BYTES))

    def one() -> bool:
        client.drop([key(FIRST)])
        with client.fetch([key(FIRST)], deadline_s=5):
            return served(pair) > 0

    assert any(one() for _ in range(1000))


def put(pair: Cluster, number: int, body: bytes) -> None:
    """The node 0 has a chunk, and the others know."""
    with AgentClient(pair.agents[0].config.api_socket) as writer:
        writer.put(key(number), None, body)
    pair.publish(number, 0)


def served(pair: Cluster) -> int:
    gets = pair.agents[1].lone_gets
    return gets.counts()["served"] if gets is not None else 0


@pytest.mark.parametrize("size_bytes", [1, 4096, 4097, SLOT_BYTES, SLOT_BYTES + 1])
def test_a_chunk_of_another_node(pair: Cluster, connect: Connect, size_bytes: int) -> None:
    client = connect(1)
    body = os.urandom(size_bytes)
    put(pair, 1, body)
    with client.fetch([key(1)], deadline_s=5, recompute_s=10.0) as got:
        assert (got.count, got.outcome, got.sources) == (1, Status.OK, [ChunkSource.HOLDER])
        assert bytes(got.views[0]) == body
    # The agent knows of it with the next request, whoever brought it.
    assert client.contains([key(1)]) == [Where.LOCAL]
    with client.fetch([key(1)], deadline_s=5) as got:
        assert (got.sources, bytes(got.views[0])) == ([ChunkSource.LOCAL], body)
    assert client.drop([key(1)]) == [True]
    assert client.stats()["fetch_chunks_total{holder}"] >= 1


def test_only_small_chunks_go_by_the_thread(pair: Cluster, connect: Connect) -> None:
    client = connect(1)
    before = served(pair)
    for number, size_bytes in ((1, SLOT_BYTES), (2, SLOT_BYTES + 1)):
        put(pair, number, bytes(size_bytes))
        with client.fetch([key(number)], deadline_s=5) as got:
            assert got.count == 1
    assert served(pair) - before in (0, 1)
    assert (served(pair) > before) == (before > 0)


def test_a_chunk_that_nobody_has(connect: Connect) -> None:
    with connect(1).fetch([key(1)], deadline_s=5) as got:
        assert (got.count, got.outcome) == (0, Status.NOT_FOUND)


def test_a_chunk_that_its_holder_has_lost(pair: Cluster, connect: Connect) -> None:
    client = connect(1)
    put(pair, 1, b"here and gone")
    connect(0).drop([key(1)])
    with client.fetch([key(1)], deadline_s=5) as got:
        assert (got.count, got.outcome) == (0, Status.UNAVAILABLE)


def test_wrong_bytes_are_no_chunk_and_are_reported(
    pair: Cluster, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    client = connect(1)
    put(pair, 1, b"right" * 100)
    holder = pair.agents[0]
    chunk = holder.core.pool.find(key(1))
    assert chunk is not None
    pair.call(lambda: holder.memory.view(chunk.offset, 5).__setitem__(slice(0, 5), b"wrong"))
    with client.fetch([key(1)], deadline_s=5) as got:
        assert (got.count, got.outcome) == (0, Status.UNAVAILABLE)
    assert "holds a wrong copy of chunk" in caplog.text
    assert client.contains([key(1)]) != [Where.LOCAL]


def test_a_holder_that_dies(pair: Cluster, connect: Connect) -> None:
    client = connect(1)
    put(pair, 1, b"with its node")
    pair.do(pair.agents[0].stop())
    try:
        with client.fetch([key(1)], deadline_s=1) as got:
            assert got.count == 0
            assert got.outcome in (Status.UNAVAILABLE, Status.DEADLINE)
    finally:
        pair.agents.pop(0)


def test_an_agent_that_dies(pair: Cluster, connect: Connect) -> None:
    client = connect(1)
    put(pair, 1, b"never to come")
    pair.do(pair.agents[1].stop())
    pair.agents.pop(1)
    with pytest.raises(AgentUnavailableError):
        client.fetch([key(1)], deadline_s=5)


def test_views_stay_whatever_comes_after(pair: Cluster, connect: Connect) -> None:
    client = connect(1)
    bodies = {number: os.urandom(SLOT_BYTES) for number in range(4 * SLOTS)}
    for number, body in bodies.items():
        put(pair, number, body)
    held = {number: client.fetch([key(number)], deadline_s=5) for number in range(SLOTS + 4)}
    for number in range(SLOTS + 4, 4 * SLOTS):
        with client.fetch([key(number)], deadline_s=5) as got:
            assert bytes(got.views[0]) == bodies[number]
    # Chunks that leave the pool take nothing away from who has them.
    client.drop([key(number) for number in held])
    for number, got in held.items():
        assert bytes(got.views[0]) == bodies[number]
        got.release()
    with client.fetch([key(0)], deadline_s=5) as got:
        assert bytes(got.views[0]) == bodies[0]


def test_the_pool_makes_room_as_for_any_chunk(connect: Connect, pair: Cluster) -> None:
    client = connect(1)
    count = 9 * MIB // SLOT_BYTES
    for number in range(count):
        put(pair, number, number.to_bytes(4) * (SLOT_BYTES // 4))
        with client.fetch([key(number)], deadline_s=5) as got:
            assert bytes(got.views[0][:4]) == number.to_bytes(4)
    client.stats()
    assert pair.call(lambda: pair.agents[1].core.pool.evicted_count) > 0


def test_many_threads_of_one_client(pair: Cluster, connect: Connect) -> None:
    client = connect(1)
    bodies = {number: os.urandom(1000 + number) for number in range(60)}
    for number, body in bodies.items():
        put(pair, number, body)
    wrong: list[int] = []

    def fetch(numbers: range) -> None:
        for number in numbers:
            with client.fetch([key(number)], deadline_s=10) as got:
                if got.count != 1 or bytes(got.views[0]) != bodies[number]:
                    wrong.append(number)

    threads = [threading.Thread(target=fetch, args=(range(first, 60, 3),)) for first in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_client_that_is_closed_in_the_middle(pair: Cluster, connect: Connect, request: pytest.FixtureRequest) -> None:
    client = connect(1)
    put(pair, 1, b"held")
    got = client.fetch([key(1)], deadline_s=5)
    view = got.views[0]
    client.close()
    assert bytes(view) == b"held"
    if request.node.callspec.params["connect"] == "lone":
        got.release()  # a landing is nobody else's
    else:
        with pytest.raises(LeaseLostError):
            got.release()
    with pytest.raises((AgentUnavailableError, AgentError, ValueError)):
        client.fetch([key(1)], deadline_s=5)


def test_a_pool_without_leases_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hostagent.agent.local_leases", lambda _pool_bytes: None)
    with cluster(2) as made:
        put(made, 1, b"by the event loop")
        client = made.client(1)
        with client.fetch([key(1)], deadline_s=5) as got:
            assert (got.sources, bytes(got.views[0])) == ([ChunkSource.HOLDER], b"by the event loop")
        assert made.agents[1].lone_gets is None


def test_a_traced_fetch_goes_through_the_agent(pair: Cluster) -> None:
    client = pair.client(1)
    begin_lone(pair, client)
    put(pair, 1, b"traced")
    before = served(pair)
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with client.fetch([key(1)], deadline_s=5, traceparent=trace) as got:
        assert bytes(got.views[0]) == b"traced"
    assert served(pair) == before


def test_the_gate_has_its_say(pair: Cluster) -> None:
    client = pair.client(1)
    begin_lone(pair, client)
    put(pair, 1, b"quickly computed")
    before = served(pair)
    client.fetch([key(1)], deadline_s=5, recompute_s=1e-6).release()
    assert served(pair) == before
