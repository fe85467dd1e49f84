"""How much of a prompt each node has, as indexers of KV caches say it (Mooncake's RFC 1403, Dynamo's indexer). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controlplane.core.cluster import Cluster
from controlplane.core.directory.tree import NOBODY
from controlplane.core.ids import ChunkKey, NodeIndex


@dataclass(frozen=True, slots=True)
class Match:
    """Leading chunks that a node has by itself."""

    memory: int
    """All of them in its pool."""
    disk: int
    """Each in its pool or on its disk."""


def matches(cluster: Cluster, keys: Sequence[ChunkKey]) -> Mapping[str, Match]:
    """By name, of the nodes that have the first chunk. `keys`: in prefix order."""
    memory: dict[NodeIndex, int] = {}
    disk: dict[NodeIndex, int] = {}
    in_memory = on_disk = {node.index for node in cluster.nodes if node.attached and not node.draining}
    for count in range(len(keys) + 1):
        holders, disks = cluster.directory.hosts(keys[count]) if count < len(keys) else (NOBODY, NOBODY)
        before, in_memory = in_memory, in_memory & holders
        memory |= dict.fromkeys(before - in_memory, count)
        before, on_disk = on_disk, on_disk & (holders | disks)
        disk |= dict.fromkeys(before - on_disk, count)
        if not on_disk:
            break
    nodes = {index: cluster.nodes.get(index) for index, count in disk.items() if count}
    return {node.facts.name: Match(memory[at], disk[at]) for at, node in nodes.items() if node is not None}
