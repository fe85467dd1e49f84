"""Who comes into the switch next, at which slots, and filled by whom. Pure.

Weighs candidates one by one, dearest first, against the residents. What is decided the pool carries out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from controlplane.admission import Admission, AdmissionPolicy, Candidate, Refusal, SlotAllocator, SlotRange
from controlplane.candidates import Candidates, Evidence, Rank
from controlplane.directory import Directory
from controlplane.ids import ChunkKey, NodeIndex, SwitchPort
from controlplane.residents import Residents
from controlplane.value import ClusterValues


@dataclass(frozen=True, slots=True)
class Source:
    """An attached holder that could fill."""

    node: NodeIndex
    port: SwitchPort


@dataclass(frozen=True, slots=True)
class Start:
    """Have `source` fill the chunk at `slots`."""

    key: ChunkKey
    slots: SlotRange
    source: Source


@dataclass(frozen=True, slots=True)
class MakeRoom:
    """These go out, leaves first, for somebody who has a claim on their slots now."""

    displaced: tuple[ChunkKey, ...]


Entry: TypeAlias = Start | MakeRoom


class Newcomers:
    """Owns the candidates. `kept`: chunks that shall be in the switch; `filling`: fills under way by node."""

    def __init__(
        self,
        directory: Directory,
        values: ClusterValues,
        residents: Residents,
        sources: Callable[[ChunkKey], Sequence[Source]],
        kept: Collection[ChunkKey],
        filling: Mapping[NodeIndex, int],
        fills_per_holder: int,
        claims_max: int,
        only_kept: bool,
        decisions: Counter[str],
    ) -> None:
        """`claims_max`: so many at most have room made for them at once; `only_kept`: nobody else is let in;
        `decisions`: where refusals are counted."""
        self._directory = directory
        self._values = values
        self._residents = residents
        self._sources = sources
        self._kept = kept
        self._filling = filling
        self._fills_per_holder = fills_per_holder
        self._claims_max = claims_max
        self._only_kept = only_kept
        self._slots = SlotAllocator(0)
        self._segment_bytes = 1
        self._policy = AdmissionPolicy(0)
        self._claims: list[ChunkKey] = []
        self._now_ns = 0
        self.candidates = Candidates(self._rank)
        directory.watch(lambda key, came_or_went: self.candidates.wake(key))
        values.watch(self.candidates.changed)
        self._decisions = decisions

    def use(self, slots: SlotAllocator, segment_bytes: int) -> None:
        """The switch's slots."""
        self._slots, self._segment_bytes = slots, segment_bytes
        self._policy = AdmissionPolicy(slots.capacity)

    def begin(self, now_ns: int) -> None:
        """A round of `next` begins."""
        self._now_ns = now_ns
        self._residents.refresh(now_ns)
        self.candidates.wake_aside()
        self._claims = self.candidates.claimed[::-1]

    def next(self, here: Collection[ChunkKey]) -> Entry | None:
        """What to do next; None: nothing more in this round. `here`: all that is in the switch."""
        while self._claims:
            start = self._take_claim(self._claims.pop(), here)
            if start is not None:
                return start
        # No more room is made than can be filled soon: what has to go serves until then.
        while self.candidates.claimed_count < self._claims_max and (key := self.candidates.take_next(self._has_time)):
            entry = self._consider(key)
            if entry is not None:
                return entry
        return None

    # -- ranks

    def _rank(self, key: ChunkKey, evidence: Evidence) -> Rank:
        """What is kept comes first, then the dearest; values as of the residents' origin."""
        known = self._directory.get(key)
        position = known.facts.position if known is not None else 0
        return (key not in self._kept, -self._value(key, evidence), position, key)

    def _value(self, key: ChunkKey, evidence: Evidence) -> float:
        known = self._directory.get(key)
        if known is None:
            return 0.0
        rooted = self._directory.is_rooted(key)
        value = self._values.value(key, known.facts.size_bytes, rooted, self._now_ns, waiting=evidence.readers)
        return value * self._residents.scale(self._now_ns)

    def _candidate(self, key: ChunkKey) -> Candidate | None:
        known = self._directory.get(key)
        if known is None or (self._only_kept and key not in self._kept):
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
            touched_again=self._values.touched_again(key, self._now_ns),
            rooted=self._directory.is_rooted(key),
            fillable=bool(self._sources(key)),
            pinned=key in self._kept,
        )

    # -- decisions

    def _take_claim(self, key: ChunkKey, here: Collection[ChunkKey]) -> Start | None:
        """Begin where room was made for a candidate."""
        evidence = self.candidates[key]
        evidence.awaits.intersection_update(here)
        source = self.choose_source(key)
        if evidence.claim is None or evidence.awaits or source is None:
            return None
        return Start(key, evidence.claim, source)

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
        if decision.displaced:
            self.candidates.claim(key, decision.slots, decision.displaced)
            return MakeRoom(decision.displaced)
        if source is None:
            raise AssertionError("what nobody can fill is refused")
        return Start(key, decision.slots, source)

    def _decide(self, candidate: Candidate) -> Admission | Refusal:
        while True:
            self._residents.refresh(self._now_ns)
            decision = self._policy.decide(candidate, self._residents.layout, self._gaps())
            if isinstance(decision, Refusal) or self._residents.are_as_kept(decision.displaced, self._now_ns):
                return decision

    def _refuse(self, candidate: Candidate, why: Refusal) -> None:
        if candidate.pinned:
            self.candidates.set_aside(candidate.key)
        else:
            self._decisions[f"refused_{why.name.lower()}"] += 1
            self.candidates.drop(candidate.key)

    def choose_source(self, key: ChunkKey, *, even_if_busy: bool = False) -> Source | None:
        """The holder with fewest fills under way; None: nobody has time for it."""
        able = [source for source in self._sources(key) if even_if_busy or self._has_time(source.node)]
        return min(able, key=lambda source: (self._filling[source.node], source.node), default=None)

    def _has_time(self, node: NodeIndex) -> bool:
        return self._filling[node] < self._fills_per_holder

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
    """What is left of a gap beside a claim."""
    rest = []
    if gap.base < claim.base:
        rest.append(SlotRange(gap.base, min(gap.end, claim.base) - gap.base))
    if claim.end < gap.end:
        base = max(gap.base, claim.end)
        rest.append(SlotRange(type(gap.base)(base), gap.end - base))
    return rest
