"""The reader of a node: brings chunks by following and leading casts and by reliable reads.

It is told which chunks are wanted, in which order, and says which are here or gone. It routes what happens to those who
own it: chunks and copies that fail (chunks.py), the switch's interest (membership.py), who pulls what (schedule.py),
GETs under way (pull.py), reliable reads (stripes.py). It knows no fetches, sockets, clocks or memory: the shell places
segments, `missing` says which ones it may.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from kvchunk.ids import ChunkKey
from kvproto.commands import DoubtHolder, ReaderCommand, VerifyChunk
from kvproto.events import (
    ChunkJudged,
    ChunkUnwanted,
    ChunkVerified,
    ChunkWanted,
    ControlReceived,
    HolderLost,
    HoldersChanged,
    ReadDone,
    ReaderEvent,
    ReadFailed,
    ReadProgress,
    SegmentsReceived,
    SwitchChanged,
)
from kvproto.ids import Address
from kvproto.session.chunk import Chunk
from kvproto.session.chunks import Chunks, Copies
from kvproto.session.liveness import Liveness
from kvproto.session.membership import Membership
from kvproto.session.pace import Pace
from kvproto.session.parameters import ReaderParameters
from kvproto.session.phases import Cause, Phase
from kvproto.session.pull import Pull
from kvproto.session.schedule import Schedule
from kvproto.session.stripes import Stripe, Stripes
from kvproto.session.timing import (
    EVALUATE,
    LIVENESS,
    PATIENT_SEGMENTS,
    PULL_FAILURES_MAX,
    PULL_TIMEOUT_QUIET,
    QUIET_REJOIN,
    QUIET_REJOIN_MAX_NS,
    STRIPE,
)
from kvproto.wire.control import TAG_LEADS, Control, Flag, Op

_FREQUENT = frozenset({SegmentsReceived, ControlReceived, ReadProgress})
"""Events that do not call for a decision at once, unless their handlers find that they do."""


class Reader:
    """One per node. Deterministic: the same events at the same times give the same commands."""

    def __init__(self, parameters: ReaderParameters) -> None:
        self._parameters = parameters
        self._out: list[ReaderCommand] = []
        self._pace = Pace()
        self._liveness = Liveness(self._pace)
        self._pull = Pull(parameters.receive_window_segments, self._pace)
        self._stripes = Stripes(self._pace, parameters.rails)
        self._membership = Membership(parameters, self._pace)
        self._schedule = Schedule(parameters, self._membership, self._pull, self._stripes, self._pace)
        self._chunks = Chunks(self._schedule, self._membership, self._pull, self._stripes, self._out)
        self._copies = Copies(parameters, self._chunks, self._stripes, self._out)
        self._heard_ns = 0
        """When anything about an open chunk last came."""
        self._rejoin_ns = self._pace[QUIET_REJOIN]
        self._stale = False
        """Something other than the arrival of segments has happened since the rules last ran."""
        self._evaluated_ns = -EVALUATE.ceiling_ns
        self.wake_ns: int | None = None
        """When handle_timer should be called next; None: not before another event. May change with every call."""
        self._handlers: dict[type, Callable[[Any, int], None]] = {
            ChunkWanted: self._on_wanted,
            ChunkUnwanted: lambda event, now_ns: self._chunks.unwant(event.key, now_ns),
            ControlReceived: self._on_control,
            SegmentsReceived: self._on_segments,
            ReadProgress: self._on_read_progress,
            ReadDone: self._on_read_done,
            ReadFailed: self._on_read_failed,
            ChunkVerified: self._on_verified,
            ChunkJudged: self._on_judged,
            HoldersChanged: self._on_holders_changed,
            HolderLost: lambda event, now_ns: self._copies.lose(event.node, now_ns),
            SwitchChanged: self._on_switch_changed,
        }

    # --- the shell's side --------------------------------------------------------------------------------------------

    def handle(self, event: ReaderEvent, now_ns: int) -> list[ReaderCommand]:
        """Commands that follow from an event; includes timers that are due at `now_ns`."""
        if type(event) not in _FREQUENT:
            self._stale = True
        self._handlers[type(event)](event, now_ns)
        return self._finish(now_ns)

    def handle_all(self, events: Iterable[ReaderEvent], now_ns: int) -> list[ReaderCommand]:
        """Commands that follow from events that came together: the rules run once, when all of them are known."""
        for event in events:
            if type(event) not in _FREQUENT:
                self._stale = True
            self._handlers[type(event)](event, now_ns)
        return self._finish(now_ns)

    def handle_timer(self, now_ns: int) -> list[ReaderCommand]:
        """Commands that are due. Calling it early or late is safe."""
        return self._finish(now_ns)

    @property
    def idle(self) -> bool:
        """Whether nothing is wanted and nothing is asked of anybody."""
        return not (self._chunks.wanted or self._pull.outstanding or self._stripes.reads)

    @property
    def led_count(self) -> int:
        """Chunks that this node pulls for everybody at the moment."""
        return len(self._schedule.led)

    @property
    def patient(self) -> bool:
        """Whether segments may be reported some milliseconds late: others pull them, and much is still missing.

        A reader that has asked for segments itself, as leader or from a switch that serves them, is waiting for them.
        """
        if self._schedule.led or self._pull.outstanding:
            return False
        missing = 0
        for chunk in self._chunks.open.values():
            missing += chunk.progress.missing_count
            if missing >= PATIENT_SEGMENTS:
                return True
        return False

    @property
    def half_window(self) -> int:
        """How many of the segments that it has asked for may wait to be reported: while it asks for as many again, the
        others keep the path busy."""
        return self._pull.window.segments // 2

    def left_at(self, key: ChunkKey, now_ns: int) -> Address | None:
        """See `Membership.left_at`."""
        return self._membership.left_at(key, now_ns)

    def missing(self, key: ChunkKey) -> npt.NDArray[np.bool_] | None:
        """Which segments of a chunk may be placed into memory (a view that changes later); None: none."""
        chunk = self._chunks.wanted.get(key)
        return chunk.progress.missing if chunk is not None and chunk.castable else None

    def unsettled(self, key: ChunkKey) -> npt.NDArray[np.bool_] | None:
        """Segments of a chunk that may still be written, by casts or by reads under way; None: it is not open."""
        chunk = self._chunks.open.get(key)
        return chunk.progress.missing | chunk.progress.reading if chunk is not None else None

    def configure(self, parameters: ReaderParameters, now_ns: int) -> list[ReaderCommand]:
        """Change the node's parameters (member, receive window, ...) while chunks are on their way."""
        joined_differently = parameters.member != self._parameters.member
        self._parameters = self._membership.parameters = parameters
        self._schedule.parameters = self._copies.parameters = parameters
        self._pull.window.set_limit(parameters.receive_window_segments)
        if joined_differently:
            self._on_switch_changed(SwitchChanged(), now_ns)
        self._stale = True
        return self._finish(now_ns)

    # --- what is wanted, and what the directory and the switch say ---------------------------------------------------

    def _on_wanted(self, event: ChunkWanted, now_ns: int) -> None:
        if not self._chunks.wanted:
            self._schedule.waiting_since_ns = self._heard_ns = now_ns
        self._chunks.want(event)

    def _on_holders_changed(self, event: HoldersChanged, now_ns: int) -> None:
        for key, holders in event.holders.items():
            self._copies.offer(key, holders, now_ns)

    def _on_switch_changed(self, _: SwitchChanged, now_ns: int) -> None:
        for chunk in self._chunks.open.values():
            self._schedule.deposed(chunk)
            self._out += self._membership.reboot(chunk, now_ns)

    def _on_control(self, event: ControlReceived, now_ns: int) -> None:
        message = event.message
        if message.op is Op.NOTICE:
            self._on_notice(message, event.source, now_ns)
        elif message.op is Op.NAK:
            self._on_nak(message, event.source, now_ns)

    def _on_nak(self, nak: Control, source: Address, now_ns: int) -> None:
        """Somebody says, with a holder's address, that it has no such chunk: ask the holder itself. Where holders keep
        interest, another one may, and may be named."""
        chunk = self._chunks.open.get(nak.key)
        if chunk is None or chunk.phase not in (Phase.JOINING, Phase.JOINED):
            return
        holder = next((one for one in chunk.provenance.usable if one.address == source and one.readable), None)
        if holder is None:
            return
        if self._parameters.by_keepers and chunk.provenance.turn_from(holder.node, Address(nak.members)):
            self._schedule.deposed(chunk)
            chunk.interest.join_tries = 0
            self._out += self._membership.join(chunk, now_ns)
        else:
            self._read_alone(chunk)

    def _read_alone(self, chunk: Chunk) -> None:
        """Wait for nobody: the chunk comes by reliable reads."""
        chunk.move(Cause.UNHEARD)
        chunk.alone = True
        self._schedule.deposed(chunk)
        self._stale = True

    def _on_notice(self, notice: Control, source: Address, now_ns: int) -> None:
        me = self._parameters.member
        chunk = self._chunks.open.get(notice.key)
        if chunk is None:
            if me is not None and notice.members >> me & 1 and self._chunks.wanted.get(notice.key) is None:
                self._out += self._membership.stray(notice.key, now_ns, is_counted=True)
            return
        if notice.segments != chunk.segments or (self._parameters.by_keepers and source != chunk.interest.at):
            return
        self._heard(now_ns)
        followed, phase = chunk.interest.leader, chunk.phase
        self._membership.on_notice(chunk, notice, now_ns)
        if phase is Phase.JOINING:
            self._stale |= all(other.phase is not Phase.JOINING for other in self._chunks.open.values())
        self._stale |= chunk.interest.leader != followed
        soon_ns = now_ns + self._pace[EVALUATE]
        self.wake_ns = min(self.wake_ns or soon_ns, soon_ns)
        if notice.member == me:
            if notice.tag & TAG_LEADS and followed not in (None, me):
                self._schedule.reinstated(chunk)
        elif notice.flags & Flag.JOINED:
            if notice.tag & TAG_LEADS:
                self._schedule.deposed(chunk)
            elif self._schedule.leads(chunk) and notice.count - 1 != me:
                # The switch names whose GET it saw last. We have announced this chunk and not asked for it yet.
                self._out += self._membership.announce(chunk, now_ns)
        if followed is not None and followed != me and chunk.interest.leader is None:
            self._schedule.followed(chunk)

    # --- what arrives ------------------------------------------------------------------------------------------------

    def _on_segments(self, event: SegmentsReceived, now_ns: int) -> None:
        chunk = self._chunks.wanted.get(event.key)
        if chunk is None or not chunk.castable:
            if chunk is None or chunk.interest.at is None:
                self._out += self._membership.stray(event.key, now_ns, is_counted=False)
            return
        self._heard(now_ns)
        segments, progress = event.segments, chunk.progress
        self._membership.note_served(chunk, by_switch=bool(event.from_switch))
        foreign = progress.asked_of(segments) < len(segments)
        progress.note_cast(segments, foreign=foreign, now_ns=now_ns)
        fresh = progress.missing_of(segments)
        asked = self._arrive(chunk, fresh, now_ns)
        chunk.provenance.note_cast(len(fresh), event.from_switch)
        self._schedule.inflow.add(len(fresh) - asked, len(fresh), now_ns)
        if not progress.missing_count:
            self._whole(chunk, now_ns)

    def _on_read_progress(self, event: ReadProgress, now_ns: int) -> None:
        stripe = self._stripes.reads.get(event.read)
        if stripe is None:
            return
        self._heard(now_ns)
        stripe.have = event.segments
        self._stripes.progress(stripe, now_ns)

    def _on_read_done(self, event: ReadDone, now_ns: int) -> None:
        stripe = self._stripes.reads.get(event.read)
        if stripe is None:
            return
        self._heard(now_ns)
        rate = self._stripes.finish(stripe, now_ns)
        if now_ns - stripe.started_ns >= self._pace.least_ns(STRIPE) // 2:
            self._schedule.inflow.learn_link(rate)
        stripe.have = stripe.count
        self._take_first(stripe, now_ns, proves=event.proves)

    def _take_first(self, stripe: Stripe, now_ns: int, *, proves: bool = False) -> None:
        """What has come of a read so far is here; `proves`: see `ReadDone`."""
        chunk = stripe.chunk
        span = np.arange(stripe.first, stripe.first + stripe.have, dtype=np.uint32)
        fresh = chunk.progress.missing_of(span)
        self._arrive(chunk, fresh, now_ns)
        chunk.provenance.note_read(len(fresh))
        if len(fresh):
            self._schedule.inflow.add(0, len(fresh), now_ns)
        if not chunk.progress.missing_count:
            self._whole(chunk, now_ns, is_proven=proves)

    def _on_judged(self, event: ChunkJudged, now_ns: int) -> None:
        self._heard(now_ns)
        self._copies.judged(event.read, event.wrong, now_ns)

    def _on_read_failed(self, event: ReadFailed, now_ns: int) -> None:
        if self._copies.not_judged(event.read, gone=event.gone, now_ns=now_ns):
            return
        stripe = self._stripes.reads.get(event.read)
        if stripe is None:
            return
        self._stripes.end(stripe)
        if event.gone:
            self._copies.absent(stripe.chunk, stripe.holder.node, now_ns)
        else:
            self._copies.broke(stripe, now_ns)

    def _arrive(self, chunk: Chunk, fresh: npt.NDArray[np.uint32], now_ns: int) -> int:
        """Distinct missing segments are here. Returns how many of them we had asked for by GET."""
        if not len(fresh):
            return 0
        serials = chunk.progress.arrive(fresh)
        if chunk.joined:
            self._liveness.arrived(len(fresh))
        if len(serials):
            self._pull.arrived(serials, now_ns)
        return len(serials)

    def _whole(self, chunk: Chunk, now_ns: int, *, is_proven: bool = False) -> None:
        """Nothing is missing: leave, stop all writing, have it verified unless it is proven to be right."""
        self._stale = True
        chunk.move(Cause.WHOLE)
        self._chunks.close(chunk, now_ns)
        if is_proven:
            self._chunks.here(chunk)
        else:
            self._out.append(VerifyChunk(chunk.key))

    def _on_verified(self, event: ChunkVerified, now_ns: int) -> None:
        chunk = self._chunks.wanted.get(event.key)
        if chunk is None or chunk.phase is not Phase.VERIFYING:
            return
        if event.good:
            self._chunks.here(chunk)
        else:
            self._copies.wrong(chunk, now_ns, has_tree=event.has_tree)

    # --- time --------------------------------------------------------------------------------------------------------

    def _finish(self, now_ns: int) -> list[ReaderCommand]:
        """Run timers and rules as far as due; hand over the commands."""
        due = self.wake_ns is not None and now_ns >= self.wake_ns
        if due and self.wake_ns is not None:
            self._pace.note_late(now_ns - self.wake_ns)
        if self._stale or due or now_ns - self._evaluated_ns >= self._pace[EVALUATE]:
            self._stale = False
            if self._chunks.wanted:
                self._apply_rules(now_ns)
            else:
                if self._liveness.since_ns is not None:
                    self._liveness.rest()
                self.wake_ns = None
            self._evaluated_ns = now_ns
        elif self._schedule.led:
            self._out += self._schedule.refill(now_ns)
        out = self._out.copy()
        self._out.clear()
        return out

    def _apply_rules(self, now_ns: int) -> None:
        self._expire(now_ns)
        self._open_waiting(now_ns)
        self._out += self._schedule.run(self._chunks.open.values(), now_ns)
        self.wake_ns = min(self._timeouts(), default=None)

    def _expire(self, now_ns: int) -> None:
        """Stalled reads, lost segments, JOINs without an answer."""
        if self._copies.proofs or self._stripes.reads:
            self._copies.give_up_stalled(now_ns)
            for stripe in self._stripes.fall_silent(now_ns):
                self._out.append(DoubtHolder(stripe.holder.node))
                if stripe.chunk.joined:
                    self._take_first(stripe, now_ns)  # the rest is asked for by GET, too
        if self._membership.tend_ns is None and not self._pull.outstanding:
            if self._liveness.since_ns is not None:
                self._liveness.rest()  # no chunk is joined: no cast is waited for
            return
        self._pull.keep_pace()
        last = self._schedule.inflow.foreign_last_ns
        self._pull.quiet = last is None or now_ns - last >= self._pace[PULL_TIMEOUT_QUIET]
        self._pull.find_lost(now_ns)
        for chunk in self._pull.expire(now_ns):
            self._pull_failed(chunk, now_ns)
        self._out += self._membership.tend(self._chunks.open.values(), now_ns)
        self._rejoin_if_quiet(now_ns)
        self._feed_starved(now_ns)

    def _feed_starved(self, now_ns: int) -> None:
        """Where casts bring nothing new, read: the first chunks first."""
        waiting = (chunk for chunk in self._chunks.open.values() if chunk.joined and chunk.provenance.any_readable)
        first = next(waiting, None)
        count = self._liveness.starved(self._schedule.inflow.link, now_ns, waits=first is not None)
        if count and first is not None:
            unread = [chunk for chunk in (first, *waiting) if not self._stripes.of_chunk(chunk)]
            for chunk in sorted(unread, key=lambda chunk: chunk.order)[:count]:
                self._read_alone(chunk)

    def _heard(self, now_ns: int) -> None:
        """The network is alive."""
        self._heard_ns = now_ns
        if self._membership.tend_ns is not None:
            self._rejoin_ns = self._pace[QUIET_REJOIN]

    def _rejoin_if_quiet(self, now_ns: int) -> None:
        """After long silence, renew every JOIN: a switch that restarted knows nobody."""
        if now_ns - self._heard_ns < self._rejoin_ns:
            return
        self._heard_ns = now_ns
        self._rejoin_ns = min(2 * self._rejoin_ns, QUIET_REJOIN_MAX_NS)
        for chunk in [chunk for chunk in self._chunks.open.values() if chunk.joined]:
            self._join_again(chunk, now_ns)

    def _join_again(self, chunk: Chunk, now_ns: int) -> None:
        self._out += self._membership.join(chunk, now_ns, TAG_LEADS if self._schedule.leads(chunk) else 0)

    def _pull_failed(self, chunk: Chunk, now_ns: int) -> None:
        """GETs of a chunk brought nothing: the switch or the holder may have forgotten us."""
        if chunk.key not in self._chunks.open:
            return
        chunk.provenance.suspect(self._parameters)
        if self._pull.timeouts >= PULL_FAILURES_MAX and chunk.provenance.any_readable:
            chunk.move(Cause.UNHEARD)
            self._schedule.deposed(chunk)
        elif chunk.phase is Phase.JOINED:
            self._join_again(chunk, now_ns)

    def _open_waiting(self, now_ns: int) -> None:
        """Open waiting chunks as long as there is room for them."""
        while self._chunks.waiting and (chunk := self._chunks.open_next()) is not None:
            if not chunk.provenance.usable:
                self._copies.exhaust(chunk, now_ns)
            elif self._parameters.member is None:
                chunk.move(Cause.REFUSED)  # there is no switch to join
            else:
                self._out += self._membership.open(chunk, now_ns)

    def _timeouts(self) -> list[int]:
        """Everything that time alone may make due."""
        dues = [] if self._schedule.wake_ns is None else [self._schedule.wake_ns]
        if self._stripes.reads:
            dues.append(self._stripes.next_timeout_ns())
        if self._copies.proofs:
            dues.append(self._copies.next_timeout_ns())
        if self._membership.tend_ns is not None:
            dues += self._heard_ns + self._rejoin_ns, self._membership.tend_ns
        pull_ns = self._pull.next_timeout_ns() if self._pull.outstanding else None
        if pull_ns is not None:
            dues.append(pull_ns)
        if self._liveness.since_ns is not None:
            dues.append(self._liveness.since_ns + self._pace[LIVENESS])
        return dues
