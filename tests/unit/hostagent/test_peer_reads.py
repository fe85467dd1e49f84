"""One-sided reads from one peer, without a NIC: a queue pair that copies memory when the test tells it to.

The control connection, the protocol and the answering server are the real ones. Pieces are posted from Python, and by
the thread in C: every test plays with both.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from ctypes import CFUNCTYPE, POINTER, c_int, c_uint, c_void_p
from types import SimpleNamespace
from typing import Any

import pytest

from hostagent import limits
from hostagent.memory.pool_memory import PoolMemory
from hostagent.native.library import datapath
from hostagent.transport.base import Extent, ReadHandle, ReadOutcome, ReadRequest, TransportCounters
from hostagent.transport.native_pulls import NativePulls
from hostagent.transport.read_client import ReadClient
from hostagent.transport.read_protocol import (
    REQUEST_BYTES,
    STATUS_OK,
    QueuePairEnd,
    RemoteExtent,
    pack_answer,
)
from hostagent.transport.read_server import ReadServer
from hostagent.transport.verbs import abi
from hostagent.transport.verbs.detours import Detours
from hostagent.transport.verbs.device import VerbsError
from hostagent.transport.verbs.native_casts import completion_queue_parts
from hostagent.transport.verbs.native_pieces import Asker, NativePieces, ReadOwner
from hostagent.transport.verbs.reads import PeerReads
from kvchunk.ids import ChunkKey
from kvproto.session.read_window import READ_PIECE_BYTES_MAX, READ_WINDOW_MIN_BYTES, ReadWindow
from kvproto.session.timing import WINDOW_DELAY

KEY, SECOND, OTHER = ChunkKey(b"k" * 16), ChunkKey(b"s" * 16), ChunkKey(b"o" * 16)
PEER_END = QueuePairEnd(99, 5, 2048, 8, bytes(16))
POOL_BYTES = 16 << 20
CHUNK_BYTES = 6 << 20
PIECE = READ_PIECE_BYTES_MAX
DEADLINE_S = 10.0


class CopyingQueuePair:
    """Takes RDMA READs; carries them out, in order, when asked to."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.address = 0x1000 + number
        """Of nothing: a name for the thread in C."""
        self.posted: deque[tuple[int, int, int, int]] = deque()
        self.posts = 0
        self.destroyed = False
        self.refuses = False

    def post_send(self, first: int) -> None:
        assert not self.destroyed
        if self.refuses:
            raise VerbsError("refused")
        self.posts += 1
        address = first
        while address:
            words = (ctypes.c_uint64 * 16).from_address(address)
            work_id, address, element, remote = words[0], words[1], words[2], words[5]
            assert words[3] >> 32 == abi.WR_RDMA_READ
            local = ctypes.c_uint64.from_address(element).value
            size = ctypes.c_uint32.from_address(element + 8).value
            self.posted.append((work_id, local, remote, size))


class CopyingConnection:
    """Stands for `ReadQueuePair`."""

    def __init__(self, number: int) -> None:
        self.queue_pair = CopyingQueuePair(number)
        self.end = QueuePairEnd(number, 1, 4096, 16, bytes(16))
        self.peer: QueuePairEnd | None = None

    def ask(self, peer: QueuePairEnd) -> None:
        self.peer = peer

    def destroy(self) -> None:
        self.queue_pair.destroyed = True
        self.queue_pair.posted.clear()


_GET_EVENT = CFUNCTYPE(c_int, c_void_p, POINTER(c_void_p), POINTER(c_void_p), use_errno=True)
_ACKNOWLEDGE = CFUNCTYPE(None, c_void_p, c_uint)


class CopyingNic:
    """The calls of libibverbs that the thread in C makes, and what has completed. Events come when a test rings."""

    def __init__(self, reader: Reader) -> None:
        self.completed: deque[tuple[int, int, int]] = deque()
        """Work id, status, queue pair."""
        self.broken = False
        self._reader = reader
        self.poll_cq, self.request_notify = abi.PollCq(self._poll), abi.RequestNotify(lambda _queue, _solicited: 0)
        self.post_send = abi.Post(self._post)
        self.ibv_get_cq_event = _GET_EVENT(lambda _channel, _queue, _context: int(os.eventfd_read(self.fd) == 0))
        self.ibv_ack_cq_events = _ACKNOWLEDGE(lambda _queue, _count: None)
        self.library = self
        self.fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.queue, self.channel = SimpleNamespace(pointer=1), SimpleNamespace(pointer=c_void_p(2), fd=self.fd)

    def _poll(self, _queue: int, room: int, records: int) -> int:
        if self.broken:
            return -1
        count = min(room, len(self.completed))
        for place in range(count):
            work_id, status, pair = self.completed.popleft()
            words = (ctypes.c_uint32 * 12).from_address(records + place * abi.WC.itemsize)
            words[0], words[1], words[2], words[7] = work_id & 0xFFFF_FFFF, work_id >> 32, status, pair
        return count

    def _post(self, pair: int, first: int, _bad: Any) -> int:
        queue_pair = self._reader.connections[pair - 0x1001].queue_pair
        try:
            queue_pair.post_send(first)
        except VerbsError:
            return 12
        return 0


class SteadyWindow(ReadWindow):
    """Keeps its size, however long this machine takes for what."""

    def completed(self, size_bytes: int, _posted_ns: int, now_ns: int) -> None:
        super().completed(size_bytes, now_ns - WINDOW_DELAY.ceiling_ns, now_ns)


class Target:
    """The pool, registered."""

    local_keys = (ctypes.c_uint32 * 1)(7)

    def __init__(self, memory: PoolMemory) -> None:
        self.address = memory.bytes_.ctypes.data
        self.step_bytes = memory.size_bytes


class Holder:
    """A peer with chunks, and its server."""

    def __init__(self, *, rdma: bool) -> None:
        self.memory = PoolMemory(POOL_BYTES, prefault=False)
        self.memory.view(0, CHUNK_BYTES)[:] = os.urandom(CHUNK_BYTES)
        self.pins = 0
        self.ends: list[QueuePairEnd] = []
        self.counters = TransportCounters()
        self.server = ReadServer(self.memory, self, self.counters, (lambda: self) if rdma else (lambda: None))  # type: ignore[arg-type]
        host, port = self.server.listen("127.0.0.1", 0)
        self.endpoint = f"{host}:{port}"

    def casts_queued_bytes(self) -> int:
        return 0

    def relays(self) -> None: ...

    def peers_read(self, keys: Sequence[ChunkKey]) -> None:
        """Nobody learns from it here."""

    def open_extent(self, key: ChunkKey) -> Extent | None:
        if key not in (KEY, SECOND):
            return None
        self.pins += 1
        return Extent(0, CHUNK_BYTES, None)

    def prepare(self, _key: ChunkKey, _then: Callable[[], None]) -> bool:
        return False

    def close_extent(self, _extent: Extent) -> None:
        self.pins -= 1

    def connect(self, peer: QueuePairEnd) -> QueuePairEnd:
        self.ends.append(peer)
        return PEER_END

    def where(self, _number: int, extent: Extent) -> RemoteExtent:
        return RemoteExtent(self.memory.bytes_.ctypes.data + extent.offset, extent.size_bytes, 3)

    def forget(self, _number: int) -> None: ...

    def close(self) -> None: ...


class Reader:
    """What peers of a transport share, without the transport."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.memory = PoolMemory(POOL_BYTES, prefault=False)
        self.address = "127.0.0.1"
        self.target = Target(self.memory)
        self.tokens = None
        self.counters = TransportCounters()
        self.window_bytes = limits.VERBS_READ_WINDOW_BYTES
        self.idle_s = 60.0
        self.stall_timeout_s = 30.0
        self.silence_s = 8.0
        self.looks = 0
        self.nic: list[str] = []
        """What peers said of the NIC, in order."""
        self.connections: list[CopyingConnection] = []
        self.closed: list[PeerReads] = []
        self.refused: list[PeerReads] = []
        self.tcp = ReadClient(self.memory, self.counters, NativePulls(datapath(), self.loop), stall_timeout_s=5)
        self.broken = False
        self.cq_broken: list[str] = []
        self.nic_calls = CopyingNic(self)
        calls: Any = self.nic_calls
        self.asker = Asker(
            datapath(),
            calls,
            completion_queue_parts(calls, calls.queue, calls.channel),
            self.target,  # type: ignore[arg-type]
            self.loop,
            lambda why: self.cq_broken.append(str(why)),
            began=lambda: None,
        )

    def make_queue_pair(self) -> CopyingConnection:
        if self.broken:
            raise VerbsError("no queue pair left")
        self.connections.append(CopyingConnection(len(self.connections) + 1))
        return self.connections[-1]

    def make_pieces(self, owner: ReadOwner) -> NativePieces:
        return NativePieces(owner, self.asker, SteadyWindow(self.window_bytes, self.window_bytes))

    def read_instead(self, request: ReadRequest) -> ReadHandle:
        return self.tcp.read(request)

    def peer_refused(self, peer: PeerReads) -> None:
        self.refused.append(peer)

    def look_for_completions(self) -> None:
        self.looks += 1

    def nic_worked(self, _peer: PeerReads) -> None:
        self.nic.append("worked")

    def nic_failed(self, _peer: PeerReads) -> None:
        self.nic.append("failed")

    def nic_silent(self, _peer: PeerReads) -> None:
        self.nic.append("silent")

    def peer_closed(self, peer: PeerReads) -> None:
        self.closed.append(peer)

    @property
    def queue_pair(self) -> CopyingQueuePair:
        return self.connections[-1].queue_pair

    def complete(self, count: int, status: int = abi.WC_SUCCESS) -> None:
        """The NIC carries out so many READs, and tells of them at once."""
        works = [self.carry_out(status) for _ in range(count)]
        self.nic_calls.completed.extend((*work, self.queue_pair.number) for work in works)
        self.asker.look()

    def carry_out(self, status: int = abi.WC_SUCCESS) -> tuple[int, int]:
        """The NIC carries out one READ. Returns its work id and status."""
        work_id, local, remote, size = self.queue_pair.posted.popleft()
        if status == abi.WC_SUCCESS:
            ctypes.memmove(local, remote, size)
        return work_id, status

    def close(self) -> None:
        """After all peers."""
        self.tcp.close()
        self.asker.close()
        os.close(self.nic_calls.fd)
        self.memory.close()


async def eventually(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0)


def play(
    scenario: Callable[[Reader, Holder, PeerReads], Awaitable[None]], *, rdma: bool = True, idle_s: float = 60.0
) -> None:
    async def main() -> None:
        reader, holder = Reader(), Holder(rdma=rdma)
        reader.idle_s = idle_s
        peer = PeerReads(holder.endpoint, reader)  # type: ignore[arg-type]
        try:
            await scenario(reader, holder, peer)
        finally:
            peer.close()
            holder.server.close()
            await eventually(lambda: holder.pins == 0)
            reader.close()
            holder.memory.close()

    asyncio.run(main())


def same(reader: Reader, holder: Holder, offset: int, size: int, at: int) -> bool:
    return bytes(reader.memory.view(at, size)) == bytes(holder.memory.view(offset, size))


def test_a_read_is_cut_into_pieces_posted_in_one_call_and_tells_its_progress() -> None:
    async def scenario(reader: Reader, holder: Holder, peer: PeerReads) -> None:
        outcomes: list[ReadOutcome] = []
        told: list[int] = []
        peer.add(ReadRequest(peer.endpoint, KEY, 5, 3 * PIECE + 10, 100, outcomes.append, told.append))
        assert outcomes == []
        await eventually(lambda: reader.connections and len(reader.queue_pair.posted) == 4)
        assert reader.queue_pair.posts == 1
        assert reader.connections[0].peer == PEER_END
        assert holder.ends == [reader.connections[0].end]
        reader.complete(1)
        reader.complete(2)
        assert told == [PIECE, 3 * PIECE], "once for what came together"
        reader.complete(1)
        assert outcomes == [ReadOutcome.DONE]
        assert same(reader, holder, 5, 3 * PIECE + 10, 100)
        assert reader.counters.read_bytes_rdma == reader.counters.read_bytes_received == 3 * PIECE + 10
        await eventually(lambda: holder.pins == 0)
        assert holder.counters.read_bytes_sent == 3 * PIECE + 10

    play(scenario)


def test_no_more_pieces_than_may_be_in_flight_and_the_rest_follows() -> None:
    async def scenario(reader: Reader, holder: Holder, peer: PeerReads) -> None:
        outcomes: list[ReadOutcome] = []
        peer.add(ReadRequest(peer.endpoint, KEY, 0, CHUNK_BYTES, 0, outcomes.append))
        peer.add(ReadRequest(peer.endpoint, KEY, 0, 10, CHUNK_BYTES, outcomes.append))
        await eventually(lambda: reader.connections and reader.queue_pair.posted)
        assert len(reader.queue_pair.posted) == limits.VERBS_READ_PIECES_MAX
        while reader.queue_pair.posted:
            assert len(reader.queue_pair.posted) <= limits.VERBS_READ_PIECES_MAX
            reader.complete(1)
        assert outcomes == [ReadOutcome.DONE] * 2
        assert same(reader, holder, 0, CHUNK_BYTES, 0)
        assert holder.pins == 1, "one chunk, opened once for both"

    play(scenario)


def test_a_small_window_is_kept() -> None:
    async def scenario(reader: Reader, holder: Holder, _peer: PeerReads) -> None:
        reader.window_bytes = READ_WINDOW_MIN_BYTES
        peer = PeerReads(holder.endpoint, reader)  # type: ignore[arg-type]
        outcomes: list[ReadOutcome] = []
        peer.add(ReadRequest(peer.endpoint, KEY, 0, 435_000, 0, outcomes.append))
        await eventually(lambda: reader.connections and reader.queue_pair.posted)
        while not outcomes:
            assert sum(size for _, _, _, size in reader.queue_pair.posted) <= READ_WINDOW_MIN_BYTES
            reader.complete(1)
        assert same(reader, holder, 0, 435_000, 0)
        peer.close()

    play(scenario)


def test_the_thread_posts_what_comes_next_while_the_event_loop_does_something_else() -> None:
    async def scenario(reader: Reader, holder: Holder, _peer: PeerReads) -> None:
        reader.window_bytes, size_bytes, pieces = READ_WINDOW_MIN_BYTES, 435_000, 7
        peer = PeerReads(holder.endpoint, reader)  # type: ignore[arg-type]
        outcomes: list[ReadOutcome] = []
        peer.add(ReadRequest(peer.endpoint, KEY, 0, size_bytes, 0, outcomes.append))
        await eventually(lambda: reader.connections and reader.queue_pair.posted)
        deadline_s = time.monotonic() + DEADLINE_S
        for _ in range(pieces):
            while not reader.queue_pair.posted:
                assert time.monotonic() < deadline_s
                time.sleep(0)
            reader.nic_calls.completed.append((*reader.carry_out(), reader.queue_pair.number))
            os.eventfd_write(reader.nic_calls.fd, 1)
        assert outcomes == []
        await eventually(lambda: outcomes)
        assert outcomes == [ReadOutcome.DONE]
        assert same(reader, holder, 0, size_bytes, 0)
        peer.close()

    play(scenario)


def test_absent_chunks_and_ranges_beyond_the_end() -> None:
    async def scenario(reader: Reader, _holder: Holder, peer: PeerReads) -> None:
        outcomes: list[ReadOutcome] = []
        peer.add(ReadRequest(peer.endpoint, OTHER, 0, 10, 0, outcomes.append))
        peer.add(ReadRequest(peer.endpoint, KEY, CHUNK_BYTES - 1, 2, 0, outcomes.append))
        await eventually(lambda: len(outcomes) == 2)
        assert outcomes == [ReadOutcome.ABSENT] * 2
        assert not reader.queue_pair.posted

    play(scenario)


def test_a_given_up_read_costs_the_queue_pair_and_the_others_go_on() -> None:
    async def scenario(reader: Reader, holder: Holder, peer: PeerReads) -> None:
        outcomes: list[ReadOutcome] = []
        given_up = peer.add(ReadRequest(peer.endpoint, KEY, 0, 2 * PIECE, 0, outcomes.append))
        peer.add(ReadRequest(peer.endpoint, KEY, 0, 2 * PIECE, 4 * PIECE, outcomes.append))
        await eventually(lambda: reader.connections and len(reader.queue_pair.posted) == 4)
        reader.complete(1)
        first = reader.queue_pair
        given_up.cancel()
        given_up.cancel()
        assert first.destroyed
        await eventually(lambda: len(reader.connections) == 2 and len(reader.queue_pair.posted) == 2)
        assert holder.ends[-1] == reader.connections[-1].end, "the peer made a fresh end, too"
        reader.complete(2)
        assert outcomes == [ReadOutcome.DONE]
        assert same(reader, holder, 0, 2 * PIECE, 4 * PIECE)

    play(scenario)


def test_a_read_given_up_before_the_nic_had_it_costs_nothing() -> None:
    async def scenario(reader: Reader, _holder: Holder, peer: PeerReads) -> None:
        outcomes: list[ReadOutcome] = []
        peer.add(ReadRequest(peer.endpoint, KEY, 0, 10, 0, outcomes.append)).cancel()
        keep = peer.add(ReadRequest(peer.endpoint, KEY, 0, 10, 0, outcomes.append))
        await eventually(lambda: reader.connections and reader.queue_pair.posted)
        assert len(reader.queue_pair.posted) == 1
        reader.complete(1)
        assert outcomes == [ReadOutcome.DONE]
        keep.cancel()
        assert len(reader.connections) == 1

    play(scenario)


def test_a_read_given_up_after_the_connection_broke_makes_no_other_one() -> None:
    async def scenario(reader: Reader, _holder: Holder, peer: PeerReads) -> None:
        outcomes: list[ReadOutcome] = []
        peer.add(ReadRequest(peer.endpoint, KEY, 0, 10, 0, outcomes.append))
        given_up = peer.add(ReadRequest(peer.endpoint, KEY, 0, 10, 0, outcomes.append))
        await eventually(lambda: reader.connections and len(reader.queue_pair.posted) == 2)
        reader.complete(1, status=12)
        given_up.cancel()
        await eventually(lambda: outcomes)
        assert outcomes == [ReadOutcome.FAILED]
        assert len(reader.connections) == 1

    play(scenario)


def test_a_refusal_while_a_chunk_is_still_open_from_the_last_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The NIC has no queue pair left when one that was given up is to be replaced."""
    monkeypatch.setattr(limits, "VERBS_EXTENT_LINGER_S", 0.0)

    async def scenario(reader: Reader, holder: Holder, peer: PeerReads) -> None:
        outcomes: list[ReadOutcome] = []
        errors: list[object] = []
        reader.loop.set_exception_handler(lambda _loop, context: errors.append(context))
        peer.add(ReadRequest(peer.endpoint, KEY, 0, 10, 0, outcomes.append))
        given_up = peer.add(ReadRequest(peer.endpoint, SECOND, 0, 10, 0, outcomes.append))
        await eventually(lambda: reader.connections and len(reader.queue_pair.posted) == 2)
        reader.broken = True
        reader.complete(1)
        given_up.cancel()
        assert reader.refused == [peer]
        await eventually(lambda: holder.pins == 0)
        assert outcomes == [ReadOutcome.DONE]
        assert errors == []

    play(scenario)


def test_an_error_of_the_nic_fails_all_reads_and_the_connection() -> None:
    async def scenario(reader: Reader, holder: Holder, peer: PeerReads) -> None:
        outcomes: list[ReadOutcome] = []
        for _ in range(3):
            peer.add(ReadRequest(peer.endpoint, KEY, 0, 10, 0, outcomes.append))
        await eventually(lambda: reader.connections and len(reader.queue_pair.posted) == 3)
        reader.complete(1, status=12)
        assert outcomes == [], "never inside"
        await eventually(lambda: len(outcomes) == 3)
        assert outcomes == [ReadOutcome.FAILED] * 3
        assert reader.counters.dropped == {"read_retry_exceeded": 1}
        assert reader.counters.reads_failed == 3
        assert reader.closed == [peer]
        await eventually(lambda: holder.pins == 0)

    play(scenario)


def test_a_queue_pair_that_takes_nothing_fails_its_reads() -> None:
    async def scenario(reader: Reader, _holder: Holder, peer: PeerReads) -> None:
        outcomes: list[ReadOutcome] = []
        peer.add(ReadRequest(peer.endpoint, KEY, 0, 10, 0, outcomes.append))
        await eventually(lambda: reader.connections)
        reader.queue_pair.refuses = True
        await eventually(lambda: outcomes)
        assert outcomes == [ReadOutcome.FAILED]
        assert reader.counters.dropped == {"read_post": 1}

    play(scenario)


@pytest.mark.parametrize("who", ["the peer", "our NIC"])
def test_without_rdma_at_either_end_reads_go_over_tcp(who: str) -> None:
    async def scenario(reader: Reader, holder: Holder, peer: PeerReads) -> None:
        reader.broken = who == "our NIC"
        large: list[ReadOutcome] = []
        cancelled: list[ReadOutcome] = []
        small: list[ReadOutcome] = []
        peer.add(ReadRequest(peer.endpoint, KEY, 7, CHUNK_BYTES - 7, 0, large.append))
        given_up = peer.add(ReadRequest(peer.endpoint, KEY, 0, CHUNK_BYTES, CHUNK_BYTES, cancelled.append))
        await eventually(lambda: reader.refused)
        given_up.cancel()
        peer.add(ReadRequest(peer.endpoint, OTHER, 0, 10, 0, small.append))
        await eventually(lambda: large and small)  # on connections of their own: whichever ends first
        assert (large, small, cancelled) == ([ReadOutcome.DONE], [ReadOutcome.ABSENT], [])
        assert same(reader, holder, 7, CHUNK_BYTES - 7, 0)
        assert reader.counters.read_bytes_rdma == 0

    play(scenario, rdma=who == "our NIC")


def test_a_read_over_tcp_that_is_given_up_does_not_keep_its_peer() -> None:
    async def scenario(reader: Reader, _holder: Holder, peer: PeerReads) -> None:
        given_up = peer.add(ReadRequest(peer.endpoint, KEY, 0, 10, 0, lambda _: None))
        await eventually(lambda: reader.refused)
        given_up.cancel()
        await eventually(lambda: reader.closed == [peer])  # so that the next read may find RDMA

    play(scenario, rdma=False, idle_s=0.05)


@pytest.mark.parametrize("bodies", [(b"",), (bytes(32),), (PEER_END.pack(), bytes(8))], ids=["short", "zeros", "place"])
def test_answers_that_make_no_sense_fail_the_reads(bodies: tuple[bytes, ...]) -> None:
    async def answer(requests: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        for number, body in enumerate(bodies, 1):
            await requests.readexactly(REQUEST_BYTES)
            answers.write(pack_answer(STATUS_OK, number, len(body)) + body)
        await requests.read()
        answers.close()

    async def main() -> None:
        reader = Reader()
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        peer = PeerReads("{}:{}".format(*server.sockets[0].getsockname()), reader)  # type: ignore[arg-type]
        outcomes: list[ReadOutcome] = []
        peer.add(ReadRequest(peer.endpoint, KEY, 0, 10, 0, outcomes.append))
        await eventually(lambda: outcomes)
        assert outcomes == [ReadOutcome.FAILED]
        assert reader.counters.dropped == {"read_answer_malformed": 1}
        reader.close()
        server.close()

    asyncio.run(main())


def test_a_peer_that_goes_away_fails_its_reads() -> None:
    async def scenario(reader: Reader, holder: Holder, peer: PeerReads) -> None:
        outcomes: list[ReadOutcome] = []
        peer.add(ReadRequest(peer.endpoint, KEY, 0, 10, 0, outcomes.append))
        await eventually(lambda: reader.connections and reader.queue_pair.posted)
        holder.server.close()
        await eventually(lambda: outcomes)
        assert outcomes == [ReadOutcome.FAILED]
        assert reader.queue_pair.destroyed
        assert reader.closed == [peer]

    play(scenario)


@pytest.mark.parametrize("stalled", [True, False])
def test_a_stalled_connection_and_an_idle_one_are_given_up(stalled: bool) -> None:
    async def main() -> None:
        reader, holder = Reader(), Holder(rdma=True)
        reader.stall_timeout_s = reader.idle_s = 0.05
        peer = PeerReads(holder.endpoint, reader)  # type: ignore[arg-type]
        outcomes: list[ReadOutcome] = []
        if stalled:
            peer.add(ReadRequest(peer.endpoint, KEY, 0, 10, 0, outcomes.append))
        await eventually(lambda: reader.closed)
        await eventually(lambda: outcomes == ([ReadOutcome.FAILED] if stalled else []))
        assert reader.counters.dropped == ({"read_stalled": 1} if stalled else {})
        reader.close()
        holder.server.close()

    asyncio.run(main())


def test_what_the_nic_neither_brings_nor_gives_up_comes_over_tcp() -> None:
    """Two pieces are there when the NIC falls silent: the rest comes over TCP, into memory that the NIC has lost."""

    async def main() -> None:
        reader, holder = Reader(), Holder(rdma=True)
        reader.silence_s = 0.05
        peer = PeerReads(holder.endpoint, reader)  # type: ignore[arg-type]
        outcomes: list[ReadOutcome] = []
        progress: list[int] = []
        peer.add(ReadRequest(peer.endpoint, KEY, 100, 4 * PIECE, 4096, outcomes.append, progress.append))
        await eventually(lambda: reader.connections and len(reader.queue_pair.posted) == 4)
        nic = reader.queue_pair
        reader.complete(2)
        await eventually(lambda: outcomes == [ReadOutcome.DONE])
        assert nic.destroyed
        assert reader.looks, "a lost event is no silence"
        assert reader.counters.dropped == {"read_nic_silent": 1}
        assert reader.nic == ["silent"]
        assert reader.memory.view(4096, 4 * PIECE) == holder.memory.view(100, 4 * PIECE)
        assert reader.counters.read_bytes_rdma == 2 * PIECE
        assert reader.counters.read_bytes_received == 4 * PIECE, "and no byte twice"
        assert progress == sorted(progress)
        peer.close()
        reader.close()
        holder.server.close()

    asyncio.run(main())


def test_silence_that_was_a_lost_event_changes_nothing() -> None:
    async def main() -> None:
        reader, holder = Reader(), Holder(rdma=True)
        reader.silence_s = 0.05
        reader.look_for_completions = lambda: reader.complete(1)  # type: ignore[method-assign]
        peer = PeerReads(holder.endpoint, reader)  # type: ignore[arg-type]
        outcomes: list[ReadOutcome] = []
        peer.add(ReadRequest(peer.endpoint, KEY, 0, 1000, 0, outcomes.append))
        await eventually(lambda: outcomes == [ReadOutcome.DONE])
        assert reader.counters.dropped == {}
        assert reader.nic == ["worked"]
        peer.close()
        reader.close()
        holder.server.close()

    asyncio.run(main())


def test_a_peer_from_which_rdma_brings_nothing_is_read_over_tcp_for_a_while() -> None:
    detours = Detours()
    assert not detours.failed("a", 0.0)
    assert not detours.needed("a", 0.0), "once is an accident"
    detours.worked("a")
    assert not detours.failed("a", 1.0)
    assert not detours.failed("b", 1.0)
    assert detours.failed("a", 2.0)
    assert detours.needed("a", 2.0)
    assert not detours.needed("b", 2.0)
    assert detours.needed("a", 1.9 + limits.VERBS_READ_DETOUR_S)
    assert not detours.needed("a", 2.0 + limits.VERBS_READ_DETOUR_S), "RDMA gets another try"
    assert not detours.failed("a", 60.0)
    for number in range(2 * limits.VERBS_PEERS_REMEMBERED_MAX):
        detours.begin(str(number), 0.0)
    assert not detours.needed("0", 0.0), "a bounded memory"
