"""What happened in a fetch, and when: found in the events and effects that pass between the agent and its core. Pure.

A fetch is a row of steps. Steps of one kind are one phase, from the first to the last of them, for all chunks of the
fetch together, so that a fetch of thousands of chunks is a handful of phases; reads are one phase for each node they
are asked of. Phases of chunks overlap: one chunk is verified while the next one still comes.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hostagent.core import effects, events
from hostagent.core.events import NO_LEASE, EngineId, LeaseId
from kvchunk.ids import ChunkKey
from kvclient.messages import FetchedChunk, Status
from kvproto import events as protocol
from kvproto.commands import AbortRead, SendControl
from kvproto.ids import Member, ReadId
from kvproto.session.parameters import ReaderParameters
from kvproto.wire.control import TAG_LEADS, TAG_YIELDS, Control, Op

COPIES_MAX = 1024
"""Leases of traced fetches whose end is waited for; of more, the oldest are forgotten."""


class Step(enum.Enum):
    """A kind of step; the name of its span."""

    LOOKUP = "lookup"
    """Where the chunks are."""
    GATE = "gate"
    """Whether to fetch them. The core decides both in one go, so both last as long as that."""
    WAIT = "wait"
    """For chunks that somebody is still computing."""
    JOIN = "join"
    """From a JOIN to the NOTICE that answers it."""
    LEAD = "lead"
    """This node pulls, for all who want the chunk."""
    FOLLOW = "follow"
    """Another node pulls."""
    CAST = "cast"
    """Segments come by cast."""
    READ = "read"
    """Reliable reads of chunks of which nothing has come by cast."""
    REPAIR = "repair"
    """Reliable reads of what casts missed."""
    LOAD = "load"
    """From this node's disk."""
    VERIFY = "verify"
    """Hashing of whole chunks."""
    COPY = "copy"
    """The engine reads: from the answer until it gives the lease back."""


@dataclass(slots=True, eq=False)
class Phase:
    """All steps of one kind in one fetch. Times are the agent's, nanoseconds (monotonic)."""

    step: Step
    started_ns: int
    ended_ns: int
    node: str = ""
    """Of reads: whom they are asked of."""
    endpoint: str = ""
    chunks: set[ChunkKey] = field(default_factory=set)
    size_bytes: int = 0
    segments_count: int = 0
    from_switch_count: int = 0
    failed_count: int = 0
    under_way: set[Hashable] = field(default_factory=set)
    """Steps that have begun and not ended."""


@dataclass(slots=True, eq=False)
class Timeline:
    """One fetch of an engine. `ended_ns` is 0 until it is answered."""

    engine: EngineId
    request: int
    keys: Sequence[ChunkKey]
    started_ns: int
    decided_ns: int = 0
    ended_ns: int = 0
    plan: effects.FetchPlanned | None = None
    status: Status = Status.CANCELLED
    chunks: tuple[FetchedChunk, ...] = ()
    leases_held: int = 0
    """That its engine has: one, or one of each part of a fetch that streams."""
    phases: dict[tuple[Step, str], Phase] = field(default_factory=dict)
    notes: list[tuple[int, str, dict[str, str]]] = field(default_factory=list)
    """(when, what, details) of single happenings: a NAK, a bad copy."""
    awaited: set[ChunkKey] = field(default_factory=set)
    """Chunks that were not here when it began and are not whole yet."""

    def phase(self, step: Step, now_ns: int, *, node: str = "", endpoint: str = "") -> Phase:
        """The phase of a kind of step, begun now if there is none."""
        made = self.phases.get((step, node))
        if made is None:
            made = self.phases[step, node] = Phase(step, now_ns, now_ns, node, endpoint)
        return made

    def begin(self, step: Step, key: ChunkKey, what: Hashable, now_ns: int, *, node: str = "", at: str = "") -> Phase:
        """A step begins; `what` tells it from others of its kind."""
        phase = self.phase(step, now_ns, node=node, endpoint=at)
        phase.chunks.add(key)
        phase.under_way.add(what)
        return phase

    def end(self, step: Step, what: Hashable, now_ns: int) -> bool:
        """A step ends; False: it had not begun."""
        phase = self.phases.get((step, ""))
        if phase is None or what not in phase.under_way:
            return False
        phase.under_way.remove(what)
        phase.ended_ns = now_ns
        return True


@dataclass(frozen=True, slots=True)
class _Read:
    size_bytes: int
    phases: tuple[Phase, ...]


class FetchWatch:
    """Follows the traced fetches of one agent. `saw` must get every event together with its effects."""

    def __init__(self, answered: Callable[[Timeline], None], copied: Callable[[Timeline, int], None]) -> None:
        """`answered(timeline)`: a fetch is over; `copied(timeline, now_ns)`: its engine has given the lease back."""
        self._answered = answered
        self._copied = copied
        self._fetches: dict[tuple[EngineId, int], Timeline] = {}
        self._awaiting: dict[ChunkKey, list[Timeline]] = {}
        self._reads: dict[ReadId, _Read] = {}
        self._leases: OrderedDict[tuple[EngineId, LeaseId], Timeline] = OrderedDict()
        self._begun: Timeline | None = None
        """The fetch whose request the core is handling."""
        self._event_handlers: dict[type, Callable[[Any, int], None]] = {
            events.ControlsReceived: self._controls,
            events.CastsPlaced: lambda event, now_ns: self._casts(event.arrivals, now_ns),
            events.CastsUnexpected: lambda event, now_ns: self._casts(event.arrivals, now_ns),
            protocol.SegmentsReceived: lambda event, now_ns: self._casts((event,), now_ns),
            protocol.ReadDone: self._read_done,
            protocol.ReadFailed: self._read_failed,
            events.ReadsProven: self._reads_proven,
            events.DigestComputed: self._digest_computed,
            events.LoadEnded: self._load_ended,
            events.ColdLoadEnded: self._load_ended,
            events.LeaseReleased: self._released,
            events.EngineDisconnected: self._engine_disconnected,
        }
        self._effect_handlers: dict[type, Callable[[Any, int], None]] = {
            effects.FetchPlanned: self._planned,
            effects.FetchAnswered: self._answer,
            effects.FetchPartAnswered: self._part_answered,
            effects.StartRead: self._read_started,
            effects.ComputeDigest: self._verified,
            effects.ChunkProven: self._chunk_proven,
            effects.LoadChunk: lambda one, now_ns: self._begin(Step.LOAD, one.into.key, now_ns),
            effects.LoadCold: lambda one, now_ns: self._begin(Step.LOAD, one.into.key, now_ns),
            effects.ReportBadCopy: self._bad_copy,
            SendControl: lambda one, now_ns: self._control_sent(one.message, now_ns),
            AbortRead: lambda one, now_ns: self._read_over(one.read, now_ns, failed=False),
        }
        self._member: Member | None = None
        self._segment_bytes = 0

    def begin(self, event: events.ChunksRequested, now_ns: int) -> Timeline | None:
        """Begin to follow a fetch, before the core handles it; None: its number is in use, and the core refuses it."""
        if (event.engine, event.request) in self._fetches:
            return None
        timeline = Timeline(event.engine, event.request, event.keys, now_ns)
        self._fetches[event.engine, event.request] = self._begun = timeline
        return timeline

    def saw(
        self, event: events.Event, made: Iterable[effects.Effect], now_ns: int, done_ns: int, at: ReaderParameters
    ) -> None:
        """The core got `event` at `now_ns` and had handled it at `done_ns`; `at`: this node's place in the fabric."""
        if not self._fetches and not self._leases:
            return
        self._member, self._segment_bytes = at.member, at.segment_bytes
        handler = self._event_handlers.get(type(event))
        if handler is not None:
            handler(event, now_ns)
        if self._begun is not None:
            self._begun.decided_ns = done_ns
        for effect in made:
            handler = self._effect_handlers.get(type(effect))
            if handler is not None:
                handler(effect, done_ns)
        self._begun = None

    # ------------------------------------------------------------------ the fetch itself

    def _planned(self, planned: effects.FetchPlanned, done_ns: int) -> None:
        timeline = self._begun or self._planned_late(planned)
        if timeline is None:
            raise AssertionError("the core planned a fetch that no engine requested")
        timeline.plan = planned
        if timeline is not self._begun:
            timeline.decided_ns = done_ns
        for key in (*(key for key, _size, _route in planned.to_come), *planned.awaited):
            timeline.awaited.add(key)
            self._awaiting.setdefault(key, []).append(timeline)
        for key in planned.awaited:
            timeline.begin(Step.WAIT, key, key, timeline.decided_ns)

    def _planned_late(self, planned: effects.FetchPlanned) -> Timeline | None:
        """The fetch of a plan that was not made at its request, because the core asked the cold store first."""
        named = {*planned.here, *(key for key, _size, _route in planned.to_come), *planned.awaited}
        unplanned = (one for one in self._fetches.values() if one.plan is None)
        return next((one for one in unplanned if named <= set(one.keys)), None)

    def _part_answered(self, answer: effects.FetchPartAnswered, _now_ns: int) -> None:
        timeline = self._fetches.get((answer.engine, answer.request))
        if timeline is not None:
            self._leased(timeline, answer)

    def _answer(self, answer: effects.FetchAnswered, now_ns: int) -> None:
        timeline = self._fetches.pop((answer.engine, answer.request), None)
        if timeline is None:
            return
        timeline.status = answer.status
        self._leased(timeline, answer)
        self._close(timeline, now_ns)
        if timeline.chunks and not timeline.leases_held:
            self._copied(timeline, now_ns)  # the engine copied each part before the last one arrived

    def _leased(self, timeline: Timeline, answer: effects.FetchAnswered | effects.FetchPartAnswered) -> None:
        """The engine holds more chunks of a fetch, until it gives the lease back."""
        timeline.chunks += answer.chunks
        if answer.lease != NO_LEASE:
            if len(self._leases) >= COPIES_MAX:
                del self._leases[next(iter(self._leases))]
            self._leases[answer.engine, answer.lease] = timeline
            timeline.leases_held += 1

    def _close(self, timeline: Timeline, now_ns: int) -> None:
        timeline.ended_ns = now_ns
        for phase in timeline.phases.values():
            if phase.under_way:
                phase.ended_ns = now_ns
        for key in timeline.awaited:
            waiting = self._awaiting[key]
            waiting.remove(timeline)
            if not waiting:
                del self._awaiting[key]
        timeline.awaited.clear()
        self._answered(timeline)

    def _released(self, event: events.LeaseReleased, now_ns: int) -> None:
        timeline = self._leases.pop((event.engine, event.lease), None)
        if timeline is not None:
            timeline.leases_held -= 1
            if timeline.ended_ns and not timeline.leases_held:
                self._copied(timeline, now_ns)

    def _engine_disconnected(self, event: events.EngineDisconnected, now_ns: int) -> None:
        for asked in [one for one in self._fetches if one[0] == event.engine]:
            self._close(self._fetches.pop(asked), now_ns)
        held = [one for one in self._leases if one[0] == event.engine]
        for timeline in dict.fromkeys(self._leases.pop(one) for one in held):
            self._copied(timeline, now_ns)

    # ------------------------------------------------------------------ who pulls

    def _control_sent(self, message: Control, now_ns: int) -> None:
        for timeline in self._awaiting.get(message.key, ()):
            if _is_whole(timeline, message.key):
                continue
            if message.op is Op.JOIN and message.tag & TAG_YIELDS:
                timeline.end(Step.LEAD, message.key, now_ns)
            elif message.op is Op.JOIN and message.tag & TAG_LEADS:
                self._lead(timeline, message.key, now_ns)
            elif message.op is Op.JOIN and not _has(timeline, Step.JOIN, message.key):
                timeline.end(Step.WAIT, message.key, now_ns)
                timeline.begin(Step.JOIN, message.key, message.key, now_ns)
            elif message.op is Op.GET and not _is_under_way(timeline, Step.FOLLOW, message.key):
                self._lead(timeline, message.key, now_ns)

    def _controls(self, event: events.ControlsReceived, now_ns: int) -> None:
        for arrival in event.arrivals:
            message = arrival.message
            for timeline in self._awaiting.get(message.key, ()):
                if message.op is Op.NOTICE and not _is_whole(timeline, message.key):
                    timeline.end(Step.JOIN, message.key, now_ns)
                    if message.tag & TAG_LEADS and message.member != self._member:
                        self._follow(timeline, message.key, now_ns)
                elif message.op is Op.NAK:
                    timeline.notes.append((now_ns, "nak", {"kvcast.key": message.key.hex()}))

    def _lead(self, timeline: Timeline, key: ChunkKey, now_ns: int) -> None:
        timeline.end(Step.FOLLOW, key, now_ns)
        timeline.begin(Step.LEAD, key, key, now_ns)

    def _follow(self, timeline: Timeline, key: ChunkKey, now_ns: int) -> None:
        timeline.end(Step.LEAD, key, now_ns)
        timeline.begin(Step.FOLLOW, key, key, now_ns)

    # ------------------------------------------------------------------ arrivals

    def _casts(self, arrivals: Sequence[protocol.SegmentsReceived], now_ns: int) -> None:
        for arrived in arrivals:
            for timeline in self._awaiting.get(arrived.key, ()):
                if _is_whole(timeline, arrived.key):
                    continue
                if not _is_under_way(timeline, Step.LEAD, arrived.key):
                    self._follow(timeline, arrived.key, now_ns)
                cast = timeline.phase(Step.CAST, now_ns)
                cast.chunks.add(arrived.key)
                cast.segments_count += len(arrived.segments)
                cast.size_bytes += len(arrived.segments) * self._segment_bytes
                cast.from_switch_count += int(arrived.from_switch)
                cast.ended_ns = now_ns

    def _read_started(self, started: effects.StartRead, now_ns: int) -> None:
        key, phases = started.chunk.key, []
        for timeline in self._awaiting.get(key, ()):
            timeline.end(Step.WAIT, key, now_ns)
            step = Step.REPAIR if _has(timeline, Step.CAST, key) else Step.READ
            phases.append(timeline.begin(step, key, started.read, now_ns, node=started.node, at=started.endpoint))
        if phases:
            self._reads[started.read] = _Read(started.size_bytes, tuple(phases))

    def _reads_proven(self, event: events.ReadsProven, now_ns: int) -> None:
        for read in event.reads:
            self._read_done(read, now_ns)

    def _read_done(self, event: protocol.ReadDone | events.ReadProven, now_ns: int) -> None:
        read = self._reads.get(event.read)
        if read is not None:
            for phase in read.phases:
                phase.size_bytes += read.size_bytes
            self._read_over(event.read, now_ns, failed=False)

    def _read_failed(self, event: protocol.ReadFailed, now_ns: int) -> None:
        self._read_over(event.read, now_ns, failed=True)

    def _read_over(self, read: ReadId, now_ns: int, *, failed: bool) -> None:
        over = self._reads.pop(read, None)
        if over is not None:
            for phase in over.phases:
                phase.under_way.discard(read)
                phase.failed_count += failed
                phase.ended_ns = now_ns

    def _load_ended(self, event: events.LoadEnded | events.ColdLoadEnded, now_ns: int) -> None:
        key = event.into.key
        self._end(Step.LOAD, key, now_ns)
        for timeline in self._awaiting.get(key, ()):
            load = timeline.phases.get((Step.LOAD, ""))
            if load is not None and event.outcome is events.LoadOutcome.DONE:
                load.size_bytes += event.into.size_bytes
            elif load is not None:
                load.failed_count += 1

    def _chunk_proven(self, effect: effects.ChunkProven, now_ns: int) -> None:
        """The transport compared the bytes as they arrived, so verifying took no time of its own."""
        self._verified(effect, now_ns)
        self._end(Step.VERIFY, effect.chunk.key, now_ns)

    def _verified(self, effect: effects.ComputeDigest | effects.ChunkProven, now_ns: int) -> None:
        key = effect.chunk.key
        for timeline in self._awaiting.get(key, ()):
            for step in (Step.JOIN, Step.LEAD, Step.FOLLOW):
                timeline.end(step, key, now_ns)
            timeline.begin(Step.VERIFY, key, key, now_ns).size_bytes += effect.chunk.size_bytes

    def _bad_copy(self, effect: effects.ReportBadCopy, now_ns: int) -> None:
        details = {"kvcast.key": effect.key.hex(), "kvcast.node": effect.holder, "kvcast.reason": effect.blame.value}
        for timeline in self._awaiting.get(effect.key, ()):
            timeline.notes.append((now_ns, "bad copy", details))

    def _digest_computed(self, event: events.DigestComputed, now_ns: int) -> None:
        """A chunk has arrived, or an engine of this node has put it."""
        self._end(Step.VERIFY, event.chunk.key, now_ns)
        self._end(Step.WAIT, event.chunk.key, now_ns)

    def _begin(self, step: Step, key: ChunkKey, now_ns: int) -> None:
        for timeline in self._awaiting.get(key, ()):
            timeline.end(Step.WAIT, key, now_ns)
            timeline.begin(step, key, key, now_ns)

    def _end(self, step: Step, key: ChunkKey, now_ns: int) -> None:
        for timeline in self._awaiting.get(key, ()):
            timeline.end(step, key, now_ns)


def _is_under_way(timeline: Timeline, step: Step, key: ChunkKey) -> bool:
    phase = timeline.phases.get((step, ""))
    return phase is not None and key in phase.under_way


def _has(timeline: Timeline, step: Step, key: ChunkKey) -> bool:
    phase = timeline.phases.get((step, ""))
    return phase is not None and key in phase.chunks


def _is_whole(timeline: Timeline, key: ChunkKey) -> bool:
    """Whether all of a chunk has arrived. Casts that follow have nothing to do with this fetch."""
    return _has(timeline, Step.VERIFY, key)
