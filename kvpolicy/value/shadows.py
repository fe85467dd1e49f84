"""Shadow caches: what the pool would have had under each policy. Keys only, all policies side by side.

A shadow does what a pool of the same size does under its policy: a fetch hits as many leading chunks as it has, what it
lacks comes in in prefix order until one is refused, leaves go before their ancestors, and nothing that a fetch uses
goes for it. Where only a sample of the chunks is shown, a chunk hangs on the nearest sampled one before it.

A fetch that a shadow has whole costs it one look at the fetch's last chunk, because inner chunks cannot go. Owns who is
in which shadow, and what each chunk scored when it was fetched last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, TypeAlias

import numpy as np

from kvpolicy.value.ages import FINISHED_SCORE, NEVER, ReuseAges
from kvpolicy.value.lowest import LowestFirst
from kvpolicy.value.order import QUEUE_MIN, QUEUE_SHARE
from kvpolicy.value.policies import Facts, Policy, Rule

EveryScore: TypeAlias = Callable[[Facts], Sequence[float]]

NOBODY: Final = -1
"""What the first chunk of a prefix hangs on."""


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


class ShadowCache:
    """One policy's pool."""

    __slots__ = (
        "_ages", "_as_of_s", "_at", "_bit", "_children", "_every", "_filtered", "_gone", "_held", "_here",
        "_leaves", "_order", "_shown", "capacity_bytes", "hits", "used_bytes",
    )  # fmt: skip

    def __init__(
        self,
        at: int,
        capacity_bytes: float,
        filtered: bool,
        every: EveryScore,
        ages: ReuseAges | None,
        shown: dict[int, ShownChunk],
        held: dict[int, int],
        gone: list[int],
    ) -> None:
        """`at`: the policy's number. `every`: scores by all policies. `ages`: what comes on top if they depend on age.
        All shadows share what is `shown` of a chunk, bits of those that have it (`held`), and those that none has any
        longer (`gone`)."""
        self._at = at
        self._bit = 1 << at
        self._filtered = filtered
        self._every = every
        self._ages = ages
        self._shown = shown
        self._held = held
        self._gone = gone
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0.0
        self.hits = 0.0
        """Seconds saved, or bytes where nobody knows seconds, by what it had; recent ones count more."""
        self._here: dict[int, tuple[int, float]] = {}
        """See `here`."""
        self._children: dict[int, int] = {}
        """How many hang on it; 0 is left out."""
        self._leaves: dict[int, float] = {}
        """Scores of those that nothing hangs on, apart from what the fetch under way uses."""
        self._as_of_s = 0.0
        """Moment of the chunks' ages in the order: that of its last pass."""
        self._order = LowestFirst(self._is_leaf, QUEUE_MIN, QUEUE_SHARE)

    def __len__(self) -> int:
        return len(self._here)

    def __contains__(self, chunk: int) -> bool:
        return chunk in self._here

    def here(self) -> Mapping[int, tuple[int, float]]:
        """Of each chunk here the one that it hangs on (NOBODY for the first of a prefix), and its bytes."""
        return self._here

    def leaves(self) -> Iterable[int]:
        """Chunks here that nothing hangs on."""
        return self._leaves

    def used(self, last: int) -> None:
        """A fetch found all its chunks, the last of which is this."""
        if last in self._leaves:
            self._rank(last)

    def lacked(self, chunks: Sequence[int], leading: int, now_s: float) -> None:
        """A fetch found only so many leading chunks. The others come in, as far as the policy lets them."""
        children, here, shown, held, bit = self._children, self._here, self._shown, self._held, self._bit
        tail = chunks[leading - 1] if leading else NOBODY
        if leading:
            self._hold(tail)
        for chunk in chunks[leading:] if leading else chunks:
            if chunk in here:  # its ancestors were not named by the fetch that brought it
                self._hold(chunk)
                if tail != NOBODY:
                    self._release(tail)
                tail = chunk
                continue
            own = shown[chunk]
            if self.used_bytes + own.size_bytes > self.capacity_bytes:
                if self._filtered and not own.again:
                    break
                if not self._make_room(self._score(own), own.size_bytes, now_s):
                    break
            self.used_bytes += own.size_bytes
            here[chunk] = tail, own.size_bytes
            children[chunk] = 1
            held[chunk] = held.get(chunk, 0) | bit
            tail = chunk
        if tail != NOBODY:
            self._release(tail)

    def finished(self, chunk: int) -> None:
        """What is known of the chunk has changed."""
        if chunk in self._leaves:
            self._rank(chunk)

    def forget_order(self) -> None:
        """Scores mean something else now."""
        self._order.forget()

    def shrink(self, odd: int) -> None:
        """Keep only chunks outside the half of the sample that `odd` names; capacity follows."""
        before, self._here = self._here, {}
        self._children.clear()
        self._leaves.clear()
        self._order.forget()
        self.capacity_bytes /= 2
        self.used_bytes = 0.0
        for chunk, (parent, size_bytes) in before.items():
            if chunk & odd:
                continue
            while parent != NOBODY and parent & odd:
                parent = before[parent][0]
            self._here[chunk] = parent, size_bytes
            self.used_bytes += size_bytes
            if parent != NOBODY:
                self._children[parent] = self._children.get(parent, 0) + 1
        for chunk in self._here:
            if chunk not in self._children:
                self._leaves[chunk] = self._score(self._shown[chunk])
        while self.used_bytes > self.capacity_bytes and (lowest := self._lowest(self._as_of_s)) is not None:
            self._take_out(lowest[1])
            self._forget(lowest[1])

    def _score(self, own: ShownChunk) -> float:
        scores = own.scores
        if scores is None:
            scores = own.scores = self._every(own.facts)
        score = scores[self._at]
        if self._ages is not None:
            score += self._ages.score(own.group, self._as_of_s - own.last_s)
        return score

    def _rank(self, leaf: int) -> None:
        score = self._leaves[leaf] = self._score(self._shown[leaf])
        if score < self._order.border:
            self._order.changed(score, leaf, leaf)

    def _hold(self, chunk: int) -> None:
        """One more hangs on it, or will: it cannot go."""
        self._children[chunk] = self._children.get(chunk, 0) + 1
        self._leaves.pop(chunk, None)

    def _release(self, chunk: int) -> None:
        """One less hangs on it."""
        left = self._children[chunk] - 1
        if left:
            self._children[chunk] = left
        else:
            del self._children[chunk]
            self._rank(chunk)

    def _make_room(self, score: float, size_bytes: float, now_s: float) -> bool:
        """Drop what scores less than a newcomer until that fits; False, and nothing dropped, if it does not."""
        if size_bytes > self.capacity_bytes:
            return False
        if self._ages is not None:
            self._order.expire()
        gone: list[tuple[int, int, float]] = []
        while self.used_bytes + size_bytes > self.capacity_bytes:
            lowest = self._lowest(now_s)
            if lowest is None or lowest[0] >= score:
                for one in reversed(gone):
                    self._put_back(*one)
                return False
            gone.append((lowest[1], *self._take_out(lowest[1])))
        for chunk, _, _ in gone:
            self._forget(chunk)
        return True

    def _take_out(self, leaf: int) -> tuple[int, float]:
        """Returns the chunk that it hung on, and its bytes."""
        del self._leaves[leaf]
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

    def _lowest(self, now_s: float) -> tuple[float, int] | None:
        """Score and chunk of the leaf that goes next."""
        while (entry := self._order.first()) is None:
            leaves = self._leaves
            if not leaves:
                return None
            chunks = np.fromiter(leaves, np.int64, len(leaves))
            if self._ages is not None:
                self._as_of_s = now_s
                for chunk in leaves:
                    leaves[chunk] = self._score(self._shown[chunk])
            self._order.fill(np.fromiter(leaves.values(), np.float64, len(leaves)), chunks, chunks)
        return entry[0], entry[2]

    def _is_leaf(self, score: float, chunk: int) -> bool:
        return self._leaves.get(chunk) == score


class ShadowCaches:
    """The shadows of all policies, which see the same fetches."""

    def __init__(self, policies: Sequence[Policy], capacity_bytes: float, ages: ReuseAges, every: EveryScore) -> None:
        """`every`: what chunks score by all policies (`policies.Scorer`)."""
        self._shown: dict[int, ShownChunk] = {}
        self._held: dict[int, int] = {}
        self._gone: list[int] = []
        self._all = (1 << len(policies)) - 1
        finished = (FINISHED_SCORE,) * len(policies)
        self._finished = ShownChunk((0.0, 0.0, 0, 0, 0.0, 0.0), NEVER, 0.0, 0.0, False, finished)
        self.each = tuple(
            ShadowCache(
                at,
                capacity_bytes,
                one.filtered,
                every,
                ages if one.rule is Rule.AGE else None,
                self._shown,
                self._held,
                self._gone,
            )
            for at, one in enumerate(policies)
        )
        self.turn = 0.0
        """How often the bytes that the first policy missed would have filled its shadow."""
        self._aged = tuple(shadow for shadow, one in zip(self.each, policies, strict=True) if one.rule is Rule.AGE)

    @property
    def known(self) -> int:
        """Chunks that something is known of."""
        return len(self._shown)

    def fetched(self, chunks: Sequence[int], shown: Sequence[ShownChunk], unit: float, now_s: float) -> None:
        """Sampled chunks of one fetch, in its order; a hit counts for `unit` times what it saves."""
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
        saved = list(accumulate((one.saved for one in shown), initial=0.0))
        for shadow, found in zip(self.each, leading, strict=True):
            shadow.hits += unit * saved[found]
            if found == len(chunks):
                shadow.used(chunks[-1])
            else:
                shadow.lacked(chunks, found, now_s)
        if have != self._all:
            missed_bytes = sum([one.size_bytes for one in shown[leading[0] :]])
            self.turn += missed_bytes / max(1.0, self.each[0].capacity_bytes)
            self._gone += chunks
            self._clean()

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
            shadow.forget_order()

    def shrink(self, odd: int) -> None:
        """Keep only chunks outside the half of the sample that `odd` names."""
        for shadow in self.each:
            shadow.shrink(odd)
        for chunk in [chunk for chunk in self._held if chunk & odd]:
            del self._held[chunk], self._shown[chunk]
        self._clean()
