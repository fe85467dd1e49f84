"""P4Info as the server looks things up in it: frozen, indexed by id, bound to a compiled program's indexes.

Building a Schema checks the P4Info a client sent (duplicate ids, dangling references, objects that the program
does not have) so that nothing later has to. Refusals are StatusError INVALID_ARGUMENT naming the object.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from p4switch.proto import p4info_pb2 as p4i
from p4switch.server.limits import TABLE_SIZE_DEFAULT
from p4switch.server.p4data import Shape, shape_of
from p4switch.server.sdn_strings import SdnStrings
from p4switch.server.status import invalid


class Match(enum.Enum):
    """Match kinds of a key field."""

    EXACT = p4i.MatchField.EXACT
    LPM = p4i.MatchField.LPM
    TERNARY = p4i.MatchField.TERNARY
    RANGE = p4i.MatchField.RANGE
    OPTIONAL = p4i.MatchField.OPTIONAL


PRIORITY_KINDS = frozenset({Match.TERNARY, Match.RANGE, Match.OPTIONAL})


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """A key field of a table or value set. `width`: bits that a value may have; `strings`: clients see strings."""

    id: int
    name: str
    width: int
    match: Match
    strings: SdnStrings | None = None


@dataclass(frozen=True, slots=True)
class ParamSpec:
    """An action parameter or a field of a controller header. `width`: bits that a value may have; `native_width`:
    bits that it takes on the switch; `strings`: clients see strings."""

    id: int
    name: str
    width: int
    native_width: int
    strings: SdnStrings | None = None


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """An action: `index` is its place in the compiled program."""

    id: int
    name: str
    index: int
    params: tuple[ParamSpec, ...]


class Scope(enum.Enum):
    """Where a table may use an action."""

    BOTH = p4i.ActionRef.TABLE_AND_DEFAULT
    TABLE = p4i.ActionRef.TABLE_ONLY
    DEFAULT = p4i.ActionRef.DEFAULT_ONLY


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table; `profile`, `counter` and `meter` are P4Info ids or 0."""

    id: int
    name: str
    index: int
    size: int
    fields: tuple[FieldSpec, ...]
    actions: Mapping[int, Scope]
    const_default: bool
    const_entries: bool
    profile: int
    counter: int
    meter: int
    ages: bool

    @property
    def needs_priority(self) -> bool:
        """Whether entries carry a priority."""
        return any(f.match in PRIORITY_KINDS for f in self.fields)


@dataclass(frozen=True, slots=True)
class ProfileSpec:
    """An action profile, or (selector) an action selector."""

    id: int
    name: str
    index: int
    size: int
    selector: bool
    max_group_size: int
    weighted_by_members: bool
    max_member_weight: int
    weights_disallowed: bool
    tables: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """An indexed counter or meter, or (direct) that of a table."""

    id: int
    name: str
    index: int
    size: int


@dataclass(frozen=True, slots=True)
class MeterSpec:
    """An indexed or direct meter. `single_rate`, `two_colors`: what MeterConfig may say."""

    id: int
    name: str
    index: int
    size: int
    single_rate: bool
    two_colors: bool


@dataclass(frozen=True, slots=True)
class RegisterSpec:
    """A register array; `shape` says how a cell looks in P4Data."""

    id: int
    name: str
    index: int
    size: int
    shape: Shape


@dataclass(frozen=True, slots=True)
class DigestSpec:
    """A kind of digest."""

    id: int
    name: str
    index: int
    shape: Shape


@dataclass(frozen=True, slots=True)
class ValueSetSpec:
    """A parser value set."""

    id: int
    name: str
    index: int
    size: int
    fields: tuple[FieldSpec, ...]


@dataclass(frozen=True, slots=True)
class ProgramIndex:
    """Where a compiled program keeps what P4Info names: control-plane name -> index, for each kind.

    The widths, by name, are those in bits of key fields (selector fields left out), of parameters, and of the fields
    of controller headers.
    """

    tables: Mapping[str, int] = field(default_factory=dict)
    actions: Mapping[str, int] = field(default_factory=dict)
    action_profiles: Mapping[str, int] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    meters: Mapping[str, int] = field(default_factory=dict)
    registers: Mapping[str, int] = field(default_factory=dict)
    digests: Mapping[str, int] = field(default_factory=dict)
    value_sets: Mapping[str, int] = field(default_factory=dict)
    table_widths: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    action_widths: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    header_widths: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Schema:
    """Everything that P4Runtime messages refer to by id."""

    tables: Mapping[int, TableSpec]
    actions: Mapping[int, ActionSpec]
    profiles: Mapping[int, ProfileSpec]
    counters: Mapping[int, ArraySpec]
    direct_counters: Mapping[int, int]
    meters: Mapping[int, MeterSpec]
    direct_meters: Mapping[int, MeterSpec]
    registers: Mapping[int, RegisterSpec]
    digests: Mapping[int, DigestSpec]
    value_sets: Mapping[int, ValueSetSpec]
    packet_in: tuple[ParamSpec, ...] | None
    packet_out: tuple[ParamSpec, ...] | None
    action_by_index: Mapping[int, ActionSpec]
    digest_by_index: Mapping[int, DigestSpec]
    table_by_index: Mapping[int, TableSpec]

    @staticmethod
    def build(p4info: p4i.P4Info, program: ProgramIndex) -> Schema:
        """Index a P4Info that speaks about `program`. Raises StatusError INVALID_ARGUMENT."""
        return _Builder(p4info, program).build()


class _Object(Protocol):
    @property
    def preamble(self) -> p4i.Preamble: ...


_T = TypeVar("_T", bound=_Object)


class _Builder:
    def __init__(self, p4info: p4i.P4Info, program: ProgramIndex) -> None:
        self._p4info = p4info
        self._program = program
        self._seen: dict[int, str] = {}
        self._strings: dict[str, SdnStrings] = {}

    def build(self) -> Schema:
        info, program = self._p4info, self._program
        types = info.type_info
        actions = {
            o.preamble.id: ActionSpec(o.preamble.id, o.preamble.name, index, self._params(o))
            for o, index in self._located("action", info.actions, program.actions)
        }
        profiles = {
            o.preamble.id: _profile(o, i)
            for o, i in self._located("action profile", info.action_profiles, program.action_profiles)
        }
        tables = {
            o.preamble.id: self._table(o, i, actions) for o, i in self._located("table", info.tables, program.tables)
        }
        counters = {
            o.preamble.id: ArraySpec(o.preamble.id, o.preamble.name, i, o.size)
            for o, i in self._located("counter", info.counters, program.counters)
        }
        direct_counters = {
            o.preamble.id: o.direct_table_id
            for o, _ in self._located("direct counter", info.direct_counters, program.counters)
        }
        meters = {o.preamble.id: _meter(o, i, o.size) for o, i in self._located("meter", info.meters, program.meters)}
        direct_meters = {
            o.preamble.id: _meter(o, i, 0) for o, i in self._located("direct meter", info.direct_meters, program.meters)
        }
        registers = {
            o.preamble.id: RegisterSpec(
                o.preamble.id, o.preamble.name, i, o.size, shape_of(o.type_spec, types, o.preamble.name)
            )
            for o, i in self._located("register", info.registers, program.registers)
        }
        digests = {
            o.preamble.id: DigestSpec(o.preamble.id, o.preamble.name, i, shape_of(o.type_spec, types, o.preamble.name))
            for o, i in self._located("digest", info.digests, program.digests)
        }
        value_sets = {
            o.preamble.id: ValueSetSpec(
                o.preamble.id, o.preamble.name, i, o.size, self._fields(o.match, o.preamble.name)
            )
            for o, i in self._located("value set", info.value_sets, program.value_sets)
        }
        for table in tables.values():
            if table.profile and table.profile not in profiles:
                raise invalid(
                    f"P4Info: table {table.name} refers to action profile {table.profile:#010x}, which does not exist"
                )
        return Schema(
            tables=tables,
            actions=actions,
            profiles=profiles,
            counters=counters,
            direct_counters=direct_counters,
            meters=meters,
            direct_meters=direct_meters,
            registers=registers,
            digests=digests,
            value_sets=value_sets,
            packet_in=self._header("packet_in"),
            packet_out=self._header("packet_out"),
            action_by_index={a.index: a for a in actions.values()},
            digest_by_index={d.index: d for d in digests.values()},
            table_by_index={t.index: t for t in tables.values()},
        )

    def _located(self, kind: str, objects: Iterable[_T], indexes: Mapping[str, int]) -> list[tuple[_T, int]]:
        """Each object with its index in the program; checks ids and names."""
        located = []
        for item in objects:
            id_, name = item.preamble.id, item.preamble.name
            if id_ == 0:
                raise invalid(f"P4Info: {kind} {name} has no id")
            if id_ in self._seen:
                raise invalid(f"P4Info: id {id_:#010x} belongs to both {self._seen[id_]} and {name}")
            if name not in indexes:
                raise invalid(f"P4Info: the program has no {kind} {name}")
            self._seen[id_] = name
            located.append((item, indexes[name]))
        return located

    def _params(self, action: p4i.Action) -> tuple[ParamSpec, ...]:
        name = action.preamble.name
        native = self._native_widths(f"action {name}", len(action.params), self._program.action_widths.get(name))
        return tuple(
            self._param(p.id, p.name, p.bitwidth, p.type_name.name, n, name)
            for p, n in zip(action.params, native, strict=True)
        )

    def _param(self, id_: int, name: str, bitwidth: int, type_name: str, native: int | None, owner: str) -> ParamSpec:
        width, strings = self._width(bitwidth, type_name, native, f"{owner}.{name}")
        return ParamSpec(id_, name, width, native or width, strings)

    def _table(self, table: p4i.Table, index: int, actions: Mapping[int, ActionSpec]) -> TableSpec:
        name = table.preamble.name
        for ref in table.action_refs:
            if ref.id not in actions:
                raise invalid(f"P4Info: table {name} refers to action {ref.id:#010x}, which does not exist")
        native = self._native_widths(f"table {name}", len(table.match_fields), self._program.table_widths.get(name))
        fields = self._fields(table.match_fields, name, native)
        info = self._p4info
        resources = set(table.direct_resource_ids)
        return TableSpec(
            id=table.preamble.id,
            name=name,
            index=index,
            size=table.size or TABLE_SIZE_DEFAULT,
            fields=fields,
            actions={ref.id: Scope(ref.scope) for ref in table.action_refs},
            const_default=table.const_default_action_id != 0,
            const_entries=table.is_const_table,
            profile=table.implementation_id,
            counter=next((c.preamble.id for c in info.direct_counters if c.preamble.id in resources), 0),
            meter=next((m.preamble.id for m in info.direct_meters if m.preamble.id in resources), 0),
            ages=table.idle_timeout_behavior == p4i.Table.NOTIFY_CONTROL,
        )

    def _fields(
        self,
        fields: Sequence[p4i.MatchField],
        owner: str,
        native: Sequence[int | None] | None = None,
    ) -> tuple[FieldSpec, ...]:
        specs = []
        for f, n in zip(fields, native or [None] * len(fields), strict=True):
            if f.WhichOneof("match") == "other_match_type":
                raise invalid(f"P4Info: {owner}.{f.name}: match kind {f.other_match_type!r} is not supported")
            if f.match_type == p4i.MatchField.UNSPECIFIED:
                raise invalid(f"P4Info: {owner}.{f.name} has no match kind")
            width, strings = self._width(f.bitwidth, f.type_name.name, n, f"{owner}.{f.name}")
            match = Match(f.match_type)
            if strings is not None and match not in (Match.EXACT, Match.OPTIONAL):
                raise invalid(f"P4Info: {owner}.{f.name}: strings cannot be matched by {match.name.lower()}")
            specs.append(FieldSpec(f.id, f.name, width, match, strings))
        return tuple(specs)

    def _header(self, name: str) -> tuple[ParamSpec, ...] | None:
        for header in self._p4info.controller_packet_metadata:
            if header.preamble.name == name:
                given = self._program.header_widths.get(name)
                native = self._native_widths(f"header {name}", len(header.metadata), given)
                return tuple(
                    self._param(m.id, m.name, m.bitwidth, m.type_name.name, n, name)
                    for m, n in zip(header.metadata, native, strict=True)
                )
        return None

    def _native_widths(self, what: str, count: int, native: Sequence[int] | None) -> Sequence[int | None]:
        """Widths that the program has, None each when it does not say."""
        if native is None:
            return [None] * count
        if len(native) != count:
            raise invalid(f"P4Info: {what} has {count} fields, the program {len(native)}")
        return native

    def _width(self, bitwidth: int, type_name: str, native: int | None, what: str) -> tuple[int, SdnStrings | None]:
        """Bits that a value may have, both for clients and on the switch, and how it is translated, if to strings.

        A translated type's SDN width may differ from the native one, any other type's must not.
        """
        new_types = self._p4info.type_info.new_types
        translated = None
        if type_name in new_types and new_types[type_name].WhichOneof("representation") == "translated_type":
            translated = new_types[type_name].translated_type
            if translated.WhichOneof("sdn_type") == "sdn_string":
                if native is None:
                    raise invalid(f"P4Info: {what} is a string, and the program has no number for it")
                return native, self._strings.setdefault(type_name, SdnStrings(type_name, native))
            bitwidth = translated.sdn_bitwidth
        if bitwidth <= 0:
            raise invalid(f"P4Info: {what} has no bit width")
        if translated is None and native is not None and bitwidth != native:
            raise invalid(f"P4Info: {what} has {bitwidth} bits, the program {native}")
        return (bitwidth if native is None else min(bitwidth, native)), None


def _profile(profile: p4i.ActionProfile, index: int) -> ProfileSpec:
    by_members = profile.WhichOneof("selector_size_semantics") == "sum_of_members"
    return ProfileSpec(
        id=profile.preamble.id,
        name=profile.preamble.name,
        index=index,
        size=profile.size,
        selector=profile.with_selector,
        max_group_size=profile.max_group_size,
        weighted_by_members=by_members,
        max_member_weight=profile.sum_of_members.max_member_weight if by_members else 0,
        weights_disallowed=profile.weights_disallowed,
        tables=tuple(profile.table_ids),
    )


def _meter(meter: p4i.Meter | p4i.DirectMeter, index: int, size: int) -> MeterSpec:
    kind = meter.spec.type
    single = kind in (p4i.MeterSpec.SINGLE_RATE_THREE_COLOR, p4i.MeterSpec.SINGLE_RATE_TWO_COLOR)
    return MeterSpec(
        meter.preamble.id, meter.preamble.name, index, size, single, kind == p4i.MeterSpec.SINGLE_RATE_TWO_COLOR
    )
