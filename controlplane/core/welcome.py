"""The first message to an agent: who it is here, and how the fabric is set up. Pure."""

from __future__ import annotations

from controlplane.core.nodes import Node
from controlplane.core.options import CoreOptions
from kvproto import __version__
from kvproto.integrity import code_of
from kvproto.rpc import control_pb2 as rpc
from kvproto.rpc.versions import PROTOCOL


def welcome_of(options: CoreOptions, node: Node, segment_bytes: int, switch_state: rpc.SwitchState) -> rpc.ToAgent:
    """For the agent of a node; `switch_state`: how it stands with the switch."""
    fabric = options.fabric
    welcome = rpc.Welcome(
        node=node.index,
        controller=options.incarnation,
        heartbeat_ms=options.graces.heartbeat_ns // 1_000_000,
        switch_state=switch_state,
        protocol=PROTOCOL,
        takes_loads=True,
        read_tokens=True,
        version=__version__,
        fabric=rpc.Fabric(
            group_ip=fabric.entry.group_ip,
            group_mac=fabric.entry.group_mac,
            pool_ip=fabric.entry.pool_ip,
            qkey=fabric.qkey,
            data_port=fabric.data_port,
            control_port=fabric.control_port,
            segment_bytes=segment_bytes,
            from_switch_dscp=fabric.entry.from_switch_dscp,
            interest_ttl_ms=fabric.entry.interest_ttl_us // 1000,
            integrity=rpc.Integrity.ValueType(code_of(fabric.integrity)),
        ),
    )
    if node.member is not None and options.with_switch:
        welcome.member = node.member
    return rpc.ToAgent(welcome=welcome)
