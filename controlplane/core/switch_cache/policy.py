"""Whether a chunk goes into the switch, and what makes room for it.

A chunk is admitted only on evidence (two readers at once, or a second touch), only whole, only if it can be filled,
and only if it is worth more than everything it displaces and what hangs on that. Room is one contiguous range of slots:
the policy looks for the range whose present residents are missed least.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.core.ids import ChunkKey
from controlplane.core.switch.slots import SlotRange
from controlplane.core.switch_cache.layout import SlotLayout

DISPLACEMENT_MARGIN = 1.1
"""A candidate must be worth more than this many times what it displaces, so that equal chunks do not take turns."""


class Refusal(enum.Enum):
    """Why a chunk stays out."""

    NO_EVIDENCE = "no evidence of reuse"
    NO_SOURCE = "no attached holder with a known switch port"
    ORPHAN = "an ancestor is in no pool"
    TOO_BIG = "more segments than the switch has slots"
    NOT_WORTH_IT = "worth less than what it would displace"
    FILL_TOO_DEAR = "its holders are not busy enough for a fill to pay"
    NO_ROOM = "no room: the rest of the switch is pinned, or on its way in or out"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A chunk that somebody proposes for the switch."""

    key: ChunkKey
    parent: ChunkKey | None
    position: int
    size_bytes: int
    segments: int
    value: float
    """Per byte, from the value function, as of the same moment as those of the residents."""
    readers: int
    """At once, as last reported by the switch."""
    touched_again: bool
    rooted: bool
    fillable: bool
    fill_pays: bool = True
    pinned: bool = False


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

    def decide(self, candidate: Candidate, layout: SlotLayout, gaps: Sequence[SlotRange]) -> Admission | Refusal:
        """`layout` is everything in the switch, `gaps` its free ranges in order of address."""
        refusal = self._refuse(candidate)
        if refusal is not None:
            return refusal
        fitting = [gap for gap in gaps if gap.count >= candidate.segments]
        if fitting:
            gap = min(fitting, key=lambda one: (one.count, one.base))
            return Admission(candidate.key, SlotRange(gap.base, candidate.segments))
        return self._displace(candidate, layout, gaps)

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
        if not candidate.fill_pays:
            return Refusal.FILL_TOO_DEAR
        return None

    def _displace(self, candidate: Candidate, layout: SlotLayout, gaps: Sequence[SlotRange]) -> Admission | Refusal:
        room = layout.cheapest(candidate.segments, _ancestors(candidate, layout), gaps)
        limit = math.inf if candidate.pinned else candidate.value * candidate.size_bytes
        if room is None:
            return Refusal.NO_ROOM
        if room.cost * DISPLACEMENT_MARGIN >= limit:
            return Refusal.NOT_WORTH_IT
        out = sorted(room.residents, key=lambda resident: (-resident.position, resident.key))
        return Admission(
            candidate.key, SlotRange(room.base, candidate.segments), tuple(resident.key for resident in out)
        )


def _ancestors(candidate: Candidate, layout: SlotLayout) -> frozenset[ChunkKey]:
    """Residents that the candidate hangs on, as far up as the prefix is unbroken: to push those out would undo it."""
    found = set()
    at = candidate.parent
    while at is not None and at not in found and (resident := layout.get(at)) is not None:
        found.add(at)
        at = resident.parent
    return frozenset(found)
