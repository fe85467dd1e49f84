"""Where a chunk goes before its last copy does.

Three occasions: the switch evicts a chunk that no host holds (value recovery), a host's full pool is about to evict
one that nobody else has (replication), and a node is drained. All yield plans of typed steps; carrying them out is the
core's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from controlplane.core.ids import ChunkKey, NodeIndex

REPLICATION_FREE_SHARE: Final = 0.5
"""The rest of a pool's free room is for its own node."""
REPLICATION_MARGIN: Final = 1.1


@dataclass(frozen=True, slots=True)
class Host:
    """A pool that could take a chunk."""

    node: NodeIndex
    free_bytes: int
    cheapest_value: float = 0.0
    """Value per byte of what it would lose first if it has no room: 0 for chunks that are on its disk, too."""
    disk_free_bytes: int = 0
    """What its pool would lose goes there instead, as long as there is room."""


@dataclass(frozen=True, slots=True)
class Replication:
    """This node takes over the chunk."""

    key: ChunkKey
    node: NodeIndex


@dataclass(frozen=True, slots=True)
class Endangered:
    """A last copy that a full pool would evict next."""

    key: ChunkKey
    size_bytes: int
    value: float
    """Per byte, of a copy elsewhere (`ClusterValues.value_moved`)."""


@dataclass(frozen=True, slots=True)
class Move:
    """This node fetches these chunks (in prefix order) because their only holder leaves."""

    node: NodeIndex
    keys: tuple[ChunkKey, ...]


@dataclass(frozen=True, slots=True)
class DrainPlan:
    """Who takes what a leaving node has, and what nobody can take."""

    moves: tuple[Move, ...]
    stranded: tuple[ChunkKey, ...]
    """No other pool has room for them, of those that may have them."""


def plan_recovery(size_bytes: int, value: float, pinned: bool, hosts: Sequence[Host]) -> NodeIndex | None:
    """Who saves a chunk that only the switch has; None if it is worth less than anything a host would give up.

    A host with free room takes anything of some worth, in its pool or through it on its disk; a full one only a
    chunk that is worth more than its cheapest.
    """
    if value <= 0.0 and not pinned:
        return None
    roomy = [(host.free_bytes, -host.node) for host in hosts if host.free_bytes >= size_bytes]
    with_disk = [(host.disk_free_bytes, -host.node) for host in hosts if host.disk_free_bytes >= size_bytes]
    if roomy or with_disk:
        return NodeIndex(-max(roomy or with_disk)[1])
    willing = [(host.cheapest_value, host.node) for host in hosts if pinned or host.cheapest_value < value]
    return min(willing)[1] if willing else None


def plan_replications(endangered: Iterable[Endangered], hosts: Sequence[Host], limit: int) -> tuple[Replication, ...]:
    """Who takes over last copies that a full pool would evict next, `limit` of them at most.

    Free room elsewhere is used up to REPLICATION_FREE_SHARE of it; a full host takes only what is worth
    REPLICATION_MARGIN times what it would lose, so that equals are not passed around.
    """
    free = {host.node: int(host.free_bytes * REPLICATION_FREE_SHARE) for host in hosts}
    full = sorted(hosts, key=lambda host: (host.cheapest_value, host.node))
    plan: list[Replication] = []
    for chunk in endangered:
        if len(plan) >= limit:
            break
        if chunk.value <= 0.0:
            continue
        node = max(free, key=lambda one: (free[one], -one), default=None)
        if node is not None and free[node] >= chunk.size_bytes:
            free[node] -= chunk.size_bytes
            plan.append(Replication(chunk.key, node))
            continue
        cheapest = next((host for host in full if host.free_bytes < chunk.size_bytes), None)
        if cheapest is not None and chunk.value > REPLICATION_MARGIN * cheapest.cheapest_value:
            full.remove(cheapest)
            plan.append(Replication(chunk.key, cheapest.node))
    return tuple(plan)


def plan_drain(
    chunks: Iterable[tuple[ChunkKey, int]],
    hosts: Sequence[Host],
    may_take: Callable[[NodeIndex, ChunkKey], bool] = lambda node, key: True,
) -> DrainPlan:
    """Spread last copies, given as (key, size_bytes) in prefix order, over the hosts with most free room.

    Consecutive chunks stay together while they fit, because they are fetched together later. `may_take(node, key)`:
    whether a node may have the chunk at all.
    """
    free = {host.node: host.free_bytes for host in hosts}
    moves: list[tuple[NodeIndex, list[ChunkKey]]] = []
    stranded: list[ChunkKey] = []
    for key, size_bytes in chunks:
        current = moves[-1][0] if moves else None
        if current is None or free[current] < size_bytes or not may_take(current, key):
            takers = [node for node in free if may_take(node, key)]
            current = max(takers, key=lambda node: (free[node], -node), default=None)
            if current is None or free[current] < size_bytes:
                stranded.append(key)
                continue
            moves.append((current, []))
        moves[-1][1].append(key)
        free[current] -= size_bytes
    return DrainPlan(tuple(Move(node, tuple(keys)) for node, keys in moves), tuple(stranded))
