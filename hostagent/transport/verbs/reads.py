"""Reliable reads with RDMA: one registered pool, one completion queue for asking, peers on demand.

Answering is the TCP server's (`read_server`), which sockets agents use as it is, plus a queue pair for each peer
that wants to read one-sided. Peers without RDMA are read over TCP.
"""

from __future__ import annotations

import contextlib
import logging

from hostagent import limits
from hostagent.transport.base import ChunkPlace, ReadHandle, ReadOutcome, ReadRequest
from hostagent.transport.host import Host
from hostagent.transport.read_server import ReadServer
from hostagent.transport.sockets import read_client
from hostagent.transport.verbs.connections import PoolAccess, ReadQueuePair
from hostagent.transport.verbs.detours import Detours
from hostagent.transport.verbs.device import MemoryRegion, RdmaPort, VerbsError
from hostagent.transport.verbs.native_casts import completion_queue_parts
from hostagent.transport.verbs.native_pieces import Asker, NativePieces, ReadOwner
from hostagent.transport.verbs.peer_reads import PeerReads
from hostagent.transport.verbs.queues import CompletionChannel, CompletionQueue
from hostagent.transport.verbs.retransmissions import LossWatch, Retransmissions
from kvchunk.ids import ChunkKey
from kvproto.session.read_window import ReadWindow

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
        self.target = target or region
        self.counters = host.counters
        self.idle_s = idle_s
        self.stall_timeout_s = limits.READ_STALL_TIMEOUT_S
        self.silence_s = limits.VERBS_READ_SILENCE_S
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
        """See `PeerHost`."""
        return ReadQueuePair(self._port, self._completions, limits.VERBS_READ_PIECES_MAX)

    def make_pieces(self, owner: ReadOwner) -> NativePieces:
        """See `PeerHost`."""
        return NativePieces(owner, self._asker, ReadWindow(self._host.config.rdma_read_window_bytes))

    def read_instead(self, request: ReadRequest) -> ReadHandle:
        """See `PeerHost`. Only the NIC can read into memory other than the pool."""
        if self.target is not self._region:
            return self.loop.call_soon(request.done, ReadOutcome.FAILED)
        return self._tcp.read(request)

    def peer_refused(self, peer: PeerReads) -> None:
        """See `PeerHost`."""
        log.info("%s has no RDMA for us: reading from it over TCP", peer.endpoint)

    def look_for_completions(self) -> None:
        """See `PeerHost`."""
        self._asker.look()

    def nic_worked(self, peer: PeerReads) -> None:
        """See `PeerHost`."""
        self._detours.worked(peer.endpoint)

    def nic_failed(self, peer: PeerReads) -> None:
        """See `PeerHost`."""
        if self._detours.failed(peer.endpoint, self.loop.time()):
            log.warning("RDMA brings nothing from %s: reading over TCP for a while", peer.endpoint)

    def nic_silent(self, peer: PeerReads) -> None:
        """See `PeerHost`. What comes now goes over TCP, too; later there will be a fresh peer."""
        log.warning("the NIC is silent about reads from %s: reading over TCP for a while", peer.endpoint)
        self._detours.begin(peer.endpoint, self.loop.time())
        self.peer_closed(peer)

    def peer_closed(self, peer: PeerReads) -> None:
        """See `PeerHost`."""
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
