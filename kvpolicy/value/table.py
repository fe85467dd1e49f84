"""What a pool remembers of each chunk, in arrays: a hash index over fixed-width columns, about 70 bytes per chunk.

Columns are numpy arrays for whole-pool passes and memoryviews of the same memory for single entries, which are several
times faster than numpy's own scalars. Slots are stable while a chunk is tracked. Owns memory and lookup; what the
columns mean is the business of `pool`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt

from kvchunk.ids import KEY_BYTES, ChunkKey

NONE: Final = 0xFFFF_FFFF
"""No slot."""
_GROW_FIRST: Final = 1024
MIX_BITS: Final = 32
_CRC_START: Final = 0xFFFF_FFFF
_CRC_OF_BYTE: Final = np.array([crc32(bytes([byte]), _CRC_START) ^ _CRC_START for byte in range(256)], np.uint32)

RESIDENT: Final = 1
FINISHED: Final = 2
MOVED: Final = 4
"""Touched since the order of eviction was last worked out."""
ORPHAN: Final = 8

_COLUMNS: Final[dict[str, str]] = {
    "high": "u8",
    "low": "u8",
    "last_s": "f8",
    "turn": "f8",
    "weight": "f4",
    "worth": "f4",
    "size": "f4",
    "parent": "u4",
    "children": "u4",
    "touches": "u2",
    "group": "u2",
    "gap_ds": "u2",
    "level": "u2",
    "flags": "u1",
}


_HALVES: Final = struct.Struct(">QQ")


mixed: Final = crc32
"""32 well-mixed bits of a key: the index uses the low ones, sampling the high ones. A checksum, because it is one call:
multiplying 64-bit integers takes as long as all the rest of a look-up."""


class ChunkTable:
    """Slots by key. `find` and `take` cost a microsecond or less at any size."""

    # Columns, one entry per slot (see `_COLUMNS`): arrays for passes, `*_at` for single entries.
    last_s: npt.NDArray[np.float64]
    turn: npt.NDArray[np.float64]
    weight: npt.NDArray[np.float32]
    worth: npt.NDArray[np.float32]
    size: npt.NDArray[np.float32]
    parent: npt.NDArray[np.uint32]
    children: npt.NDArray[np.uint32]
    touches: npt.NDArray[np.uint16]
    group: npt.NDArray[np.uint16]
    gap_ds: npt.NDArray[np.uint16]
    level: npt.NDArray[np.uint16]
    flags: npt.NDArray[np.uint8]
    high: npt.NDArray[np.uint64]
    low: npt.NDArray[np.uint64]
    last_at: Any
    turn_at: Any
    weight_at: Any
    gap_at: Any
    worth_at: Any
    size_at: Any
    parent_at: Any
    children_at: Any
    touches_at: Any
    group_at: Any
    level_at: Any
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

    def allow(self, slots_max: int) -> None:
        """Let the table grow to `slots` slots."""
        self._slots_max = max(self._slots_max, slots_max)

    @property
    def nbytes(self) -> int:
        """Memory of columns and index."""
        return sum(int(getattr(self, name).nbytes) for name in _COLUMNS) + int(self._index.nbytes)

    def find(self, key: ChunkKey) -> int:
        """Slot of a key, or NONE."""
        if len(key) != KEY_BYTES:
            raise ValueError(f"a chunk key has {KEY_BYTES} bytes, not {len(key)}")
        place = mixed(key) & self._mask
        held: int = self._index_at[place]
        if not held:  # most keys that are asked for one by one have none
            return NONE
        high, low = _HALVES.unpack(key)
        while held:
            if self._low_at[held - 1] == low and self._high_at[held - 1] == high:
                return held - 1
            place = (place + 1) & self._mask
            held = self._index_at[place]
        return NONE

    def find_all(self, keys: Sequence[ChunkKey], mixes: Sequence[int]) -> list[int]:
        """Slots of keys, NONE for those that have none. Raises ValueError for a key of another length."""
        index, mask, lows, highs, unpack = self._index_at, self._mask, self._low_at, self._high_at, _HALVES.unpack
        slots = []
        try:
            for key, mix in zip(keys, mixes, strict=True):
                high, low = unpack(key)
                place = mix & mask
                slot = NONE
                while held := index[place]:
                    if lows[held - 1] == low and highs[held - 1] == high:
                        slot = held - 1
                        break
                    place = (place + 1) & mask
                slots.append(slot)
        except struct.error:
            raise ValueError(f"a chunk key has {KEY_BYTES} bytes, not {len(key)}") from None
        return slots

    def take(self, key: ChunkKey, mix: int) -> int:
        """A new slot for a key that has none, all columns zero, `parent` NONE. NONE: all slots are in use."""
        if self._free:
            slot = self._free.pop()
        else:
            slot = self._fresh
            if slot == self._slots_max:
                return NONE
            if slot == self._slots:
                self._grow(min(self._slots_max, 2 * slot))
            self._fresh = slot + 1
        self._high_at[slot], self._low_at[slot] = _HALVES.unpack(key)
        index, mask = self._index_at, self._mask
        place = mix & mask
        while index[place]:
            place = (place + 1) & mask
        index[place] = slot + 1
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
        for column in self._columns_at:
            column[slot] = 0
        self._free.append(slot)
        self.count -= 1

    def key(self, slot: int) -> ChunkKey:
        """Key of a slot in use."""
        return ChunkKey(_HALVES.pack(self._high_at[slot], self._low_at[slot]))

    def _home(self, slot: int) -> int:
        """Place of the index where a slot's key stands if nothing is in its way."""
        return mixed(self.key(slot)) & self._mask

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
        self.turn_at = self.turn.data
        self.gap_at, self.worth_at, self.size_at = self.gap_ds.data, self.worth.data, self.size.data
        self.parent_at, self.children_at = self.parent.data, self.children.data
        self.touches_at, self.group_at = self.touches.data, self.group.data
        self.flags_at, self.level_at = self.flags.data, self.level.data
        self._high_at, self._low_at = self.high.data, self.low.data
        self._columns_at = [getattr(self, name).data for name in _COLUMNS]
        places = 1 << (slots * 4 // 3).bit_length()
        self._mask = places - 1
        self._index: npt.NDArray[np.uint32] = np.zeros(places, np.uint32)
        self._index_at: Any = self._index.data
        self._rebuild_index()

    def _rebuild_index(self) -> None:
        """Place all slots in use at once, in rounds: a slot that finds its place taken tries the next one."""
        place = (self._mixed_all() & np.uint32(self._mask)).astype(np.int64)
        slots = np.arange(1, self._fresh + 1, dtype=np.uint32)
        while len(slots):
            free = self._index[place] == 0
            self._index[place[free]] = slots[free]  # of several that want one place the last one gets it
            lost = self._index[place] != slots
            slots, place = slots[lost], (place[lost] + 1) & self._mask

    def _mixed_all(self) -> npt.NDArray[np.uint32]:
        """`mixed` of all slots in use, a byte of the keys at a time."""
        mix = np.full(self._fresh, _CRC_START, np.uint32)
        for half in (self.high, self.low):
            for shift in range(56, -8, -8):
                byte = (half[: self._fresh] >> np.uint64(shift)).astype(np.uint32)
                mix = _CRC_OF_BYTE[(mix ^ byte) & np.uint32(0xFF)] ^ (mix >> np.uint32(8))
        return mix ^ np.uint32(_CRC_START)
