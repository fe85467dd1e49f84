"""A client does the same with the node's catalog, without it, and where the system has no barriers for it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest

from kvclient import barrier
from kvclient.client import AgentClient, AgentError, AgentUnavailableError, ChunkSource, Status
from tests.unit.hostagent.agent_harness import MIB, Cluster, cluster, key

Connect = Callable[[int], AgentClient]


@pytest.fixture
def pair() -> Iterator[Cluster]:
    with cluster(2) as made:
        yield made


@pytest.fixture(params=["catalog", "not wanted", "no barrier"])
def connect(pair: Cluster, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Connect:
    def connect(index: int) -> AgentClient:
        path = pair.agents[index].config.api_socket
        client = AgentClient(path, local_reads=request.param != "not wanted")
        pair.clients.append((path, client))
        return client

    if request.param == "no barrier":
        monkeypatch.setattr(barrier, "register", lambda: False)
    return connect


def test_chunks_that_are_here(pair: Cluster, connect: Connect) -> None:
    client = connect(0)
    bodies = {number: os.urandom(5000 + number) for number in range(3)}
    for number, body in bodies.items():
        client.put(key(number), None, body)
    asked = [key(2), key(0), key(1)]
    with client.fetch(asked, deadline_s=5, recompute_s=1.0) as got:
        assert (got.count, got.outcome, got.sources) == (3, Status.OK, [ChunkSource.LOCAL] * 3)
        assert [bytes(view) for view in got.views] == [bodies[2], bodies[0], bodies[1]]
    with client.fetch_stream(asked, deadline_s=5) as stream:
        assert [bytes(view) for view in stream] == [bodies[2], bodies[0], bodies[1]]
        assert (stream.count, stream.outcome) == (3, Status.OK)
    with client.fetch(asked, any_order=True, deadline_s=5) as found:
        assert (found.count, found.outcome, found.sources) == (3, Status.OK, [ChunkSource.LOCAL] * 3)
        assert [bytes(view) for view in found.views if view is not None] == [bodies[2], bodies[0], bodies[1]]
    assert client.stats()["fetch_chunks_total{local}"] == 9


def test_a_miss_behind_chunks_that_are_here(pair: Cluster, connect: Connect) -> None:
    client = connect(0)
    client.put(key(1), None, b"x" * 100)
    with client.fetch([key(1), key(2)], deadline_s=5) as got:
        assert (got.count, got.outcome) == (1, Status.NOT_FOUND)
    with client.fetch_stream([key(1), key(2)], deadline_s=5) as stream:
        assert [bytes(view) for view in stream] == [b"x" * 100]
        assert stream.outcome is Status.NOT_FOUND


@pytest.mark.parametrize("numbers", [[], [1, 1]], ids=["none", "twice"])
def test_what_makes_no_sense_is_refused(pair: Cluster, connect: Connect, numbers: list[int]) -> None:
    client = connect(0)
    client.put(key(1), None, b"x" * 100)
    with pytest.raises(AgentError, match="malformed"):
        client.fetch([key(number) for number in numbers], deadline_s=1)
    with (
        pytest.raises(AgentError, match="malformed"),
        client.fetch_stream([key(number) for number in numbers], deadline_s=1) as stream,
    ):
        list(stream)
    with pytest.raises(ValueError, match="16 bytes"):
        client.fetch([b"short"], deadline_s=1)


def test_a_dropped_chunk_is_gone_and_its_bytes_stay_while_they_are_read(pair: Cluster, connect: Connect) -> None:
    client = connect(0)
    client.put(key(1), None, b"x" * 1000)
    with client.fetch([key(1)], deadline_s=1) as got:
        assert client.drop([key(1)]) == [True]
        client.put(key(1), None, b"y" * 1000)
        assert got.views[0] == b"x" * 1000
        with client.fetch([key(1)], deadline_s=1) as again:
            assert again.views[0] == b"y" * 1000


def test_remote_chunks_stream(pair: Cluster, connect: Connect) -> None:
    here, there = connect(0), connect(1)
    bodies = [os.urandom(MIB // 2 + number) for number in range(6)]
    for number, body in enumerate(bodies):
        there.put(key(number), key(number - 1) if number else None, body)
        pair.publish(number, 1, parent=number - 1 if number else None)
    with here.fetch_stream([key(number) for number in range(6)], deadline_s=20) as stream:
        assert [bytes(view) for view in stream] == bodies
        assert (stream.count, stream.outcome) == (6, Status.OK)
        assert all(source is ChunkSource.HOLDER for source in stream.sources)
    pair.until(lambda: pair.agents[0].core.pool.pins_count == 0)


def test_a_stream_that_is_left_gives_everything_back(pair: Cluster, connect: Connect) -> None:
    here, there = connect(0), connect(1)
    for number in range(4):
        there.put(key(number), None, os.urandom(MIB // 2))
        pair.publish(number, 1)
    with here.fetch_stream([key(number) for number in range(4)], deadline_s=20) as stream:
        next(iter(stream))
    pair.until(lambda: pair.agents[0].core.pool.pins_count == 0)
    pair.until(lambda: pair.agents[0].core.fetches.under_way_count == 0)
    with here.fetch([key(0)], deadline_s=5) as got:
        assert got.count == 1, "the connection goes on"


def test_threads_share_a_client(pair: Cluster, connect: Connect) -> None:
    client = connect(0)
    bodies = {number: os.urandom(4096) for number in range(8)}
    for number, body in bodies.items():
        client.put(key(number), None, body)
    wrong: list[int] = []

    def work(step: int) -> None:
        for turn in range(40):
            number = (turn * 7 + step) % 8
            with client.fetch([key(number)], deadline_s=5) as got:
                if not got.views or got.views[0] != bodies[number]:
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(step,)) for step in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert wrong == []


def test_a_closed_client_says_so(pair: Cluster, connect: Connect) -> None:
    client = connect(0)
    client.put(key(1), None, b"x" * 100)
    got = client.fetch([key(1)], deadline_s=1)
    client.close()
    got.release()
    with pytest.raises(AgentUnavailableError):
        client.fetch([key(1)], deadline_s=1)
    with pytest.raises(AgentUnavailableError):
        client.fetch_stream([key(1)], deadline_s=1)
