"""One simulated host: the shell of an agent's core, with memory, disk, sockets, an engine and a late scheduler."""

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hostagent.core import effects, events
from hostagent.core.chunk_entry import ChunkEntry
from hostagent.core.core import AgentCore
from hostagent.core.directory import Delta, NodeClaims, NodeEntry
from hostagent.core.events import EngineId, LeaseId
from hostagent.core.node import Knowledge
from hostagent.core.options import CoreOptions
from hostagent.core.work import DropWork, FillWork, Task, TaskStatus
from hostagent.limits import keeper_buffer_bytes
from hostagent.pool.chunks import Chunk
from kvchunk.ids import ChunkKey
from kvchunk.sources import ChunkSource
from kvclient.messages import Status
from kvpolicy.tiers.form_costs import FormChoice
from kvpolicy.tiers.gate import priors
from kvpolicy.tiers.prefill import Prefill
from kvpolicy.value.costs import PRIORS
from kvproto import events as protocol
from kvproto.commands import AbortRead, SendControl
from kvproto.errors import WireError
from kvproto.fanout import Fanout
from kvproto.ids import Address, Member, NodeId
from kvproto.limits import MS
from kvproto.session.parameters import ReaderParameters
from kvproto.wire.control import Control, Flag, Op, decode_control
from kvsim.bodies import (
    CONTROL_BYTES,
    DATA_OVERHEAD_BYTES,
    TCP_HEADER_BYTES,
    Connecting,
    ControlBody,
    DataBody,
    FillBody,
    ReadAborted,
    ReadRefused,
    ReadRequest,
    StreamBody,
)
from kvsim.chance import Chance
from kvsim.cold import ColdWay
from kvsim.engine import Engine
from kvsim.link import Link, Packet
from kvsim.reads import SOCKET_BUFFER_NS, Reads
from kvsim.relays import RelayWay
from kvsim.storage import Equipment, Storage, hashed_of, right_contents
from kvsim.switch import POOL_ADDRESS, SwitchModel, group_of
from kvsim.twins import TwinWay

FETCH_REQUEST = 1
"""The request of every engine's fetch."""
_ENGINE = EngineId(1)
_BUFFER_NS_MIN = 25_000
"""So long lasts what a casting thread keeps ahead of a link, however fast that is: two of its wakes."""


@dataclass(frozen=True, slots=True)
class Scheduling:
    """How late a host's processes run."""

    base_ns: int = 150_000
    mean_ns: int = 300_000
    stall_probability: float = 0.002
    stall_ns: int = 20 * MS
    """At most; uniform."""


@dataclass(frozen=True, slots=True)
class _Leaving:
    """A segment on its way into the socket."""

    chunk: Chunk
    segment: int
    pool_address: Address | None = None
    """As a FILL for the switch; None: as a cast."""
    flags: Flag = Flag.NONE
    """Of the FILL."""
    blocks: tuple[int, ...] = ()
    """Of multicast: where it goes, once to each."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What an engine got."""

    at_ns: int
    outcome: Status
    sources: tuple[ChunkSource, ...]
    wrong: tuple[int, ...]
    """Places of chunks whose bytes were wrong on arrival, or when the engine had read them."""

    @property
    def leading(self) -> int:
        return len(self.sources)


class Place(NamedTuple):
    """Where a host is in the network."""

    name: NodeId
    address: Address
    member: Member
    switch: SwitchModel
    uplink: Link


class Node:
    """A host with its link to the switch. Everything it does, it does in `_wake`, some time after the cause."""

    def __init__(
        self,
        engine: Engine,
        place: Place,
        reader: ReaderParameters,
        scheduling: Scheduling,
        chance: Chance,
        equipment: Equipment,
        relay_ways: dict[str, RelayWay] | None = None,
        others: Mapping[type, Callable[[Any], None]] | None = None,
    ) -> None:
        """`relay_ways`: of all hosts, if there are relays; `others`: who carries out which effects instead of this."""
        self._engine = engine
        self._others = others or {}
        self.name, self.address, self.member, self._switch, self.uplink = place
        self._reader = reader
        self._segment_bytes = reader.segment_bytes
        self._scheduling, self._chance = scheduling, chance
        self._equipment = equipment
        self.engine_id = _ENGINE
        """Of the one engine."""
        self.dead = False
        self._life = 0
        """Number of the process; what an earlier one had begun has no effect."""
        self.directory: dict[NodeId, Address] = {}
        self.keys: tuple[ChunkKey, ...] = ()
        """What the engine asked for."""
        self.answer: Answer | None = None
        self.announced: Callable[[effects.Announce], None] = lambda _: None
        """Called with what this node announces."""
        self.claimed: Callable[[effects.ReportClaims], None] = lambda _: None
        """Called with what its engine claims to compute."""
        self.bad_copies: list[effects.ReportBadCopy] = []
        self.paths_changed: list[effects.PathChanged] = []
        self.paths_reported: Callable[[effects.ReportPaths], None] = lambda _: None
        """The controller, if there is one."""
        self.proven: list[ChunkKey] = []
        """Chunks that reads brought and that were hashed on their way."""
        self.tasks_ended: list[effects.ReportTaskEnd] = []
        self._carriers: Mapping[type, Callable[[Any], None]] = {}
        self.storage = Storage(self, engine, equipment, self._segment_bytes, scheduling.base_ns, chance)
        self._cold = None if equipment.cold is None else ColdWay(self, equipment.cold, self.storage.view)
        traits = equipment.twins
        self._twins = None
        if traits is not None:
            view, of_twins = self.storage.view, chance.fork("twins")
            self._twins = TwinWay(self, traits, self._segment_bytes, view, hashed_of, of_twins)
        self._relay = None if relay_ways is None else RelayWay(self, engine, self._segment_bytes, relay_ways)
        self._start_process()
        self._sending: deque[_Leaving] = deque()
        self._buffer_ns = SOCKET_BUFFER_NS
        """Casts wait in the socket for so long at most."""
        self._inbox: list[tuple[int, int, Packet]] = []
        self._serial = 0
        self._wake_at: int | None = None
        self._tell_of_cold()

    def _tell_of_cold(self) -> None:
        """A process has begun: its cold store and its codec report to it."""
        if self._twins is not None:
            self._twins.tell(1 << 20)
        if self._cold is not None:
            self._cold.tell()

    def _start_process(self) -> None:
        """A core without a past, but for what lies on the disk."""
        self._life += 1
        reader, equipment = self._reader, self._equipment
        link_rate = reader.link_rate_bytes_per_s
        knowledge = Knowledge(self.name, PRIORS if link_rate is None else priors(8 * link_rate))
        self.storage.begin(knowledge)
        options = CoreOptions(
            equipment.pool_bytes,
            reader.segment_bytes,
            POOL_ADDRESS,
            reader.member,
            reader.interest_ttl_ns,
            reader.link_rate_bytes_per_s,
            has_cold=equipment.cold is not None,
            relay_share=equipment.relay_share,
            chooses_way=equipment.chooses_way,
            rack=equipment.rack,
            wire_form=FormChoice.RAW if equipment.twins is None else equipment.twins.form,
            replica_bytes=equipment.replica_bytes,
            tenant_namespaces=equipment.namespaces,
        )
        self._connections = Reads(self, self._engine, self._segment_bytes, self._life, proves=equipment.proves)
        index, found = self.storage.pool_index()
        self.core = AgentCore(options, knowledge, self.storage.disk, index=index, served_reads=self._connections)
        self._carriers = self._carriers_by_effect()
        self._task = 0
        if found:
            self.handle(events.PoolFound(found))
        endpoint = "" if self._relay is None else self._relay.endpoint
        self.handle(events.Started(2 * reader.receive_window_segments * reader.segment_bytes, read_endpoint=endpoint))

    # --- from outside ------------------------------------------------------------------------------------------------

    def tell(self, event: events.Event) -> None:
        """An event that does not arrive over the data network."""
        if not self.dead:
            self.handle(event)
            self._arm()

    def learn(
        self,
        nodes: tuple[NodeEntry, ...] = (),
        chunks: tuple[ChunkEntry, ...] = (),
        gone: tuple[int, ...] = (),
        claims: tuple[NodeClaims, ...] = (),
    ) -> None:
        """The directory has news."""
        sequence = self.core.directory.sequence + 1
        delta = Delta(sequence, nodes=nodes, chunks=chunks, nodes_gone=gone, claims=claims)
        self.tell(events.DirectoryChanged(delta))

    def fetch(self, keys: tuple[ChunkKey, ...], deadline_ns: int, recompute_s: float | None = None) -> None:
        """The engine asks for chunks."""
        self.keys = keys
        deadline_s = (deadline_ns - self._engine.now_ns) / 1e9
        self.tell(
            events.ChunksRequested(
                _ENGINE, FETCH_REQUEST, keys, deadline_s, None if recompute_s is None else Prefill(recompute_s)
            )
        )

    def welcomed(self, number: int, fanout: Fanout = Fanout.SWITCH, unasked_weight: float = 0.0) -> None:
        """The controller has taken this node in, and listens."""
        reader = self._reader
        if fanout.keeps:
            waiting_bytes = keeper_buffer_bytes(int(1e9 / self.uplink.takes_ns(1)))
            self._buffer_ns = max(_BUFFER_NS_MIN, int(self.uplink.takes_ns(waiting_bytes)))
        self.tell(
            events.Welcomed(
                1,
                number,
                reader.member,
                reader.segment_bytes,
                POOL_ADDRESS,
                reader.interest_ttl_ns,
                1.0,
                fanout=fanout,
                unasked_weight=unasked_weight,
            )
        )

    def cancel(self) -> None:
        """The engine gives its fetch up."""
        self.tell(events.CancelRequested(_ENGINE, FETCH_REQUEST))

    def hold(self, key: ChunkKey, segments: int, position: int = 0, *, wrong: bool = False) -> None:
        """An engine has put the chunk here; `wrong`: its bytes have changed since."""
        right = right_contents(key, segments)
        if self.core.pool.find(key) is None:
            self._put(key, right, position)
        chunk = self.core.pool.find(key)
        if wrong and chunk is not None:
            self.storage.view(chunk)[:] = right + 2

    def hold_on_disk(self, key: ChunkKey, segments: int, position: int = 0) -> None:
        """The chunk lies on this node's disk only, from an earlier life."""
        if self.storage.disk is None:
            raise ValueError(f"{self.name} has no disk")
        right = right_contents(key, segments).copy()
        self.storage.disk.store(key, right, hashed_of(right, self._segment_bytes), position)

    def _put(self, key: ChunkKey, contents: npt.NDArray[np.int64], position: int) -> None:
        """Reserve, write, commit: all of it at this moment."""
        now_ns, size_bytes = self._engine.now_ns, len(contents) * self._segment_bytes
        made = self.core.handle(events.ReserveRequested(_ENGINE, 0, key, None, size_bytes, position, ""), now_ns)
        answer = next(effect for effect in made if isinstance(effect, effects.ReserveAnswered))
        if answer.status is not Status.OK:
            return
        self.storage.view_at(answer.offset, len(contents))[:] = contents
        for effect in self.core.handle(events.CommitRequested(_ENGINE, 0, answer.lease), now_ns):
            if isinstance(effect, effects.ComputeDigest):
                self.handle(events.DigestComputed(effect.chunk, hashed_of(contents, self._segment_bytes), effect.use))
        self._arm()

    def evict(self, key: ChunkKey) -> bool:
        """The controller has a chunk dropped; False: it is in use and stays, or the process is dead."""
        return not self.dead and self._run(DropWork((key,))).status is TaskStatus.DONE

    def _run(self, work: DropWork) -> effects.ReportTaskEnd:
        """A task that ends at once."""
        self._task += 1
        self.tell(events.TaskGiven(Task(self._task, work, 10.0)))
        return self.tasks_ended.pop()

    def fill(self, key: ChunkKey, segments: int, timeout_s: float, *, cast_too: bool = False, readers: int = 0) -> None:
        """The controller orders a fill."""
        self._task += 1
        self.tell(events.TaskGiven(Task(self._task, FillWork(key, segments, cast_too, readers), timeout_s)))

    def cancel_fill(self) -> None:
        """The controller wants the last one no longer."""
        self.tell(events.TaskCancelled(self._task))

    def kill(self) -> None:
        """The process dies; its kernel refuses its connections from now on."""
        self.dead = True
        self._connections.end()
        if self._relay is not None:
            self._relay.end()

    def restart(self) -> None:
        """The process dies, and another one begins with the disk's contents. The engine's fetch is lost with it."""
        self.kill()
        self.dead = False
        self._sending.clear()
        self._start_process()
        self._tell_of_cold()
        self._arm()

    def deliver(self, packet: Packet, at_ns: int) -> None:
        """A packet reaches the host at this time; its process sees it somewhat later."""
        if packet.body == Connecting():  # the kernel answers, whatever becomes of the process
            answer = Packet(self.address, packet.source, TCP_HEADER_BYTES, Connecting(answered=True))
            self._engine.at(at_ns, lambda: self.send(answer))
            return
        self._serial += 1
        heapq.heappush(self._inbox, (at_ns, self._serial, packet))
        self._wake_by(at_ns + self._late())

    def data(self, key: ChunkKey, segment: int) -> DataBody:
        """A data datagram of a chunk that is here."""
        chunk = self.core.pool.find(key)
        if chunk is None:
            raise LookupError(f"{key.hex()} is not at {self.name}")
        return self._data(chunk, segment)

    def _late(self) -> int:
        scheduling, chance = self._scheduling, self._chance
        late = scheduling.base_ns + int(chance.exponential(scheduling.mean_ns))
        if chance.fraction() < scheduling.stall_probability:
            late += int(chance.fraction() * scheduling.stall_ns)
        return late

    def after(self, delay_ns: int, action: Callable[[], None]) -> None:
        """Something that this process has begun ends, if the process lives until then."""
        life = self._life

        def end() -> None:
            if not self.dead and self._life == life:
                action()
                self._arm()

        self._engine.at(self._engine.now_ns + delay_ns, end)

    # --- the loop ----------------------------------------------------------------------------------------------------

    def handle(self, event: events.Event) -> None:
        """Receive, decide, transmit, as `hostagent.agent.Agent` does."""
        for effect in self.core.handle(event, self._engine.now_ns):
            self._carriers[type(effect)](effect)

    def _wake_by(self, at_ns: int) -> None:
        if self._wake_at is not None and self._wake_at <= at_ns:
            return
        self._wake_at = at_ns
        self._engine.at(at_ns, lambda: self._wake(at_ns))

    def _arm(self) -> None:
        """Wake for the earliest timer."""
        due = self.core.next_timeout_ns()
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
        controls: list[protocol.ControlReceived] = []
        while self._inbox and self._inbox[0][0] <= now:
            packet = heapq.heappop(self._inbox)[2]
            if self.dead:
                self._refuse(packet)
            elif isinstance(packet.body, DataBody):
                casts[packet.body.key, packet.source].append(packet.body)
            elif isinstance(packet.body, ControlBody):
                controls += _decoded(packet.body, packet.source)
            else:
                self._connections.receive(packet)
        if self.dead:
            return
        if controls:
            self.handle(events.ControlsReceived(tuple(controls)))
        for (key, source), bodies in casts.items():
            self._place(key, source, bodies)
        self.handle(events.TimerFired())
        self._drain()
        self._arm()

    def _refuse(self, packet: Packet) -> None:
        """What a host's kernel does when the process is dead."""
        body = packet.body
        if isinstance(body, ReadRequest):
            self.send(Packet(self.address, packet.source, TCP_HEADER_BYTES, ReadRefused(body.read, gone=False)))
        elif isinstance(body, StreamBody):
            self.send(Packet(self.address, packet.source, TCP_HEADER_BYTES, ReadAborted(body.read)))

    def _place(self, key: ChunkKey, source: Address, bodies: list[DataBody]) -> None:
        """Cast segments: those that are still missing go to memory, all are reported."""
        wanted = self.core.wanted(key)
        if wanted is not None:
            view, missing = self.storage.view(wanted.chunk), wanted.missing
            for body in bodies:
                if missing[body.segment]:
                    view[body.segment] = body.content
        segments = np.array([body.segment for body in bodies], np.uint32)
        marks = sum(body.from_switch for body in bodies)
        self.handle(protocol.SegmentsReceived(key, segments, source, marks))

    # --- the engine --------------------------------------------------------------------------------------------------

    def _fetch_answered(self, effect: effects.FetchAnswered) -> None:
        """The engine reads what it was given, and gives the lease back."""
        places = [(chunk.offset, chunk.size_bytes // self._segment_bytes) for chunk in effect.chunks]
        sources = tuple(chunk.source for chunk in effect.chunks)
        self.answer = Answer(self._engine.now_ns, effect.status, sources, self._wrong(places))
        if effect.chunks:
            read_ns = int(self._chance.fraction() * self._equipment.read_ns)
            self.after(read_ns, lambda: self._read_out(places, effect.lease))

    def _wrong(self, places: list[tuple[int, int]]) -> tuple[int, ...]:
        wrong = []
        for index, (offset, segments) in enumerate(places):
            if not (self.storage.view_at(offset, segments) == right_contents(self.keys[index], segments)).all():
                wrong.append(index)
        return tuple(wrong)

    def _read_out(self, places: list[tuple[int, int]], lease: LeaseId) -> None:
        answer, wrong = self.answer, self._wrong(places)
        if answer is not None and wrong != answer.wrong:
            self.answer = Answer(answer.at_ns, answer.outcome, answer.sources, wrong)
        self.handle(events.LeaseReleased(_ENGINE, lease))

    # --- effects -----------------------------------------------------------------------------------------------------

    def _carriers_by_effect(self) -> Mapping[type, Callable[[Any], None]]:
        return {
            SendControl: lambda effect: self._send_control(effect.message, effect.address),
            effects.CastSegments: self._cast,
            effects.FillSegments: self._fill,
            effects.StartRead: self._connections.start,
            effects.ReadLeaves: self._connections.start_leaves,
            AbortRead: self._connections.abort,
            effects.PeerLoadEnded: self._connections.load_ended,
            effects.ComputeDigest: self.storage.compute_digest,
            effects.HashPieces: self.storage.hash_pieces,
            effects.ForgetPieces: self.storage.forget_pieces,
            effects.ChunkProven: lambda effect: self.proven.append(effect.chunk.key),
            effects.LoadChunk: self.storage.load,
            effects.SaveChunk: self.storage.save,
            effects.ForgetStored: self.storage.forget_stored,
            effects.FetchAnswered: self._fetch_answered,
            effects.Announce: lambda effect: self.announced(effect),
            effects.ReportClaims: lambda effect: self.claimed(effect),
            effects.ReportBadCopy: self.bad_copies.append,
            effects.ProbePath: self._connections.probe,
            effects.PathChanged: self.paths_changed.append,
            effects.ReportPaths: lambda effect: self.paths_reported(effect),
            effects.ReportTaskEnd: self.tasks_ended.append,
            **self._cold_carriers(),
            **self._twin_carriers(),
            **({} if self._relay is None else self._relay.carriers(self._connections)),
            **dict.fromkeys(_UNHEARD, lambda _: None),
            **self._others,
        }

    def _cold_carriers(self) -> Mapping[type, Callable[[Any], None]]:
        way = self._cold
        if way is None:
            return {}
        return {
            effects.LookUpCold: way.look_up,
            effects.LoadCold: way.load,
            effects.SaveCold: way.save,
            effects.ForgetCold: way.forget,
        }

    def _twin_carriers(self) -> Mapping[type, Callable[[Any], None]]:
        way = self._twins
        if way is None:
            return {}
        return {effects.EncodeTwin: way.encode, effects.PlaceTwin: way.place, effects.DecodeTwin: self._decode}

    def _decode(self, effect: effects.DecodeTwin) -> None:
        if self._twins is not None:
            into = effect.into
            self._twins.decode(effect, right_contents(into.key, into.size_bytes // self._segment_bytes))

    def _send_control(self, message: Control, address: Address) -> None:
        self.send(Packet(self.address, address, CONTROL_BYTES, ControlBody(message.encode())))

    def send(self, packet: Packet) -> None:
        """Onto the link to the switch."""
        now = self._engine.now_ns
        for at in self.uplink.send(packet, now):
            self._engine.at(at, lambda: self._switch.receive(packet, self.member))

    # --- the serving side --------------------------------------------------------------------------------------------

    def _cast(self, effect: effects.CastSegments) -> None:
        segments = range(effect.first, effect.first + effect.count)
        self._sending.extend(_Leaving(effect.chunk, segment, blocks=effect.blocks) for segment in segments)
        self._drain()

    def _data(self, chunk: Chunk, segment: int) -> DataBody:
        contents = self.storage.view(chunk)
        return DataBody(chunk.key, segment, len(contents), int(contents[segment]), self.address)

    def _drain(self) -> None:
        """Send as much as the socket takes; the rest when the link has sent some."""
        now = self._engine.now_ns
        sent: dict[ChunkKey, int] = defaultdict(int)
        while self._sending and self.uplink.backlog_ns(now) < self._buffer_ns:
            leaving = self._sending.popleft()
            self._send_segment(leaving)
            sent[leaving.chunk.key] += 1
        for key, count in sent.items():
            self.after(0, partial(self.handle, protocol.SegmentsSent(key, count)))
        if self._sending:
            self._wake_by(now + self._buffer_ns // 4 + self._late())

    def _send_segment(self, leaving: _Leaving) -> None:
        data, pool = self._data(leaving.chunk, leaving.segment), leaving.pool_address
        size = self._segment_bytes + DATA_OVERHEAD_BYTES
        if pool is None:
            for group in map(group_of, leaving.blocks) if leaving.blocks else (None,):
                self.send(Packet(self.address, group, size, data))
            return
        control = Control(Op.FILL, data.key, data.segments, segment=leaving.segment, flags=leaving.flags).encode()
        self.send(Packet(self.address, pool, CONTROL_BYTES + size - 42, FillBody(control, data)))

    def _fill(self, effect: effects.FillSegments) -> None:
        segments, pool = range(effect.first, effect.first + effect.count), effect.pool_address
        if effect.cast_too:
            self._sending.extend(_Leaving(effect.chunk, segment, pool, Flag.CAST_TOO) for segment in segments)
            self._drain()
            return
        for segment in segments:
            self._send_segment(_Leaving(effect.chunk, segment, pool))
        key, count = effect.chunk.key, effect.count
        self.after(0, lambda: self.handle(events.FillSent(key, count)))


def _decoded(body: ControlBody, source: Address) -> list[protocol.ControlReceived]:
    """A control datagram; a malformed one is none."""
    try:
        return [protocol.ControlReceived(decode_control(body.payload), source)]
    except WireError:
        return []


_UNHEARD: tuple[type, ...] = (
    effects.ReserveAnswered,
    effects.CommitAnswered,
    effects.KeysAnswered,
    effects.DatagramsDropped,
    effects.ExpectCasts,
    effects.ForgetCasts,
    effects.ReportUsage,
    effects.BeatHeart,
    effects.ReportLoad,
    effects.ReportTaskProgress,
    effects.FetchEnded,
    effects.ReservationEnded,
    effects.PoolAdopted,
    effects.LookUp,
    effects.ReportInterests,
)
"""Effects that the simulation does not need: its hosts place casts by themselves."""
