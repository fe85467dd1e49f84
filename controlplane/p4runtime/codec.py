"""Entries as P4Runtime entities and back, for v1model programs; codecs of other architectures override what differs
(`tofino`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, TypeAlias

import finsy

from controlplane.core.switch.entries import (
    CloneSessionEntry,
    Entry,
    ForeignEntry,
    GroupEntry,
    Report,
    SubscriptionEntry,
)
from controlplane.core.switch.target import Operation, SwitchCounters, SwitchFacts, Update
from controlplane.p4runtime import drops, replication_engine, reports
from controlplane.p4runtime.tables import BY_NAME, OF_ENTRY, TABLES
from kvproto.limits import SEGMENT_BLOCK_BYTES

Read: TypeAlias = Callable[[Sequence[Any]], Awaitable[list[Any]]]
"""Reads what matches the queries."""


_FLOOD_ANNOTATION = "@p4switch_flood_group("
_CASTS_FILLS_ANNOTATION = "@kvcast_cast_too"


class UnsuitableProgramError(Exception):
    """What the switch runs is not the kvcast program, or not the one that was asked for."""


class V1ModelCodec:
    """Entries to P4Runtime and back, as the program of p4/v1model has them."""

    reports: ClassVar[tuple[Report, ...]] = (Report.HEAT, Report.SIGHTING)
    """What the program reports by itself."""
    counter_names: ClassVar[tuple[str, ...]] = drops.COUNTERS

    def facts(self, schema: finsy.P4Schema) -> SwitchFacts:
        """Sizes of the running program. Raises UnsuitableProgramError if it lacks anything that we program."""
        self._check(schema)
        if is_tofino(schema):
            raise UnsuitableProgramError("it runs the program for Tofino: set switch.target to tofino")
        try:
            slots = schema.registers["slot_owner"].size
            return SwitchFacts(
                slots=slots,
                segment_bytes=schema.registers["slot_block"].size * SEGMENT_BLOCK_BYTES // slots,
                asks_to_flood=asks_to_flood(schema),
                casts_fills=casts_fills(schema),
            )
        except (ValueError, KeyError, ZeroDivisionError) as error:
            raise _not_ours(error) from error

    def queries(self, schema: finsy.P4Schema) -> list[Any]:
        """What to read for everything that the control plane owns, digests apart."""
        return [*(table.query for table in TABLES), finsy.P4MulticastGroupEntry(), finsy.P4CloneSessionEntry()]

    def encode(self, update: Update, schema: finsy.P4Schema) -> list[Any]:
        """Entities marked as insertion (+), modification (~) or deletion (-); together they are the update."""
        table, _ = OF_ENTRY.get(type(update.entry), (None, None))
        if table is not None and not table.keys:
            # A default action is always there, so it is only ever modified.
            absent = update.operation is Operation.DELETE
            return [~(table.encode_absent() if absent else self._encode(update.entry))]
        entity = self._encode(update.entry)
        match update.operation:
            case Operation.INSERT:
                return [+entity]
            case Operation.MODIFY:
                return [~entity]
            case Operation.DELETE:
                return [-entity]

    def decode(self, found: Sequence[Any]) -> list[Entry]:
        """Turn what was read into entries."""
        return [entry for one in found if (entry := self._decode(one)) is not None]

    async def counters(self, read: Read) -> SwitchCounters:
        """What the data plane counted, read through `read`."""
        return SwitchCounters(drops.decode(await read(drops.queries())))

    # -- inside

    def _check(self, schema: finsy.P4Schema) -> None:
        if not schema.exists:
            raise UnsuitableProgramError("it runs no program: name one in switch.p4info and switch.program")
        try:
            for table in TABLES:
                schema.tables[table.name]
            for report in self.reports:
                schema.digests[reports.DIGESTS[report]]
            for counter in self.counter_names:
                schema.counters[counter]
        except (ValueError, KeyError) as error:
            raise _not_ours(error) from error

    def _encode(self, entry: Entry) -> Any:
        match entry:
            case GroupEntry() | CloneSessionEntry():
                return replication_engine.encode(entry)
            case SubscriptionEntry():
                return reports.encode(entry)
            case ForeignEntry(table=CloneSessionEntry.kind, match=int(session)):
                return finsy.P4CloneSessionEntry(session)
            case ForeignEntry():
                return BY_NAME[entry.table].encode_foreign(entry)
        table, action = OF_ENTRY[type(entry)]
        return table.encode(entry, action)

    def _decode(self, found: Any) -> Entry | None:
        match found:
            case finsy.P4TableEntry():
                return BY_NAME[found.table_id].decode(found)
            case finsy.P4DigestEntry():
                return reports.decode(found)
        return replication_engine.decode(found)


def is_tofino(schema: finsy.P4Schema) -> bool:
    """Whether a program keeps cached segments in circulation."""
    return any(counter.alias == "orbit" for counter in schema.counters)


def asks_to_flood(schema: finsy.P4Schema) -> bool:
    """Whether the program asks p4switch to fill its group of all ports (by an annotation at `main`)."""
    return any(annotation.startswith(_FLOOD_ANNOTATION) for annotation in schema.pkg_info.annotations)


def casts_fills(schema: finsy.P4Schema) -> bool:
    """Whether the program casts FILLs that say so (by an annotation at `main`)."""
    return _CASTS_FILLS_ANNOTATION in schema.pkg_info.annotations


def _not_ours(error: Exception) -> UnsuitableProgramError:
    return UnsuitableProgramError(f"it does not run the kvcast program: {' '.join(str(error).split())}")
