"""Reliable reads with RDMA: one registered pool, one completion queue for asking, peers on demand.

Answering is the TCP server's (`read_server`), which sockets agents use as it is, plus a queue pair for each peer
that wants to read one-sided. Peers without RDMA are read over TCP.

`PeerReads` has all one-sided reads from one peer: its control connection, its queue pair, the chunks it has opened for
us. The states of a peer: CONNECTING (TCP, then the exchange of queue pairs), READY, REFUSED (it has no RDMA: its reads
go over TCP), CLOSED. Whatever goes wrong on the way ends in CLOSED, where every read fails; the next one finds a fresh
peer, with a fresh queue pair. A NIC that neither brings a piece nor gives it up ends in REFUSED: the reads go on over
TCP. A read that is given up while the NIC works on it costs the queue pair: only when that is destroyed is its memory
sure to be left alone. The other reads go on with a new one.

What the NIC is asked for, and when, is not said here but by `NativePieces`.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
from collections.abc import Iterable
from dataclasses import replace

from hostagent import limits
from hostagent.transport.base import ChunkPlace, ReadHandle, ReadOutcome, ReadRequest
from hostagent.transport.host import Host
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
from hostagent.transport.read_server import ReadServer
from hostagent.transport.sockets import read_client
from hostagent.transport.verbs.connections import PoolAccess, ReadQueuePair
from hostagent.transport.verbs.control_connection import ControlConnection
from hostagent.transport.verbs.detours import Detours
from hostagent.transport.verbs.device import MemoryRegion, RdmaPort, VerbsError
from hostagent.transport.verbs.native_casts import completion_queue_parts
from hostagent.transport.verbs.native_pieces import Asker, NativePieces, OpenedChunk, RdmaRead, ReadOwner
from hostagent.transport.verbs.queues import CompletionChannel, CompletionQueue
from hostagent.transport.verbs.retransmissions import LossWatch, Retransmissions
from kvchunk.ids import ChunkKey
from kvpolicy.tiers.holder_load import HolderLoad
from kvproto.session.read_window import ReadWindow

_NO_KEY = bytes(16)


class _State(enum.Enum):
    CONNECTING = enum.auto()
    READY = enum.auto()
    REFUSED = enum.auto()
    CLOSED = enum.auto()


class PeerReads:
    """See the module's docstring."""

    def __init__(self, endpoint: str, host: VerbsReads) -> None:
        self.endpoint = endpoint
        self._host = host
        self._state = _State.CONNECTING
        self._reads: set[RdmaRead] = set()
        self._opened: dict[ChunkKey, OpenedChunk] = {}
        self._connection: ReadQueuePair | None = None
        self._connected = False
        self._pieces = host.make_pieces(self)
        self._progress_s = host.loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._control = ControlConnection(endpoint, host.address, host.loop, self, host.counters, host.tokens)
        self._arm_timer()

    # ------------------------------------------------------------------ reads

    def add(self, request: ReadRequest) -> RdmaRead:
        """Queue a read."""
        key = request.key
        opened = self._opened.get(key) or OpenedChunk(key)
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

    def packets_lost(self, since_ns: int, now_ns: int) -> None:
        """The NIC has asked again for something between the two times."""
        self._pieces.packets_lost(since_ns, now_ns)

    def forget(self, read: RdmaRead) -> None:
        """A cancelled read: when this returns, its memory is left alone."""
        self._reads.discard(read)
        if self._state is _State.CLOSED:
            return
        if self._pieces.withdraw(read):
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
        self._pieces.clear()
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

    def holder_told(self, load: HolderLoad) -> None:
        """Pass it on, once."""
        told = next((read.request.holder_told for read in self._reads if read.request.holder_told is not None), None)
        if told is not None:
            told(load)

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
            self._pieces.begin(connection.queue_pair)

        self._control.ask(KIND_CONNECT, connection.end.pack(), answered)

    def _refuse(self) -> None:
        """No RDMA with this peer: reads from it go over TCP."""
        self._host.peer_refused(self)
        self._go_over_tcp()

    def _go_over_tcp(self) -> None:
        self._state = _State.REFUSED
        self._drop_queue_pair()
        self._pieces.clear()
        self._forget_opened()
        self._control.close()
        for read in list(self._reads):
            self._read_instead(read)

    def _read_instead(self, read: RdmaRead) -> None:
        def done(outcome: ReadOutcome) -> None:
            self._reads.discard(read)
            self._tell(read, outcome)

        read.instead = self._host.read_instead(replace(_rest_of(read), done=done))

    # ------------------------------------------------------------------ opened chunks

    def _open(self, opened: OpenedChunk) -> None:
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

    def _linger(self, opened: OpenedChunk) -> None:
        opened.linger = self._host.loop.call_later(limits.VERBS_EXTENT_LINGER_S, self._close_opened, opened)

    def _close_opened(self, opened: OpenedChunk) -> None:
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
        self._pieces.add(read)

    def pieces_came(self, reads: Iterable[RdmaRead], now_ns: int) -> None:
        """See `ReadOwner`."""
        self._progress_s = now_ns / 1e9
        for read in reads:
            self._tell_progress(read)

    def pieces_failed(self, why: str, *, by_nic: bool) -> None:
        """See `ReadOwner`. All reads from the peer fail."""
        self._host.counters.drop(f"read_{why}")
        if by_nic:
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
        self._pieces.end()
        if self._connection is not None:
            self._connection.destroy()
            self._connection = None

    def _renew(self) -> None:
        """A fresh queue pair instead of this one; pieces that were in flight are asked for again."""
        self._drop_queue_pair()
        self._state = _State.CONNECTING
        self._shake_hands()

    # ------------------------------------------------------------------ time

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
        since_ns = self._pieces.waiting_since_ns()
        return since_ns is not None and self._host.loop.time() * 1e9 - since_ns >= self._host.silence_s * 1e9


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


log = logging.getLogger(__name__)

COMPLETIONS_MAX = limits.READ_CONNECTIONS_MAX * limits.VERBS_READ_PIECES_MAX

assert limits.VERBS_READ_PIECES_MAX <= limits.CAST_BATCH_PACKETS, "one poll takes all that a peer has in flight"


class VerbsReads:
    """See the module's docstring; a `ReadPart`, and what its peers share."""

    def __init__(
        self, host: Host, port: RdmaPort, region: MemoryRegion, *, idle_s: float, target: MemoryRegion | None = None
    ) -> None:
        """`region`: the pool's, where our own reads go unless there is another `target`
        (into which they then go at their offset, one-sided only). Raises VerbsError."""
        self.loop = host.loop
        self.address = host.address
        """This node's address on the data network."""
        self.target = target or region
        self.counters = host.counters
        self.idle_s = idle_s
        self.stall_timeout_s = limits.READ_STALL_TIMEOUT_S
        self.silence_s = limits.VERBS_READ_SILENCE_S
        """What the NIC has not done for so long it will not do."""
        self._host = host
        self._port = port
        self._region = region
        self._peers: dict[str, PeerReads] = {}
        self._detours = Detours()
        self._open = True
        self._usable = True
        """Whether completions are still reported."""
        counters = Retransmissions(*port.counter_directories)
        self._losses = LossWatch(counters, host.loop, self._in_flight, self._packets_lost, self.look_for_completions)
        with contextlib.ExitStack() as undo:
            undo.callback(self._losses.close)
            self._channel = CompletionChannel(port)
            undo.callback(self._channel.close)
            self._completions = CompletionQueue(port, self._channel, COMPLETIONS_MAX, limits.CAST_BATCH_PACKETS)
            undo.callback(self._completions.close)
            self._asker = Asker(
                host.native,
                port,
                completion_queue_parts(port, self._completions, self._channel),
                self.target,
                host.loop,
                self._completions_broke,
                began=self._losses.begin,
            )
            undo.callback(self._asker.close)
            self._closing = undo.pop_all()
        self.tokens = host.tokens
        """What is shown to peers."""
        self._server = ReadServer(host.memory, host.sink, host.counters, self._make_access, tokens=host.tokens)
        self._tcp = read_client(host)

    def listen(self) -> str:
        """See `ReadPart.listen`."""
        address, port = self._server.listen(self._host.address, self._host.config.read_port)
        return f"{address}:{port}"

    def show(self, chunk: ChunkPlace, first: int, count: int) -> None:
        """See `ReadPart.show`: the event loop answers, and asks each time."""

    def hide(self, key: ChunkKey) -> None:
        """See `ReadPart.hide`."""
        self._server.hide(key)

    def read(self, request: ReadRequest) -> ReadHandle:
        """See `ReadPart.read`."""
        if request.leaves is not None or request.over_tcp:
            return self._tcp.read(request)
        if not self._usable or self._detours.needed(request.endpoint, self.loop.time()):
            return self.read_instead(request)
        peer = self._peers.get(request.endpoint)
        if peer is None:
            peer = self._peers[request.endpoint] = PeerReads(request.endpoint, self)
        return peer.add(request)

    def close(self) -> None:
        """End all connections. Idempotent."""
        if not self._open:
            return
        self._open = False
        self._server.close()
        for peer in list(self._peers.values()):
            peer.close()
        self._tcp.close()
        self._closing.close()

    # ------------------------------------------------------------------ what peers share

    def make_queue_pair(self) -> ReadQueuePair:
        """A queue pair for asking. Raises VerbsError."""
        return ReadQueuePair(self._port, self._completions, limits.VERBS_READ_PIECES_MAX)

    def make_pieces(self, owner: ReadOwner) -> NativePieces:
        """What cuts reads into pieces and has the NIC bring them."""
        return NativePieces(owner, self._asker, ReadWindow(self._host.config.rdma_read_window_bytes))

    def read_instead(self, request: ReadRequest) -> ReadHandle:
        """The read over TCP. Only the NIC can read into memory other than the pool."""
        if self.target is not self._region:
            return self.loop.call_soon(request.done, ReadOutcome.FAILED)
        return self._tcp.read(request)

    def peer_refused(self, peer: PeerReads) -> None:
        """The peer does no RDMA with this node."""
        log.info("%s has no RDMA for us: reading from it over TCP", peer.endpoint)

    def look_for_completions(self) -> None:
        """Take what has completed, whether there was an event or not."""
        self._asker.look()

    def nic_worked(self, peer: PeerReads) -> None:
        """A read by RDMA is done."""
        self._detours.worked(peer.endpoint)

    def nic_failed(self, peer: PeerReads) -> None:
        """The NIC gave up what it was to read from the peer; the connection ends."""
        if self._detours.failed(peer.endpoint, self.loop.time()):
            log.warning("RDMA brings nothing from %s: reading over TCP for a while", peer.endpoint)

    def nic_silent(self, peer: PeerReads) -> None:
        """The NIC neither brings what it was to read from the peer nor gives it up: that goes over TCP. Later there
        will be a fresh peer."""
        log.warning("the NIC is silent about reads from %s: reading over TCP for a while", peer.endpoint)
        self._detours.begin(peer.endpoint, self.loop.time())
        self.peer_closed(peer)

    def peer_closed(self, peer: PeerReads) -> None:
        """The connection to the peer ended."""
        if self._peers.get(peer.endpoint) is peer:
            del self._peers[peer.endpoint]

    def _make_access(self) -> PoolAccess:
        return PoolAccess(self._port, self._completions, self._region.address, self.counters)

    def _in_flight(self) -> bool:
        return self._asker.in_flight()

    def _completions_broke(self, error: VerbsError) -> None:
        """Completions are no longer reported: reads under way fail, later ones go over TCP."""
        log.warning("reads over TCP from now on: %s", error)
        self._usable = False
        for peer in list(self._peers.values()):
            peer.close()

    def _packets_lost(self, count: int, since_ns: int, now_ns: int) -> None:
        self.counters.read_retransmissions += count
        for peer in self._peers.values():
            peer.packets_lost(since_ns, now_ns)
