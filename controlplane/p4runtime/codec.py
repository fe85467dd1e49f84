"""Entries as P4Runtime entities and back, for v1model programs; codecs of other architectures override what differs
(`tofino`).

How entries lie in the tables of the P4 programs, said once for both directions.

What was found is an entry of ours if encoding that entry gives what was found; anything else is foreign, to be deleted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, TypeAlias

import finsy

from controlplane.core.ids import KEY_BYTES, Member
from controlplane.core.switch.entries import (
    SALT_BYTES,
    AddressEntry,
    CloneSessionEntry,
    EgressMemberEntry,
    Entry,
    FabricEntry,
    FillingEntry,
    ForeignEntry,
    GroupEntry,
    PortMemberEntry,
    ReplicateToGroupEntry,
    ReplicateToPortEntry,
    Report,
    Request,
    RequestLimitEntry,
    SaltEntry,
    SegmentLimitEntry,
    ServingEntry,
    SourceEntry,
    StationEntry,
    SubscriptionEntry,
    TakenAddressEntry,
)
from controlplane.core.switch.target import Operation, SwitchCounters, SwitchFacts, Update
from controlplane.p4runtime import drops, replication_engine, reports
from kvproto.limits import SEGMENT_BLOCK_BYTES

_WORD_BYTES: Final = 4
_NO_METER: Final = finsy.P4MeterConfig(cir=0, cburst=0, pir=0, pburst=0)
"""In a query: read the meters, too."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number of P4, and the attribute of an entry that it stands for. `of_p4` raises ValueError for what none can
    be."""

    attribute: str
    to_p4: Callable[[Any], int] = int
    of_p4: Callable[[int], Any] = int
    size_bytes: int = 0
    """Of an attribute that is bytes."""


def octets(attribute: str, size_bytes: int) -> Number:
    """Bytes, the first one highest."""
    return Number(
        attribute,
        lambda value: int.from_bytes(value, "big"),
        lambda number: number.to_bytes(size_bytes, "big"),
        size_bytes,
    )


def _member_of_bit(bit: int) -> Member:
    return Member(bit.bit_length() - 1)


def _member_of_leader(leader: int) -> Member:
    if not leader:
        raise ValueError("0 leads nothing")
    return Member(leader - 1)


_BIT: Final = Number("member", lambda member: 1 << member, _member_of_bit)
_BASE_AND_SIZE: Final = {"base_slot": Number("base_slot"), "segments": Number("segments")}


@dataclass(frozen=True, slots=True)
class Action:
    """What a table does for entries of one type."""

    name: str
    entry: type[Entry]
    parameters: Mapping[str, Number] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Table:
    """A P4 table. One without keys has a default action only."""

    name: str
    keys: Mapping[str, Number]
    actions: tuple[Action, ...]
    absent: str = ""
    """The default action without an entry, of a table without keys."""
    is_metered: bool = False
    """Each entry has a meter of one rate: beyond it everything is red."""

    @property
    def query(self) -> finsy.P4TableEntry:
        """Reads all entries."""
        meter = _NO_METER if self.is_metered else None
        return finsy.P4TableEntry(self.name, is_default_action=not self.keys, meter_config=meter)

    def encode(self, entry: Entry, action: Action) -> finsy.P4TableEntry:
        """The entry as a P4Runtime entity."""
        meter = _meter(entry) if isinstance(entry, RequestLimitEntry | SegmentLimitEntry) else None
        return finsy.P4TableEntry(
            self.name,
            match=finsy.P4TableMatch(_numbers(self.keys, entry)) if self.keys else None,
            action=finsy.P4TableAction(action.name, **_parameters(action, entry)),
            is_default_action=not self.keys,
            meter_config=meter,
        )

    def encode_absent(self) -> finsy.P4TableEntry:
        """The default action of a switch that has just started."""
        return finsy.P4TableEntry(self.name, action=finsy.P4TableAction(self.absent), is_default_action=True)

    def encode_foreign(self, entry: ForeignEntry) -> finsy.P4TableEntry:
        """Enough of an entry to delete it: its table and match."""
        found = entry.match if isinstance(entry.match, tuple) else (entry.match,)
        numbers = [int.from_bytes(one, "big") if isinstance(one, bytes) else one for one in found]
        match = finsy.P4TableMatch(dict(zip(self.keys, numbers, strict=True)))
        return finsy.P4TableEntry(self.name, match=match)

    def decode(self, found: finsy.P4TableEntry) -> Entry | None:
        """Turn what was read into an entry; None: the default action of a switch that has just started."""
        action = found.action
        for ours in self.actions:
            if isinstance(action, finsy.P4TableAction) and action.name == ours.name:
                try:
                    entry = self._entry(ours, found, action.args)
                except ValueError:
                    continue
                if self._is(entry, ours, found, action.args):
                    return entry
        if not self.keys:
            return None
        match = [_seen(one, int(found[name])) for name, one in self.keys.items()]
        return ForeignEntry(self.name, match[0] if len(match) == 1 else tuple(match))

    def _entry(self, action: Action, found: finsy.P4TableEntry, args: Mapping[str, Any]) -> Entry:
        """Raises ValueError for numbers that no entry has."""
        if action.entry is SaltEntry:
            words = [int(args[name]) for name in sorted(args)]
            return SaltEntry(b"".join(word.to_bytes(_WORD_BYTES, "big") for word in words))
        values = {one.attribute: one.of_p4(int(found[name])) for name, one in self.keys.items()}
        values |= {one.attribute: one.of_p4(int(args[name])) for name, one in action.parameters.items()}
        if self.is_metered:
            meter = found.meter_config or _NO_METER
            values |= {"per_s": meter.cir, "burst": meter.cburst}
        return action.entry(**values)

    def _is(self, entry: Entry, action: Action, found: finsy.P4TableEntry, args: Mapping[str, Any]) -> bool:
        meters = not isinstance(entry, RequestLimitEntry | SegmentLimitEntry) or found.meter_config == _meter(entry)
        return meters and dict(args) == _parameters(action, entry)


TABLES: Final = (
    Table(
        "fabric",
        {},
        (
            Action(
                "set_fabric",
                FabricEntry,
                {
                    "group_mac": octets("group_mac", 6),
                    "group_ip": octets("group_ip", 4),
                    "pool_mac": octets("pool_mac", 6),
                    "pool_ip": octets("pool_ip", 4),
                    "from_switch_dscp": Number("from_switch_dscp"),
                    "interest_ttl_us": Number("interest_ttl_us"),
                    "heat_window_us": Number("heat_window_us"),
                    "heat_gets": Number("heat_gets"),
                },
            ),
        ),
        absent="plain",
    ),
    Table("salt", {}, (Action("set_salt", SaltEntry),), absent="unsalted"),
    Table(
        "port_member",
        {"ingress_port": Number("port")},
        (Action("set_member", PortMemberEntry, {"member": Number("member"), "member_bit": _BIT}),),
    ),
    Table("dmac", {"dst": octets("mac", 6)}, (Action("forward", AddressEntry, {"port": Number("port")}),)),
    Table(
        "kv_cache",
        {"key": octets("key", KEY_BYTES)},
        (
            Action("filling", FillingEntry, {**_BASE_AND_SIZE, "port": Number("port")}),
            Action("serving", ServingEntry, _BASE_AND_SIZE),
        ),
    ),
    Table(
        "replicate",
        {"members": Number("members")},
        (
            Action("to_group", ReplicateToGroupEntry, {"group": Number("group")}),
            Action("to_port", ReplicateToPortEntry, {"port": Number("port")}),
        ),
    ),
    Table(
        "egress_member",
        {"egress_port": Number("port")},
        (Action("set_receiver", EgressMemberEntry, {"member_bit": _BIT}),),
    ),
    Table("station", {"src": octets("mac", 6)}, (Action("stands_at", StationEntry, {"port": Number("port")}),)),
    Table(
        "source",
        {"ingress_port": Number("port"), "mac": octets("mac", 6), "ip": octets("ip", 4)},
        (Action("known", SourceEntry),),
    ),
    Table("address", {"ip": octets("ip", 4)}, (Action("taken", TakenAddressEntry),)),
    Table(
        "request_limit",
        {"ingress_port": Number("port"), "op": Number("request", lambda request: request.value, Request)},
        (Action("limit_requests", RequestLimitEntry),),
        is_metered=True,
    ),
    Table(
        "segment_limit",
        {"leader": Number("member", lambda member: member + 1, _member_of_leader)},
        (Action("limit_segments", SegmentLimitEntry),),
        is_metered=True,
    ),
)
BY_NAME: Final = {table.name: table for table in TABLES}
OF_ENTRY: Final = {action.entry: (table, action) for table in TABLES for action in table.actions}


def _numbers(named: Mapping[str, Number], entry: Entry) -> dict[str, int]:
    return {name: one.to_p4(getattr(entry, one.attribute)) for name, one in named.items()}


def _parameters(action: Action, entry: Entry) -> dict[str, int]:
    if isinstance(entry, SaltEntry):
        words = [entry.salt[at : at + _WORD_BYTES] for at in range(0, SALT_BYTES, _WORD_BYTES)]
        return {f"w{at}": int.from_bytes(word, "big") for at, word in enumerate(words)}
    return _numbers(action.parameters, entry)


def _meter(entry: RequestLimitEntry | SegmentLimitEntry) -> finsy.P4MeterConfig:
    return finsy.P4MeterConfig(cir=entry.per_s, cburst=entry.burst, pir=entry.per_s, pburst=entry.burst)


def _seen(one: Number, number: int) -> object:
    """A key of a foreign entry, as the identity of ours has it."""
    return number.to_bytes(one.size_bytes, "big") if one.size_bytes else number


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
