"""All one-sided reads from one peer: its control connection, its queue pair, the chunks it has opened for us.

The states of a peer: CONNECTING (TCP, then the exchange of queue pairs), READY, REFUSED (it has no RDMA: its reads go
over TCP), CLOSED. Whatever goes wrong on the way ends in CLOSED, where every read fails; the next one finds a fresh
peer, with a fresh queue pair. A NIC that neither brings a piece nor gives it up ends in REFUSED: the reads go on over
TCP. A read that is given up while the NIC works on it costs the queue pair: only when that
is destroyed is its memory sure to be left alone. The other reads go on with a new one.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from hostagent import limits
from hostagent.transport.base import ReadHandle, ReadOutcome, ReadRequest, TransportCounters
from hostagent.transport.read_protocol import (
    KIND_CLOSE,
    KIND_CONNECT,
    KIND_OPEN,
    RANGE,
    STATUS_ABSENT,
    STATUS_OK,
    QueuePairEnd,
    RemoteExtent,
)
from hostagent.transport.read_tokens import Refusal, TokenBook, refused_words
from hostagent.transport.verbs import abi
from hostagent.transport.verbs.connections import ReadQueuePair
from hostagent.transport.verbs.control_connection import ControlConnection
from hostagent.transport.verbs.device import MemoryRegion, VerbsError
from kvpolicy.tiers.holder_load import HolderLoad
from kvproto.ids import ChunkKey
from kvproto.session.read_window import ReadWindow

_NO_KEY = bytes(16)
_WORDS = abi.SEND_WR.itemsize // 8
_WORK_ID, _NEXT, _REMOTE_ADDRESS, _REMOTE_KEY = (
    abi.word_of(abi.SEND_WR, name) for name in ("wr_id", "next", "rdma_address", "rdma_rkey")
)
"""Places of fields in a work request, in words of 64 bits; after the key comes padding."""


class _State(enum.Enum):
    CONNECTING = enum.auto()
    READY = enum.auto()
    REFUSED = enum.auto()
    CLOSED = enum.auto()


@dataclass(slots=True, eq=False)
class RdmaRead:
    """One read; `cancel` is the caller's."""

    peer: PeerReads
    request: ReadRequest
    opened: _Opened
    """The chunk, at the peer."""
    have_bytes: int = 0
    told_bytes: int = 0
    """How many of these have been reported to the caller."""
    posted_count: int = 0
    """Pieces that the NIC works on."""
    over: bool = False
    instead: ReadHandle | None = None
    """The same read over TCP, from a peer without RDMA."""

    def cancel(self) -> None:
        """See `ReadHandle.cancel`."""
        if self.over:
            return
        self.over = True
        if self.instead is not None:
            self.instead.cancel()
        self.peer.forget(self)


@dataclass(slots=True)
class _Piece:
    """A part of a read: one RDMA READ, or a range still to be cut into READs."""

    read: RdmaRead
    offset: int
    """From the beginning of the read."""
    size_bytes: int
    posted_ns: int = 0


@dataclass(slots=True, eq=False)
class _Opened:
    """A chunk of the peer's, pinned there for us; or about to be."""

    key: ChunkKey
    request: int = 0
    where: RemoteExtent | None = None
    reads: dict[RdmaRead, None] = field(default_factory=dict)
    """In the order in which they were asked for."""
    read_bytes: int = 0
    linger: asyncio.TimerHandle | None = None


class PeerHost(Protocol):
    """What all peers of a transport share."""

    loop: asyncio.AbstractEventLoop
    address: str
    """This node's address on the data network."""
    target: MemoryRegion
    """Where reads go: the pool, as a rule."""
    counters: TransportCounters
    tokens: TokenBook | None
    """What is shown to peers."""
    idle_s: float
    stall_timeout_s: float
    silence_s: float
    """What the NIC has not done for so long it will not do."""

    def make_queue_pair(self) -> ReadQueuePair:
        """A queue pair for asking. Raises VerbsError."""
        ...

    def make_window(self) -> ReadWindow:
        """A window: how much may be in flight from one peer."""
        ...

    def next_work_id(self, peer: PeerReads) -> int:
        """A number for a piece; its completion comes back to the peer."""
        ...

    def forget_work(self, work_id: int) -> None:
        """A work request will not be waited for any more."""
        ...

    def read_instead(self, request: ReadRequest) -> ReadHandle:
        """The read over TCP."""
        ...

    def peer_refused(self, peer: PeerReads) -> None:
        """The peer does no RDMA with this node."""
        ...

    def look_for_completions(self) -> None:
        """Take what has completed, whether there was an event or not."""
        ...

    def nic_worked(self, peer: PeerReads) -> None:
        """A read by RDMA is done."""
        ...

    def nic_failed(self, peer: PeerReads) -> None:
        """The NIC gave up what it was to read from the peer; the connection ends."""
        ...

    def nic_silent(self, peer: PeerReads) -> None:
        """The NIC neither brings what it was to read from the peer nor gives it up; the reads go on over TCP."""
        ...

    def peer_closed(self, peer: PeerReads) -> None:
        """The connection to the peer ended."""
        ...


class PeerReads:
    """See the module's docstring."""

    def __init__(self, endpoint: str, host: PeerHost) -> None:
        self.endpoint = endpoint
        self._host = host
        self._state = _State.CONNECTING
        self._reads: set[RdmaRead] = set()
        self._opened: dict[ChunkKey, _Opened] = {}
        self._queue: deque[_Piece] = deque()
        self._posted: dict[int, _Piece] = {}
        """Pieces that the NIC works on, by work id, in the order in which they were posted."""
        self._connection: ReadQueuePair | None = None
        self._connected = False
        self._window = host.make_window()
        self._requests = np.zeros(limits.VERBS_READ_PIECES_MAX, abi.SEND_WR)
        self._sge = np.zeros(limits.VERBS_READ_PIECES_MAX, abi.SGE)
        index = np.arange(limits.VERBS_READ_PIECES_MAX, dtype=np.uint64)
        self._requests_address = self._requests.ctypes.data
        self._requests["sg_list"] = self._sge.ctypes.data + index * abi.SGE.itemsize
        self._requests["next"] = self._requests.ctypes.data + (index + 1) * abi.SEND_WR.itemsize
        self._requests["num_sge"] = 1
        self._requests["opcode"] = abi.WR_RDMA_READ
        self._requests["send_flags"] = abi.SEND_SIGNALED
        self._sge["lkey"] = host.target.local_key
        # Single fields of records are written ten times faster through flat views.
        self._request_words = self._requests.view(np.uint64).data
        self._sge_words = self._sge.view(np.uint64).data
        self._key_word = host.target.local_key << 32
        self._target_address = host.target.address
        self._progress_s = host.loop.time()
        self._completed_ns = 0
        """When the NIC last did something."""
        self._timer: asyncio.TimerHandle | None = None
        self._control = ControlConnection(endpoint, host.address, host.loop, self, host.tokens)
        self._arm_timer()

    # ------------------------------------------------------------------ reads

    def add(self, request: ReadRequest) -> RdmaRead:
        """Queue a read."""
        key = request.key
        opened = self._opened.get(key) or _Opened(key)
        read = RdmaRead(self, request, opened)
        self._reads.add(read)
        if self._state is _State.REFUSED:
            self._read_instead(read)
            return read
        if len(self._reads) == 1:
            self._progress_s = self._host.loop.time()
        if key not in self._opened:
            self._opened[key] = opened
            if self._connected:
                self._open(opened)
        opened.reads[read] = None
        if opened.linger is not None:
            opened.linger.cancel()
            opened.linger = None
        if opened.where is not None:
            # A read that the caller sees fail inside its own call would surprise it.
            self._host.loop.call_soon(self._start, read, opened.where)
        return read

    def lost(self, since_ns: int, now_ns: int) -> None:
        """The NIC has asked again for something between the two times."""
        self._window.lost(since_ns, now_ns)

    def forget(self, read: RdmaRead) -> None:
        """A cancelled read: when this returns, its memory is left alone."""
        self._reads.discard(read)
        if self._state is _State.CLOSED:
            return
        self._queue = deque(piece for piece in self._queue if piece.read is not read)
        if read.posted_count:
            self._renew()
        self._release(read)

    def close(self) -> None:
        """End it; every read that is not over fails. Idempotent."""
        if self._state is _State.CLOSED:
            return
        self._state = _State.CLOSED
        self._control.close()
        self._drop_queue_pair()
        if self._timer is not None:
            self._timer.cancel()
        self._forget_opened()
        self._queue.clear()
        reads, self._reads = self._reads, set()
        for read in reads:
            if read.instead is None:
                self._host.counters.reads_failed += 1
                self._host.loop.call_soon(self._tell, read, ReadOutcome.FAILED)
        self._host.peer_closed(self)

    # ------------------------------------------------------------------ the control connection

    def connected(self) -> None:
        """TCP is there: exchange queue pairs, and open the wanted chunks."""
        self._connected = True
        self._shake_hands()
        if self._state is _State.CONNECTING:
            for opened in self._opened.values():
                self._open(opened)

    def disconnected(self) -> None:
        """The peer is gone, or never was there."""
        self.close()

    def holder_told(self, load: HolderLoad) -> None:
        """Pass it on, once."""
        told = next((read.request.holder_told for read in self._reads if read.request.holder_told is not None), None)
        if told is not None:
            told(load)

    def refused(self, refusal: Refusal) -> None:
        """Count it, and say so once."""
        host = self.endpoint.rpartition(":")[0]
        self._host.counters.refuse(f"read_refused_{refusal.name.lower()}", host, refused_words(refusal))

    def control_malformed(self) -> None:
        """Count it."""
        self._host.counters.drop("read_answer_malformed")

    def _shake_hands(self) -> None:
        try:
            connection = self._connection = self._host.make_queue_pair()
        except VerbsError:
            self._host.counters.drop("read_queue_pair")
            self._refuse()
            return

        def answered(status: int, body: bytes) -> None:
            if connection is not self._connection:
                return
            self._progress_s = self._host.loop.time()
            if status != STATUS_OK:
                self._refuse()
                return
            try:
                connection.ask(QueuePairEnd.unpack(body))
            except VerbsError:
                self._host.counters.drop("read_queue_pair")
                self._refuse()
                return
            self._state = _State.READY
            self.pump(self._now_ns())

        self._control.ask(KIND_CONNECT, connection.end.pack(), answered)

    def _refuse(self) -> None:
        """No RDMA with this peer: reads from it go over TCP."""
        self._host.peer_refused(self)
        self._go_over_tcp()

    def _go_over_tcp(self) -> None:
        self._state = _State.REFUSED
        self._drop_queue_pair()
        self._queue.clear()
        self._posted.clear()
        self._forget_opened()
        self._control.close()
        for read in list(self._reads):
            self._read_instead(read)

    def _read_instead(self, read: RdmaRead) -> None:
        def done(outcome: ReadOutcome) -> None:
            self._reads.discard(read)
            self._tell(read, outcome)

        read.posted_count = 0
        read.instead = self._host.read_instead(replace(_rest_of(read), done=done))

    # ------------------------------------------------------------------ opened chunks

    def _open(self, opened: _Opened) -> None:
        def answered(status: int, body: bytes) -> None:
            self._progress_s = self._host.loop.time()
            if self._state in (_State.REFUSED, _State.CLOSED):
                return
            if status != STATUS_OK:
                self._opened.pop(opened.key, None)
                outcome = ReadOutcome.ABSENT if status == STATUS_ABSENT else ReadOutcome.FAILED
                for read in list(opened.reads):
                    self._end(read, outcome)
                return
            opened.where = where = RemoteExtent.unpack(body)
            for read in list(opened.reads):
                self._start(read, where)
            if not opened.reads:
                self._linger(opened)

        wanted_bytes = max((read.request.wanted_bytes for read in opened.reads), default=0)
        opened.request = self._control.ask(KIND_OPEN, RANGE.pack(0, 0, opened.key), answered, wanted_bytes)

    def _release(self, read: RdmaRead) -> None:
        """The read no longer needs its chunk."""
        opened = self._opened.get(read.request.key)
        if opened is None or read not in opened.reads:
            return
        del opened.reads[read]
        if opened.reads:
            return
        if opened.where is not None:
            self._linger(opened)
        elif not opened.request:
            # Not even asked for yet.
            del self._opened[read.request.key]

    def _forget_opened(self) -> None:
        """The control connection goes, and with it the chunks that the peer pins for us."""
        for opened in self._opened.values():
            if opened.linger is not None:
                opened.linger.cancel()
        self._opened.clear()

    def _linger(self, opened: _Opened) -> None:
        opened.linger = self._host.loop.call_later(limits.VERBS_EXTENT_LINGER_S, self._close_opened, opened)

    def _close_opened(self, opened: _Opened) -> None:
        del self._opened[opened.key]
        self._control.tell(KIND_CLOSE, RANGE.pack(opened.read_bytes, 0, _NO_KEY), opened.request)

    # ------------------------------------------------------------------ the queue pair

    def _start(self, read: RdmaRead, where: RemoteExtent) -> None:
        """The peer has said where the chunk lies."""
        if read.over or read not in self._reads or self._state is _State.REFUSED:
            return
        request = read.request
        if request.offset + request.size_bytes > where.size_bytes:
            self._end(read, ReadOutcome.ABSENT)
            return
        self._queue.append(_Piece(read, 0, request.size_bytes))
        self.pump(self._now_ns())

    def pump(self, now_ns: int) -> None:
        """Post as many pieces as may be in flight, in one call."""
        queue, posted = self._queue, self._posted
        if not queue or self._state is not _State.READY:
            return
        post, first = self._window.post, len(posted)
        while queue and len(posted) < limits.VERBS_READ_PIECES_MAX:
            rest = queue[0]
            size_bytes = post(rest.size_bytes, now_ns)
            if not size_bytes:
                break
            self._describe(len(posted) - first, _Piece(rest.read, rest.offset, size_bytes, now_ns))
            rest.offset += size_bytes
            rest.size_bytes -= size_bytes
            if not rest.size_bytes:
                queue.popleft()
        if len(posted) > first:
            self._post(len(posted) - first)

    def _describe(self, place: int, piece: _Piece) -> None:
        """Write one work request."""
        read = piece.read
        request, where = read.request, read.opened.where
        assert where is not None
        work_id = self._host.next_work_id(self)
        self._posted[work_id] = piece
        read.posted_count += 1
        self._sge_words[2 * place] = self._target_address + request.pool_offset + piece.offset
        self._sge_words[2 * place + 1] = self._key_word | piece.size_bytes
        words, first = self._request_words, _WORDS * place
        words[first + _WORK_ID] = work_id
        words[first + _REMOTE_ADDRESS] = where.address + request.offset + piece.offset
        words[first + _REMOTE_KEY] = where.rkey

    def _post(self, count: int) -> None:
        """Hand the first `count` work requests to the NIC."""
        assert self._connection is not None
        words, last = self._request_words, _WORDS * (count - 1) + _NEXT
        following, words[last] = words[last], 0
        try:
            self._connection.queue_pair.post_send(self._requests_address)
        except VerbsError:
            self._host.counters.drop("read_post")
            self.close()
            return
        finally:
            words[last] = following

    def completed(self, completions: Iterable[tuple[int, int]], now_ns: int) -> None:
        """Work ids with their status, as they completed: pieces are there, or the connection is broken.

        The NIC gets its next pieces before these are reported to anybody.
        """
        touched: dict[RdmaRead, None] = {}
        broken = False
        for work_id, status in completions:
            piece = self._posted.pop(work_id, None)
            if piece is None:
                continue
            if status != abi.WC_SUCCESS:
                self._host.counters.drop(f"read_{abi.WC_STATUS.get(status, str(status)).replace(' ', '_')}")
                broken = True
                break
            size_bytes, read = piece.size_bytes, piece.read
            self._window.completed(size_bytes, piece.posted_ns, now_ns)
            read.posted_count -= 1
            read.have_bytes += size_bytes
            touched[read] = None
        if not broken:
            self.pump(now_ns)
        self._progress_s = now_ns / 1e9
        self._completed_ns = now_ns
        for read in touched:
            self._tell_progress(read)
        if broken:
            self._host.nic_failed(self)
            self.close()

    def _tell_progress(self, read: RdmaRead) -> None:
        new_bytes, read.told_bytes = read.have_bytes - read.told_bytes, read.have_bytes
        read.opened.read_bytes += new_bytes
        self._host.counters.read_bytes_received += new_bytes
        self._host.counters.read_bytes_rdma += new_bytes
        request = read.request
        if read.have_bytes == request.size_bytes:
            self._host.nic_worked(self)
            self._end(read, ReadOutcome.DONE)
        elif request.progressed is not None and not read.over:
            request.progressed(read.have_bytes)

    def _end(self, read: RdmaRead, outcome: ReadOutcome) -> None:
        self._reads.discard(read)
        self._release(read)
        self._progress_s = self._host.loop.time()
        self._tell(read, outcome)

    def _tell(self, read: RdmaRead, outcome: ReadOutcome) -> None:
        if not read.over:
            read.over = True
            read.request.done(outcome)

    def _drop_queue_pair(self) -> None:
        if self._connection is not None:
            self._connection.destroy()
            self._connection = None
        self._window.dropped()
        for work_id in self._posted:
            self._host.forget_work(work_id)

    def _renew(self) -> None:
        """A fresh queue pair instead of this one; pieces that were in flight are asked for again."""
        self._drop_queue_pair()
        again = [piece for piece in self._posted.values() if not piece.read.over]
        self._posted.clear()
        for piece in again:
            piece.read.posted_count -= 1
        self._queue.extendleft(reversed(again))
        self._state = _State.CONNECTING
        self._shake_hands()

    # ------------------------------------------------------------------ time

    def _now_ns(self) -> int:
        return int(self._host.loop.time() * 1e9)

    def _arm_timer(self) -> None:
        # At a steady pace: which of the two limits counts changes with every read.
        period_s = min(self._host.stall_timeout_s, self._host.idle_s, self._host.silence_s / 4)
        self._timer = self._host.loop.call_later(period_s, self._check_time)

    def _check_time(self) -> None:
        """Stalled with reads, or idle without: both end the connection. Reads over TCP have timers of their own."""
        if self._is_silent():
            # An event that never came is no silence of the NIC.
            self._host.look_for_completions()
            if self._state is _State.CLOSED:
                return
            if self._is_silent():
                self._host.counters.drop("read_nic_silent")
                self._host.nic_silent(self)
                self._go_over_tcp()
        waiting = any(read.instead is None for read in self._reads)
        limit_s = self._host.stall_timeout_s if waiting else self._host.idle_s
        over_tcp = self._reads and not waiting
        if not over_tcp and self._host.loop.time() - self._progress_s >= limit_s:
            if waiting:
                self._host.counters.drop("read_stalled")
            self.close()
        else:
            if over_tcp:
                self._progress_s = self._host.loop.time()
            self._arm_timer()

    def _is_silent(self) -> bool:
        """Whether the NIC has done nothing for long, though it has something to do."""
        oldest = next(iter(self._posted.values()), None)
        if oldest is None:
            return False
        return self._now_ns() - max(oldest.posted_ns, self._completed_ns) >= self._host.silence_s * 1e9


def _rest_of(read: RdmaRead) -> ReadRequest:
    """What the NIC has not brought of a read: its pieces come in order."""
    request, have_bytes = read.request, read.have_bytes
    if not have_bytes:
        return request
    tell = request.progressed
    return replace(
        request,
        offset=request.offset + have_bytes,
        size_bytes=request.size_bytes - have_bytes,
        pool_offset=request.pool_offset + have_bytes,
        progressed=None if tell is None else lambda more_bytes: tell(have_bytes + more_bytes),
    )


def hand_out(works: Iterable[tuple[int, int]], working: dict[int, PeerReads], now_ns: int) -> None:
    """Give completed work (id, status) to its owners in `working`, each peer all of its work at once."""
    by_peer: dict[PeerReads, list[tuple[int, int]]] = {}
    for work in works:
        peer = working.pop(work[0], None)
        if peer is not None:
            by_peer.setdefault(peer, []).append(work)
    for peer, its in by_peer.items():
        peer.completed(its, now_ns)
