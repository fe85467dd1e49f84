"""A client does the same with the node's catalog, without it, and where the system has no barriers for it; and so does
the client of an event loop."""

from __future__ import annotations

import os
import threading
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from kvchunk.parts import ByteRange
from kvclient import barrier
from kvclient.client import (
    AgentClient,
    AgentUnavailableError,
    ChunkSource,
    ChunkToPut,
    LeaseLostError,
    PutOutcome,
    Status,
    Where,
)
from kvclient.polled_client import PolledClient, lease_of
from tests.unit.hostagent.agent_harness import MIB, Cluster, cluster, key
from tests.unit.hostagent.looped_client import LoopedClients

Connect = Callable[[int], AgentClient]


@pytest.fixture
def pair() -> Iterator[Cluster]:
    with cluster(2) as made:
        yield made


@pytest.fixture(scope="module")
def one() -> Iterator[Cluster]:
    with cluster(1) as made:
        yield made


@pytest.fixture(params=["catalog", "not wanted", "no barrier", "event loop", "event loop, no barrier"])
def connect(pair: Cluster, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    looped = LoopedClients()

    def connect(index: int) -> AgentClient:
        path = pair.agents[index].config.api_socket
        if request.param.startswith("event loop"):
            return looped.connect(path)
        client = AgentClient(path, local_reads=request.param != "not wanted")
        pair.clients.append((path, client))
        return client

    if request.param.endswith("no barrier"):
        monkeypatch.setattr(barrier, "register", lambda: False)
    yield connect
    looped.close()


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


def test_what_makes_no_sense_is_refused(pair: Cluster, connect: Connect) -> None:
    client = connect(0)
    client.put(key(1), None, b"x" * 100)
    for call, what in (
        (lambda: client.fetch([key(1), key(1)], deadline_s=1), "keys names a chunk twice"),
        (lambda: client.fetch([key(1), key(1)], any_order=True, deadline_s=1), "keys names a chunk twice"),
        (lambda: client.fetch_stream([key(1), key(1)], deadline_s=1), "keys names a chunk twice"),
        (lambda: client.fetch([b"short"], deadline_s=1), "16 bytes"),
        (lambda: client.put(key(2), None, b""), "size_bytes is 0"),
        (lambda: client.warm("n" * 257, 1), "namespace has 257 bytes"),
        (lambda: client.warm("odd\udcff", 1), r"namespace 'odd\\udcff' is no text"),
        (lambda: client.put(key(2), None, np.zeros((4, 4))[:, ::2]), "ascontiguousarray"),
    ):
        with pytest.raises(ValueError, match=what):
            call()
    with client.fetch([], deadline_s=1) as got:
        assert (got.count, got.outcome) == (0, Status.OK)


NAN, INF = float("nan"), float("inf")
NUMBERS: dict[str, tuple[Callable[[AgentClient, Any], object], tuple[float, ...]]] = {
    "deadline_s of what is here": (lambda client, odd: client.fetch([key(1)], deadline_s=odd), (-1, NAN, INF, 1e7)),
    "deadline_s": (lambda client, odd: client.fetch([key(2)], deadline_s=odd), (-1, NAN, INF, 1e7)),
    "deadline_s of a stream": (lambda client, odd: client.fetch_stream([key(2)], deadline_s=odd), (-1, NAN, INF)),
    "deadline_s in any order": (lambda client, odd: client.fetch([key(2)], any_order=True, deadline_s=odd), (-1, INF)),
    "deadline_s of ranges": (
        lambda client, odd: client.fetch([key(2)], ranges=[ByteRange(0, 1)], deadline_s=odd),
        (-1, NAN, INF),
    ),
    "recompute_s": (lambda client, odd: client.fetch([key(2)], deadline_s=1, recompute_s=odd), (-1, NAN, INF)),
    "queue_s": (lambda client, odd: client.fetch([key(2)], deadline_s=1, queue_s=odd), (-1, NAN, INF)),
    "expected_s": (lambda client, odd: client.fetch([key(2)], deadline_s=1, expected_s=odd), (-1, NAN, INF)),
    "attention_share": (lambda client, odd: client.fetch([key(2)], deadline_s=1, attention_share=odd), (-1, NAN, 2)),
    "behind": (lambda client, odd: client.fetch([key(2)], deadline_s=1, behind=odd), (-1, 0.5, NAN, 1 << 32)),
    "hold_s": (lambda client, odd: client.lock([key(1)], hold_s=odd), (-1, NAN, INF)),
    "within_s": (lambda client, odd: client.expect_reuse([key(1)], within_s=odd), (-1, NAN, INF)),
    "etas_s": (lambda client, odd: client.claim([key(2)], 10, [odd]), (NAN, INF)),
    "size_bytes of a claim": (lambda client, odd: client.claim([key(2)], odd, [1.0]), (-1, 0, 0.5, NAN, 1 << 64)),
    "size_bytes": (lambda client, odd: client.warm("n", odd), (-1, 0, 0.5, NAN, 1 << 64)),
    "nodes": (lambda client, odd: client.warm("n", 1, nodes=odd), (-1, 0.5, NAN, 1 << 32)),
    "wait_s": (lambda client, odd: client.warm("n", 1, wait_s=odd), (-1, NAN, INF, 1e7)),
    "position": (lambda client, odd: client.put(key(2), None, b"x", position=odd), (-1, 0.5, NAN, 1 << 32)),
}


@pytest.mark.parametrize("what", NUMBERS)
def test_numbers_that_make_no_sense_are_named(one: Cluster, what: str) -> None:
    """One line that names the argument, and nothing of it reaches the agent."""
    call, odd = NUMBERS[what]
    looped = LoopedClients()
    path = one.agents[0].config.api_socket
    try:
        for client in (one.client(0), looped.connect(path)):
            client.put(key(1), None, b"x" * 100)
            for number in odd:
                with pytest.raises((ValueError, TypeError), match=what.split()[0]):
                    call(client, number)
            assert client.contains([key(1), key(2)]) == [Where.LOCAL, Where.NOWHERE]
        for connect in (AgentClient, PolledClient, looped.connect):
            with pytest.raises(ValueError, match="answer_timeout_s is nan"):
                connect(path, answer_timeout_s=NAN)
    finally:
        looped.close()


def test_a_polled_fetch_of_nothing_and_the_longest_waits(one: Cluster) -> None:
    client = PolledClient(one.agents[0].config.api_socket)
    client.fetch([], deadline_s=1e6)
    (answer,) = client.poll(INF)
    assert (answer.status, lease_of(answer)) == (Status.OK, (0, []))
    client.close()
    with one.client(0).fetch([key(9)], deadline_s=1e6) as got:
        assert got.outcome is Status.NOT_FOUND


@pytest.mark.parametrize(
    "content",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.float16(1.5),
        bytearray(b"abc"),
        array("d", [1.0, 2.0]),
        memoryview(b"abcdef")[1:4],
    ],
    ids=["numpy", "a numpy number", "bytearray", "array", "part of a view"],
)
def test_whatever_holds_bytes_can_be_put(one: Cluster, content: Any) -> None:
    client = one.client(0)
    client.drop([key(5)])
    assert client.put(key(5), None, content) is PutOutcome.STORED
    with client.fetch([key(5)], deadline_s=1) as got:
        assert bytes(got.views[0]) == memoryview(content).tobytes()


def test_verbs_of_a_chunk(pair: Cluster, connect: Connect) -> None:
    client = connect(0)
    assert client.put(key(1), None, b"x" * 100) is PutOutcome.STORED
    assert client.put(key(1), None, b"x" * 100) is PutOutcome.EXISTS
    keys = [key(1), key(2)]
    assert client.contains(keys) == [Where.LOCAL, Where.NOWHERE]
    assert client.pin(keys) == [True, False]
    assert client.unpin(keys) == [True, False]
    assert client.lock(keys, hold_s=30) == [True, False]
    assert client.unlock(keys) == [True, False]
    client.claim([key(3)], 100, [5.0])
    assert client.contains([key(3)]) == [Where.COMPUTING]
    client.disclaim()
    assert client.contains([key(3)]) == [Where.NOWHERE]
    client.expect_reuse([key(1)], within_s=1.0)
    client.session_end([key(1)])
    assert client.drop(keys) == [True, False]
    assert client.stats()["pool_chunks"] == 0


def test_many_puts_and_ranges_of_them(pair: Cluster, connect: Connect) -> None:
    client = connect(0)
    bodies = [os.urandom(1000) for _ in range(40)]

    def write(body: bytes, view: memoryview) -> None:
        view[:] = body

    chunks = [ChunkToPut(key(number), None, 1000, partial(write, body)) for number, body in enumerate(bodies)]
    too_large = ChunkToPut(key(50), None, 1 << 40, lambda view: None)
    assert client.put_each([*chunks, too_large]) == [True] * 40 + [False]
    ranges = [ByteRange(0, 10), ByteRange(500, 20)]
    with client.fetch([key(3), key(99), key(39)], ranges=ranges, deadline_s=5) as found:
        assert found.present == [True, False, True]
        for views, body in zip(found.views, (bodies[3], None, bodies[39]), strict=True):
            assert (views and [bytes(view) for view in views]) == (body and [body[:10], body[500:520]])
    with pytest.raises(ValueError, match="one ends at byte 1001"):
        client.fetch([key(3)], ranges=[ByteRange(1, 1000)], deadline_s=5)


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
    got.check()
    client.close()
    for call in (got.check, got.release):
        with pytest.raises(LeaseLostError, match="this client was closed"):
            call()
    got.release()
    with pytest.raises(AgentUnavailableError):
        client.fetch([key(1)], deadline_s=1)
    with pytest.raises(AgentUnavailableError):
        client.fetch_stream([key(1)], deadline_s=1)
