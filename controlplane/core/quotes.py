"""What it would take each node to have the chunks of a prefix, as far as the controller knows. Pure.

The directory says who has what, the agents say what they have queued and what sources cost. What is on its way to a
node only its agent knows: ask that for the last word on one node.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from controlplane.core.cluster import Cluster
from controlplane.core.directory import Chunk
from controlplane.core.directory.tree import NOBODY
from controlplane.core.ids import ChunkKey, NodeIndex
from controlplane.core.matches import Match, matches
from controlplane.core.nodes import Node
from kvpolicy.tiers.cost_question import Allowance, CostQuestion, QuestionError, Quote, quote
from kvpolicy.tiers.gate import priors
from kvpolicy.tiers.gate_plan import Offer
from kvpolicy.tiers.holder_load import IDLE
from kvpolicy.value import Tier
from kvproto.cells import Cell

MATCHED_AT_ONCE: Final = 64
"""Nodes that have a chunk are compared in sets: this many take as long as looking one chunk up."""


class Quotes:
    """Owns how much may still be asked; works out what nodes need for a prefix."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._directory = cluster.directory
        self._nodes = cluster.nodes
        self._costs = cluster.values.costs
        self._allowance = Allowance()

    def of(self, question: CostQuestion, now_ns: int) -> Mapping[str, Quote]:
        """By node. Raises QuestionError for unknown nodes, TooManyQuestionsError."""
        chunks = self._known(question)
        nodes = self._nodes_of(question)
        alike: dict[tuple[object, ...], list[Node]] = {}
        for node in nodes:
            alike.setdefault(self._kind(question, chunks, node), []).append(node)
        self._allowance.take(len(question.keys) * max(1, len(alike)), now_ns)
        made: dict[str, Quote] = {}
        for group in alike.values():
            one = self._quote(question, chunks, group[0])
            made |= dict.fromkeys((node.facts.name for node in group), one)
        return {node.facts.name: made[node.facts.name] for node in nodes}

    def matches(self, keys: Sequence[ChunkKey], now_ns: int) -> Mapping[str, Match]:
        """What nodes have of a prefix, by node. Raises TooManyQuestionsError."""
        in_pools, on_disks = self._directory.hosts(keys[0]) if keys else (NOBODY, NOBODY)
        nodes = len(in_pools | on_disks)
        self._allowance.take(len(keys) * (1 + nodes // MATCHED_AT_ONCE), now_ns)
        return matches(self._cluster, keys)

    def elsewhere(self, keys: Sequence[ChunkKey]) -> Cell | None:
        """The other cell that a prefix belongs to; None: it belongs here."""
        return self._cluster.options.cells.elsewhere(keys[0]) if keys else None

    def _known(self, question: CostQuestion) -> Sequence[Chunk]:
        """The leading chunks that somebody has."""
        chunks: list[Chunk] = []
        for key in question.keys:
            chunk = self._directory.get(key)
            if chunk is None or not chunk.available:
                break
            chunks.append(chunk)
        return chunks

    def _nodes_of(self, question: CostQuestion) -> Sequence[Node]:
        if not question.nodes:
            return [node for node in self._nodes if node.attached and not node.draining]
        found = {name: self._nodes.named(name) for name in question.nodes}
        unknown = [name for name, node in found.items() if node is None or not node.attached]
        if unknown:
            raise QuestionError(f"no node is called {unknown[0]!r}")
        return [node for node in found.values() if node is not None]

    @staticmethod
    def _kind(question: CostQuestion, chunks: Sequence[Chunk], node: Node) -> tuple[object, ...]:
        """Nodes that are alike in this have the same costs."""
        index = node.index
        in_dram = tuple(place for place, chunk in enumerate(chunks) if index in chunk.holders)
        on_disk = tuple(place for place, chunk in enumerate(chunks) if index in chunk.disk_holders)
        return in_dram, on_disk, question.queues_s.get(node.facts.name, question.queue_s), node.facts.link_rate_bit_s

    def _quote(self, question: CostQuestion, chunks: Sequence[Chunk], node: Node) -> Quote:
        offers: list[Offer] = []
        for chunk in chunks:
            offer = self._offer(chunk, node.index)
            if offer is None:
                break
            offers.append(offer)
        absent = len(question.keys) - len(offers)
        rate_bit_s = node.facts.link_rate_bit_s
        costs = self._costs.over(priors(rate_bit_s)) if rate_bit_s else self._costs
        return quote(costs, offers, absent, question.prefill(node.facts.name), {})

    def _reached(self, holders: Collection[NodeIndex]) -> Collection[NodeIndex]:
        """Of these, the ones that others can read from."""
        unreached = {one for one in holders if (node := self._nodes.get(one)) is not None and node.unreached}
        return [one for one in holders if one not in unreached] if unreached else holders

    def _offer(self, chunk: Chunk, index: NodeIndex) -> Offer | None:
        size_bytes = chunk.facts.size_bytes
        if index in chunk.holders:
            return Offer(size_bytes, (Tier.LOCAL_DRAM,))
        sources = [Tier.LOCAL_DISK] if index in chunk.disk_holders else []
        if chunk.served:
            sources.append(Tier.SWITCH)
        in_dram = self._reached(chunk.holders)
        elsewhere = in_dram or self._reached(chunk.disk_holders - {index})
        if elsewhere:
            sources.append(Tier.REMOTE_DRAM if in_dram else Tier.REMOTE_DISK)
        loads = [node.load for one in elsewhere if (node := self._nodes.get(one)) is not None]
        least = min(loads, key=lambda load: load.queued_bytes, default=IDLE)
        return Offer(size_bytes, tuple(sources), holder_load=least) if sources else None
