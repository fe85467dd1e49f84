"""Pushes: carries out what `PushPolicy` decides, as background fetches of the nodes concerned. Pure; part of the core.

All nodes that get a chunk get the task at the same moment, so that one cast serves them. Where nothing is cast, each
copy crosses its holder's uplink by itself, and readers would queue behind all of them: there nodes take turns
(`PushParameters.nodes_at_once`). A node is left out if it is behind with its tasks, if it is leaving, or if it would
have to give up something more valuable.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping

from controlplane.core.cluster import Cluster
from controlplane.core.directory import Chunk
from controlplane.core.ids import ChunkKey, NodeIndex
from controlplane.core.last_copies import LastCopyReplication
from controlplane.core.limits import PUSH_JOINED_CHUNKS_MAX, PUSHES_PER_NODE, TASK_KEYS_MAX
from controlplane.core.nodes import Node
from controlplane.core.tasks import PushTo
from kvchunk.sources import HERE, NETWORK
from kvpolicy.tiers.push import PushPolicy
from kvproto.rpc import control_pb2 as rpc


class Pushes:
    """Owns the push policy and the chunks that wait to be pushed; gives them out once per event."""

    def __init__(self, cluster: Cluster, last_copies: LastCopyReplication) -> None:
        self._cluster = cluster
        self._directory = cluster.directory
        self._tasks = cluster.tasks
        self._last_copies = last_copies
        self.policy: PushPolicy[NodeIndex] = PushPolicy(cluster.options.pushes)
        self._collected: dict[NodeIndex, dict[ChunkKey, int]] = {}
        """Bytes of chunks that nodes are to get."""
        self._greeted: set[tuple[NodeIndex, int]] = set()
        """Nodes that were offered what is hot, with their incarnation."""

    def chunk_fetched(self, node: Node, chunk: Chunk, fetch: rpc.FetchEvent) -> None:
        """A node got a chunk, from wherever."""
        remote = fetch.source in NETWORK
        if not remote and fetch.source not in HERE:
            return
        facts = chunk.facts
        wanted = self.policy.fetched(
            facts.key,
            facts.size_bytes,
            facts.position,
            node.index,
            remote,
            lambda: [other.index for other in self._cluster.takers if other.index not in chunk.holders],
            self._cluster.now_ns,
        )
        for index in wanted:
            self._collect(index, chunk)

    def node_announced(self, node: Node) -> None:
        """A node has said all it holds: offer it what others fetch at the moment, once in its life."""
        if (node.index, node.facts.incarnation) in self._greeted:
            return
        self._greeted = {(index, life) for index, life in self._greeted if index != node.index}
        self._greeted.add((node.index, node.facts.incarnation))
        lacking = []
        for key in self.policy.hot(PUSH_JOINED_CHUNKS_MAX, self._cluster.now_ns):
            chunk = self._directory.get(key)
            if chunk is not None and node.index not in chunk.holders:
                lacking.append(chunk)
        lacking.sort(key=lambda chunk: chunk.facts.position)
        sizes = [(chunk.key, chunk.facts.size_bytes) for chunk in lacking]
        wanted = set(self.policy.joined(sizes, node.index, self._cluster.now_ns))
        for chunk in lacking:
            if chunk.key in wanted:
                self._collect(node.index, chunk)

    def flush(self) -> None:
        """Give out what was collected; where nodes take turns, to those whose turn it is."""
        if not self._collected:
            return
        busy: Counter[NodeIndex] = Counter(
            task.node for task in self._tasks.matching(lambda purpose: isinstance(purpose, PushTo))
        )
        turns = self.policy.parameters.nodes_at_once or len(self._collected) + len(busy)
        for index in list(self._collected):
            if len(busy) >= turns:
                return
            keys = self._still_lacking(index, self._collected.pop(index))
            room = TASK_KEYS_MAX if busy[index] < PUSHES_PER_NODE else 0
            some = dict(itertools.islice(keys.items(), room))
            self._cluster.decisions["push_skipped_behind"] += len(keys) - len(some)
            if some:
                self._give(index, some)
                busy[index] += 1

    def _still_lacking(self, index: NodeIndex, keys: Mapping[ChunkKey, int]) -> Mapping[ChunkKey, int]:
        """While it waited for its turn a node may have fetched chunks or gone, and chunks may be gone."""
        if all(node.index != index for node in self._cluster.takers):
            return {}
        found = ((key, size_bytes, self._directory.get(key)) for key, size_bytes in keys.items())
        return {key: size_bytes for key, size_bytes, chunk in found if chunk and index not in chunk.holders}

    def _give(self, index: NodeIndex, keys: Mapping[ChunkKey, int]) -> None:
        for key, size_bytes in keys.items():
            self.policy.sent(key, size_bytes, index)
        self._cluster.decisions["pushed_chunks"] += len(keys)
        self._tasks.add(index, PushTo(len(keys)), rpc.Task(fetch=rpc.Fetch(keys=list(keys), reason=rpc.Fetch.PUSH)))

    def push_ended(self, node: NodeIndex, result: rpc.TaskResult) -> None:
        """A push is over: count the chunks that arrived and those that did not."""
        self._cluster.decisions["push_done_chunks"] += result.done
        self._cluster.decisions["push_failed_chunks"] += len(result.failed_keys)

    def _collect(self, index: NodeIndex, chunk: Chunk) -> None:
        size_bytes = chunk.facts.size_bytes
        node = self._cluster.nodes.get(index)
        if node is None or not self._cluster.visibility.may_have(node, chunk.facts.namespace):
            return
        if node.free_bytes < size_bytes:
            rooted = self._directory.is_rooted(chunk.key)
            value = self._cluster.values.value(chunk.key, size_bytes, rooted, self._cluster.now_ns)
            if value <= self._last_copies.cheapest_value(node):
                self._cluster.decisions["push_skipped_full"] += 1
                return
        collected = self._collected.setdefault(index, {})
        if len(collected) < TASK_KEYS_MAX:
            collected[chunk.key] = size_bytes
        else:
            self._cluster.decisions["push_skipped_behind"] += 1
