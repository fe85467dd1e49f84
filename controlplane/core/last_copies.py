"""Last copies that hosts are about to lose: who would take them, and the fetches that move them. Pure."""

from __future__ import annotations

import math

from controlplane.core.cluster import Cluster
from controlplane.core.ids import ChunkKey, NodeIndex
from controlplane.core.limits import REPLICATIONS_AT_ONCE, REPLICATIONS_PER_HEARTBEAT
from controlplane.core.nodes import Node
from controlplane.core.spill import Endangered, Host, plan_replications
from controlplane.core.tasks import ReplicationOf
from kvproto.rpc import control_pb2 as rpc

FULL_SHARE = 0.95
"""A pool with more than this taken is about to evict."""


class LastCopyReplication:
    """Says which pools could take a last copy at which price, and has others take what a full pool would lose next."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._directory = cluster.directory
        self._tasks = cluster.tasks
        self._values = cluster.values

    def hosts(self, excluded: NodeIndex | None, namespace: str) -> list[Host]:
        """Pools that could take a chunk of this namespace, with what it would cost them."""
        return [
            Host(node.index, node.free_bytes, self.cheapest_value(node), node.disk_free_bytes)
            for node in self._cluster.takers
            if node.index != excluded and self._cluster.visibility.may_have(node, namespace)
        ]

    def cheapest_value(self, node: Node) -> float:
        """Value per byte of what a node would lose first to make room; infinite if nothing of it may go."""
        if node.pool_used_bytes < FULL_SHARE * node.facts.pool_bytes:
            return 0.0
        if not node.next_victims:
            return math.inf
        chunk = self._directory.get(node.next_victims[0])
        if chunk is None or node.index in chunk.disk_holders:
            return 0.0
        return self._value(node, chunk.key, chunk.facts.size_bytes)

    def consider(self, node: Node) -> None:
        """A heartbeat came: see whether others should take over what this node is about to lose."""
        if not node.next_victims or node.pool_used_bytes < FULL_SHARE * node.facts.pool_bytes:
            return
        under_way = self._tasks.matching(lambda purpose: isinstance(purpose, ReplicationOf))
        limit = min(REPLICATIONS_AT_ONCE - len(under_way), REPLICATIONS_PER_HEARTBEAT)
        endangered = self._endangered(node) if limit > 0 else []
        moving = {task.purpose.key for task in under_way if isinstance(task.purpose, ReplicationOf)}
        busy = {task.node for task in under_way}
        by_namespace: dict[str, list[Endangered]] = {}
        for chunk in endangered:
            if chunk.key not in moving:
                by_namespace.setdefault(self._namespace(chunk.key), []).append(chunk)
        for namespace, chunks in by_namespace.items():
            hosts = [host for host in self.hosts(node.index, namespace) if host.node not in busy]
            for step in plan_replications(chunks, hosts, limit):
                self._cluster.decisions["last_copies_replicating"] += 1
                work = rpc.Task(fetch=rpc.Fetch(keys=[step.key], reason=rpc.Fetch.SPILL))
                self._tasks.add(step.node, ReplicationOf(step.key), work)
                busy.add(step.node)
                limit -= 1

    def replication_ended(self, done: bool) -> None:
        """A replication is over."""
        self._cluster.decisions["last_copies_replicated" if done else "last_copy_replication_failed"] += 1

    def _endangered(self, node: Node) -> list[Endangered]:
        """Last copies among what the node would lose next; those that its own disk can take are in no danger."""
        found = []
        for key in node.next_victims:
            chunk = self._directory.get(key)
            if chunk is None or chunk.facts.is_twin or chunk.served:
                continue
            if chunk.disk_holders or chunk.holders != {node.index}:
                continue
            size_bytes = chunk.facts.size_bytes
            if node.disk_free_bytes < size_bytes:
                rooted = self._directory.is_rooted(key)
                value = self._values.value_moved(key, size_bytes, rooted, self._cluster.now_ns, losing=node.index)
                found.append(Endangered(key, size_bytes, value))
        return found

    def _namespace(self, key: ChunkKey) -> str:
        chunk = self._directory.get(key)
        return "" if chunk is None else chunk.facts.namespace

    def _value(self, node: Node, key: ChunkKey, size_bytes: int) -> float:
        """What the node's copy is worth."""
        rooted = self._directory.is_rooted(key)
        return self._values.value(key, size_bytes, rooted, self._cluster.now_ns, losing=node.index)
