"""What operators see: messages of the Operator service made from the core's state. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from controlplane.core.directory import Chunk
from controlplane.core.election import Standing
from controlplane.core.ids import ChunkKey, NodeIndex
from controlplane.core.nodes import Node
from controlplane.core.switch.chunk_states import ChunkState
from kvpolicy.tiers.cost_question import Quote, verdicts
from kvproto.cells import Cell
from kvproto.fanout import Fanout
from kvproto.rpc import control_pb2 as rpc

if TYPE_CHECKING:
    from controlplane.core.core import Core

TOP_DEFAULT = 20
_LEADERSHIP = {Standing.LEADING: "leads", Standing.LAPSED: "lapsed", Standing.STANDBY: "standby"}


def chunk_view(core: Core, chunk: Chunk, now_ns: int) -> rpc.ChunkView:
    """One chunk, as `kvcast ls` shows it."""
    facts = chunk.facts
    holders = node_names(core, chunk.holders)
    rooted = core.directory.is_rooted(facts.key)
    return rpc.ChunkView(
        key=facts.key,
        parent=facts.parent or b"",
        position=facts.position,
        size_bytes=facts.size_bytes,
        holders=holders,
        disk_holders=node_names(core, chunk.disk_holders),
        switch_state=_in_switch(core, facts.key).shown,
        pinned=chunk.pinned,
        value=core.values.value(facts.key, facts.size_bytes, rooted, now_ns),
        fetches_per_s=core.values.cache.rate(facts.key, now_ns),
        namespace=facts.namespace,
        children=core.directory.count_children(facts.key),
        switch_problem=core.switch_cache.problem(facts.key),
    )


def _in_switch(core: Core, key: ChunkKey) -> ChunkState:
    """The switch has a chunk, too, where it has what readers ask for in its place."""
    own = core.switch_cache.state(key)
    return own if own is not ChunkState.ABSENT else core.switch_cache.state(core.directory.crossing(key))


def node_names(core: Core, indexes: Iterable[NodeIndex]) -> list[str]:
    """Of the nodes that are known, sorted."""
    return sorted(node.facts.name for index in indexes if (node := core.nodes.get(index)) is not None)


def _state_of(node: Node) -> str:
    if not node.attached:
        return node.state.value
    return "unreached" if node.unreached else "draining" if node.draining else node.state.value


def node_view(core: Core, node: Node) -> rpc.NodeView:
    """One node, as `kvcast top` shows it."""
    view = rpc.NodeView(
        node=node.index,
        name=node.facts.name,
        data_ip=node.facts.data_ip,
        state=_state_of(node),
        pool_bytes=node.facts.pool_bytes,
        pool_used_bytes=node.pool_used_bytes,
        chunks=core.directory.count_held_by(node.index),
        last_copies=core.directory.count_last_copies(node.index),
        sent_bytes=node.sent_bytes,
        received_bytes=node.received_bytes,
        version=node.facts.version,
        disk_bytes=node.facts.disk_bytes,
        disk_used_bytes=node.disk_used_bytes,
        port_problem=node.port_problem,
        rack=node.facts.rack,
    )
    if node.member is not None and (not core.options.with_switch or core.places.is_programmed(node)):
        view.member = node.member
    if node.seen_port is not None:
        view.switch_port = node.seen_port
    return view


def switch_view(core: Core, target: str, address: str) -> rpc.SwitchView:
    """The switch, as `kvcast top` shows it."""
    switch_cache, programmer = core.switch_cache, core.programmer
    state = "standby" if core.leadership.standby_words else core.link.state
    fanout, why = core.way
    if not core.options.with_switch:
        words = "" if fanout is Fanout.SWITCH else fanout.name.lower()
        return rpc.SwitchView(target="none", state=state, fanout=words, fanout_why=why)
    return rpc.SwitchView(
        target=target,
        address=address,
        state=state,
        epoch=core.link.epoch,
        slots=switch_cache.slots.capacity,
        slots_used=switch_cache.slots.used_count,
        segment_bytes=core.link.segment_bytes,
        serving=switch_cache.count(ChunkState.SERVING, ChunkState.RECOVERING),
        filling=switch_cache.count(ChunkState.PLACING, ChunkState.FILLING, ChunkState.PUBLISHING),
        groups=sum(kind == "group" for kind, _ in programmer.actual),
        write_errors=programmer.write_errors,
        fanout_why=why,
    )


def status(core: Core, target: str, address: str, now_ns: int) -> rpc.StatusReply:
    """Nodes, switch and counts; `target` and `address` are those of the configured switch."""
    reply = summary(core, target, address, now_ns)
    reply.nodes.extend(node_view(core, node) for node in sorted(core.nodes, key=lambda one: one.facts.name))
    reply.decisions.update({name: count for name, count in core.decisions.items() if count > 0})
    return reply


def summary(core: Core, target: str, address: str, now_ns: int) -> rpc.StatusReply:
    """A status without nodes and decisions."""
    accounting = core.accounting
    return rpc.StatusReply(
        switch_view=switch_view(core, target, address),
        leadership=_LEADERSHIP[core.leadership.standing],
        epoch=core.leadership.epoch,
        chunks=len(core.directory),
        copies=core.directory.copies,
        chunk_bytes=core.directory.size_bytes,
        bytes_kept_off_uplinks=accounting.bytes_kept_off_uplinks,
        management_messages=accounting.messages.total(),
        management_bytes=accounting.message_bytes.total(),
        uptime_ms=(now_ns - (core.started_ns if core.started_ns is not None else now_ns)) // 1_000_000,
    )


def lasting(status: rpc.StatusReply) -> bytes:
    """The part of a status that does not change by itself: all but time and the counts of messages."""
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
        keys = iter([*directory.prefix(key)[:-1], *directory.subtree(key)])
    else:
        keys = directory.in_order()
    chunks = (chunk for key in keys if (chunk := directory.get(key)) is not None)
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
    chunks = (core.directory.get(key) for key in core.hottest.first(limit or TOP_DEFAULT))
    return [chunk_view(core, chunk, now_ns) for chunk in chunks if chunk is not None]


def cost_reply(quotes: Mapping[str, Quote], within_s: float | None, elsewhere: Cell | None) -> rpc.CostReply:
    """What nodes would need for a prefix, whether that is within a bound, and the cell that the prefix belongs to, if
    that is another one."""
    reply = rpc.CostReply()
    if elsewhere is not None:
        reply.elsewhere.cell = elsewhere.name
        reply.elsewhere.controllers.extend(elsewhere.controllers)
    if within_s is not None:
        found = verdicts(quotes, within_s)
        reply.refuse = found.refuse
        if found.send_to is not None:
            reply.send_to = found.send_to
        for node, one in found.nodes.items():
            if one.late_s is not None:
                reply.nodes[node].late_s = one.late_s
    for node, quote in quotes.items():
        cost = reply.nodes[node]
        cost.fetch_s, cost.wait_s = quote.fetch_s, quote.wait_s
        if quote.seconds is not None:
            cost.seconds = quote.seconds
        if quote.compute_s is not None:
            cost.compute_s = quote.compute_s
        for name, part in quote.parts.items():
            cost.parts[name].chunks, cost.parts[name].bytes = part.chunks, part.bytes
    return reply
