"""Who pulls what: follow, lead, hand over, repair, read alone. Looks at a reader's open chunks, asks for segments."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvproto.commands import ReaderCommand, SendControl, StartRead
from kvproto.ids import Member
from kvproto.session.chunk import Chunk, Phase
from kvproto.session.holders import choose_holder
from kvproto.session.inflow import Inflow
from kvproto.session.membership import Membership
from kvproto.session.parameters import ReaderParameters
from kvproto.session.pull import Pull
from kvproto.session.stripes import Stripes
from kvproto.session.timing import (
    FAIR_FRACTION,
    FRESH_NS,
    INFLOW_SLOT_NS,
    JOIN_SETTLE_NS,
    LAGGARD_RANKS,
    LOOKAHEAD_NS,
    NEEDED_NS,
    NEWCOMER_SPAN_NS,
    OVERLOAD_HOLDOFF_NS,
    OVERLOAD_LOSS,
    PATIENCE_ALONE_NS,
    PATIENCE_ANNOUNCED_NS,
    PATIENCE_UNLED_NS,
    PROBE_NS,
    PROBE_RANK_STEP_NS,
    RANK_STEP_NS,
    REPAIR_DELAY_NS,
    REPAIR_DELAY_UNLED_NS,
    REPAIR_FRACTION,
    REPAIR_RANK_STEP_NS,
    SILENCE_NS,
    SLOW_FRACTION,
    SLOW_RANK_STEP_NS,
    STRIPE_RUN_MIN,
    WINDOW_START,
)
from kvproto.wire.control import Control, Flag, Op


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
    settled_ns: int = 0
    """Until when answers to first JOINs are worth waiting for."""


class Schedule:
    """The rules of pulling for one reader. `run` is called after events and when `wake_ns` comes."""

    def __init__(self, parameters: ReaderParameters, membership: Membership, pull: Pull, stripes: Stripes) -> None:
        self.parameters = parameters
        self._membership = membership
        self._pull = pull
        self._stripes = stripes
        link = parameters.link_rate_bytes_per_s
        self.inflow = Inflow(link / parameters.segment_bytes if link is not None else None)
        self._led: list[Chunk] = []
        self._probed = link is not None
        self._idle_since_ns: int | None = None
        self._several_since_ns: int | None = None
        """Since when more than one member has been leading, as far as we know."""
        self._leaders: frozenset[Member] = frozenset()
        """Others that pull what we want, as last seen."""
        self._leader_new_ns = 0
        """When another of them was noticed beside the first."""
        self._stepped_back_ns: int | None = None
        self._needed_until_ns = 0
        """Until then it is known that we must lead beside others for our link to be full."""
        self._holdoff_until_ns = 0
        self.waiting_since_ns = 0
        """Since when there has been something to wait for."""
        self.missed = 0.0
        """Share of recent chunks' segments that the casts we followed did not bring us (moving average)."""
        self.wake_ns: int | None = None

    # --- what others do ----------------------------------------------------------------------------------------------

    def leads(self, chunk: Chunk) -> bool:
        """Whether this reader pulls the chunk for everybody."""
        return chunk in self._led

    @property
    def led_count(self) -> int:
        """Chunks that this reader pulls for everybody."""
        return len(self._led)

    def deposed(self, chunk: Chunk) -> None:
        """Another member announced that it pulls the chunk, or the chunk is no longer open."""
        if chunk in self._led:
            self._led.remove(chunk)

    def followed(self, chunk: Chunk) -> None:
        """Another reader's cast of this chunk is over: note how much of what passed by we missed."""
        passed = chunk.high - chunk.low
        if passed >= WINDOW_START:
            missed = int(chunk.missing[chunk.low : chunk.high].sum()) / passed
            self.missed += (missed - self.missed) / 4

    def _pulled_until_ns(self, chunk: Chunk) -> int:
        """Until when this chunk counts as pulled by somebody else; the past when it does not."""
        if not chunk.joined:
            return -1
        foreign = chunk.foreign_ns if chunk.foreign_ns is not None else -PATIENCE_ANNOUNCED_NS
        if not chunk.company(self.parameters.member):
            return foreign + PATIENCE_ALONE_NS
        if chunk.leader is not None and chunk.leader != self.parameters.member:
            return max(chunk.leader_ns, foreign) + PATIENCE_ANNOUNCED_NS
        if chunk.left_ns is not None and chunk.left_ns >= foreign - REPAIR_DELAY_NS:
            return max(chunk.left_ns, foreign) + REPAIR_DELAY_NS
        return foreign + PATIENCE_UNLED_NS

    def _pending(self, pulled: Iterable[Chunk]) -> int:
        """Segments that the casts under way will still bring."""
        return sum(int(chunk.missing[chunk.high :].sum()) for chunk in pulled)

    def _rank(self, chunk: Chunk) -> int:
        """How many members go before this one in taking over."""
        me = self.parameters.member
        before = 0 if me is None else (chunk.members & ((1 << me) - 1)).bit_count()
        return before + (LAGGARD_RANKS if self.missed > OVERLOAD_LOSS else 0)

    def _goes_before(self, member: Member) -> bool:
        me = self.parameters.member
        return me is not None and member < me

    # --- the rules ---------------------------------------------------------------------------------------------------

    def run(self, chunks: Iterable[Chunk], now_ns: int) -> list[ReaderCommand]:
        """Commands that the rules ask for now; sets `wake_ns`."""
        out: list[ReaderCommand] = []
        self.wake_ns = None
        self._led = [chunk for chunk in self._led if chunk.joined]
        self._yield_if_overloaded(out, now_ns)
        survey = self._survey(chunks, now_ns)
        for chunk in survey.repairs:
            self._get(chunk, out, now_ns, whole=True)
        for chunk in survey.cached:
            if not self._room():
                break
            self._get(chunk, out, now_ns)
        out += self.refill(now_ns)
        if survey.settled_ns > now_ns and not self._led:
            self._wake(survey.settled_ns)
        else:
            self._lead(survey, out, now_ns)
        return out

    def _survey(self, chunks: Iterable[Chunk], now_ns: int) -> _Survey:
        """Sort the open chunks by what may be done about them. The one loop over all of them: keep it short."""
        survey, led = _Survey(), set(map(id, self._led))
        for chunk in chunks:
            if not chunk.readable:
                if chunk.phase is Phase.JOINING and chunk.join_tries == 1:
                    survey.settled_ns = max(survey.settled_ns, chunk.join_sent_ns + JOIN_SETTLE_NS)
                continue
            missing = chunk.missing_count
            if chunk.busy_count >= missing or id(chunk) in led:
                continue
            if chunk.joined:
                if chunk.cached and not (chunk.read_alone and not chunk.company(self.parameters.member)):
                    survey.cached.append(chunk)
                    continue
                if chunk.foreign_ns is not None and missing * REPAIR_FRACTION <= chunk.segments:
                    at = self._over_ns(chunk) + self._rank(chunk) * REPAIR_RANK_STEP_NS
                    if now_ns >= at:
                        survey.repairs.append(chunk)
                        continue
                    self._wake(at)
                if chunk.leader is not None or chunk.foreign_ns is not None:
                    until = self._pulled_until_ns(chunk)
                    if until > now_ns:
                        survey.pulled.append(chunk)
                        survey.pulled_until_ns = min(until, survey.pulled_until_ns or until)
                        continue
            survey.candidates.append((-chunk.members.bit_count(), chunk.order, chunk))
        return survey

    def refill(self, now_ns: int) -> list[ReaderCommand]:
        """The cheap part of `run`, for every batch of arrivals: keep the window of what we lead full."""
        out: list[ReaderCommand] = []
        for chunk in self._led:
            if not self._room():
                break
            if chunk.joined and chunk.free_count:
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
        if not self._led or self._pull.loss <= OVERLOAD_LOSS or last is None or now_ns - last > SILENCE_NS:
            return
        for chunk in self._led:
            out += self._membership.yield_lead(chunk, now_ns)
        self._led = []
        self._holdoff_until_ns = now_ns + OVERLOAD_HOLDOFF_NS
        self._pull.settled = self._pull.lost = 0
        self.missed = max(self.missed, 2 * OVERLOAD_LOSS)

    def _over_ns(self, chunk: Chunk) -> int:
        """When the cast of a chunk, of which something has come, counts as over."""
        last = chunk.foreign_ns if chunk.foreign_ns is not None else 0
        if chunk.leader is not None:
            return max(self._pulled_until_ns(chunk), last)
        if chunk.left_ns is not None and chunk.left_ns >= last - REPAIR_DELAY_NS:
            return max(chunk.left_ns, last) + REPAIR_DELAY_NS
        return last + REPAIR_DELAY_UNLED_NS

    def _lead(self, survey: _Survey, out: list[ReaderCommand], now_ns: int) -> None:
        """Go on pulling, take over, read alone, or wait."""
        candidates, pulled = survey.candidates, survey.pulled
        if not candidates:
            if pulled:
                self._wake(survey.pulled_until_ns)
            return
        last = self.inflow.foreign_last_ns
        if pulled and (last is None or now_ns - last >= SILENCE_NS):
            self._read_unled(candidates, out, now_ns)
        while candidates:
            if sum(led.free_count for led in self._led) >= self._pull.window.segments:
                return
            best = min(candidates)
            due = self._due_ns(best[2], pulled, now_ns)
            if now_ns < due:
                self._wake(due)
                return
            if not self._begin(best[2], out, now_ns):
                return
            candidates.remove(best)

    def _read_unled(self, candidates: list[tuple[int, int, Chunk]], out: list[ReaderCommand], now_ns: int) -> None:
        """While announced casts bring nothing, read what only reliable reads can bring."""
        for _, _, chunk in sorted(candidates):
            if not chunk.joined and chunk.free_count and not self._begin(chunk, out, now_ns):
                return

    def _due_ns(self, chunk: Chunk, pulled: list[Chunk], now_ns: int) -> int:
        """When this reader should begin to pull `chunk`, given what others pull for it."""
        inflow, rank = self.inflow, self._rank(chunk)
        self._count_leaders(pulled, now_ns)
        last = inflow.foreign_last_ns
        active = last is not None and now_ns - last <= SILENCE_NS
        company = chunk.joined and chunk.company(self.parameters.member)
        if not pulled:
            working = self._stripes.count or self._led
            if not company or working:
                self._idle_since_ns = None
                return max(now_ns, self._holdoff_until_ns if active and company else 0)
        rate = inflow.foreign_rate(now_ns)
        ahead = max(rate * LOOKAHEAD_NS / 1e9, WINDOW_START / 4)
        ending = self._pending(pulled) <= ahead
        due: list[int] = []
        if not pulled or ending:
            if self._idle_since_ns is None:
                self._idle_since_ns = now_ns
            wait = 0 if self._led else self._membership.newcomer_wait_ns(now_ns) + rank * RANK_STEP_NS
            due.append(self._idle_since_ns + wait)
        else:
            self._idle_since_ns = None
        if pulled:
            due.append(self._quiet_since_ns(pulled) + SILENCE_NS + rank * RANK_STEP_NS)
            due.append(self._beside_ns(pulled, rate, rank, active, now_ns))
        return max(min(due), self._holdoff_until_ns if active else 0)

    def _quiet_since_ns(self, pulled: list[Chunk]) -> int:
        """Since when nothing comes. Announcements without segments are believed for a while, not again and again."""
        last = max(self.waiting_since_ns, self.inflow.last_ns or 0)
        announced = max(chunk.leader_ns for chunk in pulled)
        return max(last, min(announced, last + PATIENCE_ANNOUNCED_NS))

    def _count_leaders(self, pulled: list[Chunk], now_ns: int) -> None:
        """Two leaders at a time for some slots tell what our link takes as well as a probe of our own would."""
        leaders = frozenset(chunk.leader for chunk in pulled if chunk.leader is not None)
        if self._leaders and leaders - self._leaders:
            self._leader_new_ns = now_ns
        self._leaders = leaders
        if len(leaders) + bool(self._led) < 2:
            self._several_since_ns = None
        elif self._several_since_ns is None:
            self._several_since_ns = now_ns
        elif now_ns - self._several_since_ns >= 2 * INFLOW_SLOT_NS:
            self._probed = True

    def _steps_back(self, pulled: list[Chunk], now_ns: int) -> bool:
        """Of several leaders that have not yielded for some time, the first is enough: the others stop.

        If what arrives is too little without us, `_beside_ns` makes us lead again, for longer.
        """
        leaders = [chunk.leader for chunk in pulled if chunk.leader is not None]
        me, since = self.parameters.member, self._several_since_ns
        if me is None or not leaders or min(leaders) > me or since is None or now_ns < self._needed_until_ns:
            return False
        link = self.inflow.link
        if link is not None and self.inflow.foreign_rate(now_ns) < FAIR_FRACTION * link:
            return False
        return now_ns - since >= 2 * INFLOW_SLOT_NS

    def _beside_ns(self, pulled: list[Chunk], rate: float, rank: int, active: bool, now_ns: int) -> int:
        """When to lead beside a cast that is under way because it is slower than our link."""
        since = self.inflow.following_since_ns
        if self._led:
            if self._steps_back(pulled, now_ns):
                self._stepped_back_ns = now_ns
                return now_ns + INFLOW_SLOT_NS
            return now_ns
        if not active or since is None:
            return now_ns + INFLOW_SLOT_NS
        seen = self._leader_new_ns + 2 * INFLOW_SLOT_NS
        link, stepped = self.inflow.link, self._stepped_back_ns
        rank = max(0, rank - sum(self._goes_before(leader) for leader in self._leaders))
        if link is not None and rate < SLOW_FRACTION * link:
            if stepped is not None and now_ns - stepped < NEEDED_NS:
                due = stepped + 2 * INFLOW_SLOT_NS
                if now_ns >= due:
                    self._needed_until_ns = now_ns + NEEDED_NS
                return due
            return max(seen, since + 3 * INFLOW_SLOT_NS) + rank * SLOW_RANK_STEP_NS
        if not self._probed and len(self._leaders) <= 1:
            return max(seen, since + PROBE_NS) + rank * PROBE_RANK_STEP_NS
        return now_ns + INFLOW_SLOT_NS

    # --- asking ------------------------------------------------------------------------------------------------------

    def _begin(self, chunk: Chunk, out: list[ReaderCommand], now_ns: int) -> bool:
        """Pull a chunk that nobody pulls: lead it, or read it alone. False when there is no room for it now."""
        me = self.parameters.member
        if chunk.joined and chunk.company(me):
            if self.inflow.foreign_last_ns is not None and now_ns - self.inflow.foreign_last_ns < SILENCE_NS:
                self._probed = True
            self._led.append(chunk)
            out += self._membership.announce(chunk, now_ns)
            if self._room():
                self._get(chunk, out, now_ns)
            return True
        while chunk.free_count:
            if not self._read(chunk, out, now_ns):
                return False
        return True

    def _read(self, chunk: Chunk, out: list[ReaderCommand], now_ns: int) -> bool:
        """Read a run of a chunk reliably, or small gaps by GET. False when nothing more may start now."""
        holder = choose_holder(chunk, self.parameters)
        if holder is None:
            return False
        fresh = now_ns < self._membership.newcomer_until_ns - NEWCOMER_SPAN_NS + FRESH_NS
        size = self._stripes.next_size(fresh=fresh)
        if self._pull.outstanding > self._pull.window.segments // 2 or not size:
            return False
        first, count = chunk.free_run()
        if count < STRIPE_RUN_MIN and count < chunk.free_count and chunk.joined:
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
        holder = choose_holder(chunk, self.parameters)
        if holder is None:
            return
        window = self._pull.window
        room = chunk.free_count if whole else window.segments - self._pull.outstanding
        batch = window.batch
        if room < chunk.free_count:
            room -= room % batch
        flags = Flag.ONLY_ME if chunk.cached else Flag.NONE
        for first, count in chunk.free_runs(room):
            for start in range(first, first + count, batch):
                part = min(batch, first + count - start)
                get = Control(
                    Op.GET,
                    chunk.key,
                    chunk.segments,
                    segment=start,
                    count=part,
                    flags=flags,
                    member=self.parameters.member or 0,
                )
                out.append(SendControl(get, holder.address))
                self._pull.ask(chunk, holder.node, start, part, now_ns)
