"""How much of a prompt each node has, as indexers of KV caches say it (Mooncake's RFC 1403, Dynamo's indexer). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controlplane.core.cluster import Cluster
from controlplane.core.ids import ChunkKey


@dataclass(frozen=True, slots=True)
class Match:
    """Leading chunks that a node has by itself."""

    memory: int
    """All of them in its pool."""
    disk: int
    """Each in its pool or on its disk."""


def matches(cluster: Cluster, keys: Sequence[ChunkKey]) -> Mapping[str, Match]:
    """By name, of the nodes that have the first chunk. `keys`: in prefix order."""
    found: dict[str, Match] = {}
    in_memory = on_disk = {node.index for node in cluster.nodes if node.attached and not node.draining}
    for count in range(len(keys) + 1):
        chunk = cluster.directory.get(keys[count]) if count < len(keys) else None
        holders, disks = (chunk.holders, chunk.disk_holders) if chunk is not None else (set(), set())
        before, in_memory = in_memory, {one for one in in_memory if one in holders}
        for index in before - in_memory:
            if (node := cluster.nodes.get(index)) is not None:
                found[node.facts.name] = Match(count, count)
        before, on_disk = on_disk, {one for one in on_disk if one in holders or one in disks}
        for index in before - on_disk:
            if (node := cluster.nodes.get(index)) is not None:
                found[node.facts.name] = Match(found[node.facts.name].memory, count)
        if not on_disk:
            break
    return {name: match for name, match in found.items() if match.disk}
