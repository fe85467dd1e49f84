"""What is remembered of each chunk, in arrays: a hash index over fixed-width columns, about 60 bytes a chunk.

Columns are numpy arrays for whole-pool passes and memoryviews of the same memory for single entries, which are several
times faster than numpy's own scalars. Slots are stable while a chunk is tracked. Owns memory and lookup; what the
columns mean is the business of `pool`.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kvproto.ids import KEY_BYTES, ChunkKey

NONE: Final = 0xFFFF_FFFF
"""No slot."""
_GROW_FIRST: Final = 1024
_MIX: Final = 0x9E37_79B9_7F4A_7C15
_U64: Final = 0xFFFF_FFFF_FFFF_FFFF

RESIDENT: Final = 1
FINISHED: Final = 2
MOVED: Final = 4
"""Touched since the order of eviction was last worked out."""
ORPHAN: Final = 8

_COLUMNS: Final[dict[str, str]] = {
    "high": "u8",
    "low": "u8",
    "last_s": "f8",
    "weight": "f4",
    "worth": "f4",
    "size": "f4",
    "parent": "u4",
    "children": "u4",
    "touches": "u2",
    "group": "u2",
    "gap_ds": "u2",
    "level_0": "u2",
    "level_1": "u2",
    "flags": "u1",
}


_HALVES: Final = struct.Struct(">QQ")


def halves(key: ChunkKey) -> tuple[int, int]:
    """A key as two 64-bit integers. Raises ValueError for a key of another length."""
    if len(key) != KEY_BYTES:
        raise ValueError(f"a chunk key has {KEY_BYTES} bytes, not {len(key)}")
    high, low = _HALVES.unpack(key)
    return high, low


def mixed(high: int, low: int) -> int:
    """64 well-mixed bits of a key; the index uses the low ones, sampling the high ones."""
    mix = ((low ^ (high * 3)) * _MIX) & _U64
    return mix ^ (mix >> 32)


class ChunkTable:
    """Slots by key. `find` and `take` cost a microsecond or less at any size."""

    # Columns, one entry a slot (see `_COLUMNS`): arrays for passes, `*_at` for single entries.
    last_s: npt.NDArray[np.float64]
    weight: npt.NDArray[np.float32]
    worth: npt.NDArray[np.float32]
    size: npt.NDArray[np.float32]
    parent: npt.NDArray[np.uint32]
    children: npt.NDArray[np.uint32]
    touches: npt.NDArray[np.uint16]
    group: npt.NDArray[np.uint16]
    gap_ds: npt.NDArray[np.uint16]
    level_0: npt.NDArray[np.uint16]
    level_1: npt.NDArray[np.uint16]
    flags: npt.NDArray[np.uint8]
    high: npt.NDArray[np.uint64]
    low: npt.NDArray[np.uint64]
    last_at: Any
    weight_at: Any
    gap_at: Any
    worth_at: Any
    size_at: Any
    parent_at: Any
    children_at: Any
    touches_at: Any
    group_at: Any
    level_at: tuple[Any, Any]
    """By horizon."""
    flags_at: Any

    def __init__(self, slots_max: int) -> None:
        self._slots_max = slots_max
        self._slots = 0
        """Slots that there are columns for."""
        self._fresh = 0
        """Slots from here on were never used."""
        self._free: list[int] = []
        self.count = 0
        self._grow(min(_GROW_FIRST, slots_max))

    @property
    def end(self) -> int:
        """All slots in use lie below it."""
        return self._fresh

    @property
    def full(self) -> bool:
        """Whether `take` of a new key would need a slot that is not there."""
        return not self._free and self._fresh == self._slots_max

    def allow(self, slots_max: int) -> None:
        """Let the table grow to so many slots."""
        self._slots_max = max(self._slots_max, slots_max)

    @property
    def nbytes(self) -> int:
        """Memory of columns and index."""
        return sum(int(getattr(self, name).nbytes) for name in _COLUMNS) + int(self._index.nbytes)

    def find(self, key: ChunkKey) -> int:
        """Slot of a key, or NONE."""
        high, low = halves(key)
        return self.find_halves(high, low, mixed(high, low))

    def find_halves(self, high: int, low: int, mix: int) -> int:
        """`find` for callers that have the halves of the key and their mix already."""
        index, mask, lows = self._index_at, self._mask, self._low_at
        place = mix & mask
        while held := index[place]:
            if lows[held - 1] == low and self._high_at[held - 1] == high:
                return int(held) - 1
            place = (place + 1) & mask
        return NONE

    def take(self, key: ChunkKey) -> int:
        """A new slot for a key that has none, all columns zero, `parent` NONE. Raises MemoryError when full."""
        if self._free:
            slot = self._free.pop()
        else:
            if self._fresh == self._slots_max:
                raise MemoryError(f"all {self._slots_max} slots are in use")
            if self._fresh == self._slots:
                self._grow(min(self._slots_max, 2 * self._slots))
            slot = self._fresh
            self._fresh += 1
        high, low = halves(key)
        self._high_at[slot], self._low_at[slot] = high, low
        place = mixed(high, low) & self._mask
        while self._index_at[place]:
            place = (place + 1) & self._mask
        self._index_at[place] = slot + 1
        self.parent_at[slot] = NONE
        self.count += 1
        return slot

    def drop(self, slot: int) -> None:
        """Forget a slot's key; the slot may be taken by another."""
        place = self._home(slot)
        while self._index_at[place] != slot + 1:
            place = (place + 1) & self._mask
        self._index_at[place] = 0
        self._close_gap(place)
        for name in _COLUMNS:
            getattr(self, name)[slot] = 0
        self._free.append(slot)
        self.count -= 1

    def key(self, slot: int) -> ChunkKey:
        """Key of a slot in use."""
        return ChunkKey(_HALVES.pack(self._high_at[slot], self._low_at[slot]))

    def _home(self, slot: int) -> int:
        """Place of the index where a slot's key stands if nothing is in its way."""
        return mixed(self._high_at[slot], self._low_at[slot]) & self._mask

    def _close_gap(self, gap: int) -> None:
        """Move back what linear probing had pushed past a place that is now free."""
        place = gap
        while True:
            place = (place + 1) & self._mask
            held = self._index_at[place]
            if not held:
                return
            if (place - self._home(held - 1)) & self._mask >= (place - gap) & self._mask:
                self._index_at[gap], self._index_at[place] = held, 0
                gap = place

    def _grow(self, slots: int) -> None:
        for name, kind in _COLUMNS.items():
            column = np.zeros(slots, kind)
            if self._slots:
                column[: self._slots] = getattr(self, name)
            setattr(self, name, column)
        self._slots = slots
        self.last_at, self.weight_at = self.last_s.data, self.weight.data
        self.gap_at, self.worth_at, self.size_at = self.gap_ds.data, self.worth.data, self.size.data
        self.parent_at, self.children_at = self.parent.data, self.children.data
        self.touches_at, self.group_at = self.touches.data, self.group.data
        self.flags_at = self.flags.data
        self.level = (self.level_0, self.level_1)
        self.level_at = (self.level_0.data, self.level_1.data)
        self._high_at, self._low_at = self.high.data, self.low.data
        places = 1 << (slots * 4 // 3).bit_length()
        self._mask = places - 1
        self._index: npt.NDArray[np.uint32] = np.zeros(places, np.uint32)
        self._index_at: Any = self._index.data
        self._rebuild_index()

    def _rebuild_index(self) -> None:
        """Place all slots in use at once, in rounds: who finds its place taken tries the next one."""
        with np.errstate(over="ignore"):
            mix = (self.low[: self._fresh] ^ (self.high[: self._fresh] * np.uint64(3))) * np.uint64(_MIX)
        place = ((mix ^ (mix >> np.uint64(32))) & np.uint64(self._mask)).astype(np.int64)
        slots = np.arange(1, self._fresh + 1, dtype=np.uint32)
        while len(slots):
            free = self._index[place] == 0
            self._index[place[free]] = slots[free]  # of several that want one place the last one gets it
            lost = self._index[place] != slots
            slots, place = slots[lost], (place[lost] + 1) & self._mask
