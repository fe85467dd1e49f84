"""Who has said lately that a copy is bad. Pure. A word is no proof: it is counted once for each node, and forgotten."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from controlplane.core.ids import ChunkKey, NodeIndex

BAD_COPY_WORDS: Final = 2
"""Nodes that have to say so before the switch's copy of a chunk goes."""
DOUBT_NS: Final = 60_000_000_000
"""For so long a doubt is remembered, and the same holder is not asked again to compare the same chunk."""
DOUBTS_MAX: Final = 10_000


@dataclass(slots=True)
class _Doubt:
    since_ns: int
    nodes: set[NodeIndex] = field(default_factory=set)


class Doubts:
    """Of all copies. At most DOUBTS_MAX are remembered: the oldest go first."""

    def __init__(self) -> None:
        self._doubts: dict[tuple[ChunkKey, NodeIndex | None], _Doubt] = {}

    def said(self, key: ChunkKey, holder: NodeIndex | None, node: NodeIndex, now_ns: int) -> int:
        """`node` says that the copy at `holder` (None: in the switch) is bad. How many say so now, if this is news;
        0 if this node has said it already."""
        doubt = self._doubts.get((key, holder))
        if doubt is None or now_ns - doubt.since_ns >= DOUBT_NS:
            self._doubts.pop((key, holder), None)
            doubt = self._doubts[key, holder] = _Doubt(now_ns)
            while len(self._doubts) > DOUBTS_MAX:
                del self._doubts[next(iter(self._doubts))]
        if node in doubt.nodes:
            return 0
        doubt.nodes.add(node)
        return len(doubt.nodes)
