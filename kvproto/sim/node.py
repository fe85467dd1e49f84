"""One simulated host: the shell around a real reader and a real holder, with memory, sockets and a late scheduler."""

import heapq
from collections import defaultdict, deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kvproto.commands import (
    AbortRead,
    DeliverFetch,
    DropChunk,
    FillEnded,
    HolderCommand,
    PinChunk,
    ReaderCommand,
    ReportBadCopy,
    SendControl,
    SendFill,
    SendSegments,
    StartRead,
    UnpinChunk,
    VerifyChunk,
)
from kvproto.errors import WireError
from kvproto.events import (
    ChunkVerified,
    ControlReceived,
    FetchRequested,
    FillRequested,
    HolderEvent,
    ReadClosed,
    ReadDone,
    ReaderEvent,
    ReadFailed,
    ReadOpened,
    ReadProgress,
    SegmentsReceived,
    SegmentsSent,
)
from kvproto.ids import Address, ChunkKey, FetchId, Member, NodeId, ReadId
from kvproto.limits import MS
from kvproto.session.holder import Holder
from kvproto.session.parameters import HolderParameters, ReaderParameters
from kvproto.session.reader import Reader
from kvproto.sim.bodies import (
    CONTROL_BYTES,
    DATA_OVERHEAD_BYTES,
    TCP_HEADER_BYTES,
    ControlBody,
    DataBody,
    FillBody,
    ReadAborted,
    ReadRefused,
    ReadRequest,
    StreamAck,
    StreamBody,
    content_of,
)
from kvproto.sim.chance import Chance
from kvproto.sim.engine import Engine
from kvproto.sim.link import Link, Packet
from kvproto.sim.stream import Stream
from kvproto.sim.switch import SwitchModel
from kvproto.wire.control import Control, Op, decode_control

SOCKET_BUFFER_NS = 20 * MS
"""What a socket takes beyond what the link has sent, in time of the link."""
TCP_PAYLOAD_BYTES = 8948
"""Largest segment of a connection over links with an MTU of 9000."""
STREAM_TICK_NS = 2 * MS
"""How often a kernel looks at connections that wait for room on the link."""
REQUEST_AGAIN_NS = 200 * MS
"""After how long a kernel repeats what was not acknowledged."""
_FOR_HOLDER = frozenset({Op.GET, Op.JOIN, Op.FILL_ACK})


@dataclass(frozen=True, slots=True)
class Scheduling:
    """How late a host's processes run."""

    base_ns: int = 150_000
    mean_ns: int = 300_000
    stall_probability: float = 0.002
    stall_ns: int = 20 * MS
    """At most; uniform."""


@dataclass(slots=True)
class Memory:
    """A chunk being fetched: the content of each segment, 0 where nothing was written."""

    contents: npt.NDArray[np.int64]
    frozen: bool = False
    """Verified: nobody may write any more."""


@dataclass(slots=True)
class ReadUnderway:
    """A reliable read at the reader's side."""

    command: StartRead
    address: Address
    left: int
    seen: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Inventory:
    """Chunks that are whole here, with their contents."""

    contents: dict[ChunkKey, npt.NDArray[np.int64]] = field(default_factory=dict)

    def segments_of(self, key: ChunkKey) -> int | None:
        """As the holder asks."""
        found = self.contents.get(key)
        return len(found) if found is not None else None


class Node:
    """A host with its link to the switch. Everything it does, it does in `_wake`, some time after the cause."""

    def __init__(
        self,
        engine: Engine,
        name: NodeId,
        address: Address,
        member: Member,
        switch: SwitchModel,
        link: Link,
        reader: ReaderParameters,
        scheduling: Scheduling,
        chance: Chance,
    ) -> None:
        self._engine = engine
        self.name, self.address, self.member = name, address, member
        self._switch, self.link = switch, link
        self._segment_bytes = reader.segment_bytes
        self._scheduling, self._chance = scheduling, chance
        self.inventory = Inventory()
        self.reader = Reader(reader)
        self.holder = Holder(HolderParameters(reader.segment_bytes), self.inventory)
        self.dead = False
        self.directory: dict[NodeId, Address] = {}
        self.pins: set[ChunkKey] = set()
        self.memory: dict[ChunkKey, Memory] = {}
        self.delivered: dict[FetchId, tuple[int, DeliverFetch]] = {}
        self.bad_copies: list[ReportBadCopy] = []
        self.fills_ended: list[FillEnded] = []
        self.keep_fetched = True
        self._reads: dict[ReadId, ReadUnderway] = {}
        self._streams: dict[Address, Stream] = {}
        self._requests: set[tuple[Address, ReadId]] = set()
        """Requests seen: a connection delivers each once."""
        self._sending: deque[tuple[ChunkKey, int]] = deque()
        self._inbox: list[tuple[int, int, Packet]] = []
        self._serial = 0
        self._wake_at: int | None = None
        self._probing = False

    # --- from outside ------------------------------------------------------------------------------------------------

    def request(self, event: FetchRequested) -> None:
        """An engine asks for chunks; memory is allocated here."""
        for wanted in event.chunks:
            if not wanted.present and wanted.key not in self.memory:
                self.memory[wanted.key] = Memory(np.zeros(wanted.segments, np.int64))
        self.tell(event)

    def tell(self, event: ReaderEvent) -> None:
        """An event for the reader."""
        if not self.dead:
            self._carry_out(self.reader.handle(event, self._engine.now_ns))
            self._arm()

    def serve(self, event: HolderEvent) -> None:
        """An event for the holder."""
        if not self.dead:
            self._serve(self.holder.handle(event, self._engine.now_ns))
            self._arm()

    def hold(self, key: ChunkKey, segments: int, *, wrong: bool = False) -> None:
        """This node has the chunk; `wrong`: with bytes that do not match its checksum."""
        contents = np.array([content_of(key, segment) for segment in range(segments)], np.int64)
        self.inventory.contents[key] = contents + 2 if wrong else contents

    def evict(self, key: ChunkKey) -> bool:
        """Drop a chunk unless it is pinned."""
        if key in self.pins:
            return False
        self.inventory.contents.pop(key, None)
        return True

    def kill(self) -> None:
        """The process dies; its kernel refuses its connections from now on."""
        self.dead = True
        for address in self._streams:
            self._send(Packet(self.address, address, TCP_HEADER_BYTES, ReadRefused(ReadId(0), gone=False)))

    def fill(self, request: FillRequested) -> None:
        """The controller orders a fill."""
        self.serve(request)

    def deliver(self, packet: Packet, at_ns: int) -> None:
        """A packet reaches the host at this time; its process sees it somewhat later."""
        self._serial += 1
        heapq.heappush(self._inbox, (at_ns, self._serial, packet))
        self._wake_by(at_ns + self._late())

    def _late(self) -> int:
        scheduling, chance = self._scheduling, self._chance
        late = scheduling.base_ns + int(chance.exponential(scheduling.mean_ns))
        if chance.fraction() < scheduling.stall_probability:
            late += int(chance.fraction() * scheduling.stall_ns)
        return late

    # --- the loop ----------------------------------------------------------------------------------------------------

    def _wake_by(self, at_ns: int) -> None:
        if self._wake_at is not None and self._wake_at <= at_ns:
            return
        self._wake_at = at_ns
        self._engine.at(at_ns, lambda: self._wake(at_ns))

    def _arm(self) -> None:
        """Wake for the earliest timer."""
        for due in (self.reader.next_timeout_ns(), self.holder.next_timeout_ns()):
            if due is not None:
                self._wake_by(max(due, self._engine.now_ns) + self._late())
        if self._inbox:
            self._wake_by(max(self._inbox[0][0], self._engine.now_ns) + self._scheduling.base_ns)

    def _wake(self, token: int) -> None:
        if token != self._wake_at:
            return
        self._wake_at = None
        now = self._engine.now_ns
        casts: dict[tuple[ChunkKey, Address], list[DataBody]] = defaultdict(list)
        while self._inbox and self._inbox[0][0] <= now:
            packet = heapq.heappop(self._inbox)[2]
            if self.dead:
                self._refuse(packet)
            elif isinstance(packet.body, DataBody):
                casts[packet.body.key, packet.source].append(packet.body)
            else:
                self._receive(packet, now)
        if self.dead:
            return
        for (key, source), bodies in casts.items():
            self._place(key, source, bodies, now)
        self._carry_out(self.reader.handle_timer(now))
        self._serve(self.holder.handle_timer(now))
        self._drain()
        self._arm()

    def _refuse(self, packet: Packet) -> None:
        """What the kernel of a host does whose process is dead."""
        body = packet.body
        if isinstance(body, ReadRequest):
            self._send(Packet(self.address, packet.source, TCP_HEADER_BYTES, ReadRefused(body.read, gone=False)))
        elif isinstance(body, StreamBody):
            self._send(Packet(self.address, packet.source, TCP_HEADER_BYTES, ReadAborted(body.read)))

    def _receive(self, packet: Packet, now: int) -> None:
        body = packet.body
        if isinstance(body, ControlBody):
            self._on_control(body, packet.source, now)
        elif isinstance(body, ReadRequest):
            self._on_read_request(body, packet.source, now)
        elif isinstance(body, StreamBody):
            self._on_stream(body, packet.source, now)
        elif isinstance(body, StreamAck):
            if packet.source in self._streams:
                self._streams[packet.source].acknowledged(body.sequence, now)
                self._pump_streams()
        elif isinstance(body, ReadAborted):
            if packet.source in self._streams:
                self._streams[packet.source].abort(body.read)
        elif isinstance(body, ReadRefused):
            self._on_refused(body, packet.source, now)

    def _on_control(self, body: ControlBody, source: Address, now: int) -> None:
        try:
            message = decode_control(body.payload)
        except WireError:
            return
        event = ControlReceived(message, source)
        if message.op in _FOR_HOLDER:
            self._serve(self.holder.handle(event, now))
        else:
            self._carry_out(self.reader.handle(event, now))

    def _place(self, key: ChunkKey, source: Address, bodies: list[DataBody], now: int) -> None:
        """Cast segments: those that are still missing go to memory, all are reported."""
        missing = self.reader.missing(key)
        if missing is not None:
            memory = self.memory[key]
            assert not memory.frozen
            for body in bodies:
                if missing[body.segment]:
                    memory.contents[body.segment] = body.content
        segments = np.array([body.segment for body in bodies], np.uint32)
        marks = sum(body.from_switch for body in bodies)
        self._carry_out(self.reader.handle(SegmentsReceived(key, segments, source, marks), now))

    # --- the reader's commands ---------------------------------------------------------------------------------------

    def _carry_out(self, commands: list[ReaderCommand]) -> None:
        for command in commands:
            match command:
                case SendControl():
                    self._send_control(command.message, command.address)
                case StartRead():
                    self._start_read(command)
                case AbortRead():
                    underway = self._reads.pop(command.read, None)
                    if underway is not None:
                        abort = ReadAborted(command.read)
                        self._send(Packet(self.address, underway.address, TCP_HEADER_BYTES, abort))
                case VerifyChunk():
                    self._verify(command.key)
                case DropChunk():
                    self.memory.pop(command.key, None)
                case DeliverFetch():
                    self.delivered[command.fetch] = (self._engine.now_ns, command)
                case ReportBadCopy():
                    self.bad_copies.append(command)

    def _send_control(self, message: Control, address: Address) -> None:
        self._send(Packet(self.address, address, CONTROL_BYTES, ControlBody(message.encode())))

    def _send(self, packet: Packet) -> None:
        now = self._engine.now_ns
        for at in self.link.send(packet, now):
            self._engine.at(at, lambda: self._switch.receive(packet, self.member))

    def _start_read(self, command: StartRead) -> None:
        address = self.directory[command.holder]
        self._reads[command.read] = ReadUnderway(command, address, command.count)
        self._ask_read(self._reads[command.read])

    def _ask_read(self, underway: ReadUnderway) -> None:
        """Send a request; a connection repeats it until it is answered."""
        command = underway.command
        if command.read not in self._reads or underway.seen or self.dead:
            return
        request = ReadRequest(command.read, command.key, command.first, command.count)
        self._send(Packet(self.address, underway.address, TCP_HEADER_BYTES + 32, request))
        self._engine.at(self._engine.now_ns + REQUEST_AGAIN_NS, lambda: self._ask_read(underway))

    def _verify(self, key: ChunkKey) -> None:
        memory = self.memory[key]
        memory.frozen = True
        right = np.array([content_of(key, segment) for segment in range(len(memory.contents))], np.int64)
        good = bool((memory.contents == right).all())

        def answer() -> None:
            if self.memory.get(key) is not memory:
                return
            if good and self.keep_fetched:
                self.inventory.contents[key] = memory.contents
            if not good:
                memory.contents[:] = 0
                memory.frozen = False
            self.tell(ChunkVerified(key, good))

        self._engine.at(self._engine.now_ns + self._scheduling.base_ns, answer)

    def _on_stream(self, body: StreamBody, source: Address, now: int) -> None:
        self._send(Packet(self.address, source, TCP_HEADER_BYTES, StreamAck(body.sequence)))
        underway = self._reads.get(body.read)
        if underway is None or body.first in underway.seen:
            return
        underway.seen.add(body.first)
        memory = self.memory[body.key]
        assert not memory.frozen
        memory.contents[body.first : body.first + len(body.contents)] = body.contents
        underway.left -= len(body.contents)
        if not underway.left:
            del self._reads[body.read]
            self._carry_out(self.reader.handle(ReadDone(body.read), now))
        else:
            self._carry_out(self.reader.handle(ReadProgress(body.read, underway.command.count - underway.left), now))

    def _on_refused(self, body: ReadRefused, source: Address, now: int) -> None:
        """One read (or, with read 0, the whole connection) failed."""
        reads = [body.read] if body.read else [read for read, each in self._reads.items() if each.address == source]
        for read in reads:
            if self._reads.pop(read, None) is not None:
                self._carry_out(self.reader.handle(ReadFailed(read, body.gone), now))

    # --- the holder's side -------------------------------------------------------------------------------------------

    def _serve(self, commands: list[HolderCommand]) -> None:
        for command in commands:
            match command:
                case SendControl():
                    self._send_control(command.message, command.address)
                case SendSegments():
                    self._sending.extend((command.key, command.first + place) for place in range(command.count))
                case SendFill():
                    self._send_fills(command)
                case PinChunk():
                    assert command.key not in self.pins
                    self.pins.add(command.key)
                case UnpinChunk():
                    self.pins.remove(command.key)
                case FillEnded():
                    self.fills_ended.append(command)
        self._drain()

    def _data(self, key: ChunkKey, segment: int) -> DataBody:
        contents = self.inventory.contents[key]
        return DataBody(key, segment, len(contents), int(contents[segment]), self.address)

    def _drain(self) -> None:
        """Send as much as the socket takes; the rest when the link has sent some."""
        now = self._engine.now_ns
        sent: dict[ChunkKey, int] = defaultdict(int)
        while self._sending and self.link.backlog_ns(now) < SOCKET_BUFFER_NS:
            key, segment = self._sending.popleft()
            size = self._segment_bytes + DATA_OVERHEAD_BYTES
            self._send(Packet(self.address, None, size, self._data(key, segment)))
            sent[key] += 1
        for key, count in sent.items():
            self._serve(self.holder.handle(SegmentsSent(key, count), now))
        if self._sending:
            self._wake_by(now + SOCKET_BUFFER_NS // 4 + self._late())

    def _send_fills(self, command: SendFill) -> None:
        for segment in range(command.first, command.first + command.count):
            data = self._data(command.key, segment)
            control = Control(Op.FILL, command.key, data.segments, segment=segment).encode()
            size = CONTROL_BYTES + self._segment_bytes + DATA_OVERHEAD_BYTES - 42
            self._send(Packet(self.address, command.pool, size, FillBody(control, data)))

    def _on_read_request(self, request: ReadRequest, source: Address, now: int) -> None:
        if (source, request.read) in self._requests:
            return
        contents = self.inventory.contents.get(request.key)
        if contents is None:
            self._send(Packet(self.address, source, TCP_HEADER_BYTES, ReadRefused(request.read, gone=True)))
            return
        self._requests.add((source, request.read))
        stream = self._streams.get(source)
        if stream is None:
            stream = self._streams[source] = self._open_stream(source)
        self._serve(self.holder.handle(ReadOpened(request.key), now))
        part = contents[request.first : request.first + request.count].tolist()
        stream.add(request.read, request.key, request.first, part)
        self._pump_streams()
        if not self._probing:
            self._probing = True
            self._engine.at(now + STREAM_TICK_NS, self._probe)

    def _open_stream(self, peer: Address) -> Stream:
        def emit(body: StreamBody) -> None:
            size = TCP_HEADER_BYTES + len(body.contents) * self._segment_bytes
            self._send(Packet(self.address, peer, size, body))

        stream = Stream(max(1, TCP_PAYLOAD_BYTES // self._segment_bytes), emit)
        stream.on_read_end = lambda key: self._serve(self.holder.handle(ReadClosed(key), self._engine.now_ns))
        return stream

    def _pump_streams(self) -> None:
        """Connections take turns; a kernel holds its own back instead of overfilling the link's queue."""
        now = self._engine.now_ns
        order = deque(self._streams.items())
        while order and self.link.backlog_ns(now) < SOCKET_BUFFER_NS:
            peer, stream = order.popleft()
            if stream.pump(now):
                self._streams[peer] = self._streams.pop(peer)
                order.append((peer, stream))

    def _probe(self) -> None:
        """The kernel's retransmission timer."""
        if self.dead:
            return
        busy = False
        for stream in self._streams.values():
            stream.probe(self._engine.now_ns)
            busy |= stream.busy
        self._pump_streams()
        self._probing = busy
        if busy:
            self._engine.at(self._engine.now_ns + STREAM_TICK_NS, self._probe)
