"""Who computes which chunks at this moment, how much each may claim, and when a claim is late: for engines at an agent,
for nodes at the controller and at each agent. A change costs the same however many claims there are. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from kvchunk.ids import ChunkKey
from kvproto.deadlines import Deadlines
from kvproto.limits import CLAIMED_BYTES_MIN, CLAIMERS_PER_CHUNK_MAX

C = TypeVar("C", bound=Hashable)


@dataclass(slots=True, eq=False)
class Claim(Generic[C]):
    claimer: C
    key: ChunkKey
    size_bytes: int
    eta_ns: int
    """When the chunk will be there,"""
    due_ns: int
    """and when it is late."""


def room_of(held: int, total: int, bound: int, sharers: int) -> int:
    """How much more one of `sharers` at most may take, who has `held` of the `total` that is taken."""
    return max(bound - total, bound // sharers - held)


@dataclass(frozen=True, slots=True)
class ClaimBounds:
    """What one may claim by itself, and what all may together until only an even share is left for each. So nobody is
    shut out by others, and all together have twice as much at most. Bytes are those of a pool that has to keep what is
    claimed."""

    each: int
    each_bytes: int
    shared: int
    shared_bytes: int
    sharers_max: int
    """Claimers that there can be. An even share of those that there are would be worth less: those who came first have
    had more of it."""

    def room(self, size_bytes: int, held: tuple[int, int], taken: tuple[int, int]) -> int:
        """How many more chunks of this size one may claim, who has so many of so many bytes, where all have `taken`."""
        (count, count_bytes), (total, total_bytes) = held, taken
        counted = min(self.each - count, room_of(count, total, self.shared, self.sharers_max))
        shared = room_of(count_bytes, total_bytes, self.shared_bytes, self.sharers_max)
        weighed = min(self.each_bytes - count_bytes, shared)
        return max(0, min(counted, weighed // charged_bytes(size_bytes)))


def charged_bytes(size_bytes: int) -> int:
    """What a claim of a chunk of this size counts for."""
    return max(CLAIMED_BYTES_MIN, size_bytes)


class ClaimBook(Generic[C]):
    """Owns the claims that stand. Whose word counts it does not know."""

    def __init__(self) -> None:
        self.by_key: dict[ChunkKey, tuple[Claim[C], ...]] = {}
        """To be read."""
        self._of: dict[C, dict[ChunkKey, Claim[C]]] = {}
        self._bytes_of: Counter[C] = Counter()
        self.count = 0
        self.size_bytes = 0
        self.late: Deadlines[Claim[C]] = Deadlines()

    def held(self, claimer: C) -> Mapping[ChunkKey, Claim[C]]:
        """What one claims, in the order in which it did."""
        return self._of.get(claimer, {})

    def room(self, claimer: C, size_bytes: int, bounds: ClaimBounds) -> int:
        """How many more chunks of this size one may claim."""
        held = len(self.held(claimer)), self._bytes_of[claimer]
        return bounds.room(size_bytes, held, (self.count, self.size_bytes))

    def is_crowded(self, key: ChunkKey) -> bool:
        """So many compute a chunk that one more is of no use: whoever asks for it goes through all of them."""
        return len(self.by_key.get(key, ())) >= CLAIMERS_PER_CHUNK_MAX

    def add(self, claimer: C, key: ChunkKey, size_bytes: int, times_ns: tuple[int, int], now_ns: int) -> None:
        """One computes a chunk; `times_ns`: when it will be there, and when it is late. A known one gets new times."""
        known = self.held(claimer).get(key)
        if known is not None:
            self.remove(known)
        eta_ns, due_ns = times_ns
        claim = Claim(claimer, key, size_bytes, eta_ns, due_ns)
        claim.due_ns = self.late.add(claim, due_ns, now_ns)
        self.by_key[key] = (*self.by_key.get(key, ()), claim)
        self._of.setdefault(claimer, {})[key] = claim
        self._count(claim, 1)

    def remove(self, claim: Claim[C]) -> None:
        """One computes a chunk no more."""
        others = tuple(one for one in self.by_key.pop(claim.key) if one is not claim)
        if others:
            self.by_key[claim.key] = others
        self.late.discard(claim, claim.due_ns)
        self._count(claim, -1)
        held = self._of[claim.claimer]
        del held[claim.key]
        if not held:
            del self._of[claim.claimer], self._bytes_of[claim.claimer]

    def _count(self, claim: Claim[C], number: int) -> None:
        size_bytes = number * charged_bytes(claim.size_bytes)
        self._bytes_of[claim.claimer] += size_bytes
        self.size_bytes += size_bytes
        self.count += number
