"""The slots of the switch as a map of cells: what is in them, and how hot that is. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from controlplane.core.ids import ChunkKey
from controlplane.core.live.figures import Rate
from controlplane.core.switch.chunk_states import ChunkState
from controlplane.core.switch.slots import SlotRange
from kvproto.rpc import control_pb2 as rpc

CELLS_MAX: Final = 256
HEAT_MAX: Final = 8
_COOLEST_PER_S: Final = 0.05
"""Fetches per second of a cell that is just not cold; each step of heat is twice as much."""


@dataclass(slots=True)
class _Cell:
    slots: Counter[str] = field(default_factory=Counter)
    """By state, as it is shown."""
    heat: Rate = field(default_factory=Rate)
    key: ChunkKey | None = None
    """The chunk that came last."""


class SlotMap:
    """The map of one switch."""

    def __init__(self) -> None:
        self._capacity = 0
        self._per_cell = 1
        self._cells: list[_Cell] = []
        self._chunks: dict[ChunkKey, tuple[SlotRange, str]] = {}

    def resize(self, capacity: int) -> None:
        """The switch has so many slots; nothing happens if it had as many before."""
        if capacity == self._capacity:
            return
        self._capacity = capacity
        self._per_cell = max(1, -(-capacity // CELLS_MAX))
        self._cells = [_Cell() for _ in range(-(-capacity // self._per_cell))]
        chunks, self._chunks = self._chunks, {}
        for key, (slots, shown) in chunks.items():
            if slots.end <= capacity:
                self._put(key, slots, shown)

    def moved(self, key: ChunkKey, slots: SlotRange, state: ChunkState) -> None:
        """A chunk is in another state."""
        before = self._chunks.pop(key, None)
        if before is not None:
            for cell, count in self._shares(before[0]):
                cell.slots[before[1]] -= count
                if cell.key == key:
                    cell.key = None
        if state is not ChunkState.ABSENT:
            self._put(key, slots, state.shown)

    def fetched(self, key: ChunkKey, at_ns: int) -> None:
        """A node got a chunk; nothing happens unless the switch has it."""
        here = self._chunks.get(key)
        if here is not None:
            for cell, _ in self._shares(here[0]):
                cell.heat.add(1.0, at_ns)

    def rows(self, now_ns: int) -> Iterator[rpc.SlotsView]:
        """All cells."""
        for number, cell in enumerate(self._cells):
            yield rpc.SlotsView(
                cell=number,
                slots=min(self._per_cell, self._capacity - number * self._per_cell),
                serving=cell.slots[ChunkState.SERVING.shown],
                filling=cell.slots[ChunkState.FILLING.shown],
                leaving=cell.slots[ChunkState.RECOVERING.shown],
                heat=_level(cell.heat.per_s(now_ns)),
                key=cell.key or b"",
            )

    def _put(self, key: ChunkKey, slots: SlotRange, shown: str) -> None:
        self._chunks[key] = slots, shown
        for cell, count in self._shares(slots):
            cell.slots[shown] += count
            cell.key = key

    def _shares(self, slots: SlotRange) -> Iterator[tuple[_Cell, int]]:
        """Cells that slots reach into, each with how many of them."""
        for number in range(slots.base // self._per_cell, -(-slots.end // self._per_cell)):
            if number < len(self._cells):
                begin, end = number * self._per_cell, (number + 1) * self._per_cell
                yield self._cells[number], min(end, slots.end) - max(begin, slots.base)


def _level(per_s: float) -> int:
    """Steps of a factor of two."""
    return min(HEAT_MAX, int(per_s / _COOLEST_PER_S).bit_length())
