"""Who comes into the switch next, at which slots, and filled by whom. Pure.

Weighs candidates one by one, most valuable first, against the residents. Owns both, the pins into the switch and the
count of fills under way; `SwitchCache` reports what happens and carries out what is decided.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, TypeAlias

from controlplane.core.cluster import Cluster
from controlplane.core.ids import ChunkKey, NodeIndex, SwitchPort
from controlplane.core.limits import CANDIDATES_MAX
from controlplane.core.nodes import NodeState
from controlplane.core.switch.slots import SlotAllocator, SlotRange
from controlplane.core.switch_cache.candidates import (
    Admission,
    AdmissionPolicy,
    Candidate,
    Candidates,
    Evidence,
    Rank,
    Refusal,
)
from controlplane.core.switch_cache.fill_price import FillPrice
from controlplane.core.switch_cache.layout import Residents

READERS_OF_A_CAST: Final = 2
READERS_WAIT_NS: Final = 1_000_000_000
"""Members that the switch reported longer ago have what they waited for, or read it from elsewhere."""


@dataclass(frozen=True, slots=True)
class Source:
    """An attached holder that could fill."""

    node: NodeIndex
    port: SwitchPort


@dataclass(frozen=True, slots=True)
class Start:
    """Have `source` fill the chunk at `slots`, which `readers` nodes wait for."""

    key: ChunkKey
    slots: SlotRange
    source: Source
    readers: int


@dataclass(frozen=True, slots=True)
class MakeRoom:
    """These go out, leaves first, for somebody who has a claim on their slots now."""

    displaced: tuple[ChunkKey, ...]


Entry: TypeAlias = Start | MakeRoom


class Admissions:
    """Candidates, residents and pins of one switch."""

    def __init__(self, cluster: Cluster, price: FillPrice) -> None:
        self._cluster = cluster
        self._price = price
        self._directory = cluster.directory
        self._values = cluster.values
        self._rules = cluster.options.rules
        self._slots = SlotAllocator(0)
        self._segment_bytes = 1
        self.casts_fills = False
        self._policy = AdmissionPolicy(0)
        self._claims: list[ChunkKey] = []
        self._now_ns = 0
        self._pinned: set[ChunkKey] = set()
        """Chunks that must be in the switch and stay there."""
        self._filling: Counter[NodeIndex] = Counter()
        self._failed_at: OrderedDict[ChunkKey, NodeIndex] = OrderedDict()
        """Who filled a chunk last, in vain; the oldest first."""
        """Fills under way, by who fills."""
        self.refusals: Counter[str] = Counter()
        """How often candidates were refused, by `refused_` and the reason."""
        self._refused: dict[ChunkKey, Refusal] = {}
        """Pinned chunks that could not come in when they were last looked at."""
        self.residents = Residents(self._directory, self._values, self.is_kept)
        self.candidates = Candidates(self._rank)
        self._directory.watch(lambda keys, are_new_or_lost: self.candidates.wake(*keys))
        self._values.watch(self.candidates.changed)

    # -- pins and fills

    @property
    def pinned(self) -> frozenset[ChunkKey]:
        """Chunks that operators want in the switch, whether they are there yet or not."""
        return frozenset(self._pinned)

    def pin(self, key: ChunkKey) -> None:
        """Bring the chunk into the switch and keep it there."""
        self._pinned.add(key)
        self.residents.changed(key)

    def unpin(self, key: ChunkKey) -> None:
        """The chunk may go again. Nothing happens to one that is not pinned."""
        self._pinned.discard(key)
        self._refused.pop(key, None)
        self.residents.changed(key)

    def is_pinned(self, key: ChunkKey) -> bool:
        """An operator pinned it into the switch."""
        return key in self._pinned

    def refusal(self, key: ChunkKey) -> str:
        """Why a pinned chunk could not come in when it was last looked at; empty: it could."""
        why = self._refused.get(key)
        return "" if why is None else why.value

    def is_kept(self, key: ChunkKey) -> bool:
        """Nothing may displace it: it is pinned into the switch or in hosts' pools."""
        known = self._directory.get(key)
        return key in self._pinned or (known is not None and known.pinned)

    def fill_began(self, node: NodeIndex) -> None:
        """The node has one more fill under way."""
        self._filling[node] += 1

    def fill_ended(self, node: NodeIndex) -> None:
        """The node has one fill less under way."""
        self._filling[node] -= 1

    def fill_failed(self, key: ChunkKey, node: NodeIndex) -> None:
        """The node did not fill the chunk: another holder is asked first when it comes in again."""
        self._failed_at.pop(key, None)
        self._failed_at[key] = node
        while len(self._failed_at) > CANDIDATES_MAX:
            del self._failed_at[next(iter(self._failed_at))]

    def filled(self, key: ChunkKey) -> None:
        """The chunk is in the switch."""
        self._failed_at.pop(key, None)

    # -- the switch

    def use(self, slots: SlotAllocator, segment_bytes: int, *, casts_fills: bool) -> None:
        """The switch's slots. `casts_fills`: a fill may ride on a cast."""
        self._slots, self._segment_bytes, self.casts_fills = slots, segment_bytes, casts_fills
        self._policy = AdmissionPolicy(slots.capacity)

    def begin(self, now_ns: int) -> None:
        """A round of `next` begins."""
        self._now_ns = now_ns
        self.residents.refresh(now_ns)
        self.candidates.wake_aside()
        self._claims = self.candidates.claimed[::-1]

    def next(self, here: Collection[ChunkKey]) -> Entry | None:
        """What to do next; None: nothing more in this round. `here`: all that is in the switch."""
        while self._claims:
            start = self._take_claim(self._claims.pop(), here)
            if start is not None:
                return start
        # Make no more room than can be filled soon: residents that have to go keep serving until then.
        while self.candidates.claimed_count < self._rules.fills_at_once and (
            key := self.candidates.take_next(self._has_time)
        ):
            entry = self._consider(key)
            if entry is not None:
                return entry
        return None

    # -- ranks

    def _rank(self, key: ChunkKey, evidence: Evidence) -> Rank:
        """Pinned chunks come first, then the most valuable; values are as of the residents' origin."""
        known = self._directory.get(key)
        position = known.facts.position if known is not None else 0
        return (key not in self._pinned, -self._value(key, evidence), position, key)

    def _value(self, key: ChunkKey, evidence: Evidence) -> float:
        known = self._directory.get(key)
        if known is None:
            return 0.0
        rooted = self._directory.is_rooted(key)
        value = self._values.value(key, known.facts.size_bytes, rooted, self._now_ns, waiting=evidence.readers)
        return value * self.residents.scale(self._now_ns)

    def _candidate(self, key: ChunkKey) -> Candidate | None:
        known = self._directory.get(key)
        if known is None or (not self._rules.admission and key not in self._pinned):
            return None
        facts, evidence = known.facts, self.candidates[key]
        return Candidate(
            key=key,
            parent=facts.parent,
            position=facts.position,
            size_bytes=facts.size_bytes,
            segments=segments_of(facts.size_bytes, self._segment_bytes),
            value=self._value(key, evidence),
            readers=evidence.readers,
            touched_again=self._values.cache.touched_again(key, self._now_ns),
            rooted=self._directory.is_rooted(key),
            fillable=bool(self._sources(key)),
            fill_pays=self._price.pays(known, evidence.readers, self._now_ns, self._cast_since_ns(evidence)),
            pinned=key in self._pinned,
        )

    def _cast_since_ns(self, evidence: Evidence) -> int | None:
        """When the cast began that the fill may ride on; None: there is none, or it is over."""
        casts = self.casts_fills and evidence.readers >= READERS_OF_A_CAST
        return evidence.seen_ns if casts and self._now_ns - evidence.seen_ns < READERS_WAIT_NS else None

    # -- decisions

    def _take_claim(self, key: ChunkKey, here: Collection[ChunkKey]) -> Start | None:
        """Begin where room was made for a candidate."""
        evidence = self.candidates[key]
        evidence.awaits.intersection_update(here)
        source = self.choose_source(key)
        if evidence.claim is None or evidence.awaits or source is None:
            return None
        return self._begin(key, evidence.claim, source)

    def _begin(self, key: ChunkKey, slots: SlotRange, source: Source) -> Start:
        evidence, chunk = self.candidates[key], self._directory.get(key)
        if chunk is not None:
            self._price.fill_began(chunk, evidence.readers, self._now_ns)
        waiting = evidence.readers if self._now_ns - evidence.seen_ns < READERS_WAIT_NS else 0
        return Start(key, slots, source, waiting)

    def _consider(self, key: ChunkKey) -> Entry | None:
        candidate = self._candidate(key)
        if candidate is None:
            self.candidates.drop(key)
            return None
        source = self.choose_source(key)
        if source is None and candidate.fillable:
            self.candidates.wait(key, [source.node for source in self._sources(key)])
            return None
        decision = self._decide(candidate)
        if isinstance(decision, Refusal):
            self._refuse(candidate, decision)
            return None
        self._refused.pop(key, None)
        if decision.displaced:
            self.candidates.claim(key, decision.slots, decision.displaced)
            return MakeRoom(decision.displaced)
        if source is None:
            raise AssertionError("what nobody can fill is refused")
        return self._begin(key, decision.slots, source)

    def _decide(self, candidate: Candidate) -> Admission | Refusal:
        while True:
            self.residents.refresh(self._now_ns)
            decision = self._policy.decide(candidate, self.residents.layout, self._gaps())
            if isinstance(decision, Refusal) or self.residents.are_as_kept(decision.displaced, self._now_ns):
                return decision

    def _refuse(self, candidate: Candidate, why: Refusal) -> None:
        self._cluster.observer.refused(candidate.key, why.value)
        if candidate.pinned:
            self._refused[candidate.key] = why
            self.candidates.set_aside(candidate.key)
        elif why is Refusal.FILL_TOO_DEAR and self._cast_since_ns(self.candidates[candidate.key]) is not None:
            # Its cast may only begin: its holder says within a moment what it has queued.
            self.candidates.set_aside(candidate.key)
        else:
            self.refusals[f"refused_{why.name.lower()}"] += 1
            self.candidates.drop(candidate.key)

    def choose_source(self, key: ChunkKey, *, even_if_busy: bool = False) -> Source | None:
        """The holder with fewest fills under way, one that did not fail last if possible; None: there is none, or none
        has time for it."""
        able = [source for source in self._sources(key) if even_if_busy or self._has_time(source.node)]
        failed = self._failed_at.get(key)
        return min(
            able, key=lambda source: (source.node == failed, self._filling[source.node], source.node), default=None
        )

    def _sources(self, key: ChunkKey) -> list[Source]:
        """Holders that could fill the chunk."""
        chunk = self._directory.get(key)
        if chunk is None:
            return []
        nodes = [node for index in sorted(chunk.holders) if (node := self._cluster.nodes.get(index)) is not None]
        return [
            Source(node.index, node.port)
            for node in nodes
            if node.state is NodeState.ATTACHED and node.port is not None and node.member is not None
        ]

    def _has_time(self, node: NodeIndex) -> bool:
        return self._filling[node] < self._rules.fills_per_holder

    def _gaps(self) -> list[SlotRange]:
        """Free ranges that nobody has a claim on."""
        gaps = list(self._slots.free_ranges)
        for claim in self.candidates.claims:
            gaps = [rest for gap in gaps for rest in _without(gap, claim)]
        return gaps


def segments_of(size_bytes: int, segment_bytes: int) -> int:
    """Segments of a chunk; the last one is padded."""
    return max(1, -(-size_bytes // segment_bytes))


def _without(gap: SlotRange, claim: SlotRange) -> list[SlotRange]:
    """The parts of `gap` that lie outside `claim`."""
    rest = []
    if gap.base < claim.base:
        rest.append(SlotRange(gap.base, min(gap.end, claim.base) - gap.base))
    if claim.end < gap.end:
        base = max(gap.base, claim.end)
        rest.append(SlotRange(type(gap.base)(base), gap.end - base))
    return rest
