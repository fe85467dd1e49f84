"""How much reuse is found when a directory covers only a part of the nodes.

A large cluster serves many populations like the one of the trace, each with prefixes of its own, its requests spread
over all nodes. One population is followed exactly; which node serves a request is drawn at random (seeded). A chunk
stays where it was used for the characteristic time of its pool (Che, Tung and Wang, "Hierarchical Web caching
systems", JSAC 2002): room of a node over the room that it fills per second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from planner.traces import TraceRequest

CELL_NODES: Final = (1_000, 10_000)
"""Sizes of clusters that are looked at,"""
CELLS: Final = (64, 256, 1_024, 10_000)
"""and of the cells that they are split into."""


@dataclass(frozen=True, slots=True)
class CellReuse:
    """Directories of `cell` nodes each, in a cluster of `nodes`."""

    nodes: int
    cell: int
    hit: float
    """Share of chunk uses found in the prefix that some node of the cell still has."""
    local: float
    """Share that the node itself still has."""
    together: float
    """Share of uses that fetch a chunk while it is being fetched in the same rack of 64: what a cast can merge."""


@dataclass(frozen=True, slots=True)
class Uses:
    """A trace as arrays, one element per chunk use, in order of time."""

    at_s: npt.NDArray[np.float64]
    chunk: npt.NDArray[np.int64]
    request: npt.NDArray[np.int64]
    place: npt.NDArray[np.int64]
    """In the prefix."""

    @classmethod
    def of(cls, trace: Sequence[TraceRequest], speed: float = 1.0) -> Uses:
        lengths = np.array([len(one.blocks) for one in trace])
        request = np.repeat(np.arange(len(trace)), lengths)
        starts = np.cumsum(lengths) - lengths
        blocks = np.fromiter((block for one in trace for block in one.blocks), np.int64, int(lengths.sum()))
        _, chunk = np.unique(blocks, return_inverse=True)
        at_s = np.repeat(np.array([one.arrival_ms for one in trace]) / 1000 / speed, lengths)
        return cls(at_s, chunk.astype(np.int64), request, np.arange(len(request)) - np.repeat(starts, lengths))


def reuse_in_cells(
    uses: Uses, nodes: int, cell: int, stays_s: float, fetch_s: float, seed: int, rack: int = 64
) -> CellReuse:
    """Draw a node for each request, and count. Memory: a few numbers per chunk use, whatever the cluster's size."""
    requests = int(uses.request[-1]) + 1
    node = np.random.default_rng(seed).integers(0, nodes, requests)[uses.request]
    in_cell = _seen(uses, node // cell, stays_s)
    at_node = _seen(uses, node, stays_s)
    hit, local = _prefix(uses, in_cell), _prefix(uses, at_node)
    remote = hit & ~local
    merged = _seen(uses, node // rack, fetch_s, only=remote)
    total = max(1, len(uses.chunk))
    return CellReuse(nodes, cell, hit.sum() / total, local.sum() / total, (merged & remote).sum() / total)


def _seen(
    uses: Uses, where: npt.NDArray[np.int64], within_s: float, only: npt.NDArray[np.bool_] | None = None
) -> npt.NDArray[np.bool_]:
    """Whether each use follows another one of the same chunk at the same place within that time."""
    picked = np.arange(len(uses.chunk)) if only is None else np.flatnonzero(only)
    order = picked[np.lexsort((uses.at_s[picked], where[picked], uses.chunk[picked]))]
    before, after = order[:-1], order[1:]
    again = (uses.chunk[before] == uses.chunk[after]) & (where[before] == where[after])
    again &= uses.at_s[after] - uses.at_s[before] <= within_s
    again &= uses.request[before] != uses.request[after]
    seen = np.zeros(len(uses.chunk), np.bool_)
    seen[after[again]] = True
    return seen


def _prefix(uses: Uses, found: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Found, and everything before it in the request too."""
    missed = np.where(found, np.iinfo(np.int64).max, uses.place)
    starts = np.flatnonzero(uses.place == 0)
    first_missed = np.minimum.reduceat(missed, starts) if len(starts) else missed
    return uses.place < np.repeat(first_missed, np.diff([*starts, len(uses.place)]))
