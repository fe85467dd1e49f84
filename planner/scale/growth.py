"""Unit costs times load: what managing costs at each size. Arithmetic, and pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from controlplane.core.limits import PUBLISH_S
from hostagent import limits
from kvchunk.ids import KEY_BYTES
from planner.scale.load import Load
from planner.scale.unit_costs import UnitCosts

STEPS: Final = (16, 64, 256, 1_000, 4_000, 10_000)
FOLLOWERS: Final = 10
"""Agents that are told of each chunk, where replicas are bounded: as `kvcast bench controller` has it by itself."""
CHUNKS_PER_NODE: Final = 10_000
"""So 10,000 nodes hold 100 million chunks."""
STREAM_S: Final = 31e-6
"""Of the controller, for one message on a gRPC stream of asyncio, sent or received: measured once, with 20,000 deltas
to eight streams (grpcio 1.81, AMD EPYC). The core knows no streams, so a plan does not measure this."""
_KEY_BYTES: Final = KEY_BYTES + 2
"""Of a chunk that was dropped: its key, in a message."""


@dataclass(frozen=True, slots=True)
class Growth:
    """One controller for `nodes` nodes; per second where not said otherwise."""

    nodes: int
    chunks: int
    messages_in: float
    messages_out: float
    bytes_in: float
    bytes_out: float
    cores: float
    """Of the controller: processor seconds per second."""
    agent_cores: float
    """Of each agent, for its replica."""
    directory_bytes: float
    replica_bytes: float
    """Of each agent."""
    snapshot_bytes: float
    """That an agent gets when it attaches."""

    @property
    def carries(self) -> bool:
        """Whether one core does it: the controller is one asyncio loop."""
        return self.cores < 1.0


@dataclass(frozen=True, slots=True)
class CellGrowth:
    """A cluster of cells that know nothing of each other but their names."""

    cells: int
    each: Growth
    """Of one cell, and of its controller."""

    @property
    def cores(self) -> float:
        """Of all leading controllers together."""
        return self.cells * self.each.cores


def in_cells(
    costs: UnitCosts,
    load: Load,
    nodes: int,
    sizes: Sequence[int],
    chunks_per_node: int = CHUNKS_PER_NODE,
    followers: int | None = None,
) -> list[CellGrowth]:
    """The same cluster in cells of each of these sizes."""
    return [
        CellGrowth(-(-nodes // size), _at(size, size * chunks_per_node, costs, load, followers))
        for size in sizes
        if size <= nodes
    ]


def grow(
    costs: UnitCosts,
    load: Load,
    steps: Sequence[int] = STEPS,
    chunks_per_node: int = CHUNKS_PER_NODE,
    followers: int | None = None,
) -> list[Growth]:
    """One line for each number of nodes. `followers`: agents that are told of each chunk, where their replicas are
    bounded (`controller.replica_bytes`); None: all are told of everything."""
    return [_at(nodes, nodes * chunks_per_node, costs, load, followers) for nodes in steps]


def carried_nodes(costs: UnitCosts, load: Load, followers: int | None = None) -> int:
    """The largest cluster that one controller carries on one core."""
    low, high = 1, 1 << 24
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _at(middle, 0, costs, load, followers).carries else (low, middle - 1)
    return low


def _at(nodes: int, chunks: int, costs: UnitCosts, load: Load, followers: int | None) -> Growth:
    told = nodes if followers is None else min(nodes, followers)
    asked = 0.0 if followers is None else nodes * load.uses_per_s
    questions = 0.0 if followers is None else nodes * load.requests_per_s
    # Stored chunks are evicted some time later: both are announced, published and taken in.
    stored = dropped = nodes * load.new_per_s
    events = nodes * load.uses_per_s
    announces = min(nodes * load.requests_per_s, nodes / limits.ANNOUNCE_DELAY_S)
    usages = min(nodes * load.requests_per_s, nodes / limits.USAGE_DELAY_S)
    deltas = min(announces + usages, 1 / PUBLISH_S)
    messages_in = nodes / limits.HEARTBEAT_S_DEFAULT + announces + usages + questions
    # Chunks that are announced together are of one prefix, and have the same followers.
    messages_out = min(deltas * nodes, (announces + usages) * told) + questions
    cores = (
        (stored + dropped) * (costs.announce_s + costs.publish_s)
        + events * costs.usage_s
        + asked * costs.look_up_s
        + (stored + dropped * _KEY_BYTES / costs.entry_bytes) * told * costs.tell_s
        + (messages_in + messages_out) * STREAM_S
    )
    known = chunks * told / nodes
    return Growth(
        nodes,
        chunks,
        messages_in,
        messages_out,
        bytes_in=nodes * costs.heartbeat_bytes
        + stored * costs.record_bytes
        + dropped * _KEY_BYTES
        + events * costs.event_bytes
        + asked * KEY_BYTES,
        bytes_out=(stored * costs.entry_bytes + dropped * _KEY_BYTES) * told + asked * costs.entry_bytes,
        cores=cores,
        agent_cores=((stored + dropped) * told + asked) / nodes * costs.apply_s,
        directory_bytes=chunks * costs.directory_bytes,
        replica_bytes=known * costs.replica_bytes,
        snapshot_bytes=0.0 if followers is not None else chunks * costs.entry_bytes,
    )
