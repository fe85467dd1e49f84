"""One agent and its engines: the client's whole API over the real socket, and what happens when engines misbehave."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import random
import select
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hostagent import limits
from hostagent.agent import Agent
from hostagent.api.access import Access, Peer
from hostagent.api.server import ApiError, ApiServer, Welcome
from hostagent.api.tenancy import Admission, Tenancy
from hostagent.core.events import EngineId
from hostagent.intake import Intake
from hostagent.tree import hashed
from kvchunk.parts import ByteRange
from kvclient import messages
from kvclient.attach import attach
from kvclient.client import (
    AgentClient,
    AgentError,
    AgentUnavailableError,
    ChunkSource,
    LeaseLostError,
    PoolFullError,
    PutOutcome,
    Status,
    Where,
)
from kvclient.messages import Kind
from kvproto.integrity import Integrity
from tests.unit.hostagent.agent_harness import MIB, Cluster, cluster, key


@pytest.fixture
def one() -> Iterator[Cluster]:
    with cluster(1) as made:
        yield made


def test_put_and_fetch_share_memory(one: Cluster) -> None:
    client = one.client(0)
    body = os.urandom(300_001)
    assert client.put(key(1), None, body) is PutOutcome.STORED
    assert client.put(key(1), None, body) is PutOutcome.EXISTS
    with client.fetch([key(1), key(2)], deadline_s=1) as got:
        assert (got.count, got.outcome, got.sources) == (1, Status.NOT_FOUND, [ChunkSource.LOCAL])
        assert got.views[0] == body
        assert got.views[0].readonly
        assert one.agents[0].core.pool.pins_count == 1
    assert client.contains([key(1), key(2)]) == [Where.LOCAL, Where.NOWHERE]
    assert client.fetch([key(2)], deadline_s=1).count == 0


def test_reserve_writes_in_place_and_gives_up_without_commit(one: Cluster) -> None:
    client = one.client(0)
    slot = client.reserve(key(1), None, 5000)
    assert slot is not None
    with slot:
        assert client.reserve(key(1), None, 5000) is None, "somebody is writing it"
        slot.view[:] = b"a" * 5000
        assert slot.commit() == hashed(memoryview(b"a" * 5000), Integrity.BLAKE3).digest
    with client.reserve(key(2), key(1), 10) as given_up:  # type: ignore[union-attr]
        given_up.view[:] = b"b" * 10
    assert client.contains([key(1), key(2)]) == [Where.LOCAL, Where.NOWHERE]
    one.until(lambda: one.agents[0].core.pool.usage().filling_bytes == 0)


def test_full_pool_is_a_typed_outcome_and_evicts_what_nobody_holds(one: Cluster) -> None:
    client = one.client(0)
    for number in range(8):
        client.put(key(number), None, bytes(MIB))
    leases = [client.fetch([key(number)], deadline_s=1) for number in range(6)]
    assert client.pin([key(7), key(6)]) == [True, False], "a tenant holds seven eighths of the pool at most"
    with client.fetch([key(7), key(6)], deadline_s=1) as got:
        assert (got.count, got.outcome) == (1, Status.POOL_FULL)
    with pytest.raises(PoolFullError):
        client.put(key(8), None, bytes(MIB))
    with pytest.raises(PoolFullError) as refused:
        client.put(key(9), None, bytes(9 * MIB))
    assert refused.value.status is Status.TOO_LARGE
    leases[3].release()
    assert client.put(key(8), None, bytes(MIB)) is PutOutcome.STORED
    assert client.contains([key(7), key(8)]) == [Where.LOCAL, Where.LOCAL]
    assert client.contains([key(3), key(6)]).count(Where.NOWHERE) == 1
    for lease in leases:
        lease.release()
    assert client.unpin([key(7), key(7)]) == [True, False]


def test_leases_and_pins_end_with_the_connection(one: Cluster) -> None:
    keeper, dying = one.client(0), AgentClient(one.agents[0].config.api_socket, local_reads=False)
    keeper.put(key(1), None, bytes(1000))
    assert dying.fetch([key(1)], deadline_s=1).count == 1
    assert dying.pin([key(1), key(5)]) == [True, False]
    slot = dying.reserve(key(2), None, 1000)
    assert slot is not None
    chunk = one.agents[0].core.pool.find(key(1))
    assert chunk is not None
    assert (chunk.pins, chunk.holds) == (1, 1)
    dying.close()
    one.until(lambda: chunk.pins == 0 and chunk.holds == 0)
    one.until(lambda: one.agents[0].core.pool.usage().filling_bytes == 0)


def test_chunk_dropped_while_leased_stays_readable_and_then_goes(one: Cluster) -> None:
    client = one.client(0)
    client.put(key(1), None, b"x" * 1000)
    with client.fetch([key(1)], deadline_s=1) as got:
        assert client.drop([key(1), key(2)]) == [True, False]
        assert client.contains([key(1)]) == [Where.NOWHERE]
        client.put(key(1), None, b"y" * 1000)
        assert got.views[0] == b"x" * 1000
        with client.fetch([key(1)], deadline_s=1) as again:
            assert again.views[0] == b"y" * 1000


def test_many_threads_share_one_client(one: Cluster) -> None:
    client = one.client(0)
    bodies = {number: random.Random(number).randbytes(2000) for number in range(40)}
    for number, body in bodies.items():
        client.put(key(number), None, body)
    wrong: list[int] = []

    def work(seed: int) -> None:
        chooser = random.Random(seed)
        for _ in range(60):
            number = chooser.randrange(40)
            with client.fetch([key(number)], deadline_s=5) as got:
                if got.count != 1 or got.views[0] != bodies[number]:
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert wrong == []


def test_stats_and_hints_are_taken(one: Cluster) -> None:
    client = one.client(0)
    client.put(key(1), None, bytes(100))
    client.session_end([key(1)])
    client.expect_reuse([key(1)], within_s=2.5)
    client.fetch([key(1)], deadline_s=1).release()
    stats = client.stats()
    assert stats["fetch_chunks_total{local}"] == 1
    assert stats["pool_chunks"] == 1


def test_bad_arguments_are_refused_and_the_connection_lives(one: Cluster) -> None:
    client = one.client(0)
    for call, what in (
        (lambda: client.fetch([b"short"], deadline_s=1), "16 bytes"),
        (lambda: client.fetch([key(1), key(1)], deadline_s=1), "keys names a chunk twice"),
        (lambda: client.fetch([key(1)], deadline_s=-1), "deadline_s is -1, not from 0"),
        (lambda: client.fetch([key(1)], deadline_s=math.nan), "deadline_s is nan"),
        (lambda: client.fetch_stream([key(1)], deadline_s=math.inf), "deadline_s is inf"),
        (lambda: client.fetch([key(1)], deadline_s=1, recompute_s=-1.0), "recompute_s is -1.0"),
        (lambda: client.fetch([key(1)], deadline_s=1, attention_share=1.5), "attention_share is 1.5"),
        (lambda: client.fetch([key(1)], deadline_s=1, behind=-1), "behind is -1"),
        (lambda: client.fetch([key(1)], deadline_s=1, ranges=[]), "no ranges"),
        (lambda: client.put(key(1), None, b""), "size_bytes is 0"),
        (lambda: client.put(key(1), None, b"x", position=-1), "position is -1"),
        (lambda: client.put(key(1), None, b"x", namespace="n" * 257), "namespace has 257 bytes"),
        (lambda: client.claim([key(1)], 0, [1.0]), "size_bytes is 0"),
        (lambda: client.lock([key(1)], hold_s=-1), "hold_s is -1"),
        (lambda: client.expect_reuse([key(1)], within_s=-1), "within_s is -1"),
        (lambda: client.warm("n", -1), "size_bytes is -1"),
    ):
        with pytest.raises(ValueError, match=what):
            call()
    with pytest.raises(AgentError) as refused:
        client.contains([key(number) for number in range(5000)])
    assert refused.value.status is Status.TOO_MANY_KEYS
    assert client.contains([key(1)]) == [Where.NOWHERE]


def test_what_no_client_asks_for_is_malformed(one: Cluster) -> None:
    """The client checks its arguments, and the agent does not rely on it."""
    attached = attach(one.agents[0].config.api_socket)
    attached.close_files()
    reserved = messages.RESERVE.pack(key(1), messages.NO_KEY, 0, messages.NO_POSITION)
    each = messages.FETCH_EACH.pack(1000)
    with attached.sock as sock:
        sock.settimeout(5)
        for number, (kind, body, count, status) in enumerate(
            (
                (Kind.FETCH, messages.pack_fetch([], 1.0, {}), 0, Status.OK),
                (Kind.FETCH, messages.pack_fetch([key(1)] * 2, 1.0, {}), 2, Status.MALFORMED),
                (Kind.FETCH_EACH, each, 0, Status.OK),
                (Kind.FETCH_EACH, each + messages.pack_keys([key(1)] * 2), 2, Status.MALFORMED),
                (Kind.RESERVE, reserved, 0, Status.MALFORMED),
            ),
            1,
        ):
            sock.sendall(messages.pack(kind, number, body, count=count))
            (answer,) = messages.FrameReader().feed(sock.recv(4096))
            assert (answer.kind, answer.request, answer.status) == (kind, number, status)


def test_where_there_is_nothing_to_fetch_all_of_it_has_come(one: Cluster) -> None:
    client = one.client(0)
    with client.fetch([], deadline_s=0) as got:
        assert (got.count, got.views, got.outcome) == (0, [], Status.OK)
    with client.fetch([], any_order=True, deadline_s=0) as found:
        assert (found.count, found.present, found.outcome) == (0, [], Status.OK)
    with client.fetch([], ranges=[ByteRange(0, 1)], deadline_s=0) as parts:
        assert (parts.count, parts.views, parts.outcome) == (0, [], Status.OK)
    with client.fetch_stream([], deadline_s=0) as stream:
        assert list(stream) == []
        assert stream.outcome is Status.OK


@pytest.mark.parametrize("seed", range(30))
def test_random_bytes_on_the_socket_end_only_that_connection(one: Cluster, seed: int) -> None:
    chooser = random.Random(seed)
    good = one.client(0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
        raw.connect(one.agents[0].config.api_socket)
        raw.settimeout(5)
        if chooser.random() < 0.5:
            sent = chooser.randbytes(chooser.randrange(1, 3000))
        else:
            # Well-framed nonsense gets further than noise.
            kind = chooser.choice(list(Kind))
            sent = messages.pack(kind, 1, chooser.randbytes(chooser.randrange(0, 80)), count=chooser.randrange(0, 6))
        raw.sendall(sent)
        raw.shutdown(socket.SHUT_WR)
        while raw.recv(65536):
            pass
    assert good.contains([key(1)]) == [Where.NOWHERE]


def test_who_only_looks_whether_an_agent_listens_is_no_warning(one: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    path = one.agents[0].config.api_socket

    async def look() -> None:
        """On the agent's own loop, so that it greets nobody any more."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.connect(path)

    one.do(look())
    with AgentClient(path) as client:
        assert client.put(key(1), None, b"x") is PutOutcome.STORED
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_an_engine_that_reads_no_answers_is_not_served_on(one: Cluster) -> None:
    good, request = one.client(0), messages.pack(Kind.STATS, 7)
    answered_meanwhile, sent_bytes, most_bytes = 0, 0, 16 * MIB
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        raw.connect(one.agents[0].config.api_socket)
        raw.setblocking(False)
        burst = request * 4096
        while answered_meanwhile < 100 and sent_bytes < most_bytes:
            try:
                sent_bytes += raw.send(burst[sent_bytes % len(request) :])
                answered_meanwhile = 0
            except BlockingIOError:
                assert good.contains([key(1)]) == [Where.NOWHERE]
                answered_meanwhile += 1
        assert sent_bytes < most_bytes, "the agent takes in requests whose answers nobody reads"
        raw.settimeout(30)
        frames, answers = messages.FrameReader(), 0
        while answers < sent_bytes // len(request) + 1:  # and the greeting
            answers += len(frames.feed(raw.recv(1 << 20)))
    assert good.contains([key(1)]) == [Where.NOWHERE]


def test_one_process_does_not_take_all_connections(one: Cluster) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(limits.API_CONNECTIONS_PER_PROCESS_MAX):
            raw = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            raw.connect(one.agents[0].config.api_socket)
            raw.recv(1)
        with pytest.raises(AgentUnavailableError, match="refused the connection: it has as many connections"):
            one.client(0)
        assert one.agents[0].metrics.flat()["api_refusals_total{busy}"] == 1
    one.until(lambda: one.agents[0].api.connections_count == 0)
    assert one.client(0).contains([key(1)]) == [Where.NOWHERE]


def test_all_processes_together_have_a_limit() -> None:
    refused: list[Status] = []
    admission = Admission(Access(), Tenancy(), refused.append)
    peers = [Peer(number // limits.API_CONNECTIONS_PER_PROCESS_MAX, 0) for number in range(limits.API_CONNECTIONS_MAX)]
    half = limits.API_CONNECTIONS_PER_TENANT_MAX
    assert {admission.admit(peer, "one") for peer in peers[:half]} == {Status.OK}
    assert admission.admit(Peer(998, 0), "one") is Status.BUSY, "the other half is for others"
    assert {admission.admit(peer, "other") for peer in peers[half:]} == {Status.OK}
    assert admission.admit(Peer(999, 0), "third") is Status.BUSY
    admission.connection_ended(peers[0], "one")
    assert admission.admit(Peer(999, 0), "third") is Status.OK
    assert refused == [Status.BUSY] * 2


@pytest.mark.root
def test_only_users_that_are_named_may_connect() -> None:
    with cluster(1, api_access=Access(mode=0o666, users=frozenset({12345}))) as one:
        os.chmod(one.folder, 0o755)
        path = one.agents[0].config.api_socket
        greeted = {user: _connect_as(user, path) for user in (0, 12345, 12346)}
    assert greeted == {0: Status.OK, 12345: Status.OK, 12346: Status.FORBIDDEN}


@pytest.mark.root
def test_only_the_group_that_is_named_may_connect() -> None:
    with cluster(1, api_access=Access(mode=0o666, group=4321)) as one:
        os.chmod(one.folder, 0o755)
        path = one.agents[0].config.api_socket
        assert _connect_as(12345, path) == Status.FORBIDDEN
        assert _connect_as(12345, path, group=4321) == Status.OK
        assert _connect_as(12345, path, extra_groups=[1, 4321]) == Status.OK
        assert _connect_as(12345, path, extra_groups=list(range(10_000, 10_300))) == Status.FORBIDDEN


def _connect_as(user: int, path: str, **groups: Any) -> int:
    """Status of the greeting that a process of this user gets."""
    program = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); print(s.recv(99).hex())"
    command = [shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") or "python3", "-c", program, path]
    groups = {"group": user, "extra_groups": [], **groups}
    done = subprocess.run(command, user=user, capture_output=True, cwd="/", check=True, **groups)
    (frame,) = messages.FrameReader().feed(bytes.fromhex(done.stdout.decode()))
    return frame.status


def test_client_says_clearly_that_there_is_no_agent(one: Cluster, tmp_path: object) -> None:
    with pytest.raises(AgentUnavailableError, match="is kvcast-agent running"):
        AgentClient(str(one.folder / "nobody.sock"))


def test_client_of_a_stopped_agent_gets_a_typed_error(one: Cluster) -> None:
    client = one.client(0)
    client.put(key(1), None, bytes(100))
    lease = client.fetch([key(1)], deadline_s=1)
    one.do(one.agents[0].stop())
    one.agents.clear()
    with pytest.raises(AgentUnavailableError):
        client.contains([key(1)])
    with pytest.raises(LeaseLostError, match="drop what was copied"):
        lease.release()


def test_an_engine_hears_of_the_end_of_its_leases_before_they_end(
    one: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    attached = attach(one.agents[0].config.api_socket)
    attached.close_files()
    looks: list[bool] = []
    end = Intake.end
    with attached.sock as engine_end:
        ended = select.poll()
        ended.register(engine_end, 0)

        def looked(self: Intake, engine: EngineId) -> None:
            looks.append(bool(ended.poll(0)))
            end(self, engine)

        monkeypatch.setattr(Intake, "end", looked)
        assert not ended.poll(0)
        engine_end.sendall(messages.pack(Kind.WELCOME, 0))  # the agent ends whoever says what it does not know
        one.until(lambda: len(looks) == 1)
    assert looks == [True], "who looks at the socket knows that the leases are to end"


class _NoRegions:
    """For a server that nobody connects to."""

    def open(self, engine: EngineId) -> int:
        raise AssertionError(f"engine {engine} connected")

    def end(self, engine: EngineId) -> None:
        raise AssertionError(f"engine {engine} was there")


def test_second_agent_at_the_same_socket_is_refused_and_a_stale_one_is_replaced(one: Cluster) -> None:
    path = one.agents[0].config.api_socket
    agent, admission = one.agents[0], Admission(Access(), Tenancy(), lambda _: None)
    with pytest.raises(ApiError, match="another agent is listening"):
        one.call(lambda: ApiServer(agent.handle, agent.stats, Welcome(0, 0, 0), _NoRegions(), admission).listen(path))
    stale = str(one.folder / "stale.sock")
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(stale)
    config = one.config(1)
    agent = Agent(config.__class__(**{**{f: getattr(config, f) for f in config.__slots__}, "api_socket": stale}))
    one.do(agent.start())
    one.agents.append(agent)
    with AgentClient(stale) as client:
        assert client.contains([key(1)]) == [Where.NOWHERE]
    (one.folder / "file").write_text("precious")
    with pytest.raises(ApiError, match="not a socket"):
        one.call(
            lambda: ApiServer(agent.handle, agent.stats, Welcome(0, 0, 0), _NoRegions(), admission).listen(
                str(one.folder / "file")
            )
        )
    assert (one.folder / "file").read_text() == "precious"
