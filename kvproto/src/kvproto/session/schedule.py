"""Who pulls what: follow, lead, hand over, repair, read alone. Looks at a reader's open chunks, asks for segments."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from kvproto.commands import ReaderCommand, SendControl, StartRead
from kvproto.events import HolderRef
from kvproto.ids import Member
from kvproto.session.chunk import Chunk
from kvproto.session.membership import Membership
from kvproto.session.pace import Pace
from kvproto.session.parameters import ReaderParameters
from kvproto.session.phases import Phase
from kvproto.session.pull import Pull
from kvproto.session.stripes import Stripes
from kvproto.session.timing import (
    FAIR_FRACTION,
    FRESH,
    INFLOW_SLOT,
    INFLOW_SLOT_FIRST,
    INFLOW_SLOT_MIN,
    INFLOW_SLOT_SEGMENTS,
    JOIN_ANSWER,
    LAGGARD_RANKS,
    LINK_DECAY,
    LOOKAHEAD,
    NEEDED,
    OVERLOAD_HOLDOFF,
    OVERLOAD_LOSS,
    PATIENCE_ALONE,
    PATIENCE_ANNOUNCED,
    PATIENCE_UNLED,
    PROBE,
    PROBE_RANK_STEP,
    RANK_STEP,
    REPAIR_DELAY,
    REPAIR_DELAY_UNLED,
    REPAIR_FRACTION,
    REPAIR_RANK_STEP,
    SILENCE,
    SLOW_FRACTION,
    SLOW_RANK_STEP,
    STRIPE_RUN_MIN,
    WINDOW_START,
)
from kvproto.wire.control import TAG_LEADS, Control, Flag, Op


class Inflow:
    """What arrives at a reader, from casts that others lead and in all, and what its link was seen to take.

    Rates in segments per second over slots of time; only segments that were still wanted count.

    A slot lasts INFLOW_SLOT, which is long enough that a process that runs late does not make it look slow or fast.
    """

    __slots__ = (
        "_foreign",
        "_last_total",
        "_most",
        "_pace",
        "_rates",
        "_slot_ns",
        "_total",
        "following_since_ns",
        "foreign_last_ns",
        "last_ns",
        "link",
    )

    def __init__(self, link_segments_per_s: float | None, pace: Pace) -> None:
        """`link_segments_per_s`: the link's rate if it is configured. What arrives may show that it takes less, but
        not that it takes more: bursts, after a shaper's pause or one of this process, look like a faster link."""
        self._pace = pace
        self._most = math.inf if link_segments_per_s is None else link_segments_per_s
        self.link: float | None = None
        """Most that was lately seen to arrive (segments per second), at most what is configured; None: unknown."""
        if link_segments_per_s is not None:
            self._know(link_segments_per_s)
        self._slot_ns = 0
        """When the current slot began."""
        self._foreign = 0
        self._total = 0
        self._last_total = 0.0
        self._rates: tuple[float, float] = (0.0, 0.0)
        self.foreign_last_ns: int | None = None
        """When the last wanted segment came that somebody else had asked for."""
        self.last_ns: int | None = None
        """When the last wanted segment came, whoever asked for it."""
        self.following_since_ns: int | None = None
        """Since when such segments have come without a pause as long as a slot."""

    def add(self, foreign: int, total: int, now_ns: int) -> None:
        """`total` wanted segments arrived; others had asked for `foreign` of them."""
        if self.last_ns is None:
            self._slot_ns = now_ns
        self._roll(now_ns)
        self._foreign += foreign
        self._total += total
        if total:
            self.last_ns = now_ns
        if foreign:
            last = self.foreign_last_ns
            if last is None or now_ns - last > self._pace[INFLOW_SLOT]:
                self.following_since_ns = now_ns
            self.foreign_last_ns = now_ns

    def foreign_rate(self, now_ns: int) -> float:
        """The higher one of the last two full slots: a slot that was short of processor time is not slow."""
        self._roll(now_ns)
        return max(self._rates)

    def learn_link(self, segments_per_s: float) -> None:
        """A reliable read came at this rate: the link takes at least that."""
        if self.link is None or segments_per_s > self.link:
            self._know(segments_per_s)

    def _know(self, segments_per_s: float) -> None:
        self.link = min(segments_per_s, self._most)
        self._pace.note_link(self.link)

    def _roll(self, now_ns: int) -> None:
        """End the current slot if it is over; when more than one is, those in between brought nothing."""
        elapsed_ns = now_ns - self._slot_ns
        slot_ns = self._pace[INFLOW_SLOT]
        if elapsed_ns < slot_ns:
            least = INFLOW_SLOT_MIN if self.link is not None else INFLOW_SLOT_FIRST
            if self._total < INFLOW_SLOT_SEGMENTS or elapsed_ns < self._pace[least]:
                return
            slot_ns = elapsed_ns
        gone = elapsed_ns // slot_ns
        per_s = 1e9 / slot_ns
        foreign, total = self._foreign * per_s, self._total * per_s
        if self._total:
            # Two slots together: segments that piled up while this process did not run make one of them too high.
            both = (total + self._last_total) / 2
            self._know(both if self.link is None else max(both, LINK_DECAY * self.link))
        self._rates = (self._rates[1], foreign) if gone == 1 else ((foreign, 0.0) if gone == 2 else (0.0, 0.0))
        self._last_total = total if gone == 1 else 0.0
        self._slot_ns, self._foreign, self._total = self._slot_ns + gone * slot_ns, 0, 0


@dataclass(slots=True, eq=False)
class _Survey:
    """What a look at all open chunks found."""

    candidates: list[tuple[int, int, Chunk]] = field(default_factory=list)
    """Chunks that nobody pulls: (minus members, order, chunk), the least first: what most want, in prefix order."""
    pulled: list[Chunk] = field(default_factory=list)
    """Chunks that others pull."""
    pulled_until_ns: int = 0
    """When the first of them no longer counts as pulled, unless something is heard."""
    cached: list[Chunk] = field(default_factory=list)
    """Chunks that the switch serves."""
    repairs: list[Chunk] = field(default_factory=list)
    """Chunks whose cast is over and of which only a few segments are missing."""
    others_repair: list[tuple[int, Chunk]] = field(default_factory=list)
    """The same while others may still repair them, but no leader casts them: (when to repair them at last, chunk)."""
    answers_due_ns: int = 0
    """Until when answers to first JOINs are worth waiting for."""


class Schedule:
    """The rules of pulling for one reader. `run` is called after events and when `wake_ns` comes."""

    def __init__(
        self, parameters: ReaderParameters, membership: Membership, pull: Pull, stripes: Stripes, pace: Pace
    ) -> None:
        self.parameters = parameters
        self._pace = pace
        self._membership = membership
        self._pull = pull
        self._stripes = stripes
        rate = parameters.link_rate_bytes_per_s
        link = rate / parameters.segment_bytes if rate is not None else None
        self.inflow = Inflow(link, pace)
        self.led: list[Chunk] = []
        """Chunks that this reader pulls for everybody."""
        self._probed = link is not None
        self._idle_since_ns: int | None = None
        self._several_since_ns: int | None = None
        """Since when more than one member has been leading, as far as we know."""
        self._leaders: frozenset[Member] = frozenset()
        """Others that pull what we want, as last seen."""
        self._leader_new_ns = 0
        """When another of them was noticed in addition to the first."""
        self._stepped_back_ns: int | None = None
        self._needed_until_ns = 0
        """Until then we know that our link is full only if we lead along with others."""
        self._holdoff_until_ns = 0
        self.waiting_since_ns = 0
        """Since when there has been something to wait for."""
        self.missed = 0.0
        """Share of recent chunks' segments that the casts we followed did not bring us (moving average)."""
        self._before = 0
        """Members that go before this one in taking over, as a bitmap."""
        self.wake_ns: int | None = None

    # --- what others do ----------------------------------------------------------------------------------------------

    def leads(self, chunk: Chunk) -> bool:
        """Whether this reader pulls the chunk for everybody."""
        return chunk in self.led

    def deposed(self, chunk: Chunk) -> None:
        """Another member announced that it pulls the chunk, or the chunk is no longer open."""
        if chunk in self.led:
            self.led.remove(chunk)
            self._pull.shared(chunk)

    def reinstated(self, chunk: Chunk) -> None:
        """Two announced at once, and the one that deposed this reader came first: all others follow this reader."""
        if chunk.joined and chunk not in self.led:
            self.led.append(chunk)

    def followed(self, chunk: Chunk) -> None:
        """Another reader's cast of this chunk is over: note how much of what passed by we missed."""
        if chunk.progress.passed_count >= WINDOW_START:
            self.missed += (chunk.progress.missed_share - self.missed) / 4

    def _pulled_until_ns(self, chunk: Chunk) -> int:
        """Until when this chunk counts as pulled by somebody else; the past when it does not."""
        if not chunk.joined:
            return -1
        interest, progress = chunk.interest, chunk.progress
        foreign = progress.foreign_ns if progress.foreign_ns is not None else -self._pace[PATIENCE_ANNOUNCED]
        if not interest.company(self.parameters.member):
            return foreign + self._pace[PATIENCE_ALONE]
        if interest.leader is not None and interest.leader != self.parameters.member:
            return max(interest.leader_ns, foreign) + self._pace[PATIENCE_ANNOUNCED]
        if interest.left_ns is not None and interest.left_ns >= foreign - self._pace[REPAIR_DELAY]:
            return max(interest.left_ns, foreign) + self._pace[REPAIR_DELAY]
        return foreign + self._pace[PATIENCE_UNLED]

    def _pending(self, pulled: Iterable[Chunk]) -> int:
        """Segments that the casts under way will still bring."""
        return sum(chunk.progress.to_pass_count for chunk in pulled)

    def _rank(self, chunk: Chunk) -> int:
        """How many members go before this one in taking over."""
        before = (chunk.interest.members & self._before).bit_count()
        return before + (LAGGARD_RANKS if self.missed > OVERLOAD_LOSS else 0)

    def _goes_before(self, member: Member) -> bool:
        return bool(self._before >> member & 1)

    # --- the rules ---------------------------------------------------------------------------------------------------

    def run(self, chunks: Iterable[Chunk], now_ns: int) -> list[ReaderCommand]:
        """Commands that the rules ask for now; sets `wake_ns`."""
        out: list[ReaderCommand] = []
        self.wake_ns = None
        if self.parameters.member is not None:
            self._before = self._pace.before(self.parameters.member)
        if self.led:
            self.led = [chunk for chunk in self.led if chunk.joined]
            self._yield_if_overloaded(out, now_ns)
        for chunk in chunks:
            urgent = chunk.alone and chunk.readable and not chunk.joined and chunk.progress.free_count
            if urgent and not self._begin(chunk, out, now_ns):
                break
        if self._stripes.reads:
            self._ask_beside_reads(out, now_ns)
        survey = self._survey(chunks, now_ns)
        for chunk in survey.repairs:
            self._get(chunk, out, now_ns, whole=True)
        for chunk in survey.cached:
            if not self._room():
                break
            self._get(chunk, out, now_ns)
        if self.led:
            out += self.refill(now_ns)
        if survey.answers_due_ns > now_ns and not self.led:
            self._wake(survey.answers_due_ns)
        else:
            self._lead(survey, out, now_ns)
        return out

    def _survey(self, chunks: Iterable[Chunk], now_ns: int) -> _Survey:
        """Sort the open chunks by what may be done about them. The one loop over all of them: keep it short."""
        survey, led = _Survey(), set(map(id, self.led))
        for chunk in chunks:
            interest, progress = chunk.interest, chunk.progress
            if not chunk.readable:
                if chunk.phase is Phase.JOINING and interest.join_tries == 1:
                    due = interest.join_sent_ns + self._pace[JOIN_ANSWER]
                    survey.answers_due_ns = max(survey.answers_due_ns, due)
                continue
            missing = progress.missing_count
            if progress.busy_count >= missing or id(chunk) in led:
                continue
            if chunk.joined:
                if interest.cached and not (chunk.read_alone and not interest.company(self.parameters.member)):
                    survey.cached.append(chunk)
                    continue
                if progress.foreign_ns is not None and missing * REPAIR_FRACTION <= chunk.segments:
                    rank_ns = self._rank(chunk) * self._pace[REPAIR_RANK_STEP]
                    at = self._over_ns(chunk) + rank_ns
                    if now_ns >= at:
                        survey.repairs.append(chunk)
                        continue
                    self._wake(at)
                    if interest.over_ns is not None:
                        survey.others_repair.append((interest.over_ns + self._pace[REPAIR_DELAY] + rank_ns, chunk))
                if interest.leader is not None or progress.foreign_ns is not None:
                    until = self._pulled_until_ns(chunk)
                    if until > now_ns:
                        survey.pulled.append(chunk)
                        survey.pulled_until_ns = min(until, survey.pulled_until_ns or until)
                        continue
            survey.candidates.append((-interest.members.bit_count(), chunk.order, chunk))
        if survey.others_repair and not led and not survey.candidates:
            self._repair_at_last(survey, now_ns)
        return survey

    def _repair_at_last(self, survey: _Survey, now_ns: int) -> None:
        """Nothing but repairs is left: this reader makes its own without waiting for the end of all others'.

        Of many that miss something, the last one would otherwise wait for all before it.
        """
        repaired = {id(chunk) for _, chunk in survey.others_repair}
        if not all(id(chunk) in repaired for chunk in survey.pulled):
            return
        for at, chunk in survey.others_repair:
            if now_ns >= at:
                survey.repairs.append(chunk)
            else:
                self._wake(at)

    def refill(self, now_ns: int) -> list[ReaderCommand]:
        """The cheap part of `run`, for every batch of arrivals: keep the window of what we lead full."""
        out: list[ReaderCommand] = []
        for chunk in self.led:
            if not self._room():
                break
            if chunk.joined and chunk.progress.free_count:
                self._get(chunk, out, now_ns)
        return out

    def _wake(self, at_ns: int) -> None:
        self.wake_ns = at_ns if self.wake_ns is None else min(self.wake_ns, at_ns)

    def _room(self) -> bool:
        """Whether the window takes another batch."""
        return self._pull.window.segments - self._pull.outstanding >= self._pull.window.batch

    def _yield_if_overloaded(self, out: list[ReaderCommand], now_ns: int) -> None:
        """A leader whose link is slower than the others' steps back while they bring enough."""
        last = self.inflow.foreign_last_ns
        if not self.led or self._pull.loss <= OVERLOAD_LOSS or last is None or now_ns - last > self._pace[SILENCE]:
            return
        for chunk in self.led:
            out += self._membership.yield_lead(chunk, now_ns)
        self.led = []
        self._holdoff_until_ns = now_ns + self._pace[OVERLOAD_HOLDOFF]
        self._pull.forget_losses()
        self.missed = max(self.missed, 2 * OVERLOAD_LOSS)

    def _over_ns(self, chunk: Chunk) -> int:
        """When the cast of a chunk, of which something has come, counts as over."""
        interest, progress = chunk.interest, chunk.progress
        last = progress.foreign_ns if progress.foreign_ns is not None else 0
        if interest.leader is not None:
            return max(self._pulled_until_ns(chunk), last)
        if interest.left_ns is not None and interest.left_ns >= last - self._pace[REPAIR_DELAY]:
            return max(interest.left_ns, last) + self._pace[REPAIR_DELAY]
        return last + self._pace[REPAIR_DELAY_UNLED]

    def _lead(self, survey: _Survey, out: list[ReaderCommand], now_ns: int) -> None:
        """Go on pulling, take over, read alone, or wait."""
        candidates, pulled = survey.candidates, survey.pulled
        if not candidates:
            if pulled:
                self._wake(survey.pulled_until_ns)
            return
        last = self.inflow.foreign_last_ns
        if pulled and (last is None or now_ns - last >= self._pace[SILENCE]):
            self._read_unled(candidates, out, now_ns)
        for _, _, best in sorted(candidates):
            if self.led and sum(led.progress.free_count for led in self.led) >= self._pull.window.segments:
                return
            due = self._due_ns(best, pulled, now_ns)
            if now_ns < due:
                self._wake(due)
                return
            if not self._begin(best, out, now_ns):
                return

    def _read_unled(self, candidates: list[tuple[int, int, Chunk]], out: list[ReaderCommand], now_ns: int) -> None:
        """While announced casts bring nothing, read what only reliable reads can bring."""
        for _, _, chunk in sorted(candidates):
            if not chunk.joined and chunk.progress.free_count and not self._begin(chunk, out, now_ns):
                return

    def _due_ns(self, chunk: Chunk, pulled: list[Chunk], now_ns: int) -> int:
        """When this reader should begin to pull `chunk`, given what others pull for it."""
        if not pulled and not chunk.joined:
            self._leaders, self._several_since_ns, self._idle_since_ns = frozenset(), None, None
            return now_ns
        inflow, rank = self.inflow, self._rank(chunk)
        self._count_leaders(pulled, now_ns)
        last = inflow.foreign_last_ns
        active = last is not None and now_ns - last <= self._pace[SILENCE]
        company = chunk.joined and chunk.interest.company(self.parameters.member)
        if not pulled:
            working = self._stripes.reads or self.led
            if not company or working:
                self._idle_since_ns = None
                return max(now_ns, self._holdoff_until_ns if active and company else 0)
        rate = inflow.foreign_rate(now_ns)
        ahead = max(rate * self._pace[LOOKAHEAD] / 1e9, WINDOW_START / 4)
        ending = self._pending(pulled) <= ahead
        due: list[int] = []
        if not pulled or ending:
            if self._idle_since_ns is None:
                self._idle_since_ns = now_ns
            wait = 0 if self.led else self._membership.newcomer_wait_ns(now_ns) + rank * self._pace[RANK_STEP]
            due.append(self._idle_since_ns + wait)
        else:
            self._idle_since_ns = None
        if pulled:
            due.append(self._quiet_since_ns(pulled) + self._pace[SILENCE] + rank * self._pace[RANK_STEP])
            due.append(self._beside_ns(pulled, rate, rank, active, now_ns))
        return max(min(due), self._holdoff_until_ns if active else 0)

    def _quiet_since_ns(self, pulled: list[Chunk]) -> int:
        """Since when nothing comes. Announcements without segments are believed for a while, not again and again."""
        last = max(self.waiting_since_ns, self.inflow.last_ns or 0)
        announced = max(chunk.interest.leader_ns for chunk in pulled)
        return max(last, min(announced, last + self._pace[PATIENCE_ANNOUNCED]))

    def _count_leaders(self, pulled: list[Chunk], now_ns: int) -> None:
        """Two leaders at a time for some slots show what our link takes as well as a probe of our own would."""
        leaders = frozenset(chunk.interest.leader for chunk in pulled if chunk.interest.leader is not None)
        if self._leaders and leaders - self._leaders:
            self._leader_new_ns = now_ns
        self._leaders = leaders
        if len(leaders) + bool(self.led) < 2:
            self._several_since_ns = None
        elif self._several_since_ns is None:
            self._several_since_ns = now_ns
        elif now_ns - self._several_since_ns >= 2 * self._pace[INFLOW_SLOT]:
            self._probed = True

    def _steps_back(self, pulled: list[Chunk], now_ns: int) -> bool:
        """Of several leaders that have not yielded for some time, the first is enough: the others stop.

        If what arrives is too little without us, `_beside_ns` makes us lead again, for longer.
        """
        leaders = [chunk.interest.leader for chunk in pulled if chunk.interest.leader is not None]
        since = self._several_since_ns
        if since is None or now_ns < self._needed_until_ns or not any(map(self._goes_before, leaders)):
            return False
        link = self.inflow.link
        if link is not None and self.inflow.foreign_rate(now_ns) < FAIR_FRACTION * link:
            return False
        return now_ns - since >= 2 * self._pace[INFLOW_SLOT]

    def _beside_ns(self, pulled: list[Chunk], rate: float, rank: int, active: bool, now_ns: int) -> int:
        """When to lead alongside the casts under way, because they are slower than our link."""
        since = self.inflow.following_since_ns
        if self.led:
            if self._steps_back(pulled, now_ns):
                self._stepped_back_ns = now_ns
                return now_ns + self._pace[INFLOW_SLOT]
            return now_ns
        if not active or since is None:
            return now_ns + self._pace[INFLOW_SLOT]
        seen = self._leader_new_ns + 2 * self._pace[INFLOW_SLOT]
        link, stepped = self.inflow.link, self._stepped_back_ns
        rank = max(0, rank - sum(self._goes_before(leader) for leader in self._leaders))
        if link is not None and rate < SLOW_FRACTION * link:
            if stepped is not None and now_ns - stepped < self._pace[NEEDED]:
                due = stepped + 2 * self._pace[INFLOW_SLOT]
                if now_ns >= due:
                    self._needed_until_ns = now_ns + self._pace[NEEDED]
                return due
            return max(seen, since + 3 * self._pace[INFLOW_SLOT]) + rank * self._pace[SLOW_RANK_STEP]
        if not self._probed and len(self._leaders) <= 1:
            # Without a probe staggered readers take 1.044 S/B instead of 1.072, but 1.56 instead of 1.07 behind a first
            # reader at half rate.
            return max(seen, since + self._pace[PROBE]) + rank * self._pace[PROBE_RANK_STEP]
        return now_ns + self._pace[INFLOW_SLOT]

    # --- asking ------------------------------------------------------------------------------------------------------

    def _begin(self, chunk: Chunk, out: list[ReaderCommand], now_ns: int) -> bool:
        """Pull a chunk that nobody pulls: lead it, or read it alone. False when there is no room for it now."""
        me = self.parameters.member
        if chunk.joined and chunk.interest.company(me):
            last = self.inflow.foreign_last_ns
            if last is not None and now_ns - last < self._pace[SILENCE]:
                self._probed = True
            self.led.append(chunk)
            out += self._membership.announce(chunk, now_ns)
            if self._room():
                self._get(chunk, out, now_ns)
            return True
        progress = chunk.progress
        while progress.busy_count < progress.missing_count:
            if not self._read(chunk, out, now_ns):
                return False
        return True

    def _read(self, chunk: Chunk, out: list[ReaderCommand], now_ns: int) -> bool:
        """Read a run of a chunk reliably; small gaps by GET, and all of it while reads are silent.

        False when nothing more may start now.
        """
        holder = chunk.provenance.choose(self.parameters)
        if holder is None:
            return False
        fresh = now_ns < self._membership.newcomer_since_ns + self._pace[FRESH]
        size = self._stripes.next_size(fresh=fresh)
        silent = chunk.joined and any(stripe.holder.node == holder.node for stripe in self._stripes.silent)
        if not silent and (self._pull.outstanding > self._pull.window.segments // 2 or not size):
            return False
        first, count = chunk.progress.free_run()
        if silent or (chunk.joined and count < STRIPE_RUN_MIN and count < chunk.progress.free_count):
            if not self._room():
                return False
            self._get(chunk, out, now_ns)
            return True
        if count - size < size // 2:
            size = count
        stripe = self._stripes.start(chunk, holder, first, min(count, size), now_ns)
        out.append(StartRead(stripe.read, chunk.key, holder.node, stripe.first, stripe.count))
        return True

    def _get(self, chunk: Chunk, out: list[ReaderCommand], now_ns: int, *, whole: bool = False) -> None:
        """Ask for the lowest free segments as far as the window has room (`whole`: for all of them)."""
        holder = chunk.provenance.choose(self.parameters)
        if holder is None:
            return
        window = self._pull.window
        room = chunk.progress.free_count if whole else window.segments - self._pull.outstanding
        if room < chunk.progress.free_count:
            room -= room % window.batch
        left_ns = chunk.interest.left_ns
        merges = not whole and not chunk.interest.cached
        early = merges and left_ns is not None and now_ns - left_ns < self._pace[PATIENCE_UNLED]
        self._send_gets(chunk, holder, chunk.progress.free_runs(room), out, now_ns, early=early)

    def _ask_beside_reads(self, out: list[ReaderCommand], now_ns: int) -> None:
        """What silent reads have not brought is asked for by GET, too: whichever way is first counts."""
        for stripe in self._stripes.silent:
            chunk = stripe.chunk
            holder = chunk.provenance.choose(self.parameters) if chunk.joined else None
            if holder is not None:
                room = self._pull.window.segments - self._pull.outstanding
                self._send_gets(
                    chunk, holder, chunk.progress.unasked_runs(stripe.first, stripe.count, room), out, now_ns
                )

    def _send_gets(
        self,
        chunk: Chunk,
        holder: HolderRef,
        runs: list[tuple[int, int]],
        out: list[ReaderCommand],
        now_ns: int,
        *,
        early: bool = False,
    ) -> None:
        """Ask for these runs, a batch at a time; `early`: see `Pull.ask`."""
        window, batch = self._pull.window, self._pull.window.batch
        if self.parameters.by_keepers and chunk.interest.at != holder.address and runs:
            # Another node is asked by now. It answers those only who have joined there.
            out += self._membership.join(chunk, now_ns, TAG_LEADS if self.leads(chunk) else 0)
        flags = Flag.ONLY_ME if chunk.interest.cached else Flag.NONE
        tag = self._pace.code(window.delay_ns)
        for first, count in runs:
            for start in range(first, first + count, batch):
                part = min(batch, first + count - start)
                get = Control(
                    Op.GET,
                    chunk.key,
                    chunk.segments,
                    segment=start,
                    count=part,
                    tag=tag,
                    flags=flags,
                    member=self.parameters.member or 0,
                )
                out.append(SendControl(get, holder.address))
                self._pull.ask(chunk, holder.node, start, part, now_ns, early=early)
