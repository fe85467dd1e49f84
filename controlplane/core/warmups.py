"""Engines that start warm themselves: the hottest prefixes of their model go to all of their nodes at once. Pure; part
of the core.

An engine names its chunks' namespace and how many bytes it would like. The controller waits a moment for others of the
same namespace that start with it. Then it gives all of their nodes the same background fetch at the same time, so that
one cast serves them. Only free room is used: a warm-up takes nothing from anybody.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from controlplane.core.cluster import Cluster
from controlplane.core.directory import Chunk
from controlplane.core.ids import ChunkKey, NodeIndex
from controlplane.core.limits import PREFIX_CHUNKS_MAX, WARM_NAMESPACES_MAX
from controlplane.core.values import Hottest
from kvproto.rpc import control_pb2 as rpc


@dataclass(frozen=True, slots=True)
class WarmWish:
    """What an engine that starts would like to have."""

    namespace: str
    """Of the chunks that it can use."""
    size_bytes: int
    """The most that is to be brought."""
    nodes: int
    """How many nodes start such an engine about now; 0: that is not known."""
    wait_ns: int
    """How long it waits for the others."""


@dataclass(slots=True)
class _Gathering:
    """Nodes whose engines want the same, until they are served."""

    due_ns: int
    nodes: int = 0
    wanted_bytes: dict[NodeIndex, int] = field(default_factory=dict)

    def is_ready(self, now_ns: int) -> bool:
        return now_ns >= self.due_ns or 0 < self.nodes <= len(self.wanted_bytes)


class Warmups:
    """Owns what starting engines have asked for and not got yet, by namespace; gives it out to all of them at once."""

    def __init__(self, cluster: Cluster, hottest: Hottest) -> None:
        self._cluster = cluster
        self._hottest = hottest
        self._gatherings: dict[str, _Gathering] = {}

    def warm_wished(self, node: NodeIndex, wishes: Iterable[WarmWish]) -> None:
        """A node's engines start. What is asked twice is brought once."""
        for wish in wishes:
            gathering = self._gatherings.get(wish.namespace)
            if gathering is None:
                if len(self._gatherings) >= WARM_NAMESPACES_MAX:
                    self._cluster.decisions["warm_refused"] += 1
                    continue
                gathering = self._gatherings[wish.namespace] = _Gathering(self._cluster.now_ns + wish.wait_ns)
            gathering.nodes = max(gathering.nodes, wish.nodes)
            gathering.wanted_bytes[node] = max(wish.size_bytes, gathering.wanted_bytes.get(node, 0))
            self._cluster.decisions["warm_asked"] += 1

    def give_out(self) -> None:
        """Give out what is due."""
        now_ns = self._cluster.now_ns
        ready = [namespace for namespace, gathering in self._gatherings.items() if gathering.is_ready(now_ns)]
        for namespace in ready:
            self._give_out(namespace, self._gatherings.pop(namespace).wanted_bytes)

    def _give_out(self, namespace: str, wanted_bytes: dict[NodeIndex, int]) -> None:
        chosen = self._choose(namespace, max(wanted_bytes.values()))
        takers = {node.index: node for node in self._cluster.takers}
        for index, most_bytes in sorted(wanted_bytes.items()):
            node = takers.get(index)
            if node is None or not self._cluster.visibility.may_have(node, namespace):
                continue
            keys = _lacking(chosen, index, most_bytes, node.free_bytes)
            self._cluster.decisions["warm_chunks"] += len(keys)
            self._cluster.tasks.add_for_each(
                index, "warm", keys, lambda some: rpc.Task(fetch=rpc.Fetch(keys=some, reason=rpc.Fetch.WARM))
            )

    def _choose(self, namespace: str, most_bytes: int) -> list[Chunk]:
        """The hottest chunks of a namespace with all that comes before them, parents first; `most_bytes` at most."""
        chosen: dict[ChunkKey, Chunk] = {}
        left_bytes = most_bytes
        for key in self._hottest.of(namespace):
            if left_bytes <= 0:
                break
            path = self._path(key, chosen)
            size_bytes = sum(one.facts.size_bytes for one in path)
            if size_bytes <= left_bytes:
                left_bytes -= size_bytes
                chosen |= {one.key: one for one in path}
        return list(chosen.values())

    def _path(self, key: ChunkKey, chosen: dict[ChunkKey, Chunk]) -> list[Chunk]:
        """A chunk and what is not chosen yet of those before it; nothing where one of them is nowhere."""
        path: list[Chunk] = []
        at: ChunkKey | None = key
        while at is not None and at not in chosen:
            chunk = self._cluster.directory.get(at)
            if chunk is None or not chunk.available or len(path) >= PREFIX_CHUNKS_MAX:
                return []
            path.append(chunk)
            at = chunk.facts.parent
        return path[::-1]


def _lacking(chosen: list[Chunk], node: NodeIndex, most_bytes: int, free_bytes: int) -> list[ChunkKey]:
    """What a node is to fetch of the first `most_bytes`: what it lacks, as far as there is room."""
    keys = []
    for chunk in chosen:
        most_bytes -= chunk.facts.size_bytes
        if most_bytes < 0:
            break
        if node not in chunk.holders:
            free_bytes -= chunk.facts.size_bytes
            if free_bytes < 0:
                break
            keys.append(chunk.key)
    return keys
