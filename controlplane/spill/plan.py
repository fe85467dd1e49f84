"""Where a chunk goes before its last copy does.

Two occasions: the switch evicts a chunk that no host holds (value recovery), and a node is drained. Both yield plans
of typed steps; carrying them out is the core's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from controlplane.ids import ChunkKey, NodeIndex


@dataclass(frozen=True, slots=True)
class Host:
    """A pool that could take a chunk."""

    node: NodeIndex
    free_bytes: int
    cheapest_value: float = 0.0
    """Per byte, of what it would evict first if it has no room."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """This node fetches the chunk from the switch before the switch drops it."""

    key: ChunkKey
    node: NodeIndex


@dataclass(frozen=True, slots=True)
class Move:
    """This node fetches these chunks (in prefix order) because their only holder leaves."""

    node: NodeIndex
    keys: tuple[ChunkKey, ...]


@dataclass(frozen=True, slots=True)
class DrainPlan:
    moves: tuple[Move, ...]
    stranded: tuple[ChunkKey, ...]
    """No other pool has room for them."""


def plan_recovery(key: ChunkKey, size_bytes: int, value: float, pinned: bool, hosts: Sequence[Host]) -> Recovery | None:
    """Who saves a chunk that only the switch has; None if it is worth less than anything a host would give up.

    A host with free room takes anything of some worth; a full one only what is worth more than its cheapest.
    """
    roomy = [host for host in hosts if host.free_bytes >= size_bytes]
    if roomy and (value > 0.0 or pinned):
        return Recovery(key, max(roomy, key=lambda host: (host.free_bytes, -host.node)).node)
    willing = [host for host in hosts if pinned or host.cheapest_value < value]
    if not willing:
        return None
    return Recovery(key, min(willing, key=lambda host: (host.cheapest_value, host.node)).node)


def plan_drain(chunks: Iterable[tuple[ChunkKey, int]], hosts: Sequence[Host]) -> DrainPlan:
    """Spread last copies, given as (key, size_bytes) in prefix order, over the hosts with most free room.

    Consecutive chunks stay together while they fit, because they are fetched together later.
    """
    free = {host.node: host.free_bytes for host in hosts}
    moves: list[tuple[NodeIndex, list[ChunkKey]]] = []
    stranded: list[ChunkKey] = []
    for key, size_bytes in chunks:
        current = moves[-1][0] if moves else None
        if current is None or free[current] < size_bytes:
            current = max(free, key=lambda node: (free[node], -node), default=None)
            if current is None or free[current] < size_bytes:
                stranded.append(key)
                continue
            moves.append((current, []))
        moves[-1][1].append(key)
        free[current] -= size_bytes
    return DrainPlan(tuple(Move(node, tuple(keys)) for node, keys in moves), tuple(stranded))
