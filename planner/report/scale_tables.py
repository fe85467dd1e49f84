"""Tables of `kvcast plan --scale`."""

from __future__ import annotations

from collections.abc import Sequence

from kvproto.units import format_bytes
from planner.report.tables import Grid
from planner.scale.growth import FOLLOWERS, STREAM_S, CellGrowth, Growth, carried_nodes, in_cells
from planner.scale.load import Load
from planner.scale.reuse import CellReuse
from planner.scale.unit_costs import UnitCosts
from planner.units import format_seconds


def scale_grids(
    costs: UnitCosts, load: Load, growth: Sequence[Growth], followed: Sequence[Growth], cells: Sequence[CellReuse]
) -> list[Grid]:
    """Unit costs, growth where all are told of everything and where FOLLOWERS are of each chunk, cells."""
    nodes = growth[-1].nodes
    divided = in_cells(
        costs, load, nodes, sorted({one.cell for one in cells if one.nodes <= nodes}), followers=FOLLOWERS
    )
    whole, bounded = "every agent keeps all", f"bounded replicas, {FOLLOWERS} agents follow a chunk"
    return [
        _units(costs, load),
        *(_growth(growth, whole), _memory(growth, whole)),
        *(_growth(followed, bounded), _memory(followed, bounded)),
        *(_cells(cells), _divided(nodes, divided, bounded)),
    ]


def scale_conclusions(costs: UnitCosts, load: Load, growth: Sequence[Growth], cells: Sequence[CellReuse]) -> list[str]:
    """What that says."""
    nodes, followed = carried_nodes(costs, load), carried_nodes(costs, load, FOLLOWERS)
    last = growth[-1]
    alone = (
        f"One controller on one core carries about {nodes:,} nodes with this load. Every change goes to every agent, "
        "so its work and its bytes grow with the square of the nodes. Where replicas are bounded and "
        f"{FOLLOWERS} agents follow a chunk it carries about {followed:,}."
    )
    large = (
        f"At {last.nodes:,} nodes it would send {format_bytes(last.bytes_out)}/s, and every agent would keep "
        f"{format_bytes(last.replica_bytes)} of directory and spend {last.agent_cores:.2g} cores on it."
    )
    return [alone, large, *_about_cells(cells)]


def _about_cells(cells: Sequence[CellReuse]) -> list[str]:
    """What a directory for each cell would find in the largest cluster, against one for all."""
    largest = max((one.nodes for one in cells), default=0)
    ascending = sorted((one for one in cells if one.nodes == largest), key=lambda one: one.cell)
    if len(ascending) < 2:
        return []
    whole = ascending[-1]
    enough = next(one for one in ascending if one.hit >= 0.9 * whole.hit)
    if enough is whole:
        return [
            "Cells lose more than a tenth of the hits if requests go anywhere: route sessions and tenants to cells."
        ]
    found = f"Cells of {enough.cell:,} nodes, a controller each, find {enough.hit:.1%} of all chunk uses"
    return [f"{found}; one directory for all would find {whole.hit:.1%}."]


def _units(costs: UnitCosts, load: Load) -> Grid:
    rows = (
        (
            "a node's load",
            f"{load.requests_per_s:.3g} requests, {load.uses_per_s:.3g} chunk uses, {load.new_per_s:.3g} new chunks /s",
        ),
        ("announced chunk", f"{format_seconds(costs.announce_s)}, {costs.record_bytes:.0f} B"),
        ("fetch event", f"{format_seconds(costs.usage_s)}, {costs.event_bytes:.0f} B"),
        ("published change", f"{format_seconds(costs.publish_s)}, {costs.entry_bytes:.0f} B to every agent"),
        ("the same to one agent", f"{format_seconds(costs.tell_s)} (made into bytes anew for each stream)"),
        ("chunk looked up", format_seconds(costs.look_up_s)),
        ("message on a stream", f"{format_seconds(STREAM_S)} (gRPC, not measured anew)"),
        ("change at an agent", format_seconds(costs.apply_s)),
        ("chunk in memory", f"controller {costs.directory_bytes:.0f} B, each agent {costs.replica_bytes:.0f} B"),
        ("linear", f"{costs.linearity:.2f} (bytes a chunk against half the sample)"),
    )
    return Grid(
        f"Unit costs, measured with {costs.sample:,} chunks and 64 agents",
        ("", "one core of this machine; bytes are exact"),
        rows,
        numbers=False,
    )


def _growth(growth: Sequence[Growth], who: str) -> Grid:
    rows = tuple(
        (
            f"{one.nodes:,}",
            f"{one.messages_in:,.0f}",
            f"{one.messages_out:,.0f}",
            f"{format_bytes(one.bytes_in)}/s",
            f"{format_bytes(one.bytes_out)}/s",
            f"{one.cores:.3g}",
            f"{one.agent_cores:.2g}",
        )
        for one in growth
    )
    return Grid(
        f"One controller, messages and time: {who}",
        ("nodes", "in/s", "out/s", "bytes in", "bytes out", "cores", "agent cores"),
        rows,
        "cores: of the controller; agent cores: of each agent, for its replica",
    )


def _memory(growth: Sequence[Growth], who: str) -> Grid:
    rows = tuple(
        (
            f"{one.nodes:,}",
            f"{one.chunks:,}",
            format_bytes(one.directory_bytes),
            format_bytes(one.replica_bytes),
            format_bytes(one.snapshot_bytes),
        )
        for one in growth
    )
    return Grid(
        f"One controller, memory: {who}", ("nodes", "chunks", "directory", "replica, each", "snapshot, each"), rows
    )


def _divided(nodes: int, divided: Sequence[CellGrowth], who: str) -> Grid:
    rows = tuple(
        (
            f"{one.each.nodes:,}",
            f"{one.cells:,}",
            f"{one.each.cores:.2g}",
            f"{one.cores:.3g}",
            f"{format_bytes(one.each.bytes_out)}/s",
            format_bytes(one.each.directory_bytes),
            format_bytes(one.each.replica_bytes),
        )
        for one in divided
    )
    return Grid(
        f"{nodes:,} nodes in cells: {who}",
        ("nodes of a cell", "cells", "cores each", "all cores", "sent by each", "directory, each", "replica, each"),
        rows,
        "a controller leads each cell; a replica is each agent's",
    )


def _cells(cells: Sequence[CellReuse]) -> Grid:
    rows = tuple(
        (f"{one.nodes:,}", f"{one.cell:,}", f"{one.hit:.1%}", f"{one.local:.1%}", f"{one.together:.2%}")
        for one in cells
    )
    return Grid(
        "Reuse that a directory of a cell finds",
        ("nodes", "cell", "hits", "of these local", "merged by casts"),
        rows,
        "requests spread over all nodes at random; one population exact, pools by their characteristic time",
    )
