"""Entries as P4Runtime entities and back, for v1model programs; codecs of other architectures override what differs
(`tofino`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import finsy

from controlplane.core.switch.entries import (
    AddressEntry,
    CloneSessionEntry,
    EgressMemberEntry,
    Entry,
    FabricEntry,
    FillingEntry,
    ForeignEntry,
    GroupEntry,
    HeatSubscriptionEntry,
    LossSubscriptionEntry,
    PortMemberEntry,
    ReplicateByBitmapEntry,
    ReplicateToGroupEntry,
    ReplicateToPortEntry,
    RequestLimitEntry,
    SaltEntry,
    SegmentLimitEntry,
    ServingEntry,
    SightingSubscriptionEntry,
    SourceEntry,
    StationEntry,
    TakenAddressEntry,
)
from controlplane.core.switch.target import Operation, SwitchCounters, SwitchEvent, SwitchFacts, Update
from controlplane.p4runtime import (
    admission,
    chunk_cache,
    drops,
    fabric,
    forwarding,
    heat,
    here,
    port_limits,
    replication,
    salt,
    sources,
)
from kvproto.limits import SEGMENT_BLOCK_BYTES

Read: TypeAlias = Callable[[Sequence[Any]], Awaitable[list[Any]]]
"""Reads what matches the queries."""


_FLOOD_ANNOTATION = "@p4switch_flood_group("
_CASTS_FILLS_ANNOTATION = "@kvcast_cast_too"


class UnsuitableProgramError(Exception):
    """What the switch runs is not the kvcast program, or not the one that was asked for."""


class V1ModelCodec:
    """Entries to P4Runtime and back, as the program of p4/v1model has them."""

    digests: ClassVar[Mapping[str, Callable[[Mapping[str, Any]], SwitchEvent]]] = {
        heat.DIGEST: heat.decode_report,
        here.DIGEST: here.decode_report,
    }
    """By name: what a report of it means."""
    tables: ClassVar[tuple[str, ...]] = (
        fabric.TABLE,
        salt.TABLE,
        admission.TABLE,
        forwarding.TABLE,
        chunk_cache.TABLE,
        replication.REPLICATE_TABLE,
        replication.EGRESS_TABLE,
        *sources.TABLES,
        *port_limits.TABLES,
    )
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
                chunks_max=schema.tables[chunk_cache.TABLE].size,
                groups_max=schema.tables[replication.REPLICATE_TABLE].size,
                asks_to_flood=asks_to_flood(schema),
                casts_fills=casts_fills(schema),
            )
        except (ValueError, KeyError, ZeroDivisionError) as error:
            raise _not_ours(error) from error

    def queries(self, schema: finsy.P4Schema) -> list[Any]:
        """What to read for everything that the control plane owns, digests apart."""
        return [
            *fabric.queries(),
            *salt.queries(),
            *admission.queries(),
            *forwarding.queries(),
            *chunk_cache.queries(),
            *replication.queries(),
            *sources.queries(),
            *port_limits.queries(),
        ]

    def encode(self, update: Update, schema: finsy.P4Schema) -> list[Any]:
        """Entities marked as insertion (+), modification (~) or deletion (-); together they are the update."""
        if isinstance(update.entry, FabricEntry):
            # A default action is always there, so it is only ever modified.
            absent = update.operation is Operation.DELETE
            return [~(fabric.encode_absent() if absent else fabric.encode(update.entry))]
        if isinstance(update.entry, SaltEntry):
            absent = update.operation is Operation.DELETE
            return [~(salt.encode_absent() if absent else salt.encode(update.entry))]
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
            for table in self.tables:
                schema.tables[table]
            for digest in self.digests:
                schema.digests[digest]
            for counter in self.counter_names:
                schema.counters[counter]
        except (ValueError, KeyError) as error:
            raise _not_ours(error) from error

    def _encode(self, entry: Entry) -> Any:
        match entry:
            case PortMemberEntry():
                return admission.encode(entry)
            case AddressEntry():
                return forwarding.encode(entry)
            case FillingEntry() | ServingEntry():
                return chunk_cache.encode(entry)
            case (
                ReplicateToGroupEntry()
                | ReplicateToPortEntry()
                | EgressMemberEntry()
                | GroupEntry()
                | CloneSessionEntry()
            ):
                return replication.encode(entry)
            case StationEntry() | SourceEntry() | TakenAddressEntry():
                return sources.encode(entry)
            case RequestLimitEntry() | SegmentLimitEntry():
                return port_limits.encode(entry)
            case HeatSubscriptionEntry():
                return heat.encode(entry)
            case SightingSubscriptionEntry():
                return here.encode(entry)
            case ForeignEntry():
                return _encode_foreign(entry)
            case FabricEntry() | SaltEntry() | LossSubscriptionEntry() | ReplicateByBitmapEntry():
                raise TypeError(f"a v1model program has no entity for {entry}")

    def _decode(self, found: Any) -> Entry | None:
        if isinstance(found, finsy.P4TableEntry):
            match found.table_id:
                case fabric.TABLE:
                    return fabric.decode(found)
                case salt.TABLE:
                    return salt.decode(found)
                case admission.TABLE:
                    return admission.decode(found)
                case forwarding.TABLE:
                    return forwarding.decode(found)
                case chunk_cache.TABLE:
                    return chunk_cache.decode(found)
                case sources.STATION_TABLE | sources.SOURCE_TABLE | sources.ADDRESS_TABLE:
                    return sources.decode(found)
                case port_limits.REQUEST_TABLE | port_limits.SEGMENT_TABLE:
                    return port_limits.decode(found)
        if isinstance(found, finsy.P4DigestEntry):
            return here.decode(found) if found.digest_id == here.DIGEST else heat.decode(found)
        return replication.decode(found)


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


def _encode_foreign(entry: ForeignEntry) -> Any:
    """Enough of an entry to delete it: its table and match."""
    if entry.table == "clone_session":
        return finsy.P4CloneSessionEntry(_number(entry.match))
    if entry.table in sources.TABLES:
        return finsy.P4TableEntry(entry.table, match=sources.encode_match(entry.table, entry.match))
    if entry.table in port_limits.TABLES:
        return finsy.P4TableEntry(entry.table, match=port_limits.encode_match(entry.table, entry.match))
    fields = {
        admission.TABLE: "ingress_port",
        forwarding.TABLE: "dst",
        chunk_cache.TABLE: "key",
        replication.REPLICATE_TABLE: "members",
        replication.EGRESS_TABLE: "egress_port",
    }
    match = finsy.P4TableMatch({fields[entry.table]: _number(entry.match)})
    return finsy.P4TableEntry(entry.table, match=match)


def _number(match: object) -> int:
    if isinstance(match, bytes):
        return int.from_bytes(match, "big")
    if isinstance(match, int):
        return match
    raise TypeError(f"a match is bytes or int, not {match!r}")
