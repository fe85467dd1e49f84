"""What this node knows of the cold store, and how it finds out: a bounded index, and looks before a fetch is planned.

Objects are named by the chunk's key, so any node can look for any chunk. It looks for the first chunk of a request that
nothing else has; only where that is stored, for those behind it. A chunk that was not there is not looked for again for
ABSENT_S. The request waits for the answer as long as `kvpolicy.tiers.cold` allows, and not at all while the store is
away. What was found, or written by this node, is in the index.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from hostagent import limits
from hostagent.cold.cold_state import ColdState
from hostagent.core import effects, events
from hostagent.core.directory import ChunkEntry
from hostagent.core.node import Node
from kvchunk.ids import ChunkKey
from kvpolicy.tiers.cold import may_wait_s

_ABSENT_NS: Final = int(limits.COLD_ABSENT_S * 1e9)
_SMOOTHING: Final = 0.2


@dataclass(slots=True)
class ColdCounts:
    """Running totals, for metrics."""

    looked_up: int = 0
    found: int = 0
    waits: int = 0
    """Requests that waited for a look."""
    waits_late: int = 0
    """Of these, what went on without an answer."""
    missing: int = 0
    """Chunks of the index that were not there any more."""
    damaged: int = 0
    """What was no chunk, or another, or did not match its digest: a miss."""


@dataclass(slots=True, eq=False)
class _Look:
    """A request that waits for an answer of the store."""

    keys: Sequence[ChunkKey]
    then: Callable[[], None]
    asked_ns: int
    due_ns: int
    number: int = 0
    behind: bool = False
    """The first chunk was found; these are the others."""


class ColdIndex:
    """One node's. Without a store nothing is ever found."""

    def __init__(self, node: Node) -> None:
        self._clock = node.clock
        self._emit = node.emit
        self.wait_max_s = node.options.cold_wait_max_s
        """A request waits no longer for a look."""
        self.has_store = node.options.has_cold
        """There is a cold store."""
        self.state = ColdState.AWAY
        self.lookup_s = 0.0
        """What a look takes, as learned."""
        self.counts = ColdCounts()
        self._known: OrderedDict[ChunkKey, ChunkEntry] = OrderedDict()
        self._absent: OrderedDict[ChunkKey, int] = OrderedDict()
        """Until when nobody looks for them."""
        self._looks: dict[int, _Look] = {}
        self._number = 0
        self._alarm = node.alarms.add(self._too_late)

    # ------------------------------------------------------------------ the index

    @property
    def known_count(self) -> int:
        """Chunks that are believed to be in the store."""
        return len(self._known)

    def knows(self, key: ChunkKey) -> bool:
        """Whether a chunk is believed to be there, whether the store can be read now or not."""
        return key in self._known

    def find(self, key: ChunkKey) -> ChunkEntry | None:
        """A chunk that can be read from the store, as far as is known."""
        return None if self.state is ColdState.AWAY else self._known.get(key)

    def stored(self, entry: ChunkEntry) -> None:
        """A chunk is in the store."""
        self._absent.pop(entry.key, None)
        self._known[entry.key] = entry
        self._known.move_to_end(entry.key)
        if len(self._known) > limits.COLD_INDEX_CHUNKS_MAX:
            self._known.popitem(last=False)

    def gone(self, key: ChunkKey) -> None:
        """A chunk is not in the store, or what is there is none."""
        self._known.pop(key, None)
        self._absent[key] = self._clock.now_ns + _ABSENT_NS
        self._absent.move_to_end(key)
        if len(self._absent) > limits.COLD_ABSENT_MAX:
            self._absent.popitem(last=False)

    def load_ended(self, key: ChunkKey, outcome: events.LoadOutcome) -> None:
        """What came of a chunk that was believed to be there."""
        if outcome is events.LoadOutcome.ABSENT:
            self.counts.missing += 1
        elif outcome is events.LoadOutcome.DAMAGED:
            self.counts.damaged += 1
        if outcome in (events.LoadOutcome.ABSENT, events.LoadOutcome.DAMAGED):
            self.gone(key)

    # ------------------------------------------------------------------ looking

    @property
    def waiting_count(self) -> int:
        """Requests that wait for a look."""
        return len(self._looks)

    def look(
        self,
        keys: Sequence[ChunkKey],
        compute_s: float | None,
        then: Callable[[], None],
        *,
        any_order: bool = False,
    ) -> bool:
        """Look for chunks that nothing else has, in prefix order (or in any: for all of them at once). True: `then` is
        called later, once, when the answer is here or has taken too long; False: go on without."""
        if not self.has_store or self.state is ColdState.AWAY or len(self._looks) >= limits.COLD_LOOKS_MAX:
            return False
        now_ns = self._clock.now_ns
        wanted = [key for key in keys if self._may_look(key)]
        if not wanted or (wanted[0] != keys[0] and not any_order):
            return False
        patience_s = may_wait_s(self.lookup_s, compute_s, self.wait_max_s)
        if patience_s <= 0:
            return False
        self.counts.waits += 1
        self._ask(_Look(wanted, then, now_ns, now_ns + int(patience_s * 1e9), behind=any_order))
        return True

    def _may_look(self, key: ChunkKey) -> bool:
        return key not in self._known and self._absent.get(key, 0) <= self._clock.now_ns

    def _ask(self, look: _Look) -> None:
        keys = look.keys[: limits.COLD_LOOK_CHUNKS_MAX] if look.behind else look.keys[:1]
        self._number += 1
        look.number, look.asked_ns = self._number, self._clock.now_ns
        self._looks[look.number] = look
        self.counts.looked_up += len(keys)
        self._emit(effects.LookUpCold(look.number, tuple(keys)))
        self._arm()

    def looked_up(self, event: events.ColdLookedUp) -> None:
        """The store's answer; perhaps to one who went on without."""
        for entry in event.found:
            self.stored(entry)
        for key in (*event.absent, *event.damaged):
            self.gone(key)
        self.counts.found += len(event.found)
        self.counts.damaged += len(event.damaged)
        look = self._looks.pop(event.number, None)
        if look is None:
            return
        took_s = (self._clock.now_ns - look.asked_ns) / 1e9
        if not look.behind:
            self.lookup_s += _SMOOTHING * (took_s - self.lookup_s)
        if event.found and not look.behind and len(look.keys) > 1:
            self._ask(_Look(look.keys[1:], look.then, 0, look.due_ns, behind=True))
            return
        self._arm()
        look.then()

    def _too_late(self) -> None:
        now_ns = self._clock.now_ns
        late = [look for look in self._looks.values() if look.due_ns <= now_ns]
        for look in late:
            del self._looks[look.number]
            self.counts.waits_late += 1
            # It takes at least this long: the next ones wait only where that pays.
            self.lookup_s = max(self.lookup_s, (now_ns - look.asked_ns) / 1e9)
        self._arm()
        for look in late:
            look.then()

    def _arm(self) -> None:
        self._alarm.set(min((look.due_ns for look in self._looks.values()), default=None))

    # ------------------------------------------------------------------ the store

    def state_given(self, state: ColdState) -> None:
        """What the store is good for from now on; when it is away nobody waits for it."""
        self.state = state
        if state is ColdState.AWAY:
            looks = list(self._looks.values())
            self._looks.clear()
            self._arm()
            for look in looks:
                look.then()

    def probed(self, lookup_s: float) -> None:
        """What a look takes, measured by itself."""
        self.lookup_s = lookup_s

    def close(self) -> None:
        """Those who wait are not told any more."""
        self._looks.clear()
        self._alarm.cancel()
