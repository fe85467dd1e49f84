"""A scheduler's lookups and fetches against a real agent, and against one that stalls, goes away or talks nonsense."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kvchunk.ids import ChunkKey
from kvchunk.sources import ChunkSource
from kvclient import messages
from kvclient.attach import AgentUnavailableError
from kvclient.engines.core.prefill import FetchTerms
from kvclient.engines.core.requests import Fetch, LookUp, Release
from kvclient.engines.link import AgentLink
from kvclient.engines.pool_io import FETCHES_AT_ONCE, Answer, FetchEnded, LookedUp, PoolIo, Swept
from kvclient.messages import Frame, Kind, Status, Where
from kvclient.polled_client import PolledClient, places_of
from tests.unit.hostagent.agent_harness import DEADLINE_S, MIB, Cluster, key

log = logging.getLogger("test")
TERMS = FetchTerms(None, DEADLINE_S)


@pytest.fixture
def link(cluster: Cluster) -> Iterator[AgentLink[PolledClient]]:
    made = AgentLink(PolledClient, cluster.agents[0].config.api_socket, log)
    yield made
    made.close()


@pytest.fixture
def io(link: AgentLink[PolledClient]) -> PoolIo:
    return PoolIo(link, log, time.monotonic)


def next_answer(io: PoolIo) -> Answer:
    (answer,) = io.answers(DEADLINE_S)
    return answer


def many(count: int) -> tuple[ChunkKey, ...]:
    return tuple(key(number) for number in range(1, count + 1))


def test_lookups_fetches_and_their_leases(cluster: Cluster, io: PoolIo) -> None:
    for number in (1, 2):
        cluster.client(0).put(key(number), None, b"x" * 100)
    io.do(LookUp("a", 1, many(3)))
    assert next_answer(io) == LookedUp("a", 1, (Where.LOCAL, Where.LOCAL, Where.NOWHERE))
    io.do(Fetch("a", 2, many(3), TERMS))
    ended = next_answer(io)
    assert isinstance(ended, FetchEnded)
    assert (ended.sources, ended.outcome) == ((ChunkSource.LOCAL,) * 2, Status.NOT_FOUND)
    pool = cluster.agents[0].core.pool
    assert cluster.call(lambda: pool.pins_count) == 2
    for _ in range(2):
        io.do(Release("a", 2))
    cluster.until(lambda: pool.pins_count == 0)
    assert len(io.fetches) == 0
    assert io.answers() == []


def test_what_is_here_is_found_and_leased_without_the_agent(
    cluster: Cluster, io: PoolIo, link: AgentLink[PolledClient]
) -> None:
    for number in (1, 2):
        cluster.client(0).put(key(number), None, b"x" * 100)
    io.do(LookUp("a", 1, many(2)))
    io.do(Fetch("a", 2, many(2), TERMS))
    assert link.client is not None
    assert link.client.is_idle, "the agent was asked nothing"
    assert io.answers() == [
        LookedUp("a", 1, (Where.LOCAL,) * 2),
        FetchEnded("a", 2, (ChunkSource.LOCAL,) * 2, Status.OK, 0.0),
    ]
    pool = cluster.agents[0].core.pool
    assert cluster.client(0).drop(many(2)) == [True, True]
    assert cluster.call(lambda: len(pool.shown.lingering)) == 2, "their memory stays"
    io.do(Release("a", 2))
    assert len(io.fetches) == 0
    cluster.until(lambda: pool.pins_count == 0)


def test_a_fetch_that_is_traced_is_the_agents(cluster: Cluster, io: PoolIo, link: AgentLink[PolledClient]) -> None:
    cluster.client(0).put(key(1), None, b"x" * 100)
    io.do(Fetch("a", 1, many(1), replace(TERMS, traceparent=f"00-{'1' * 32}-{'2' * 16}-01")))
    assert link.client is not None
    assert not link.client.is_idle
    ended = next_answer(io)
    assert isinstance(ended, FetchEnded)
    assert ended.sources == (ChunkSource.LOCAL,)
    io.do(Release("a", 1))
    cluster.until(lambda: cluster.agents[0].core.pool.pins_count == 0)


def test_nothing_is_here_once_the_agent_went(cluster: Cluster, io: PoolIo, link: AgentLink[PolledClient]) -> None:
    """Its catalog is still mapped, and what it says is not true any more."""
    cluster.client(0).put(key(1), None, b"x" * 100)
    client = link.client
    assert client is not None
    assert client.holds_here(many(1))
    cluster.replace(0)
    assert not client.holds_here(many(1))
    assert client.lease_here(many(1)) is None


def test_a_fetch_that_brings_nothing_keeps_nothing(io: PoolIo) -> None:
    io.do(Fetch("a", 1, many(2), TERMS))
    ended = next_answer(io)
    assert isinstance(ended, FetchEnded)
    assert (ended.sources, ended.outcome, len(io.fetches)) == ((), Status.NOT_FOUND, 0)


def test_more_keys_than_a_request_takes(cluster: Cluster, io: PoolIo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "KEYS_MAX", 2)
    for number in range(1, 6):
        cluster.client(0).put(key(number), None, b"x" * 100)
    io.do(LookUp("a", 1, many(6)))
    assert next_answer(io) == LookedUp("a", 1, (Where.LOCAL,) * 5 + (Where.NOWHERE,))
    io.do(Fetch("a", 2, many(6), TERMS))
    ended = next_answer(io)
    assert isinstance(ended, FetchEnded)
    assert (len(ended.sources), ended.outcome) == (5, Status.NOT_FOUND)
    io.sweep([(key(number), key(number + 1)) for number in (1, 3, 5)])
    swept = next_answer(io)
    assert isinstance(swept, Swept)
    assert swept.where == (Where.LOCAL,) * 5 + (Where.NOWHERE,)
    assert swept.agent_bytes_per_s > 0
    io.do(Release("a", 2))
    cluster.until(lambda: cluster.agents[0].core.pool.pins_count == 0)
    io.end_sessions(many(5))
    io.sweep([])
    assert isinstance(next_answer(io), Swept)


def test_without_an_agent_everything_is_answered_at_once(tmp_path: Path) -> None:
    link = AgentLink(PolledClient, str(tmp_path / "nobody.sock"), log)
    io = PoolIo(link, log, time.monotonic)
    io.do(LookUp("a", 1, many(1)))
    for number in range(2 * FETCHES_AT_ONCE):
        io.do(Fetch("b", number, many(1), TERMS))
    io.sweep([(key(1),)])
    first, *others = io.answers()
    assert first == LookedUp("a", 1, None)
    assert [(each.outcome, each.sources) for each in others if isinstance(each, FetchEnded)] == [
        (Status.UNAVAILABLE, ())
    ] * (2 * FETCHES_AT_ONCE)
    assert len(io.fetches) == 0
    link.close()


class Scripted:
    """What listens where an agent should, and does what a test says."""

    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(1)
        self.connection: socket.socket
        self._frames = messages.FrameReader()
        self._read: list[Frame] = []

    def greet(self) -> None:
        self.connection, _ = self._listener.accept()
        self.connection.settimeout(DEADLINE_S)
        body = messages.WELCOME.pack(messages.VERSION, MIB, 1)
        with open("/dev/null", "rb") as memory:
            socket.send_fds(self.connection, [messages.pack(Kind.WELCOME, 0, body)], [memory.fileno()] * 2)

    def next(self) -> Frame:
        while not self._read:
            self._read += self._frames.feed(self.connection.recv(1 << 20))
        return self._read.pop(0)

    def answer(self, frame: Frame, body: bytes, *, status: Status = Status.OK, count: int = 0) -> None:
        self.connection.sendall(messages.pack(Kind(frame.kind), frame.request, body, status=status, count=count))

    def close(self) -> None:
        self._listener.close()


@contextmanager
def scripted(tmp_path: Path) -> Iterator[tuple[Scripted, Callable[..., PolledClient]]]:
    path = str(tmp_path / "scripted.sock")
    agent = Scripted(path)

    def connect(**options: float) -> PolledClient:
        greeting = threading.Thread(target=agent.greet)
        greeting.start()
        client = PolledClient(path, **options)
        greeting.join()
        ends.callback(client.close)
        ends.callback(agent.connection.close)
        return client

    with ExitStack() as ends:
        ends.callback(agent.close)
        yield agent, connect


def test_an_agent_that_reads_nothing_holds_nobody_up(tmp_path: Path) -> None:
    """What does not fit into the socket is sent later, in order and whole."""
    with scripted(tmp_path) as (agent, connect):
        client = connect()
        keys = many(4096)
        numbers = [client.contains(keys) for _ in range(20)]
        assert client.poll() == []
        read: list[Frame] = []

        def work() -> None:
            read.extend(agent.next() for _ in numbers)
            for frame in reversed(read):
                agent.answer(frame, bytes(frame.count), count=frame.count)

        working = threading.Thread(target=work)
        working.start()
        answers: list[Frame] = []
        while len(answers) < len(numbers):
            answers += client.poll(DEADLINE_S)
        working.join()
        assert [frame.request for frame in read] == numbers
        assert {messages.unpack_keys(frame.body, frame.count)[-1] for frame in read} == {keys[-1]}
        assert [frame.request for frame in answers] == numbers[::-1]
        assert places_of(answers[0]) == [Where.NOWHERE] * len(keys)
        assert client.is_idle


def test_an_agent_that_owes_answers_for_too_long_is_gone(tmp_path: Path) -> None:
    with scripted(tmp_path) as (agent, connect):
        client = connect(answer_timeout_s=0.0)
        client.fetch(many(1), deadline_s=DEADLINE_S)
        assert client.poll() == []
        client.contains(many(1))
        with pytest.raises(AgentUnavailableError, match="does not answer"):
            client.poll()
        with pytest.raises(AgentUnavailableError, match="does not answer"):
            client.contains(many(1))
        # What lies there already is never late.
        client = connect(answer_timeout_s=0.0)
        client.contains(many(1))
        agent.answer(agent.next(), b"\1", count=1)
        assert [places_of(frame) for frame in client.poll()] == [[Where.LOCAL]]


@pytest.mark.parametrize(
    "nonsense", [b"", b"\xff" * 64, messages.pack(Kind.CONTAINS, 1, b"\7", count=1)], ids=["end", "frame", "place"]
)
def test_an_agent_that_goes_or_talks_nonsense_is_lost(tmp_path: Path, nonsense: bytes) -> None:
    with scripted(tmp_path) as (agent, connect):
        clients = [connect()]

        def give(_path: str, *, answer_timeout_s: float) -> PolledClient:
            if not clients:
                raise AgentUnavailableError("gone")
            return clients.pop()

        link = AgentLink(give, "nowhere", log)
        io = PoolIo(link, log, time.monotonic)
        io.do(LookUp("a", 1, many(1)))
        for number in range(2, 4 + FETCHES_AT_ONCE):
            io.do(Fetch("b", number, many(1), TERMS))
        io.do(Release("b", 3))
        agent.next()
        if nonsense:
            agent.connection.sendall(nonsense)
        else:
            agent.connection.close()
        answers: list[Answer] = []
        while len(answers) < 3 + FETCHES_AT_ONCE:
            answers += io.answers(DEADLINE_S)
        assert LookedUp("a", 1, None) in answers
        assert {each.outcome for each in answers if isinstance(each, FetchEnded)} <= {
            Status.UNAVAILABLE,
            Status.CANCELLED,
        }
        assert link.away
        assert len(io.fetches) == 0
        link.close()


def test_a_fetch_given_up_leaves_no_lease(tmp_path: Path) -> None:
    """Whether it was still queued, under way, or its answer on the way already."""
    with scripted(tmp_path) as (agent, connect):
        client = connect()
        link = AgentLink(lambda _path, answer_timeout_s: client, "nowhere", log)
        io = PoolIo(link, log, time.monotonic)
        for number in range(FETCHES_AT_ONCE + 1):
            io.do(Fetch("a", number, many(1), TERMS))
        fetches = [agent.next() for _ in range(FETCHES_AT_ONCE)]
        chunk = messages.FetchedChunk(0, 100, ChunkSource.HOLDER)
        agent.answer(fetches[0], messages.pack_fetched(71, [chunk]), count=1)
        io.do(Release("a", FETCHES_AT_ONCE))
        io.do(Release("a", 0))
        cancel = agent.next()
        assert (cancel.kind, messages.CANCEL.unpack(cancel.body)) == (Kind.CANCEL, (fetches[0].request,))
        ended = io.answers(DEADLINE_S)
        assert [(each.ticket, each.outcome) for each in ended if isinstance(each, FetchEnded)] == [
            (0, Status.CANCELLED),
            (FETCHES_AT_ONCE, Status.CANCELLED),
        ]
        release = agent.next()
        assert (release.kind, messages.LEASE.unpack(release.body)) == (Kind.RELEASE, (71,))
        assert len(io.fetches) == FETCHES_AT_ONCE - 1
        io.close()
        link.close()
