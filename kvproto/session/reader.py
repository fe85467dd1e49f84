"""The reader of a node: fetches chunks by following and leading casts and by reliable reads.

It owns what every fetch of the node wants and decides what to ask of whom. It knows no sockets, clocks or memory: the
shell places segments, `missing` says which ones it may.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from kvproto.commands import (
    AbortRead,
    Blame,
    DeliverFetch,
    DropChunk,
    FetchProgress,
    Outcome,
    ReaderCommand,
    ReportBadCopy,
    Source,
    VerifyChunk,
)
from kvproto.errors import LocalProtocolError
from kvproto.events import (
    ChunkLoaded,
    ChunkVerified,
    ChunkWanted,
    ControlReceived,
    FetchCancelled,
    FetchRequested,
    HolderLost,
    HolderRef,
    HoldersChanged,
    LoadFailed,
    ReadDone,
    ReaderEvent,
    ReadFailed,
    ReadProgress,
    SegmentsReceived,
    SwitchChanged,
)
from kvproto.ids import ChunkKey, FetchId, NodeId
from kvproto.limits import CHUNK_SEGMENTS_MAX, FETCH_CHUNKS_MAX, FETCHES_MAX, JOINED_MAX
from kvproto.session.chunk import Cause, Chunk, Phase
from kvproto.session.fetch import Fetch
from kvproto.session.holders import Health, choose_holder
from kvproto.session.membership import Membership
from kvproto.session.parameters import ReaderParameters
from kvproto.session.pull import Pull
from kvproto.session.schedule import Schedule
from kvproto.session.stripes import Stripe, Stripes
from kvproto.session.timing import (
    EVALUATE_NS,
    PATIENT_SEGMENTS,
    PULL_FAILURES_MAX,
    PULL_TIMEOUT_QUIET_NS,
    QUIET_REJOIN_MAX_NS,
    QUIET_REJOIN_NS,
    STRIPE_NS,
)
from kvproto.wire.control import TAG_LEADS, Control, Flag, Op

_FREQUENT = frozenset({SegmentsReceived, ControlReceived, ReadProgress})
"""Events that do not call for a decision at once, unless their handlers find that they do."""


class Reader:
    """One per node. Deterministic: the same events at the same times give the same commands."""

    def __init__(self, parameters: ReaderParameters) -> None:
        self._parameters = parameters
        self._fetches: dict[FetchId, Fetch] = {}
        self._chunks: dict[ChunkKey, Chunk] = {}
        self._open: dict[ChunkKey, Chunk] = {}
        """Chunks being fetched, at most JOINED_MAX."""
        self._waiting: dict[ChunkKey, Chunk] = {}
        self._order = 0
        self._pull = Pull(parameters.receive_window_segments)
        self._stripes = Stripes()
        self._health = Health()
        self._heard_ns = 0
        """When anything about an open chunk last came."""
        self._rejoin_ns = QUIET_REJOIN_NS
        self._membership = Membership(parameters)
        self._schedule = Schedule(parameters, self._membership, self._pull, self._stripes)
        self._out: list[ReaderCommand] = []
        self._stale = False
        """Something beside the arrival of segments has happened since the rules last ran."""
        self._evaluated_ns = -EVALUATE_NS
        self._wake_ns: int | None = None
        self._handlers: dict[type, Callable[[Any, int], None]] = {
            FetchRequested: self._on_fetch_requested,
            FetchCancelled: self._on_fetch_cancelled,
            ControlReceived: self._on_control,
            SegmentsReceived: self._on_segments,
            ReadProgress: self._on_read_progress,
            ReadDone: self._on_read_done,
            ReadFailed: self._on_read_failed,
            ChunkVerified: self._on_verified,
            ChunkLoaded: self._on_loaded,
            LoadFailed: self._on_load_failed,
            HoldersChanged: self._on_holders_changed,
            HolderLost: self._on_holder_lost,
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
            if type(event) is not SegmentsReceived:
                self._stale = True
            self._handlers[type(event)](event, now_ns)
        return self._finish(now_ns)

    def handle_timer(self, now_ns: int) -> list[ReaderCommand]:
        """Commands that are due. Calling it early or late is safe."""
        return self._finish(now_ns)

    @property
    def idle(self) -> bool:
        """Whether no fetch is under way and nothing is asked of anybody."""
        return not (self._fetches or self._chunks or self._open or self._pull.outstanding or self._stripes.count)

    @property
    def led_count(self) -> int:
        """Chunks that this node pulls for everybody at the moment."""
        return self._schedule.led_count

    @property
    def patient(self) -> bool:
        """Whether segments may be told some milliseconds late: others pull them, and much is still missing."""
        if self._schedule.led_count:
            return False
        missing = 0
        for chunk in self._open.values():
            missing += chunk.missing_count
            if missing >= PATIENT_SEGMENTS:
                return True
        return False

    def next_timeout_ns(self) -> int | None:
        """When handle_timer should be called next; None: not before another event. May change with every call."""
        return self._wake_ns

    def missing(self, key: ChunkKey) -> npt.NDArray[np.bool_] | None:
        """Which segments of a chunk may be placed into memory (a view that changes later); None: none."""
        chunk = self._chunks.get(key)
        return chunk.missing if chunk is not None and chunk.castable else None

    def is_here(self, key: ChunkKey) -> bool:
        """Whether a chunk is whole and right, and a fetch that wanted it is still under way."""
        chunk = self._chunks.get(key)
        return chunk is not None and chunk.phase is Phase.HERE

    def configure(self, parameters: ReaderParameters, now_ns: int) -> list[ReaderCommand]:
        """Change the node's parameters (member, receive window, ...) while fetches go on."""
        joined_differently = parameters.member != self._parameters.member
        self._parameters = self._membership.parameters = self._schedule.parameters = parameters
        self._pull.window.set_limit(parameters.receive_window_segments)
        if joined_differently:
            self._on_switch_changed(SwitchChanged(), now_ns)
        self._stale = True
        return self._finish(now_ns)

    # --- fetches -----------------------------------------------------------------------------------------------------

    def _on_fetch_requested(self, event: FetchRequested, now_ns: int) -> None:
        if event.fetch in self._fetches:
            raise LocalProtocolError(f"fetch {event.fetch} is under way already")
        if len(self._fetches) >= FETCHES_MAX:
            raise LocalProtocolError(f"more than {FETCHES_MAX} fetches at a time")
        if len(event.chunks) > FETCH_CHUNKS_MAX:
            raise LocalProtocolError(f"more than {FETCH_CHUNKS_MAX} chunks in one fetch")
        if not self._chunks:
            self._schedule.waiting_since_ns = self._heard_ns = now_ns
        keys = tuple(wanted.key for wanted in event.chunks)
        present = frozenset(wanted.key for wanted in event.chunks if wanted.present)
        fetch = Fetch(event.fetch, keys, present, event.deadline_ns, [], len(keys))
        self._fetches[event.fetch] = fetch
        for wanted in event.chunks:
            if not wanted.present:
                self._want(wanted, fetch)
        self._advance(fetch, now_ns)

    def _want(self, wanted: ChunkWanted, fetch: Fetch) -> None:
        """Add a chunk to what the node fetches, or the fetch to those that want it."""
        chunk = self._chunks.get(wanted.key)
        if chunk is None:
            if not 1 <= wanted.segments <= CHUNK_SEGMENTS_MAX:
                raise LocalProtocolError(f"chunk {wanted.key.hex()} has {wanted.segments} segments")
            self._order += 1
            chunk = Chunk(
                wanted.key, wanted.segments, wanted.size_bytes, self._order, wanted.holders, wanted.read_alone
            )
            self._chunks[wanted.key] = chunk
            if wanted.loading:
                chunk.move(Cause.LOAD)
            else:
                self._waiting[wanted.key] = chunk
        elif chunk.segments != wanted.segments:
            raise LocalProtocolError(f"chunk {wanted.key.hex()} has {chunk.segments} segments, not {wanted.segments}")
        elif wanted.holders and chunk.phase is Phase.GONE:
            self._revive(chunk, wanted.holders)
        chunk.fetches.add(fetch.fetch)

    def _on_fetch_cancelled(self, event: FetchCancelled, now_ns: int) -> None:
        fetch = self._fetches.pop(event.fetch, None)
        if fetch is not None:
            self._release(fetch, fetch.keys, now_ns)

    def _advance(self, fetch: Fetch, now_ns: int) -> None:
        """Count the leading chunks that are here; deliver when nothing more is worth waiting for."""
        before = fetch.leading
        while fetch.leading < len(fetch.keys):
            key = fetch.keys[fetch.leading]
            chunk = self._chunks.get(key)
            if key in fetch.present:
                fetch.sources.append(Source.LOCAL)
            elif chunk is not None and chunk.phase is Phase.HERE:
                fetch.sources.append(chunk.source())
            else:
                break
        if fetch.settled:
            self._deliver(fetch, fetch.outcome or Outcome.COMPLETE, now_ns)
        elif fetch.leading > before:
            self._out.append(FetchProgress(fetch.fetch, fetch.leading))

    def _deliver(self, fetch: Fetch, outcome: Outcome, now_ns: int) -> None:
        del self._fetches[fetch.fetch]
        self._out.append(DeliverFetch(fetch.fetch, outcome, fetch.leading, tuple(fetch.sources)))
        self._release(fetch, fetch.keys, now_ns)

    def _release(self, fetch: Fetch, keys: tuple[ChunkKey, ...], now_ns: int) -> None:
        """The fetch no longer wants these; chunks that nobody wants are dropped."""
        for key in keys:
            chunk = self._chunks.get(key)
            if chunk is not None:
                chunk.fetches.discard(fetch.fetch)
                if not chunk.fetches:
                    self._drop(chunk, now_ns)

    def _drop(self, chunk: Chunk, now_ns: int) -> None:
        """Forget a chunk; its memory goes back to the shell unless the chunk is whole."""
        del self._chunks[chunk.key]
        self._waiting.pop(chunk.key, None)
        self._close(chunk, now_ns)
        if chunk.phase is not Phase.HERE:
            self._out.append(DropChunk(chunk.key))

    def _close(self, chunk: Chunk, now_ns: int) -> None:
        """Nothing more is asked for this chunk: end its reads, leave its interest set."""
        self._open.pop(chunk.key, None)
        self._schedule.deposed(chunk)
        self._pull.forget(chunk)
        for stripe in self._stripes.of_chunk(chunk):
            self._abort(stripe)
        self._out += self._membership.leave(chunk, now_ns)

    def _abort(self, stripe: Stripe) -> None:
        self._stripes.end(stripe)
        self._out.append(AbortRead(stripe.read))

    # --- what arrives ------------------------------------------------------------------------------------------------

    def _on_control(self, event: ControlReceived, now_ns: int) -> None:
        message = event.message
        if message.op is Op.NOTICE:
            self._on_notice(message, now_ns)
        elif message.op is Op.NAK:
            chunk = self._chunks.get(message.key)
            for holder in chunk.usable_holders() if chunk is not None else ():
                if chunk is not None and holder.address == event.source:
                    self._stale = True
                    self._copy_absent(chunk, holder.node, now_ns)

    def _on_notice(self, notice: Control, now_ns: int) -> None:
        me = self._parameters.member
        chunk = self._open.get(notice.key)
        if chunk is None:
            if me is not None and notice.members >> me & 1 and notice.key not in self._chunks:
                self._out += self._membership.stray(notice.key, now_ns)
            return
        if notice.segments != chunk.segments:
            return
        self._heard(now_ns)
        followed, phase = chunk.leader, chunk.phase
        self._membership.on_notice(chunk, notice, now_ns)
        if phase is Phase.JOINING:
            self._stale |= all(other.phase is not Phase.JOINING for other in self._open.values())
        self._stale |= chunk.leader != followed
        self._wake_ns = min(self._wake_ns or now_ns + EVALUATE_NS, now_ns + EVALUATE_NS)
        if notice.tag & TAG_LEADS and notice.member != me and notice.flags & Flag.JOINED:
            self._schedule.deposed(chunk)
        if followed is not None and followed != me and chunk.leader is None:
            self._schedule.followed(chunk)

    def _on_segments(self, event: SegmentsReceived, now_ns: int) -> None:
        chunk = self._chunks.get(event.key)
        if chunk is None or not chunk.castable:
            if chunk is None or chunk.interest_at is None:
                self._out += self._membership.stray(event.key, now_ns)
            return
        self._heard(now_ns)
        segments = event.segments
        if event.from_switch:
            chunk.cached = True
        elif chunk.cached:
            chunk.cached = False
        asked_before = int(np.count_nonzero(chunk.batch_of[segments] >= 0))
        chunk.arrived_ns = now_ns
        fresh = _distinct(segments[chunk.missing[segments]])
        asked = self._arrive(chunk, fresh, now_ns)
        if asked_before < len(segments):
            chunk.foreign_ns = now_ns
            chunk.high = max(chunk.high, int(segments.max()) + 1)
            chunk.low = min(chunk.low, int(segments.min()))
        chunk.by_switch += min(event.from_switch, len(fresh))
        chunk.by_cast += len(fresh) - min(event.from_switch, len(fresh))
        if len(fresh):
            chunk.contributors.add(event.source)
        self._schedule.inflow.add(len(fresh) - asked, len(fresh), now_ns)
        if not chunk.missing_count:
            self._whole(chunk, now_ns)

    def _arrive(self, chunk: Chunk, fresh: npt.NDArray[np.uint32], now_ns: int) -> int:
        """Distinct missing segments are here. Returns how many of them we had asked for by GET."""
        if not len(fresh):
            return 0
        busy = (chunk.batch_of[fresh] >= 0) | chunk.reading[fresh]
        chunk.missing[fresh] = False
        chunk.missing_count -= len(fresh)
        chunk.busy_count -= int(np.count_nonzero(busy))
        return self._pull.arrived(chunk, fresh, now_ns)

    def _whole(self, chunk: Chunk, now_ns: int) -> None:
        """Nothing is missing: leave, stop all writing, have it verified."""
        self._stale = True
        chunk.move(Cause.WHOLE)
        self._close(chunk, now_ns)
        self._out.append(VerifyChunk(chunk.key))

    def _on_verified(self, event: ChunkVerified, now_ns: int) -> None:
        chunk = self._chunks.get(event.key)
        if chunk is None or chunk.phase is not Phase.VERIFYING:
            return
        if event.good:
            chunk.move(Cause.GOOD)
            for fetch in [self._fetches[fetch] for fetch in sorted(chunk.fetches)]:
                self._advance(fetch, now_ns)
            return
        self._bad_copy(chunk, now_ns)

    def _bad_copy(self, chunk: Chunk, now_ns: int) -> None:
        """The bytes are wrong. One contributor is to blame; of several, none can be named: read from one at a time."""
        chunk.move(Cause.BAD)
        blamed = [holder.node for holder in chunk.holders if {holder.address} == chunk.contributors]
        if chunk.strict_holder is not None:
            blamed = [chunk.strict_holder]
        for node in blamed:
            chunk.excluded.add(node)
            self._out.append(ReportBadCopy(chunk.key, node, Blame.CHECKSUM))
        self._restart_strictly(chunk, now_ns)

    def _restart_strictly(self, chunk: Chunk, now_ns: int) -> None:
        """Begin the chunk again, all of it from one holder."""
        chunk.wipe()
        chunk.strict_holder = None
        holder = choose_holder(chunk, self._parameters)
        self._open[chunk.key] = chunk
        if holder is None:
            self._gone(chunk, now_ns)
        else:
            chunk.strict_holder = holder.node

    # --- this node's disk --------------------------------------------------------------------------------------------

    def _on_loaded(self, event: ChunkLoaded, now_ns: int) -> None:
        chunk = self._chunks.get(event.key)
        if chunk is None or chunk.phase is not Phase.LOADING:
            return
        chunk.loaded = True
        chunk.move(Cause.LOADED)
        for fetch in [self._fetches[fetch] for fetch in sorted(chunk.fetches)]:
            self._advance(fetch, now_ns)

    def _on_load_failed(self, event: LoadFailed, now_ns: int) -> None:
        chunk = self._chunks.get(event.key)
        if chunk is not None and chunk.phase is Phase.LOADING:
            chunk.move(Cause.UNLOADED)
            self._waiting[chunk.key] = chunk

    # --- reliable reads ----------------------------------------------------------------------------------------------

    def _on_read_progress(self, event: ReadProgress, now_ns: int) -> None:
        stripe = self._stripes.get(event.read)
        if stripe is not None:
            self._stripes.progress(stripe, now_ns)
            self._heard(now_ns)

    def _on_read_done(self, event: ReadDone, now_ns: int) -> None:
        stripe = self._stripes.get(event.read)
        if stripe is None:
            return
        self._heard(now_ns)
        chunk = stripe.chunk
        started_ns = stripe.started_ns
        rate = self._stripes.finish(stripe, now_ns)
        self._health.worked(stripe.holder.node)
        if now_ns - started_ns >= STRIPE_NS // 2:
            self._schedule.inflow.learn_link(rate)
        span = np.arange(stripe.first, stripe.first + stripe.count, dtype=np.uint32)
        fresh = span[chunk.missing[span]]
        self._arrive(chunk, fresh, now_ns)
        chunk.by_read += len(fresh)
        if len(fresh):
            chunk.contributors.add(stripe.holder.address)
            self._schedule.inflow.add(0, len(fresh), now_ns)
        if not chunk.missing_count:
            self._whole(chunk, now_ns)

    def _on_read_failed(self, event: ReadFailed, now_ns: int) -> None:
        stripe = self._stripes.get(event.read)
        if stripe is None:
            return
        self._stripes.end(stripe)
        if event.gone:
            self._copy_absent(stripe.chunk, stripe.holder.node, now_ns)
        else:
            self._holder_failed(stripe, now_ns)

    def _holder_failed(self, stripe: Stripe, now_ns: int) -> None:
        """A read broke. A holder whose reads break again and again is out for everything."""
        node, failures = stripe.holder.node, stripe.chunk.failures
        failures[node] = failures.get(node, 0) + 1
        if not self._health.failed(node, stripe.started_ns, now_ns):
            return
        for other in list(self._chunks.values()):
            if any(holder.node == node for holder in other.holders) and other.key in self._chunks:
                other.excluded.add(node)
                self._after_exclusion(other, node, now_ns)

    def _copy_absent(self, chunk: Chunk, node: NodeId, now_ns: int) -> None:
        """The holder said that it has no such chunk."""
        chunk.excluded.add(node)
        self._out.append(ReportBadCopy(chunk.key, node, Blame.ABSENT))
        self._after_exclusion(chunk, node, now_ns)

    def _after_exclusion(self, chunk: Chunk, node: NodeId, now_ns: int) -> None:
        """A holder of a chunk may be out: turn to the next one, or give the chunk up."""
        if chunk.key not in self._open and chunk.key not in self._waiting:
            return
        usable = {holder.node for holder in chunk.usable_holders()}
        if not usable:
            self._gone(chunk, now_ns)
            return
        if node not in usable:
            for stripe in self._stripes.of_chunk(chunk):
                if stripe.holder.node == node:
                    self._abort(stripe)
            if chunk.strict_holder == node:
                for stripe in self._stripes.of_chunk(chunk):
                    self._abort(stripe)
                self._restart_strictly(chunk, now_ns)

    def _gone(self, chunk: Chunk, now_ns: int) -> None:
        """No holder is left: fetches settle for what comes before it."""
        self._waiting.pop(chunk.key, None)
        chunk.move(Cause.EXHAUSTED)
        self._close(chunk, now_ns)
        for fetch in [self._fetches[fetch] for fetch in sorted(chunk.fetches) if fetch in self._fetches]:
            place = fetch.keys.index(chunk.key)
            if place < fetch.wanted:
                behind = fetch.keys[place + 1 : fetch.wanted]
                fetch.wanted, fetch.outcome = place, Outcome.GONE
                self._release(fetch, behind, now_ns)
                self._advance(fetch, now_ns)

    # --- what the directory and the switch say -----------------------------------------------------------------------

    def _on_holders_changed(self, event: HoldersChanged, now_ns: int) -> None:
        for key, holders in event.holders.items():
            chunk = self._chunks.get(key)
            if chunk is None:
                continue
            if chunk.phase is Phase.GONE:
                self._revive(chunk, holders)
                continue
            chunk.holders = holders
            self._drop_reads_of_others(chunk, now_ns)

    def _revive(self, chunk: Chunk, holders: tuple[HolderRef, ...]) -> None:
        """A chunk without holders has some again."""
        chunk.holders = holders
        if chunk.usable_holders():
            chunk.move(Cause.FOUND)
            self._waiting[chunk.key] = chunk

    def _on_holder_lost(self, event: HolderLost, now_ns: int) -> None:
        for chunk in list(self._chunks.values()):
            if any(holder.node == event.node for holder in chunk.holders) and chunk.key in self._chunks:
                chunk.holders = tuple(holder for holder in chunk.holders if holder.node != event.node)
                self._drop_reads_of_others(chunk, now_ns)

    def _drop_reads_of_others(self, chunk: Chunk, now_ns: int) -> None:
        """The list of holders changed: reads from nodes that are no longer on it end."""
        usable = {holder.node for holder in chunk.usable_holders()}
        for stripe in self._stripes.of_chunk(chunk):
            if stripe.holder.node not in usable:
                self._abort(stripe)
        if chunk.key in self._open or chunk.key in self._waiting:
            if not usable:
                self._gone(chunk, now_ns)
            elif chunk.phase is Phase.STRICT and chunk.strict_holder not in usable:
                for stripe in self._stripes.of_chunk(chunk):
                    self._abort(stripe)
                self._restart_strictly(chunk, now_ns)

    def _on_switch_changed(self, _: SwitchChanged, now_ns: int) -> None:
        for chunk in self._open.values():
            self._schedule.deposed(chunk)
            self._out += self._membership.reboot(chunk, now_ns)

    # --- time --------------------------------------------------------------------------------------------------------

    def _finish(self, now_ns: int) -> list[ReaderCommand]:
        """Run timers and rules as far as due; hand over the commands."""
        due = self._wake_ns is not None and now_ns >= self._wake_ns
        if self._stale or due or now_ns - self._evaluated_ns >= EVALUATE_NS:
            self._stale = False
            self._expire(now_ns)
            self._admit(now_ns)
            self._out += self._schedule.run(self._open.values(), now_ns)
            self._evaluated_ns = now_ns
            self._wake_ns = min(self._timeouts(), default=None)
        else:
            self._out += self._schedule.refill(now_ns)
        out, self._out = self._out, []
        return out

    def _expire(self, now_ns: int) -> None:
        """Deadlines, stalled reads, lost segments, JOINs without an answer."""
        for fetch in [fetch for fetch in self._fetches.values() if fetch.deadline_ns <= now_ns]:
            self._deliver(fetch, Outcome.LATE, now_ns)
        for stripe in self._stripes.stalled(now_ns):
            if self._stripes.get(stripe.read) is None:
                continue
            # A slow holder is not a gone one: others are preferred now, but only the deadline ends waiting for it.
            self._abort(stripe)
            failures = stripe.chunk.failures
            failures[stripe.holder.node] = failures.get(stripe.holder.node, 0) + 1
        last = self._schedule.inflow.foreign_last_ns
        self._pull.quiet = last is None or now_ns - last >= PULL_TIMEOUT_QUIET_NS
        self._pull.find_lost(now_ns)
        for chunk in self._pull.expire(now_ns):
            self._pull_failed(chunk, now_ns)
        self._out += self._membership.tend(self._open.values(), now_ns)
        self._rejoin_if_quiet(now_ns)

    def _heard(self, now_ns: int) -> None:
        """The network is alive."""
        self._heard_ns = now_ns
        self._rejoin_ns = QUIET_REJOIN_NS

    def _rejoin_if_quiet(self, now_ns: int) -> None:
        """After long silence, renew every JOIN: a switch that restarted knows nobody."""
        if now_ns - self._heard_ns < self._rejoin_ns:
            return
        self._heard_ns = now_ns
        self._rejoin_ns = min(2 * self._rejoin_ns, QUIET_REJOIN_MAX_NS)
        for chunk in [chunk for chunk in self._open.values() if chunk.joined]:
            self._out += self._membership.join(chunk, now_ns, TAG_LEADS if self._schedule.leads(chunk) else 0)

    def _pull_failed(self, chunk: Chunk, now_ns: int) -> None:
        """GETs of a chunk brought nothing: the switch or the holder may have forgotten us."""
        if chunk.key not in self._open:
            return
        others = chunk.usable_holders()
        holder = choose_holder(chunk, self._parameters)
        if len(others) > 1 and holder is not None and chunk.failures.get(holder.node, 0) == 0:
            chunk.failures[holder.node] = 1
        if self._pull.timeouts >= PULL_FAILURES_MAX and chunk.any_readable:
            chunk.move(Cause.UNHEARD)
            self._schedule.deposed(chunk)
        elif chunk.phase is Phase.JOINED:
            self._out += self._membership.join(chunk, now_ns, TAG_LEADS if self._schedule.leads(chunk) else 0)

    def _admit(self, now_ns: int) -> None:
        """Open waiting chunks as long as there is room for them."""
        while self._waiting and len(self._open) < JOINED_MAX:
            chunk = self._waiting.pop(next(iter(self._waiting)))
            self._open[chunk.key] = chunk
            if not chunk.usable_holders():
                self._gone(chunk, now_ns)
            else:
                self._out += self._membership.open(chunk, now_ns)

    def _timeouts(self) -> Iterator[int]:
        """Everything that time alone may make due."""
        for fetch in self._fetches.values():
            yield fetch.deadline_ns
        if self._open:
            yield self._heard_ns + self._rejoin_ns
            if self._membership.tend_ns is not None:
                yield self._membership.tend_ns
        for source in (self._pull.next_timeout_ns(), self._stripes.next_timeout_ns(), self._schedule.wake_ns):
            if source is not None:
                yield source


def _distinct(segments: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Each of them once, in order. Mostly they are already: a path keeps order, and copies are rare."""
    in_order = len(segments) < 2 or bool((segments[1:] > segments[:-1]).all())
    return segments if in_order else np.unique(segments)
