"""Fields of the structs that the runtime declares (p4switch_abi.h): the only names that P4 and C have in common."""

from __future__ import annotations

from p4switch.errors import SwitchError

_STANDARD_METADATA = (
    "ingress_port egress_spec egress_port mcast_grp egress_rid checksum_error priority instance_type packet_length "
    "parser_error enq_timestamp enq_qdepth deq_timedelta deq_qdepth ingress_global_timestamp egress_global_timestamp"
)
_TNA = (
    "global_tstamp global_ver parser_err drop_ctl digest_type resubmit_type mirror_type ucast_egress_port mcast_grp_a "
    "mcast_grp_b rid level1_mcast_hash level2_mcast_hash level1_exclusion_id level2_exclusion_id bypass_egress "
    "deflect_on_drop ingress_cos qid icos_for_copy_to_cpu copy_to_cpu packet_color disable_ucast_cutthru "
    "enable_mcast_cutthru coalesce_flush coalesce_length capture_tstamp_on_tx update_delay_on_tx"
)
_C_NAMES = {name: name for name in f"{_STANDARD_METADATA} {_TNA}".split()}


def intrinsic_field(name: str) -> str:
    """C name of a field of intrinsic metadata. SwitchError for one that a program's own architecture file made up."""
    try:
        return _C_NAMES[name]
    except KeyError:
        raise SwitchError(
            f"this switch has no intrinsic metadata {name!r}: include p4switch's own v1model.p4 or tna.p4"
        ) from None
