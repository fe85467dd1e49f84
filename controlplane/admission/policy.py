"""Whether a chunk goes into the switch's pool, and what makes room for it.

A chunk is admitted only on evidence (two readers at once, or a second touch), only whole, only if it can be filled,
and only if it is worth more than everything it displaces and what hangs on that. Room is one contiguous range of slots:
the policy looks for the range whose present residents are missed least.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controlplane.admission.slots import SlotRange
from controlplane.eviction import Resident, losses
from controlplane.ids import ChunkKey, Slot

DISPLACEMENT_MARGIN = 1.1
"""A newcomer must be worth so many times what it displaces: equal chunks shall not take turns."""


class Refusal(enum.Enum):
    """Why a chunk stays out."""

    NO_EVIDENCE = "no evidence of reuse"
    NO_SOURCE = "no attached holder with a known switch port"
    ORPHAN = "an ancestor is in no pool"
    TOO_BIG = "more segments than the switch has slots"
    NOT_WORTH_IT = "worth less than what it would displace"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A chunk that somebody proposes for the switch."""

    key: ChunkKey
    parent: ChunkKey | None
    position: int
    size_bytes: int
    segments: int
    value: float
    """Per byte, from the value function."""
    readers: int
    """At once, as last reported by the switch."""
    touched_again: bool
    rooted: bool
    fillable: bool
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class Placed:
    """A resident of the switch and where it lies."""

    resident: Resident
    slots: SlotRange


@dataclass(frozen=True, slots=True)
class Admission:
    """Put the chunk at `slots` once `displaced` (leaves first) are out."""

    key: ChunkKey
    slots: SlotRange
    displaced: tuple[ChunkKey, ...] = ()


class AdmissionPolicy:
    """Decides one candidate at a time; holds no state."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity

    def decide(
        self, candidate: Candidate, pool: Mapping[ChunkKey, Placed], gaps: Sequence[SlotRange]
    ) -> Admission | Refusal:
        """`pool` is everything in the switch, `gaps` its free ranges in order of address."""
        refusal = self._refuse(candidate)
        if refusal is not None:
            return refusal
        fitting = [gap for gap in gaps if gap.count >= candidate.segments]
        if fitting:
            gap = min(fitting, key=lambda one: (one.count, one.base))
            return Admission(candidate.key, SlotRange(gap.base, candidate.segments))
        return self._displace(candidate, pool, gaps)

    def _refuse(self, candidate: Candidate) -> Refusal | None:
        if candidate.segments > self._capacity:
            return Refusal.TOO_BIG
        if not candidate.fillable:
            return Refusal.NO_SOURCE
        if candidate.pinned:
            return None
        if candidate.readers < 2 and not candidate.touched_again:
            return Refusal.NO_EVIDENCE
        if not candidate.rooted:
            return Refusal.ORPHAN
        return None

    def _displace(
        self, candidate: Candidate, pool: Mapping[ChunkKey, Placed], gaps: Sequence[SlotRange]
    ) -> Admission | Refusal:
        loss = losses({key: placed.resident for key, placed in pool.items()})
        ancestors = _ancestors(candidate, pool)
        strips = sorted(
            [(gap, None) for gap in gaps] + [(placed.slots, placed) for placed in pool.values()], key=lambda one: one[0]
        )
        best: tuple[float, Slot, list[Placed]] | None = None
        for first in range(len(strips)):
            window = _window(strips, first, candidate.segments, ancestors)
            if window is None:
                continue
            inside = {placed.resident.key for placed in window}
            cost = sum(loss[one] for one in inside if pool[one].resident.parent not in inside)
            if best is None or cost < best[0]:
                best = (cost, strips[first][0].base, window)
        limit = float("inf") if candidate.pinned else candidate.value * candidate.size_bytes
        if best is None or best[0] * DISPLACEMENT_MARGIN >= limit:
            return Refusal.NOT_WORTH_IT
        _, base, window = best
        out = sorted(window, key=lambda placed: (-placed.resident.position, placed.resident.key))
        return Admission(
            candidate.key, SlotRange(base, candidate.segments), tuple(placed.resident.key for placed in out)
        )


def _window(
    strips: Sequence[tuple[SlotRange, Placed | None]], first: int, need: int, keep: frozenset[ChunkKey]
) -> list[Placed] | None:
    """Residents from strip `first` on that cover `need` slots; None if something there has to stay."""
    covered, window = 0, []
    for slots, placed in strips[first:]:
        if placed is not None:
            if not placed.resident.movable or placed.resident.key in keep:
                return None
            window.append(placed)
        covered += slots.count
        if covered >= need:
            return window
    return None


def _ancestors(candidate: Candidate, pool: Mapping[ChunkKey, Placed]) -> frozenset[ChunkKey]:
    """Residents that the candidate hangs on, as far up as the pool is unbroken: to push those out would undo it."""
    found = set()
    at = candidate.parent
    while at is not None and at in pool and at not in found:
        found.add(at)
        at = pool[at].resident.parent
    return frozenset(found)
