"""P4 controls RequestLimit and SegmentLimit: what a port may ask for in a second, as meters."""

from __future__ import annotations

from collections.abc import Sequence

import finsy

from controlplane.core.ids import Member, SwitchPort
from controlplane.core.switch.entries import Entry, ForeignEntry, Request, RequestLimitEntry, SegmentLimitEntry

REQUEST_TABLE = "request_limit"
SEGMENT_TABLE = "segment_limit"
TABLES = (REQUEST_TABLE, SEGMENT_TABLE)
_LIMIT_REQUESTS = "limit_requests"
_LIMIT_SEGMENTS = "limit_segments"
_NO_METER = finsy.P4MeterConfig(cir=0, cburst=0, pir=0, pburst=0)
"""In a query: read the meters, too."""


def queries() -> Sequence[finsy.P4TableEntry]:
    """What to read for all limits, rates included."""
    return [finsy.P4TableEntry(table, meter_config=_NO_METER) for table in TABLES]


def encode(entry: RequestLimitEntry | SegmentLimitEntry) -> finsy.P4TableEntry:
    """The entry as a P4Runtime entity: one rate, so beyond it everything is red."""
    meter = finsy.P4MeterConfig(cir=entry.per_s, cburst=entry.burst, pir=entry.per_s, pburst=entry.burst)
    if isinstance(entry, RequestLimitEntry):
        match = finsy.P4TableMatch(ingress_port=entry.port, op=entry.request.value)
        return finsy.P4TableEntry(
            REQUEST_TABLE, match=match, action=finsy.P4TableAction(_LIMIT_REQUESTS), meter_config=meter
        )
    match = finsy.P4TableMatch(leader=entry.member + 1)
    return finsy.P4TableEntry(
        SEGMENT_TABLE, match=match, action=finsy.P4TableAction(_LIMIT_SEGMENTS), meter_config=meter
    )


def encode_match(table: str, match: object) -> finsy.P4TableMatch:
    """The match of an entry that is not ours, from what `decode` made of it."""
    if table == REQUEST_TABLE and isinstance(match, tuple):
        port, op = match
        return finsy.P4TableMatch(ingress_port=port, op=op)
    return finsy.P4TableMatch(leader=match)


def decode(found: finsy.P4TableEntry) -> Entry | None:
    """Turn what was read into an entry. One whose meter is not ours is foreign: deleted and written anew."""
    name = found.action.name if isinstance(found.action, finsy.P4TableAction) else ""
    meter = found.meter_config
    one_rate = meter is not None and (meter.cir, meter.cburst) == (meter.pir, meter.pburst)
    if found.table_id == REQUEST_TABLE:
        port, op = SwitchPort(found["ingress_port"]), int(found["op"])
        known = op in (Request.JOIN.value, Request.GET.value)
        if meter is None or not one_rate or not known or name != _LIMIT_REQUESTS:
            return ForeignEntry(REQUEST_TABLE, (port, op))
        return RequestLimitEntry(port, Request(op), meter.cir, meter.cburst)
    leader = int(found["leader"])
    if meter is None or not one_rate or not leader or name != _LIMIT_SEGMENTS:
        return ForeignEntry(SEGMENT_TABLE, leader)
    return SegmentLimitEntry(Member(leader - 1), meter.cir, meter.cburst)
