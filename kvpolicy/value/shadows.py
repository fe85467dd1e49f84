"""Shadow caches: what the pool would have had under each policy, and which policy decides. Keys only, all policies side
by side.

A shadow does what a pool of the same size does under its policy: a fetch hits as many leading chunks as it has, what it
lacks comes in in prefix order until one is refused, leaves go before their ancestors, and nothing that a fetch uses
goes for it. Where only a sample of the chunks is shown, a chunk hangs on the nearest sampled one before it.

The policy decides whose shadow did best of late on a sample of the live stream. The sample is one of keys (all fetches
of a sampled chunk are seen), and halves whenever the shadows grow beyond their bound, as SHARDS does with a fixed size
(Waldspurger et al., FAST '15).

A fetch that a shadow has whole costs it one look at the fetch's last chunk, because inner chunks cannot go. Owns who is
in which shadow, and what each chunk scored when it was fetched last.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, TypeAlias

import numpy as np

from kvpolicy.value.lowest import Entry, LowestFirst
from kvpolicy.value.order import QUEUE_MIN, QUEUE_SHARE
from kvpolicy.value.policies import LEAD_CHUNKS, MARGIN, Facts, Policy, Rule
from kvpolicy.value.reuse import FINISHED_SCORE, NEVER, AgingScores, Floats, Numbers, ReuseAges
from kvpolicy.value.table import MIX_BITS

STEADY_QUEUE_SHARE: Final = 8
"""`QUEUE_SHARE` where scores do not change with age: a pass costs more than a longer queue."""

_CHECK_EVERY: Final = 64
"""Sampled chunks between two looks at who is ahead."""

EveryScore: TypeAlias = Callable[[Facts], Sequence[float]]

NOBODY: Final = -1
"""What the first chunk of a prefix hangs on."""

Link: TypeAlias = tuple[int, float]
"""What a chunk hangs on, and its bytes."""


@dataclass(slots=True)
class ShownChunk:
    """What the shadows need to know of a chunk that was just fetched. Neighbours in a fetch often share one."""

    facts: Facts
    group: int
    """Class."""
    size_bytes: float
    saved: float
    """What a hit is worth."""
    again: bool
    """Fetched before."""
    scores: Sequence[float] | None = None
    """By policy, of one that looks at ages the part that does not change with them; None until somebody asks."""

    @property
    def last_s(self) -> float:
        """When it was fetched."""
        return self.facts[0]


@dataclass(slots=True)
class SharedByShadows:
    """What the shadows of all policies have in common."""

    every: EveryScore
    """Scores of a chunk by all policies."""
    shown: dict[int, ShownChunk] = field(default_factory=dict)
    """What is known of a chunk."""
    held: dict[int, int] = field(default_factory=dict)
    """Bits of the shadows that have it."""
    gone: list[int] = field(default_factory=list)
    """Chunks that perhaps no shadow has any longer."""


class ShadowCache:
    """Owns a pool that exists on paper: what one policy would have kept."""

    __slots__ = (
        "_aging", "_as_of_s", "_at", "_bit", "_children", "_every", "_filtered", "_gone", "_heir", "_heir_shown",
        "_held", "_here", "_leaves", "_moved", "_order", "_shown", "capacity_bytes", "hits", "used_bytes",
    )  # fmt: skip

    def __init__(
        self, at: int, capacity_bytes: float, filtered: bool, ages: ReuseAges | None, shared: SharedByShadows
    ) -> None:
        """`at`: the policy's number. `ages`: what comes on top of scores if they depend on age."""
        self._at = at
        self._bit = 1 << at
        self._filtered = filtered
        self._every = shared.every
        self._aging = None if ages is None else AgingScores(ages)
        self._moved: set[int] = set()
        """With ages: leaves that came, went or were fetched since the last pass."""
        self._shown, self._held, self._gone = shared.shown, shared.held, shared.gone
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0.0
        self.hits = 0.0
        """Seconds saved, or bytes where nobody knows seconds, by what it had; recent ones count more."""
        self._here: dict[int, Link] = {}
        """See `here`."""
        self._children: dict[int, int] = {}
        """How many hang on it, if it is more than one; else it is a leaf, or one does."""
        self._leaves: dict[int, float] = {}
        """Scores of those that nothing hangs on, apart from what the fetch under way uses."""
        self._heir: Entry | None = None
        """The leaf that goes first, if what went last hung on it; it is not in the order yet."""
        self._heir_shown: ShownChunk | None = None
        """What its score was worked out from."""
        self._as_of_s = 0.0
        """Moment of the chunks' ages in the order: that of its last pass."""
        self._order = LowestFirst(self._is_leaf, QUEUE_MIN, QUEUE_SHARE if ages is not None else STEADY_QUEUE_SHARE)

    def __len__(self) -> int:
        return len(self._here)

    def __contains__(self, chunk: int) -> bool:
        return chunk in self._here

    def here(self) -> Mapping[int, Link]:
        """Chunks here."""
        return self._here

    def leaves(self) -> Mapping[int, float]:
        """Scores of the chunks here that nothing hangs on (`AgingScores`, where they depend on age)."""
        return self._leaves

    def used(self, last: int) -> None:
        """A fetch found all its chunks, the last of which is this."""
        if last in self._leaves:
            self._rank(last)

    def lacked(self, chunks: Sequence[int], links: Sequence[Link], leading: int, now_s: float) -> None:
        """A fetch found only so many leading chunks. The others come in, as far as the policy lets them."""
        here, shown, held, bit = self._here, self._shown, self._held, self._bit
        scored, score = None, 0.0
        tail = chunks[leading - 1] if leading else NOBODY
        if leading:
            self._hold(tail)
        for at in range(leading, len(chunks)):
            chunk = chunks[at]
            if chunk in here:  # its ancestors were not named by the fetch that brought it
                if self._heir is not None:
                    self._settle(self._heir)
                self._hold(chunk)
                if tail != NOBODY:
                    self._release(tail)
                tail = chunk
                continue
            own = shown[chunk]
            size_bytes = own.size_bytes
            if self.used_bytes + size_bytes > self.capacity_bytes:
                if self._filtered and not own.again:
                    break
                if own is not scored:
                    scored, score = own, self._score(own)
                if not self._make_room(score, size_bytes, now_s):
                    break
            self.used_bytes += size_bytes
            here[chunk] = links[at]
            held[chunk] = held.get(chunk, 0) | bit
            tail = chunk
        if self._heir is not None:
            self._settle(self._heir)
        if tail in self._children:
            self._release(tail)
        elif tail != NOBODY:
            self._rank(tail)

    def finished(self, chunk: int) -> None:
        """What is known of the chunk has changed."""
        if chunk in self._leaves:
            self._rank(chunk)

    def rejuvenated(self, chunks: Sequence[int]) -> None:
        """With ages: these were just fetched. One before the last may be a leaf, too, if a fetch began behind it."""
        self._moved |= self._leaves.keys() & chunks

    def ages_changed(self) -> None:
        """Ages say something else than before."""
        if self._aging is not None:
            self._aging.ages_changed()
            self._order.forget()

    def shrink(self, odd: int) -> None:
        """Keep only chunks outside the half of the sample that `odd` names; capacity follows."""
        before, self._here = self._here, {}
        self._children.clear()
        self._leaves.clear()
        self._order.forget()
        if self._aging is not None:
            self._aging.clear()
        self.capacity_bytes /= 2
        self.used_bytes = 0.0
        for chunk, (parent, size_bytes) in before.items():
            if chunk & odd:
                continue
            while parent != NOBODY and parent & odd:
                parent = before[parent][0]
            self._here[chunk] = parent, size_bytes
            self.used_bytes += size_bytes
        counts = Counter(parent for parent, _ in self._here.values())
        self._children.update({parent: count for parent, count in counts.items() if count > 1 and parent != NOBODY})
        for chunk in self._here:
            if chunk not in counts:
                self._rank(chunk)
        while self.used_bytes > self.capacity_bytes and (lowest := self._lowest(self._as_of_s)) is not None:
            self._take_out(lowest[2])
            self._forget(lowest[2])

    def _score(self, own: ShownChunk) -> float:
        base = (own.scores or self._scores(own))[self._at]
        return base if self._aging is None else self._aging.one(base, own.group, own.facts[0], self._as_of_s)

    def _scores(self, own: ShownChunk) -> Sequence[float]:
        own.scores = self._every(own.facts)
        return own.scores

    def _rank(self, leaf: int) -> None:
        own = self._shown[leaf]
        if self._aging is None:
            score = (own.scores or self._scores(own))[self._at]
        else:
            # A pass comes before the next leaf goes while there is no border, and works out the score again.
            score = self._score(own) if self._order.border > -math.inf else 0.0
            self._moved.add(leaf)
        self._leaves[leaf] = score
        if score < self._order.border:
            self._order.changed(score, leaf, leaf)

    def _hold(self, chunk: int) -> None:
        """One more hangs on it, or will: it cannot go."""
        if self._leaves.pop(chunk, None) is None:
            self._children[chunk] = self._children.get(chunk, 1) + 1
        elif self._aging is not None:
            self._moved.add(chunk)

    def _release(self, chunk: int) -> None:
        """One less hangs on it."""
        hanging = self._children.get(chunk)
        if hanging is None:
            self._rank(chunk)
        elif hanging > 2:
            self._children[chunk] = hanging - 1
        else:
            del self._children[chunk]

    def _make_room(self, score: float, size_bytes: float, now_s: float) -> bool:
        """Drop what scores less than a newcomer until that fits; False, and nothing dropped, if it does not."""
        if size_bytes > self.capacity_bytes:
            return False
        if self._aging is not None:
            self._order.expire()
            if self._order.border == -math.inf:  # a pass comes before the next leaf goes
                self._heir = None
        first = self._heir or self._lowest(now_s)
        if first is None or first[0] >= score:
            return False
        if self.used_bytes - self._here[first[2]][1] + size_bytes > self.capacity_bytes:
            return self._make_more_room(score, size_bytes, now_s)
        self._drop(first)
        return True

    def _drop(self, first: Entry) -> None:
        """Drop the leaf that goes first. What it hung on goes next as a rule, because it was fetched with it."""
        score, _, leaf = first
        order, shown = self._order, self._shown
        if self._heir is None:
            order.take(first)
            self._heir_shown = None
        self._heir = None
        parent, leaf_bytes = self._here.pop(leaf)
        self.used_bytes -= leaf_bytes
        del self._leaves[leaf]
        if self._aging is not None:
            self._moved.add(leaf)
        self._forget(leaf)
        if parent == NOBODY:
            return
        if parent in self._children:
            self._release(parent)
            return
        own = shown[parent]
        if own is not self._heir_shown:
            score, self._heir_shown = self._score(own), own
        self._leaves[parent] = score
        if self._aging is not None:
            self._moved.add(parent)
        if score < order.border:
            heir = score, parent, parent
            if order.precedes(heir):
                self._heir = heir
            else:
                order.changed(*heir)

    def _settle(self, heir: Entry) -> None:
        """Nothing more goes for now: the leaf that would have gone next enters the order."""
        self._order.changed(*heir)
        self._heir = None

    def _make_more_room(self, score: float, size_bytes: float, now_s: float) -> bool:
        """`_make_room` by more than one."""
        if self._heir is not None:
            self._settle(self._heir)
        gone: list[tuple[int, int, float]] = []
        while self.used_bytes + size_bytes > self.capacity_bytes:
            lowest = self._lowest(now_s)
            if lowest is None or lowest[0] >= score:
                for one in reversed(gone):
                    self._put_back(*one)
                return False
            gone.append((lowest[2], *self._take_out(lowest[2])))
        for chunk, _, _ in gone:
            self._forget(chunk)
        return True

    def _take_out(self, leaf: int) -> tuple[int, float]:
        """Returns the chunk that it hung on, and its bytes."""
        del self._leaves[leaf]
        if self._aging is not None:
            self._moved.add(leaf)
        parent, leaf_bytes = self._here.pop(leaf)
        self.used_bytes -= leaf_bytes
        if parent != NOBODY:
            self._release(parent)
        return parent, leaf_bytes

    def _put_back(self, leaf: int, parent: int, leaf_bytes: float) -> None:
        self._here[leaf] = parent, leaf_bytes
        self.used_bytes += leaf_bytes
        if parent != NOBODY:
            self._hold(parent)
        self._rank(leaf)

    def _forget(self, chunk: int) -> None:
        left = self._held[chunk] & ~self._bit
        if left:
            self._held[chunk] = left
        else:
            del self._held[chunk]
            self._gone.append(chunk)

    def _lowest(self, now_s: float) -> Entry | None:
        """Score and chunk of the leaf that goes next."""
        while (entry := self._order.first()) is None:
            leaves = self._leaves
            if not leaves:
                return None
            if self._aging is None:
                chunks = np.fromiter(leaves, np.int64, len(leaves))
                scores = np.fromiter(leaves.values(), np.float64, len(leaves))
            else:
                scores, chunks = self._grown_older(self._aging, now_s)
            self._order.fill(scores, chunks, chunks)
        return entry

    def _grown_older(self, aging: AgingScores, now_s: float) -> tuple[Floats, Numbers]:
        """Scores of the leaves now, and the leaves."""
        leaves, shown = self._leaves, self._shown
        for chunk in self._moved:
            if chunk in leaves:
                own = shown[chunk]
                aging.put(chunk, (own.scores or self._scores(own))[self._at], own.group, own.last_s)
            else:
                aging.drop(chunk)
        self._moved.clear()
        self._as_of_s = now_s
        leaves.update(zip(*aging.grow_older(now_s), strict=True))
        return aging.all()

    def _is_leaf(self, score: float, chunk: int) -> bool:
        return self._leaves.get(chunk) == score


class ShadowCaches:
    """The shadows of all policies, which see the same fetches."""

    def __init__(self, policies: Sequence[Policy], capacity_bytes: float, ages: ReuseAges, every: EveryScore) -> None:
        """`every`: what chunks score by all policies (`policies.Scorer`)."""
        shared = SharedByShadows(every)
        self._shown, self._held, self._gone = shared.shown, shared.held, shared.gone
        self._all = (1 << len(policies)) - 1
        finished = (FINISHED_SCORE,) * len(policies)
        self._finished = ShownChunk((0.0, 0.0, 0, 0, 0.0, 0.0), NEVER, 0.0, 0.0, False, finished)
        self.each = tuple(
            ShadowCache(at, capacity_bytes, one.filtered, ages if one.rule is Rule.AGE else None, shared)
            for at, one in enumerate(policies)
        )
        self._aged = tuple(shadow for shadow, one in zip(self.each, policies, strict=True) if one.rule is Rule.AGE)

    @property
    def known(self) -> int:
        """Chunks that something is known of."""
        return len(self._shown)

    def fetched(self, chunks: Sequence[int], shown: Sequence[ShownChunk], unit: float, now_s: float) -> float:
        """Sampled chunks of one fetch, in its order; a hit counts for `unit` times what it saves. Returns what the
        first policy missed, as a share of the bytes of its shadow."""
        held = self._held
        have, leading = self._all, [len(chunks)] * len(self.each)
        for at, chunk in enumerate(chunks):
            still = have & held.get(chunk, 0)
            if still != have:
                lost, have = have ^ still, still
                while lost:
                    leading[lost.bit_length() - 1] = at
                    lost &= ~(1 << lost.bit_length() - 1)
                if not have:
                    break
        self._shown.update(zip(chunks, shown, strict=True))
        for shadow in self._aged:
            shadow.rejuvenated(chunks)
        if have == self._all:
            self._all_have(chunks[-1], unit * sum([one.saved for one in shown]))
            return 0.0
        sizes_bytes = [one.size_bytes for one in shown]
        links = list(zip((NOBODY, *chunks), sizes_bytes, strict=False))
        saved = list(accumulate([one.saved for one in shown], initial=0.0))
        for shadow, found in zip(self.each, leading, strict=True):
            shadow.hits += unit * saved[found]
            if found == len(chunks):
                shadow.used(chunks[-1])
            else:
                shadow.lacked(chunks, links, found, now_s)
        self._gone += chunks
        self._clean()
        return sum(sizes_bytes[leading[0] :]) / max(1.0, self.each[0].capacity_bytes)

    def _all_have(self, last: int, hits: float) -> None:
        """All shadows have all of a fetch, the last of which is this."""
        for shadow in self.each:
            shadow.hits += hits
            shadow.used(last)

    def _clean(self) -> None:
        """What no shadow has need not be known."""
        for chunk in self._gone:
            if chunk not in self._held:
                self._shown.pop(chunk, None)
        self._gone.clear()

    def finished(self, chunk: int) -> None:
        """The chunk goes first, until it is fetched again."""
        if chunk in self._held:
            self._shown[chunk] = self._finished
            for shadow in self.each:
                shadow.finished(chunk)

    def ages_changed(self) -> None:
        """Ages say something else than before."""
        for shadow in self._aged:
            shadow.ages_changed()

    def shrink(self, odd: int) -> None:
        """Keep only chunks outside the half of the sample that `odd` names."""
        for shadow in self.each:
            shadow.shrink(odd)
        for chunk in [chunk for chunk in self._held if chunk & odd]:
            del self._held[chunk], self._shown[chunk]
        self._clean()


class PolicySelector:
    """The policies' shadows, and who decides."""

    def __init__(
        self,
        policies: Sequence[Policy],
        capacity_bytes: float,
        ages: ReuseAges,
        every: EveryScore,
        shadow_chunks_max: int,
        half_touches: int,
    ) -> None:
        self._policies = tuple(policies)
        self.shadows = ShadowCaches(policies, capacity_bytes, ages, every)
        self._chunks_max = shadow_chunks_max
        self._fade = 0.5 ** (1 / half_touches)
        self._unit = 1.0
        """What a hit now counts for, against one at the start: grows instead of all others fading."""
        self._shift = 0
        self._until_check = 0
        self._total = 0.0
        self._seen = 0.0
        """Chunks, and what they were worth: recent ones count more, as hits do."""
        self.active = 0
        """Index of the policy that decides."""
        self.sample_mask = 0
        """A chunk is sampled if its mixed key has none of these bits."""
        self.turn = 0.0
        """How often the bytes that the first policy missed would have filled its shadow."""

    def fetched(self, chunks: Sequence[int], shown: Sequence[ShownChunk], now_s: float) -> bool:
        """Sampled chunks of one fetch, in its order. True if another policy decides from now on."""
        unit, count = self._unit, len(chunks)
        self.turn += self.shadows.fetched(chunks, shown, unit, now_s)
        self._total += unit * sum([one.saved for one in shown])
        self._seen += unit * count
        self._unit = unit / self._fade**count
        self._until_check -= count
        if self._until_check > 0:
            return False
        self._until_check = _CHECK_EVERY
        return self._check()

    def shares(self) -> dict[str, float]:
        """Recent share of what was fetched that each policy would have had, by name."""
        total = self._total or 1.0
        return {
            policy.name: shadow.hits / total for policy, shadow in zip(self._policies, self.shadows.each, strict=True)
        }

    def _check(self) -> bool:
        shadows = self.shadows.each
        if max(map(len, shadows)) > self._chunks_max:
            self._shift += 1
            self.sample_mask = ((1 << self._shift) - 1) << (MIX_BITS - self._shift)
            self.shadows.shrink(1 << (MIX_BITS - self._shift))
        if self._unit > 1e100:
            for shadow in shadows:
                shadow.hits /= self._unit
            self._total /= self._unit
            self._seen /= self._unit
            self._unit = 1.0
        hits = [shadow.hits for shadow in shadows]
        best = hits.index(max(hits))
        chance = LEAD_CHUNKS * self._unit * self._total / self._seen
        if hits[best] > hits[self.active] * (1 + MARGIN) + chance:
            self.active = best
            return True
        return False
