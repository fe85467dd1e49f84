"""What the chunks in the switch are worth, kept up to date as news comes, not worked out for each decision. Pure.

All rates shrink alike with time, so values stand as of one moment, the origin, and change only with an event: a fetch
or a hint (reported by `ClusterValues`), one holder more or less or another ancestor (reported by `Directory`), a pin.
No event reports the costs of sources: each time a few residents, and those about to go, are looked at again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final

from controlplane.core.directory import Directory
from controlplane.core.ids import ChunkKey
from controlplane.core.switch.slots import SlotRange
from controlplane.core.switch_cache.eviction_order import Resident
from controlplane.core.switch_cache.layout import SlotLayout
from controlplane.core.values import ClusterValues

_HALF_LIVES_MAX: Final = 256
"""From one origin to the next: far below the range of a float."""
_SAME: Final = 1e-9
"""Values that differ by less, relatively, differ by rounding."""
_LOOKED_AT_AGAIN: Final = 32


class Residents:
    """Owns layout and order of the switch's residents; `now_ns` never goes back."""

    def __init__(self, directory: Directory, values: ClusterValues, is_kept: Callable[[ChunkKey], bool]) -> None:
        """`is_kept(key)`: nobody may displace it."""
        self._directory = directory
        self._values = values
        self._is_kept = is_kept
        self.layout = SlotLayout()
        self._slots: dict[ChunkKey, SlotRange] = {}
        self._serving: set[ChunkKey] = set()
        self._origin_ns = 0
        self._changed: set[ChunkKey] = set()
        self._roots_changed: set[ChunkKey] = set()
        """Chunks that came to the directory or left it: what hangs on them has its ancestors back, or lost them."""
        self._round: list[ChunkKey] = []
        directory.watch(self._directory_changed)
        values.watch(self.changed)

    def scale(self, now_ns: int) -> float:
        """The factor that turns a value of this moment into one of the origin's."""
        return math.exp2((now_ns - self._origin_ns) / 1e9 / self._values.cache.parameters.half_life_s)

    def put(self, key: ChunkKey, slots: SlotRange, serving: bool) -> None:
        """A chunk came, or began or ceased to serve."""
        self._slots[key] = slots
        if serving:
            self._serving.add(key)
        else:
            self._serving.discard(key)
        self._changed.add(key)

    def remove(self, key: ChunkKey) -> None:
        """A chunk left the switch. Raises KeyError for one that was not there."""
        del self._slots[key]
        self._serving.discard(key)
        self._changed.discard(key)
        if key in self.layout:
            self.layout.remove(key)

    def changed(self, key: ChunkKey) -> None:
        """Something that its value or its staying depends on is different."""
        if key in self._slots:
            self._changed.add(key)

    def refresh(self, now_ns: int) -> None:
        """Take in the news."""
        if (now_ns - self._origin_ns) / 1e9 / self._values.cache.parameters.half_life_s > _HALF_LIVES_MAX:
            self._origin_ns = now_ns
            self._changed.update(self._slots)
        self._follow_roots()
        for key in self._changed:
            self._look_at(key, now_ns)
        self._changed.clear()

    def look_round(self, now_ns: int) -> None:
        """Take in the news, and look at the next few residents without any."""
        if not self._round:
            self._round = list(self._slots)
        due, self._round = self._round[-_LOOKED_AT_AGAIN:], self._round[:-_LOOKED_AT_AGAIN]
        self._changed.update(key for key in due if key in self._slots)
        self.refresh(now_ns)

    def are_as_kept(self, keys: Iterable[ChunkKey], now_ns: int) -> bool:
        """Look at these again. True if nothing about them was different."""
        different = [key for key in keys if self._look_at(key, now_ns)]
        return not different

    def worked_out_anew(self, now_ns: int) -> dict[ChunkKey, Resident]:
        """All residents recomputed the slow way, as a check on the ones that are kept up to date."""
        return {key: self._resident(key, now_ns) for key in self._slots}

    def _directory_changed(self, key: ChunkKey, is_new_or_lost: bool) -> None:
        if key in self._slots:
            self._changed.add(key)
        if is_new_or_lost and self._slots:
            self._roots_changed.add(key)

    def _follow_roots(self) -> None:
        seen, below = set(self._roots_changed), list(self._roots_changed)
        self._roots_changed.clear()
        while below:
            for child in self._directory.children(below.pop()):
                if child not in seen:
                    seen.add(child)
                    below.append(child)
        self._changed.update(key for key in seen if key in self._slots)

    def _look_at(self, key: ChunkKey, now_ns: int) -> bool:
        """True if the resident is different from what was kept."""
        kept, now = self.layout.get(key), self._resident(key, now_ns)
        if kept is not None and math.isclose(kept.value, now.value, rel_tol=_SAME):
            now = Resident(now.key, now.parent, now.size_bytes, now.position, kept.value, now.movable)
            if now == kept:
                return False
        self.layout.put(now, self._slots[key])
        return True

    def _resident(self, key: ChunkKey, now_ns: int) -> Resident:
        movable = key in self._serving and not self._is_kept(key)
        known = self._directory.get(key)
        if known is None:
            return Resident(key, None, 0, 0, 0.0, movable)
        facts = known.facts
        value = self._values.value(key, facts.size_bytes, self._directory.is_rooted(key), now_ns) * self.scale(now_ns)
        return Resident(key, facts.parent, facts.size_bytes, facts.position, value, movable)
