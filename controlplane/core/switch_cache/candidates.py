"""Chunks that somebody wants in the switch and that are not in it: who is looked at next. Pure.

A candidate stands in line by its rank, waits for one of its holders to have time to fill it, has a claim on slots
that are being cleared, or was set aside until the next look. Ranks are worked out when something about a chunk is
different, not for each decision: values of one moment stay comparable, as those of residents do.

Owns the evidence and the queues; `Admissions` defines what a rank is and which holders are busy.

Whether a chunk goes into the switch, and what makes room for it.

A chunk is admitted only on evidence (two readers at once, or a second touch), only whole, only if it can be filled,
and only if it is worth more than everything it displaces and what hangs on that. Room is one contiguous range of slots:
the policy looks for the range whose present residents are missed least.
"""

from __future__ import annotations

import enum
import heapq
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from controlplane.core.ids import ChunkKey, NodeIndex
from controlplane.core.limits import CANDIDATES_MAX
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


Rank: TypeAlias = tuple[bool, float, int, ChunkKey]
"""Lower comes first."""
_STALE_MIN = 64
"""A queue with fewer outdated entries than that, or than good ones, is not worth cleaning."""


@dataclass(slots=True)
class Evidence:
    """Why a chunk should come in."""

    readers: int
    """At once, as last reported by the switch."""
    seen_ns: int
    claim: SlotRange | None = None
    """Room that is being made for it."""
    awaits: set[ChunkKey] = field(default_factory=set)
    """Residents that still have to go for that."""


class Candidates:
    """All candidates of one switch, CANDIDATES_MAX at most."""

    def __init__(self, rank: Callable[[ChunkKey, Evidence], Rank]) -> None:
        """`rank(key, evidence)`: its place in line."""
        self._rank = rank
        self._evidence: OrderedDict[ChunkKey, Evidence] = OrderedDict()
        """The one seen longest ago first."""
        self._ranks: dict[ChunkKey, Rank] = {}
        """Of candidates in line and of those that wait for a holder."""
        self._line: list[Rank] = []
        self._holders: dict[ChunkKey, tuple[NodeIndex, ...]] = {}
        """Whom a candidate waits for; not those in line."""
        self._queues: dict[NodeIndex, list[Rank]] = {}
        """Lines like the other one, of those who wait for a node. Outdated entries go when they come to the front."""
        self._changed: set[ChunkKey] = set()
        """Candidates to rank again before the next one is chosen; those without a rank join the line then."""
        self._aside: set[ChunkKey] = set()
        self._claimed: set[ChunkKey] = set()

    def __contains__(self, key: ChunkKey) -> bool:
        return key in self._evidence

    def __getitem__(self, key: ChunkKey) -> Evidence:
        return self._evidence[key]

    # -- what happens to them

    def seen(self, key: ChunkKey, readers: int, now_ns: int) -> None:
        """Somebody wants it: it stands in line. The one seen longest ago is forgotten where there are too many."""
        evidence = self._evidence.pop(key, None) or Evidence(readers, now_ns)
        evidence.readers, evidence.seen_ns = max(evidence.readers, readers), now_ns
        while len(self._evidence) >= CANDIDATES_MAX:
            self.drop(next(iter(self._evidence)))
        self._evidence[key] = evidence
        self.wake(key)

    def changed(self, key: ChunkKey) -> None:
        """Its rank may be another one."""
        if key in self._evidence:
            self._changed.add(key)

    def wake(self, *keys: ChunkKey) -> None:
        """Candidates among these go back into line, wherever they were, but for those that have a claim."""
        for key in keys if self._evidence else ():
            if key in self._evidence and key not in self._claimed:
                self._holders.pop(key, None)
                self._ranks.pop(key, None)
                self._aside.discard(key)
                self._changed.add(key)

    def wake_all(self) -> None:
        """Put every candidate back into line and rank it again."""
        self.wake(*self._evidence)

    @property
    def has_aside(self) -> bool:
        """Some were set aside."""
        return bool(self._aside)

    def wake_aside(self) -> None:
        """Those that were set aside, back into line."""
        self.wake(*self._aside)

    def wait(self, key: ChunkKey, holders: Sequence[NodeIndex]) -> None:
        """All its holders are busy: skip it until one of them has time."""
        self._holders[key] = tuple(holders)
        rank = self._ranks[key] = self._rank(key, self._evidence[key])
        for node in holders:
            self._push(self._queues.setdefault(node, []), rank)

    def set_aside(self, key: ChunkKey) -> None:
        """Nothing can be done about it now."""
        self._ranks.pop(key, None)
        self._aside.add(key)

    def claim(self, key: ChunkKey, slots: SlotRange, displaced: Sequence[ChunkKey]) -> None:
        """These slots are its own as soon as `displaced` are gone."""
        evidence = self._evidence[key]
        evidence.claim, evidence.awaits = slots, set(displaced)
        self._ranks.pop(key, None)
        self._claimed.add(key)

    def give_up_claims(self) -> None:
        """The switch is empty: everybody back into line."""
        for key in list(self._claimed):
            evidence = self._evidence[key]
            evidence.claim = None
            evidence.awaits.clear()
            self._claimed.discard(key)
            self.wake(key)

    def drop(self, key: ChunkKey) -> None:
        """No candidate any more, for whatever reason."""
        self._evidence.pop(key, None)
        self._ranks.pop(key, None)
        self._holders.pop(key, None)
        self._claimed.discard(key)
        self._aside.discard(key)
        self._changed.discard(key)

    # -- who is next

    @property
    def claimed(self) -> list[ChunkKey]:
        """Those with a claim, in the order in which they should come in."""
        return sorted(self._claimed, key=lambda key: self._rank(key, self._evidence[key]))

    @property
    def claimed_count(self) -> int:
        """How many have a claim."""
        return len(self._claimed)

    @property
    def claims(self) -> list[SlotRange]:
        """Slots that are spoken for."""
        return [claim for key in self._claimed if (claim := self._evidence[key].claim) is not None]

    def take_next(self, has_time: Callable[[NodeIndex], bool]) -> ChunkKey | None:
        """The first in line, or the first of those who wait for a node that has time for them. It stands nowhere then:
        `wait`, `claim`, `set_aside` or `drop` it."""
        self._take_in_changes()
        line = self._line
        best = self._front(line, None)
        for node, queue in self._queues.items():
            if not has_time(node):
                continue
            front = self._front(queue, node)
            if front is not None and (best is None or front < best):
                best, line = front, queue
        if best is None:
            return None
        heapq.heappop(line)
        key = best[3]
        del self._ranks[key]
        self._holders.pop(key, None)
        return key

    def outdated(self, before_ns: int) -> Iterator[ChunkKey]:
        """Those last seen before this moment, the oldest first. They may be dropped meanwhile."""
        for key, evidence in list(self._evidence.items()):
            if evidence.seen_ns >= before_ns:
                return
            yield key

    # -- inside

    def _take_in_changes(self) -> None:
        for key in self._changed:
            if key in self._claimed or key in self._aside:
                continue
            rank = self._rank(key, self._evidence[key])
            if rank == self._ranks.get(key):
                continue
            self._ranks[key] = rank
            holders = self._holders.get(key)
            for queue in [self._line] if holders is None else [self._queues[node] for node in holders]:
                self._push(queue, rank)
        self._changed.clear()

    def _push(self, queue: list[Rank], rank: Rank) -> None:
        if len(queue) > 2 * len(self._ranks) + _STALE_MIN:
            queue[:] = sorted({one for one in queue if self._ranks.get(one[3]) == one})
        heapq.heappush(queue, rank)

    def _front(self, queue: list[Rank], node: NodeIndex | None) -> Rank | None:
        """The best that stands in this queue; `node`: the one that it waits for, None in line."""
        while queue:
            rank = queue[0]
            holders = self._holders.get(rank[3])
            stands_here = holders is None if node is None else holders is not None and node in holders
            if stands_here and self._ranks.get(rank[3]) == rank:
                return rank
            heapq.heappop(queue)
        return None
