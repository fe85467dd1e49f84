"""Which nodes cannot be reached on the data network, from what their readers say. Pure.

A node's word is no proof. A holder counts as unreached when two nodes say so that speak for themselves (`speaker`), and
nobody says lately that he reaches it; so nobody puts an honest holder out alone. Whoever reaches less than half of the
others has a dead link of its own, and its words do not count. Words are forgotten unless they are said again.
"""

from __future__ import annotations

from typing import Final

from controlplane.core.ids import NodeIndex
from controlplane.core.nodes import Node, NodeRegistry

WORDS: Final = 2
"""Speakers that it takes."""
WORD_NS: Final = 30_000_000_000
"""For so long a word counts; readers try again, and say it again, every 8 s at the latest."""
REACHED_NS: Final = 10_000_000_000
"""For so long nobody's word counts against somebody's who has reached the node."""


class Reachability:
    """Owns the words, at most one of a node about another; who is unreached stands in `Node.unreached`."""

    def __init__(self, nodes: NodeRegistry) -> None:
        self._nodes = nodes
        self._words: dict[NodeIndex, dict[NodeIndex, int]] = {}
        """By the node that they are about: who does not reach it, and when that was said."""
        self._reached_ns: dict[NodeIndex, int] = {}
        """When somebody said last that he reaches a node."""

    def told(self, reader: Node, index: NodeIndex, now_ns: int, *, reached: bool) -> None:
        """`reader` says whether it reaches another node. What is said of nodes that are not known is passed over."""
        if index == reader.index or self._nodes.get(index) is None:
            return
        if not reached:
            self._words.setdefault(index, {})[reader.index] = now_ns
            return
        self._words.get(index, {}).pop(reader.index, None)
        self._reached_ns[index] = now_ns

    def forget(self, index: NodeIndex) -> None:
        """A node is forgotten: its number may be another's soon."""
        self._words.pop(index, None)
        self._reached_ns.pop(index, None)
        for said in self._words.values():
            said.pop(index, None)

    def look(self, now_ns: int) -> list[Node]:
        """Nodes that are unreached now and were not, or the other way round; `Node.unreached` is set already."""
        if not self._words:
            return []
        for index, said in list(self._words.items()):
            fresh = {reader: at_ns for reader, at_ns in said.items() if now_ns - at_ns < WORD_NS}
            node = self._nodes.get(index)
            if fresh or (node is not None and node.unreached):
                self._words[index] = fresh
            else:
                del self._words[index]
        changed = []
        for index in self._words:
            node = self._nodes.get(index)
            if node is not None and node.unreached != (unreached := self._is_unreached(node, now_ns)):
                node.unreached = unreached
                changed.append(node)
        return changed

    def speakers(self, node: Node) -> list[str]:
        """Names of the nodes whose words against a node count, sorted."""
        readers = (self._nodes.get(reader) for reader in self._words.get(node.index, ()))
        return sorted(reader.facts.name for reader in readers if reader is not None and self._is_credible(reader))

    def _is_unreached(self, node: Node, now_ns: int) -> bool:
        reached_ns = self._reached_ns.get(node.index)
        if reached_ns is not None and now_ns - reached_ns < REACHED_NS:
            return False
        readers = [self._nodes.get(reader) for reader in self._words[node.index]]
        speakers = {one.facts.speaker or one.facts.name for one in readers if one and self._is_credible(one)}
        return len(speakers - {node.facts.speaker}) >= WORDS

    def _is_credible(self, reader: Node) -> bool:
        """It is attached, and reaches others."""
        others = sum(node.attached for node in self._nodes) - 1
        missed = sum(
            reader.index in said and (node := self._nodes.get(index)) is not None and node.attached
            for index, said in self._words.items()
        )
        return reader.attached and (missed == 1 or 2 * missed <= others)
