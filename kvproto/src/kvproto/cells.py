"""Cells: parts of a cluster with a controller pair each, and which of them a prefix belongs to. Pure.

Weighted rendezvous hashing (Thaler and Ravishankar 1998; with weights Schindelhauer and Schomaker 2005): each cell
draws a number for each prefix, and the highest wins. Whoever knows the cells and their weights finds the same one,
without asking. Only what must move moves: to a cell that came or grew, or off one that went or shrank.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kvchunk.ids import ChunkKey

CELLS_MAX: Final = 1024
_DRAW_BYTES: Final = 8
_DRAWS: Final = 1 << 8 * _DRAW_BYTES


def home_of(root: ChunkKey, weights: Mapping[str, float]) -> str:
    """The cell of a prefix. `root`: key of its first chunk. `weights`: by cell, 0 or more; a cell of twice the weight
    is home to twice as many prefixes. Raises ValueError where no cell weighs anything."""
    score, found = max((_score(root, name, weight), name) for name, weight in (weights or {"": 0.0}).items())
    if score <= 0:
        raise ValueError("no cell weighs anything")
    return found


def _score(root: ChunkKey, name: str, weight: float) -> float:
    """Above 0, for cells that weigh something: the time until an event of a Poisson process, inverted."""
    drawn = hashlib.blake2b(root + name.encode(), digest_size=_DRAW_BYTES, person=b"kvcast-cell").digest()
    return weight / -math.log((int.from_bytes(drawn, "big") + 0.5) / _DRAWS)


@dataclass(frozen=True, slots=True)
class Cell:
    """One of several."""

    name: str
    weight: float = 1.0
    controllers: tuple[str, ...] = ()
    """HOST:PORT of its controllers, as agents and operators reach them."""


@dataclass(frozen=True, slots=True)
class Cells:
    """All cells, seen from one of them."""

    own: str = ""
    """Empty: there are no cells, or nobody said which one this is."""
    cells: Mapping[str, Cell] = field(default_factory=dict)
    """By name, the own one among them; empty: there are none."""

    def elsewhere(self, root: ChunkKey) -> Cell | None:
        """The other cell that a prefix belongs to; None: it belongs here."""
        if not self.cells:
            return None
        name = home_of(root, {one.name: one.weight for one in self.cells.values()})
        return None if name == self.own else self.cells[name]

    def refusal(self, node: str, cell: str) -> str:
        """Why a node that says it is of this cell has come to the wrong controller; empty if it has not."""
        if not cell or not self.own or cell == self.own:
            return ""
        there = self.cells.get(cell)
        remedy = f"name {', '.join(there.controllers)} in controller.address" if there else "see cell in agent.yaml"
        return f"node {node} is of cell {cell}, this controller is of cell {self.own}: {remedy}"
