"""The program of p4/tna, on a Tofino or on p4switch: its P4Runtime (docs/explanation/tofino.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import finsy

from controlplane.core.ids import SwitchPort
from controlplane.core.switch.entries import Entry, FabricEntry, FillingEntry, ReplicateByBitmapEntry, Report
from controlplane.core.switch.target import Operation, SwitchCounters, SwitchFacts, Update
from controlplane.p4runtime import drops, orbit, replication_engine, ticks
from controlplane.p4runtime.codec import (
    Read,
    UnsuitableProgramError,
    V1ModelCodec,
    asks_to_flood,
    casts_fills,
    is_tofino,
)

RECIRCULATION_PORT: Final = SwitchPort(68)
"""Of a Tofino's first pipe."""
_HEADERS_BYTES: Final = 102
"""Ethernet 14, IP 20, UDP 8, BTH 12, DETH 8, data header 32, ICRC 4, FCS 4."""


def frame_bytes(segment_bytes: int) -> int:
    """Bytes of the packet buffer that a circulating segment takes, with its FCS."""
    return _HEADERS_BYTES + segment_bytes


@dataclass(frozen=True, slots=True)
class OrbitOptions:
    """What an operator says of a Tofino's orbit."""

    bytes_max: int
    """Share of the packet buffer that circulating segments may fill."""
    segment_bytes: int
    """The value that the program was built with: P4Info does not contain it."""
    recirculation_port: SwitchPort = RECIRCULATION_PORT


class TofinoCodec(V1ModelCodec):
    """Entries to P4Runtime and back, as the program of p4/tna has them."""

    reports: ClassVar[tuple[Report, ...]] = (*V1ModelCodec.reports, Report.LOSS)
    counter_names: ClassVar[tuple[str, ...]] = (*drops.COUNTERS, orbit.COUNTER, orbit.HEAT_COUNTER)

    def __init__(self, options: OrbitOptions) -> None:
        self.options = options

    def facts(self, schema: finsy.P4Schema) -> SwitchFacts:
        """Sizes of the running program; no more slots than may circulate. Raises UnsuitableProgramError."""
        if schema.exists and not is_tofino(schema):
            raise UnsuitableProgramError(
                "it does not run the program for Tofino: set switch.target to p4switch or bmv2"
            )
        self._check(schema)
        try:
            ticks.names(schema)
        except ValueError as error:
            raise UnsuitableProgramError(f"it does not run the kvcast program: {error}") from error
        may_circulate = self.options.bytes_max // frame_bytes(self.options.segment_bytes)
        return SwitchFacts(
            slots=min(schema.counters[orbit.HEAT_COUNTER].size, may_circulate),
            segment_bytes=self.options.segment_bytes,
            recirculation_port=self.options.recirculation_port,
            asks_to_flood=asks_to_flood(schema),
            casts_fills=casts_fills(schema),
        )

    def queries(self, schema: finsy.P4Schema) -> list[Any]:
        """What to read for everything that the control plane owns, digests apart."""
        return [*super().queries(schema), replication_engine.default_query(), *ticks.queries(ticks.names(schema))]

    def encode(self, update: Update, schema: finsy.P4Schema) -> list[Any]:
        """Entities marked as insertion, modification or deletion; together they are the update."""
        match update.entry, update.operation:
            case FabricEntry() as entry, Operation.INSERT | Operation.MODIFY:
                times = [~one for one in ticks.encode(entry, ticks.names(schema))]
                return [*times, *super().encode(update, schema)]
            case ReplicateByBitmapEntry() as entry, operation:
                absent = operation is Operation.DELETE
                return [~replication_engine.encode_default(None if absent else entry.bitmap)]
            case FillingEntry(base_slot=slot), Operation.INSERT:
                return [~orbit.forget_heat(slot), *super().encode(update, schema)]
        return super().encode(update, schema)

    def decode(self, found: Sequence[Any]) -> list[Entry]:
        """Turn what was read into entries."""
        registers = [one for one in found if isinstance(one, finsy.P4RegisterEntry)]
        entries = super().decode([one for one in found if not isinstance(one, finsy.P4RegisterEntry)])
        return [ticks.checked(one, registers) if isinstance(one, FabricEntry) else one for one in entries]

    async def counters(self, read: Read) -> SwitchCounters:
        """What the data plane counted, read through `read`."""
        dropped = drops.decode(await read(drops.queries()))
        return SwitchCounters(dropped, orbit.decode(await read(orbit.queries())))

    def _decode(self, found: Any) -> Entry | None:
        of_replicate = isinstance(found, finsy.P4TableEntry) and found.table_id == replication_engine.TABLE
        return (
            replication_engine.decode_default(found)
            if of_replicate and found.is_default_action
            else super()._decode(found)
        )
