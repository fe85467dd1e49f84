"""What the configuration says, as the core and the transport take it."""

from __future__ import annotations

from dataclasses import replace

from hostagent import limits
from hostagent.config import AgentConfig
from hostagent.core.options import CoreOptions
from kvproto.ids import parse_address
from kvproto.wire.data import Fabric


def configured_fabric(config: AgentConfig) -> Fabric:
    """The fabric's parameters, until the controller says otherwise."""
    data = config.data
    return Fabric(
        group=parse_address(data.group),
        qkey=data.qkey,
        segment_bytes=data.segment_bytes,
        from_switch_dscp=data.from_switch_dscp,
    )


def core_options(config: AgentConfig) -> CoreOptions:
    """Of the agent's core."""
    data = config.data
    rails = len(data.each_rail())
    options = CoreOptions(
        config.pool.size_bytes,
        data.segment_bytes,
        parse_address(data.pool_address) or None,
        link_rate_bytes_per_s=rails * data.link_rate_bit_s // 8 if data.link_rate_bit_s else None,
        merge_wait_max_s=config.merge_wait_max_s,
        replica_bytes=limits.REPLICA_BYTES_MAX if config.replica_bytes is None else config.replica_bytes,
        follows_at_once=config.replica_bytes is not None,
        wire_form=config.wire.form,
        rails=rails,
        relay_share=config.relay_share,
        chooses_way=config.chooses_way,
        rack=config.rack,
        tenant_weights={name: terms.weight for name, terms in config.tenants.items()},
        tenant_namespaces={name: terms.namespace for name, terms in config.tenants.items() if terms.namespace},
    )
    if config.cold is not None:
        options = replace(
            options,
            has_cold=True,
            cold_wait_max_s=config.cold.lookup_wait_s,
            cold_write_bytes_per_s=config.cold.write_bytes_per_s,
            cold_form=config.cold.form,
        )
    if config.disk is None:
        return options
    return replace(
        options,
        disk_write_bytes_per_s=config.disk.write_bytes_per_s,
        disk_form=config.disk.form,
        promote=config.disk.promote,
    )
