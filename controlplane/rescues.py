"""Last copies that hosts are about to lose: who would take them, and the fetches that move them. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from controlplane.ids import ChunkKey, NodeIndex
from controlplane.limits import RESCUES_AT_ONCE, RESCUES_PER_HEARTBEAT
from controlplane.nodes import Node, NodeState
from controlplane.purposes import RescueOf
from controlplane.spill import Endangered, Host, plan_rescues
from kvproto.rpc import control_pb2 as rpc

if TYPE_CHECKING:
    from controlplane.core import Core

FULL_SHARE = 0.95
"""A pool with more than this taken is about to evict."""


class Rescues:
    """What hosts' pools would lose, as their heartbeats say, and what is done about it."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def hosts(self, excluded: NodeIndex | None, now_ns: int) -> list[Host]:
        """Pools that could take a chunk, with what it would cost them."""
        return [
            Host(node.index, node.free_bytes, self.cheapest_value(node, now_ns), node.disk_free_bytes)
            for node in self._core.nodes
            if node.state is NodeState.ATTACHED and not node.draining and node.index != excluded
        ]

    def cheapest_value(self, node: Node, now_ns: int) -> float:
        """Per byte, of what a node would lose first to make room; infinite if nothing of it may go."""
        if node.pool_used_bytes < FULL_SHARE * node.facts.pool_bytes:
            return 0.0
        if not node.next_victims:
            return math.inf
        chunk = self._core.directory.get(node.next_victims[0])
        if chunk is None or node.index in chunk.disk_holders:
            return 0.0
        return self._value(node, chunk.key, chunk.facts.size_bytes, now_ns)

    def consider(self, node: Node, now_ns: int) -> None:
        """A heartbeat came: see whether others should take over what this node is about to lose."""
        core = self._core
        if not node.next_victims or node.pool_used_bytes < FULL_SHARE * node.facts.pool_bytes:
            return
        under_way = core.tasks.matching(lambda purpose: isinstance(purpose, RescueOf))
        limit = min(RESCUES_AT_ONCE - len(under_way), RESCUES_PER_HEARTBEAT)
        endangered = self._endangered(node, now_ns) if limit > 0 else []
        moving = {task.purpose.key for task in under_way if isinstance(task.purpose, RescueOf)}
        busy = {task.node for task in under_way}
        hosts = [host for host in self.hosts(node.index, now_ns) if host.node not in busy]
        for step in plan_rescues([chunk for chunk in endangered if chunk.key not in moving], hosts, limit):
            core.accounting.decisions["rescues"] += 1
            core.give(step.node, RescueOf(step.key), rpc.Task(fetch=rpc.Fetch(keys=[step.key], reason=rpc.Fetch.SPILL)))

    def ended(self, done: bool) -> None:
        """A fetch for a rescue is over."""
        self._core.accounting.decisions["rescued" if done else "rescue_failed"] += 1

    def _endangered(self, node: Node, now_ns: int) -> list[Endangered]:
        """Last copies among what the node would lose next; those that its own disk can take are in no danger."""
        core = self._core
        found = []
        for key in node.next_victims:
            chunk = core.directory.get(key)
            if chunk is None or chunk.served or chunk.disk_holders or chunk.holders != {node.index}:
                continue
            size_bytes = chunk.facts.size_bytes
            if node.disk_free_bytes < size_bytes:
                rooted = core.directory.is_rooted(key)
                value = core.values.value_moved(key, size_bytes, rooted, now_ns, losing=node.index)
                found.append(Endangered(key, size_bytes, value))
        return found

    def _value(self, node: Node, key: ChunkKey, size_bytes: int, now_ns: int) -> float:
        """What the node's copy is worth."""
        rooted = self._core.directory.is_rooted(key)
        return self._core.values.value(key, size_bytes, rooted, now_ns, losing=node.index)
