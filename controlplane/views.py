"""What operators see: messages of the Operator service made from the core's state. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from controlplane.directory import Chunk
from controlplane.ids import NodeIndex
from controlplane.nodes import Node
from controlplane.switch.chunk_states import ChunkState
from kvproto.rpc import control_pb2 as rpc

if TYPE_CHECKING:
    from controlplane.core import Core

TOP_DEFAULT = 20


def chunk_view(core: Core, chunk: Chunk, now_ns: int) -> rpc.ChunkView:
    facts = chunk.facts
    holders = _names(core, chunk.holders)
    rooted = core.directory.is_rooted(facts.key)
    return rpc.ChunkView(
        key=facts.key,
        parent=facts.parent or b"",
        position=facts.position,
        size_bytes=facts.size_bytes,
        holders=holders,
        disk_holders=_names(core, chunk.disk_holders),
        switch_state=core.pool.state(facts.key).shown,
        pinned=chunk.pinned,
        value=core.values.value(facts.key, facts.size_bytes, rooted, now_ns),
        fetches_per_s=core.values.rate(facts.key, now_ns),
        namespace=facts.namespace,
        children=len(chunk.children),
    )


def _names(core: Core, indexes: Iterable[NodeIndex]) -> list[str]:
    return sorted(node.facts.name for index in indexes if (node := core.nodes.get(index)) is not None)


def node_view(core: Core, node: Node) -> rpc.NodeView:
    view = rpc.NodeView(
        node=node.index,
        name=node.facts.name,
        data_ip=node.facts.data_ip,
        state="draining" if node.draining and node.attached else node.state.value,
        pool_bytes=node.facts.pool_bytes,
        pool_used_bytes=node.pool_used_bytes,
        chunks=core.directory.count_held_by(node.index),
        last_copies=len(core.directory.last_copies(node.index)),
        sent_bytes=node.sent_bytes,
        received_bytes=node.received_bytes,
        version=node.facts.version,
        disk_bytes=node.facts.disk_bytes,
        disk_used_bytes=node.disk_used_bytes,
    )
    if node.member is not None:
        view.member = node.member
    if node.port is not None:
        view.switch_port = node.port
    return view


def switch_view(core: Core, target: str, address: str) -> rpc.SwitchView:
    pool, programmer = core.pool, core.programmer
    if not core.options.with_switch:
        return rpc.SwitchView(target="none", state="absent")
    if core.switch_standby:
        state = "standby"
    elif programmer.phase.value == "down":
        state = "connecting"
    else:
        state = "ready" if core.switch_present else "programming"
    return rpc.SwitchView(
        target=target,
        address=address,
        state=state,
        epoch=core.epoch,
        slots=pool.slots_count,
        slots_used=pool.slots_used_count,
        segment_bytes=core.segment_bytes,
        serving=pool.count(ChunkState.SERVING, ChunkState.RECOVERING),
        filling=pool.count(ChunkState.PLACING, ChunkState.FILLING, ChunkState.PUBLISHING),
        groups=sum(kind == "group" for kind, _ in programmer.actual),
        write_errors=programmer.write_errors,
    )


def status(core: Core, target: str, address: str, now_ns: int) -> rpc.StatusReply:
    accounting = core.accounting
    return rpc.StatusReply(
        nodes=[node_view(core, node) for node in sorted(core.nodes, key=lambda one: one.facts.name)],
        switch_view=switch_view(core, target, address),
        chunks=len(core.directory),
        copies=core.directory.copies,
        chunk_bytes=core.directory.size_bytes,
        bytes_kept_off_uplinks=accounting.bytes_kept_off_uplinks,
        management_messages=accounting.messages.total(),
        management_bytes=accounting.message_bytes.total(),
        uptime_ms=(now_ns - (core.started_ns if core.started_ns is not None else now_ns)) // 1_000_000,
        decisions={name: count for name, count in (accounting.decisions + core.pool.decisions).items() if count > 0},
    )


def lasting(status: rpc.StatusReply) -> bytes:
    """What of a status does not change by itself: all but time and the counts of messages."""
    kept = rpc.StatusReply()
    kept.CopyFrom(status)
    for counting in ("uptime_ms", "management_messages", "management_bytes"):
        kept.ClearField(counting)
    return kept.SerializeToString(deterministic=True)


def list_chunks(core: Core, request: rpc.ListRequest, now_ns: int) -> Iterator[rpc.ChunkView]:
    """Chunks that the request selects, in prefix order. Raises UnknownKeyError, AmbiguousKeyError."""
    directory = core.directory
    if request.key_hex:
        key = directory.find(request.key_hex)
        chunks = [
            chunk
            for one in [*directory.prefix(key)[:-1], *directory.subtree(key)]
            if (chunk := directory.get(one)) is not None
        ]
    else:
        chunks = sorted(directory, key=lambda chunk: (chunk.facts.namespace, chunk.facts.position, chunk.key))
    node = core.nodes.named(request.node) if request.node else None
    shown = 0
    for chunk in chunks:
        if request.node and (node is None or node.index not in chunk.holders | chunk.disk_holders):
            continue
        if request.served_only and not chunk.served:
            continue
        if request.pinned_only and not chunk.pinned:
            continue
        yield chunk_view(core, chunk, now_ns)
        shown += 1
        if shown == request.limit:
            return


def top(core: Core, limit: int, now_ns: int) -> list[rpc.ChunkView]:
    """The chunks fetched most."""
    rates = [(core.values.rate(chunk.key, now_ns), chunk) for chunk in core.directory]
    rates = [one for one in rates if one[0] > 0.0]
    rates.sort(key=lambda one: (-one[0], one[1].key))
    return [chunk_view(core, chunk, now_ns) for _, chunk in rates[: limit or TOP_DEFAULT]]
