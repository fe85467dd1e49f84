"""Reliable reads of a simulated host: connections to holders, and the serving of peers' reads."""

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from hostagent import limits
from hostagent.core import effects, events
from hostagent.core.core import AgentCore
from hostagent.pool.chunks import Chunk
from kvchunk.ids import ChunkKey
from kvpolicy.tiers.holder_load import HolderLoad
from kvproto import events as protocol
from kvproto.commands import AbortRead
from kvproto.ids import Address, NodeId, ReadId
from kvproto.limits import MS
from kvproto.session.relay.relay_commands import ReadRun
from kvsim.bodies import (
    TCP_HEADER_BYTES,
    Connecting,
    LeavesAnswer,
    LeavesRequest,
    ReadAborted,
    ReadRefused,
    ReadRequest,
    StreamAck,
    StreamBody,
)
from kvsim.engine import Engine
from kvsim.link import Link, Packet
from kvsim.storage import Storage
from kvsim.stream import Stream

SOCKET_BUFFER_NS = 20 * MS
"""What a socket takes beyond what the link has sent, in time of the link."""
TCP_PAYLOAD_BYTES = 8948
"""Largest segment of a connection over links with an MTU of 9000."""
STREAM_TICK_NS = 2 * MS
"""How often a kernel looks at connections that wait for room on the link."""
REQUEST_AGAIN_NS = 200 * MS
"""How long a kernel waits before it repeats what was not acknowledged."""
_READS_A_LIFE_MAX = 1_000_000
_RUNS_FROM = 500_000
"""Numbers of the relay's reads."""
_LEAVES_BYTES = TCP_HEADER_BYTES + 48


class Host(Protocol):
    """Whose connections these are."""

    core: AgentCore
    storage: Storage
    address: Address
    uplink: Link
    directory: dict[NodeId, Address]
    """Addresses of other nodes."""

    def send(self, packet: Packet) -> None: ...
    def handle(self, event: events.Event) -> None: ...
    def after(self, delay_ns: int, action: Callable[[], None]) -> None: ...


@dataclass(slots=True)
class ReadUnderway:
    """A reliable read at the reader's side."""

    effect: effects.StartRead
    wire: ReadId
    address: Address
    left: int
    seen: dict[int, int] = field(default_factory=dict)
    """Arrived packets: their first segments, and how many segments each has."""
    have: int = 0
    """How many leading segments have arrived."""

    def packet_arrived(self, first: int, count: int) -> bool:
        """A packet has arrived. Returns whether more leading segments are here: a connection hands over no others."""
        self.seen[first] = count
        self.left -= count
        before = self.have
        while (more := self.seen.get(self.effect.first + self.have)) is not None:
            self.have += more
        return self.have > before


class Reads:
    """Of one life of a process; its kernel refuses packets for an earlier one."""

    def __init__(self, host: Host, engine: Engine, segment_bytes: int, life: int, *, proves: bool) -> None:
        """`proves`: reads are hashed on their way."""
        self._host = host
        self._engine = engine
        self._segment_bytes = segment_bytes
        self._life = life
        self._proves = proves
        self._proven: list[events.ReadProven] = []
        """Reads that ended at this moment."""
        self._over = False
        self._reads: dict[ReadId, ReadUnderway] = {}
        self._runs: dict[ReadId, ReadRun] = {}
        """Reads of the core's relay."""
        self._leaves: set[ReadId] = set()
        """Reads of leaves that are not answered."""
        self._streams: dict[Address, Stream] = {}
        self._lent: dict[ChunkKey, list[Chunk]] = defaultdict(list)
        self._requests: set[tuple[Address, ReadId]] = set()
        """Requests seen: a connection delivers each once."""
        self._waiting_reads: dict[ChunkKey, list[tuple[ReadRequest | LeavesRequest, Address]]] = defaultdict(list)
        """Of chunks that are being loaded from disk."""
        self._probing = False
        self._trying: dict[Address, str] = {}
        """Hosts that are to answer, and their names."""
        self._asked: dict[Address, int] = defaultdict(int)
        """Bytes that each peer has asked for and that are not sent."""
        self._wanted: dict[Address, int] = {}
        """What each peer waits for: more than that, as it says."""

    # --- of `ServedReads` --------------------------------------------------------------------------------------------

    @property
    def reads_queued_bytes(self) -> int:
        """That peers wait for."""
        return sum(self._wanted.values())

    @property
    def readers_served(self) -> int:
        """Peers that wait."""
        return len(self._wanted)

    def _asked_more(self, peer: Address, size_bytes: int, wanted_bytes: int) -> None:
        self._asked[peer] += size_bytes
        self._wanted[peer] = max(self._asked[peer], wanted_bytes)

    def _sent(self, peer: Address, segments: int) -> None:
        size_bytes = segments * self._segment_bytes
        self._asked[peer] -= size_bytes
        if self._asked[peer] > 0:
            self._wanted[peer] = max(self._asked[peer], self._wanted[peer] - size_bytes)
        else:
            self._wanted.pop(peer, None)

    def _load_but(self, peer: Address) -> HolderLoad:
        others = [wanted for address, wanted in self._wanted.items() if address != peer]
        casts_bytes = self._host.core.serving.queued_bytes
        return HolderLoad(sum(others) + casts_bytes, len(others) + (casts_bytes > 0))

    def end(self) -> None:
        """The process dies: its connections are reset."""
        self._over = True
        for address in self._streams:
            self._host.send(Packet(self._host.address, address, TCP_HEADER_BYTES, ReadRefused(ReadId(0), gone=False)))

    def receive(self, packet: Packet) -> None:
        """A packet of a connection."""
        body, source = packet.body, packet.source
        stream = self._streams.get(source)
        if isinstance(body, ReadRequest):
            self._on_read_request(body, source)
        elif isinstance(body, LeavesRequest):
            self._on_leaves_request(body, source)
        elif isinstance(body, LeavesAnswer):
            self._on_leaves(body)
        elif isinstance(body, StreamBody):
            self._on_stream(body, source)
        elif isinstance(body, Connecting):
            self._path_ended(source, reached=True)
        elif isinstance(body, ReadRefused):
            self._on_refused(body, source)
        elif stream is not None and isinstance(body, StreamAck):
            stream.acknowledged(body.sequence, self._engine.now_ns)
            self._pump_streams()
        elif stream is not None and isinstance(body, ReadAborted):
            stream.abort(body.read)

    # --- paths -------------------------------------------------------------------------------------------------------

    def probe(self, effect: effects.ProbePath) -> None:
        """The core wants to know whether a host answers."""
        self._trying[self._host.directory[NodeId(effect.node)]] = effect.node
        self._try_path(effect.node, 0)

    def _try_path(self, node: str, tries: int) -> None:
        address = self._host.directory[NodeId(node)]
        if self._over or address not in self._trying:
            return
        if tries == len(limits.PATH_TRIES_S):
            self._path_ended(address, reached=False)
            return
        self._host.send(Packet(self._host.address, address, TCP_HEADER_BYTES, Connecting()))
        self._host.after(int(limits.PATH_TRIES_S[tries] * 1e9), lambda: self._try_path(node, tries + 1))

    def _path_ended(self, address: Address, *, reached: bool) -> None:
        if (node := self._trying.pop(address, None)) is not None:
            self._host.handle(events.PathProbed(node, reached))

    # --- reading -----------------------------------------------------------------------------------------------------

    def start(self, effect: effects.StartRead) -> None:
        """The core wants a part of a chunk."""
        address = self._host.directory[NodeId(effect.node)]
        self._reads[effect.read] = underway = ReadUnderway(effect, self._on_wire(effect.read), address, effect.count)
        self._ask_read(underway)

    def start_run(self, run: ReadRun, effect: effects.StartRead) -> None:
        """The core's relay wants pieces; `effect`: the same as a read, whose number is chosen here."""
        read = ReadId(_RUNS_FROM + run.read)
        self._runs[read] = run
        self.start(replace(effect, read=read))

    def abort_run(self, run: ReadId) -> None:
        """The core's relay wants no more of it."""
        read = ReadId(_RUNS_FROM + run)
        if self._runs.pop(read, None) is not None:
            self.abort(AbortRead(read))

    def _on_wire(self, read: ReadId) -> ReadId:
        """A name that no read of an earlier life of this process had."""
        return ReadId(self._life * _READS_A_LIFE_MAX + read)

    def _of_wire(self, read: ReadId) -> ReadId:
        return ReadId(read - self._life * _READS_A_LIFE_MAX)

    def _ask_read(self, underway: ReadUnderway) -> None:
        """Send a request; a connection repeats it until it is answered."""
        effect = underway.effect
        if self._reads.get(effect.read) is not underway or underway.seen or self._over:
            return
        request = ReadRequest(underway.wire, effect.chunk.key, effect.first, effect.count, effect.wanted_bytes)
        self._host.send(Packet(self._host.address, underway.address, TCP_HEADER_BYTES + 32, request))
        self._engine.at(self._engine.now_ns + REQUEST_AGAIN_NS, lambda: self._ask_read(underway))

    def start_leaves(self, effect: effects.ReadLeaves) -> None:
        """The core wants the leaves of a chunk's tree; the connection repeats the request until it is answered."""
        if self._over:
            return
        self._leaves.add(effect.read)
        request = LeavesRequest(self._on_wire(effect.read), effect.key)
        self._ask_leaves(
            effect.read, Packet(self._host.address, self._host.directory[NodeId(effect.node)], _LEAVES_BYTES, request)
        )

    def _ask_leaves(self, read: ReadId, packet: Packet) -> None:
        if read in self._leaves and not self._over:
            self._host.send(packet)
            self._engine.at(self._engine.now_ns + REQUEST_AGAIN_NS, lambda: self._ask_leaves(read, packet))

    def _on_leaves_request(self, request: LeavesRequest, source: Address) -> None:
        chunk = self._host.core.pool.find(request.key)
        if chunk is None and self._host.core.can_load_for_peer(request.key):
            self._load_for(request, source)
        else:
            self._answer_leaves(request, source)

    def _answer_leaves(self, request: LeavesRequest, source: Address) -> None:
        chunk = self._host.core.pool.find(request.key)
        answer = LeavesAnswer(request.read, chunk.leaves if chunk is not None else None)
        self._host.send(Packet(self._host.address, source, _LEAVES_BYTES + len(answer.leaves or b""), answer))

    def _on_leaves(self, answer: LeavesAnswer) -> None:
        read = self._of_wire(answer.read)
        if read not in self._leaves:
            return
        self._leaves.remove(read)
        if answer.leaves is None:
            self._host.handle(protocol.ReadFailed(read, gone=True))
        else:
            self._host.handle(events.LeavesRead(read, answer.leaves))

    def abort(self, effect: AbortRead) -> None:
        """The core wants no more of it."""
        self._leaves.discard(effect.read)
        underway = self._reads.pop(effect.read, None)
        if underway is not None:
            self._host.send(Packet(self._host.address, underway.address, TCP_HEADER_BYTES, ReadAborted(underway.wire)))

    def _on_stream(self, body: StreamBody, source: Address) -> None:
        self._host.send(Packet(self._host.address, source, TCP_HEADER_BYTES, StreamAck(body.sequence)))
        read = self._of_wire(body.read)
        underway = self._reads.get(read)
        if underway is not None and body.load is not None:
            self._host.handle(events.HolderTold(underway.effect.node, body.load))
            underway = self._reads.get(read)  # it may be given up by now
        if underway is None or body.first in underway.seen:
            return
        self._host.storage.view(underway.effect.chunk)[body.first : body.first + len(body.contents)] = body.contents
        further = underway.packet_arrived(body.first, len(body.contents))
        if not underway.left:
            del self._reads[read]
            self._done(underway.effect)
        elif further:
            self._host.handle(protocol.ReadProgress(read, underway.have))

    def _done(self, effect: effects.StartRead) -> None:
        """All of a read is in memory. Reads that end at the same moment make one event."""
        run = self._runs.pop(effect.read, None)
        if run is not None:
            leaves = self._host.storage.leaves_of(effect.chunk, effect.offset, effect.size_bytes)
            self._host.handle(events.RelayReadEnded(run.read, run.key, run.first, leaves))
            return
        if not (self._proves and effect.is_provable):
            self._host.handle(protocol.ReadDone(effect.read))
            return
        if not self._proven:
            self._host.after(0, self._tell_proven)
        leaves = self._host.storage.leaves_of(effect.chunk, effect.offset, effect.size_bytes)
        self._proven.append(events.ReadProven(effect.read, effect.offset, leaves))

    def _tell_proven(self) -> None:
        proven, self._proven = self._proven, []
        self._host.handle(events.ReadsProven(tuple(proven)))

    def _on_refused(self, body: ReadRefused, source: Address) -> None:
        """One read (or, with read 0, the whole connection) failed."""
        one = [self._of_wire(body.read)]
        reads = one if body.read else [read for read, each in self._reads.items() if each.address == source]
        for read in reads:
            if self._reads.pop(read, None) is None:
                continue
            run = self._runs.pop(read, None)
            if run is None:
                self._host.handle(protocol.ReadFailed(read, body.gone))
            else:
                self._host.handle(events.RelayReadEnded(run.read, run.key, run.first, None))

    # --- serving -----------------------------------------------------------------------------------------------------

    def _on_read_request(self, request: ReadRequest, source: Address) -> None:
        if (source, request.read) in self._requests:
            return
        self._requests.add((source, request.read))
        if not self._serve_read(request, source):
            if self._host.core.can_load_for_peer(request.key):
                self._load_for(request, source)
            else:
                self._refuse_read(request, source)

    def _load_for(self, request: ReadRequest | LeavesRequest, source: Address) -> None:
        """A peer waits for a chunk that is on disk."""
        self._waiting_reads[request.key].append((request, source))
        self._host.handle(events.PeerLoadRequested(request.key))

    def load_ended(self, effect: effects.PeerLoadEnded) -> None:
        """The load from disk that peers wait for has ended, with or without the chunk."""
        for request, source in self._waiting_reads.pop(effect.key, ()):
            if isinstance(request, LeavesRequest):
                self._answer_leaves(request, source)
            elif not self._serve_read(request, source):
                self._refuse_read(request, source)
        chunk = effect.chunk
        if chunk is not None:
            self._host.after(0, partial(self._host.handle, events.PeerReadEnded(chunk)))

    def _refuse_read(self, request: ReadRequest, source: Address) -> None:
        self._requests.discard((source, request.read))
        self._host.send(Packet(self._host.address, source, TCP_HEADER_BYTES, ReadRefused(request.read, gone=True)))

    def _serve_read(self, request: ReadRequest, source: Address) -> bool:
        core, now_ns, size = self._host.core, self._engine.now_ns, self._segment_bytes
        chunk = core.lend(request.key, now_ns)
        if chunk is None:
            chunk = core.lend_part(request.key, request.first * size, request.count * size, now_ns)
        if chunk is None:
            return False
        stream = self._streams.get(source)
        if stream is None:
            stream = self._streams[source] = self._open_stream(source)
        self._lent[request.key].append(chunk)
        part = self._host.storage.view(chunk)[request.first : request.first + request.count].tolist()
        self._asked_more(source, len(part) * self._segment_bytes, request.wanted_bytes)
        stream.add(request.read, request.key, request.first, part)
        self._pump_streams()
        if not request.first:
            self._host.handle(events.PeersRead((request.key,)))
        if not self._probing:
            self._probing = True
            self._engine.at(self._engine.now_ns + STREAM_TICK_NS, self._probe)
        return True

    def _open_stream(self, peer: Address) -> Stream:
        def emit(body: StreamBody) -> None:
            if body.begins:
                body = replace(body, load=self._load_but(peer))
            size = TCP_HEADER_BYTES + len(body.contents) * self._segment_bytes
            self._host.send(Packet(self._host.address, peer, size, body))

        stream = Stream(max(1, TCP_PAYLOAD_BYTES // self._segment_bytes), emit)
        stream.on_read_end = self._read_ended
        stream.on_sent = partial(self._sent, peer)
        return stream

    def _read_ended(self, key: ChunkKey) -> None:
        self._host.handle(events.PeerReadEnded(self._lent[key].pop()))

    def _pump_streams(self) -> None:
        """Connections take turns; a kernel holds its own back instead of overfilling the link's queue."""
        now = self._engine.now_ns
        order = deque(self._streams.items())
        while order and self._host.uplink.backlog_ns(now) < SOCKET_BUFFER_NS:
            peer, stream = order.popleft()
            if stream.pump(now):
                self._streams[peer] = self._streams.pop(peer)
                order.append((peer, stream))

    def _probe(self) -> None:
        """The kernel's retransmission timer."""
        if self._over:
            return
        busy = False
        for stream in self._streams.values():
            stream.probe(self._engine.now_ns)
            busy |= stream.busy
        self._pump_streams()
        self._probing = busy
        if busy:
            self._engine.at(self._engine.now_ns + STREAM_TICK_NS, self._probe)
