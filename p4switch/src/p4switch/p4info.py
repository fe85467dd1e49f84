"""P4Info of a compiled program: what P4Runtime clients know of it.

Ids, names, aliases, widths and types are those that p4c gives the same program, so that P4Info files and
controllers built with either fit both. Pure: a Program in, a message out.

Sources: P4Runtime specification, "The P4Info Message"; p4c's observable output (`--p4runtime-files`).
"""

from __future__ import annotations

from collections import Counter as Multiset
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from google.protobuf import json_format, text_format

from p4switch.errors import SwitchError
from p4switch.ir import program as ir
from p4switch.ir.types import Annotation, EnumType, width_of
from p4switch.ir.usage import usage
from p4switch.p4info_types import TypeInfo, annotate, field_name, flat_fields
from p4switch.proto import p4info_pb2 as p4i
from p4switch.proto import p4types_pb2 as p4t

TABLE_SIZE_DEFAULT = 1024
"""What P4Info says of a table without a size."""

_PROFILE_ANNOTATIONS = frozenset({"max_group_size", "selector_size_semantics", "max_member_weight"})

_MATCH = {
    ir.MatchKind.EXACT: p4i.MatchField.EXACT,
    ir.MatchKind.LPM: p4i.MatchField.LPM,
    ir.MatchKind.TERNARY: p4i.MatchField.TERNARY,
    ir.MatchKind.RANGE: p4i.MatchField.RANGE,
    ir.MatchKind.OPTIONAL: p4i.MatchField.OPTIONAL,
}


class _Annotated(Protocol):
    @property
    def annotations(self) -> tuple[Annotation, ...]: ...


def p4info_of(program: ir.Program) -> p4i.P4Info:
    """The P4Info message of a program."""
    return _Generator(program).generate()


def write_p4info(p4info: p4i.P4Info, path: Path) -> None:
    """Write to a file, in the format that its name ends in: .txtpb, .bin or .json. Raises SwitchError."""
    try:
        path.write_bytes(render_p4info(p4info, path.suffix))
    except OSError as error:
        raise SwitchError(f"cannot write {path}: {error.strerror}") from error


def render_p4info(p4info: p4i.P4Info, suffix: str) -> bytes:
    """The message as text (.txtpb, .txt), binary (.bin, .binpb) or JSON. Raises SwitchError for other suffixes."""
    if suffix in (".txtpb", ".txt"):
        head = "# proto-file: p4/config/v1/p4info.proto\n# proto-message: p4.config.v1.P4Info\n\n"
        return (head + text_format.MessageToString(p4info)).encode()
    if suffix in (".bin", ".binpb"):
        return p4info.SerializeToString(deterministic=True)
    if suffix == ".json":
        return (json_format.MessageToJson(p4info, indent=1) + "\n").encode()
    raise SwitchError(f"P4Info cannot be written as {suffix or 'a file without suffix'}: use .txtpb, .bin or .json")


def jenkins_one_at_a_time(name: bytes) -> int:
    """Bob Jenkins's one-at-a-time hash, 32 bits."""
    value = 0
    for byte in name:
        value = (value + byte) & 0xFFFFFFFF
        value = (value + (value << 10)) & 0xFFFFFFFF
        value ^= value >> 6
    value = (value + (value << 3)) & 0xFFFFFFFF
    value ^= value >> 11
    return (value + (value << 15)) & 0xFFFFFFFF


def allocate_ids(prefix: int, names: Mapping[str, int | None]) -> dict[str, int]:
    """Ids of all objects of a kind: name -> @id or None. Hash collisions take the next free number, in name order."""
    ids = {name: prefix << 24 | given for name, given in names.items() if given is not None}
    taken = set(ids.values())
    for name in sorted(name for name, given in names.items() if given is None):
        suffix = jenkins_one_at_a_time(name.encode())
        while (candidate := prefix << 24 | (suffix & 0xFFFFFF)) in taken:
            suffix += 1
        ids[name] = candidate
        taken.add(candidate)
    return ids


def shortest_unique_suffixes(names: Iterable[str]) -> dict[str, str]:
    """For each dotted name the shortest run of last components that no other name ends in."""
    distinct = set(names)
    uses: Multiset[str] = Multiset()
    for name in distinct:
        uses.update(_suffixes(name))
    return {name: next((s for s in _suffixes(name) if uses[s] == 1), name) for name in distinct}


def _suffixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[i:]) for i in range(len(parts) - 1, -1, -1)]


def allocate_field_ids(annotated: Sequence[Sequence[Annotation]]) -> list[int]:
    """Ids of fields within an object: @id where given, else positions counted around those taken."""
    given = [_id_annotation(a) for a in annotated]
    taken = {g for g in given if g is not None}
    ids, position = [], 1
    for wanted in given:
        if wanted is not None:
            ids.append(wanted)
            position += 1
            continue
        while position in taken:
            position += 1
        ids.append(position)
        taken.add(position)
    return ids


class _Generator:
    def __init__(self, program: ir.Program) -> None:
        self._program = program
        self._info = p4i.P4Info()
        self._types = TypeInfo(program, self._info.type_info)
        p = program
        self._used = used = usage(program)
        self._shown_tables = tuple(t for t in p.tables if t.index in used.tables)
        self._shown_actions = tuple(a for a in p.actions if a.index in used.actions)
        self._shown_registers = tuple(r for r in p.registers if r.index in used.registers)
        prefixes = p4i.P4Ids
        self._actions = _ids(prefixes.ACTION, self._shown_actions)
        self._tables = _ids(prefixes.TABLE, self._shown_tables)
        self._value_sets = _ids(prefixes.VALUE_SET, p.value_sets)
        self._headers = _ids(prefixes.CONTROLLER_HEADER, (_HeaderName(h) for h in p.controller_headers))
        self._profiles = _ids(prefixes.ACTION_PROFILE, p.action_profiles)
        self._counters = _ids(prefixes.COUNTER, (c for c in p.counters if not c.direct))
        self._direct_counters = _ids(prefixes.DIRECT_COUNTER, (c for c in p.counters if c.direct))
        self._meters = _ids(prefixes.METER, (m for m in p.meters if not m.direct))
        self._direct_meters = _ids(prefixes.DIRECT_METER, (m for m in p.meters if m.direct))
        self._registers = _ids(prefixes.REGISTER, self._shown_registers)
        self._digests = allocate_ids(prefixes.DIGEST, {d.name: None for d in p.digests})
        self._table_actions = {ref.action for table in self._shown_tables for ref in table.actions}
        self._aliases = shortest_unique_suffixes(
            name
            for ids in (
                self._actions,
                self._tables,
                self._value_sets,
                self._headers,
                self._profiles,
                self._counters,
                self._direct_counters,
                self._meters,
                self._direct_meters,
                self._registers,
                self._digests,
            )
            for name in ids
        )

    def generate(self) -> p4i.P4Info:
        program = self._program
        self._package()
        if self._has_type_info():
            self._info.type_info.SetInParent()
        for table in self._shown_tables:
            if not _hidden(table):
                self._table(table)
        for action in _in_source_order(self._shown_actions):
            if not _hidden(action):
                self._action(action)
        for profile in program.action_profiles:
            self._profile(profile)
        for counter in program.counters:
            self._counter(counter)
        for meter in program.meters:
            self._meter(meter)
        for register in self._shown_registers:
            self._register(register)
        for value_set in program.value_sets:
            self._value_set(value_set)
        for digest in program.digests:
            self._digest(digest)
        for header in program.controller_headers:
            if not _hidden(header):
                self._header(header)
        return self._info

    def _has_type_info(self) -> bool:
        """p4c writes type_info, if only an empty one, as soon as it looks at the types of anything."""
        p = self._program
        objects = (
            self._shown_tables,
            self._shown_registers,
            p.counters,
            p.meters,
            p.action_profiles,
            p.controller_headers,
        )
        return self._used.calls_externs or any(objects)

    # -- objects ---------------------------------------------------------------------------------

    def _package(self) -> None:
        package = self._info.pkg_info
        package.arch = self._program.architecture
        shown = []
        for annotation in self._program.package_annotations:
            if annotation.name == "pkginfo":
                for key, value in annotation.pairs:
                    if key in ("name", "version", "organization", "contact", "url", "arch"):
                        setattr(package, key, str(value))
            elif annotation.name == "platform_property":
                for key, value in annotation.pairs:
                    if key in package.platform_properties.DESCRIPTOR.fields_by_name:
                        setattr(package.platform_properties, key, int(value))
            else:
                shown.append(annotation)
        annotate(package, shown)
        _document(package.doc, self._program.package_annotations)

    def _table(self, table: ir.Table) -> None:
        message = self._info.tables.add(size=table.size or TABLE_SIZE_DEFAULT)
        self._preamble(message.preamble, self._tables[table.name], table)
        for key, id_ in zip(table.keys, allocate_field_ids([k.annotations for k in table.keys]), strict=True):
            self._match_field(message.match_fields.add(id=id_), key)
        for ref in table.actions:
            action_ref = message.action_refs.add(id=self._actions[self._program.actions[ref.action].name])
            annotate(action_ref, ref.annotations)
            if ref.table_only:
                action_ref.scope = p4i.ActionRef.TABLE_ONLY
            elif ref.default_only:
                action_ref.scope = p4i.ActionRef.DEFAULT_ONLY
        self._default_action(message, table)
        message.is_const_table = table.const_entries
        message.has_initial_entries = bool(table.entries)
        if table.implementation is not None:
            message.implementation_id = self._profiles[self._program.action_profiles[table.implementation].name]
        if table.direct_counter is not None:
            counter = self._program.counters[table.direct_counter]
            message.direct_resource_ids.append(self._direct_counters[counter.name])
        if table.direct_meter is not None:
            meter = self._program.meters[table.direct_meter]
            message.direct_resource_ids.append(self._direct_meters[meter.name])
        if table.support_timeout:
            message.idle_timeout_behavior = p4i.Table.NOTIFY_CONTROL

    def _default_action(self, message: p4i.Table, table: ir.Table) -> None:
        action = self._program.actions[table.default_action.action]
        action_id = self._actions[action.name]
        if table.const_default:
            message.const_default_action_id = action_id
        initial = message.initial_default_action
        initial.action_id = action_id
        param_ids = allocate_field_ids([p.annotations for p in action.parameters])
        for param, id_, value in zip(action.parameters, param_ids, table.default_action.arguments, strict=True):
            octets = max(1, (width_of(param.type) + 7) // 8)
            initial.arguments.add(param_id=id_, value=value.to_bytes(octets, "big"))

    def _action(self, action: ir.Action) -> None:
        message = self._info.actions.add()
        self._preamble(message.preamble, self._actions[action.name], action)
        if action.index not in self._table_actions:
            return  # called by the program alone, which gives the arguments, too
        ids = allocate_field_ids([p.annotations for p in action.parameters])
        for param, id_ in zip(action.parameters, ids, strict=True):
            field = message.params.add(id=id_, name=param.name)
            annotate(field, param.annotations)
            _document(field.doc, param.annotations)
            if isinstance(param.type, EnumType):
                field.type_name.name = param.type.name
            else:
                field.bitwidth = self._types.width(param.type, param.declared)
                self._name_type(field.type_name, param.declared)
            self._types.spec(param.type, param.declared)

    def _profile(self, profile: ir.ActionProfile) -> None:
        message = self._info.action_profiles.add(
            size=profile.size, with_selector=profile.selector_algorithm is not None
        )
        self._preamble(message.preamble, self._profiles[profile.name], profile, hide=_PROFILE_ANNOTATIONS)
        message.table_ids.extend(
            self._tables[name] for name in sorted(self._program.tables[t].name for t in profile.tables)
        )
        if profile.selector_algorithm is None:
            return
        values = {a.name: a.body[0] for a in profile.annotations if a.name in _PROFILE_ANNOTATIONS and a.body}
        message.max_group_size = int(values.get("max_group_size", 0))
        semantics = str(values.get("selector_size_semantics", "")).lower()
        if semantics == "sum_of_weights":
            message.sum_of_weights.SetInParent()
        elif semantics == "sum_of_members":
            message.sum_of_members.max_member_weight = int(values.get("max_member_weight", 0))

    def _counter(self, counter: ir.Counter) -> None:
        unit = {
            ir.CounterKind.PACKETS: p4i.CounterSpec.PACKETS,
            ir.CounterKind.BYTES: p4i.CounterSpec.BYTES,
            ir.CounterKind.BOTH: p4i.CounterSpec.BOTH,
        }[counter.kind]
        if not counter.direct:
            message = self._info.counters.add(size=counter.size)
            message.spec.unit = unit
            self._name_type(message.index_type_name, counter.index_declared)
            self._preamble(message.preamble, self._counters[counter.name], counter)
        elif counter.table in self._used.tables:
            direct = self._info.direct_counters.add(
                direct_table_id=self._tables[self._program.tables[counter.table].name]
            )
            direct.spec.unit = unit
            self._preamble(direct.preamble, self._direct_counters[counter.name], counter)

    def _meter(self, meter: ir.Meter) -> None:
        unit = p4i.MeterSpec.PACKETS if meter.kind is ir.CounterKind.PACKETS else p4i.MeterSpec.BYTES
        if not meter.direct:
            message = self._info.meters.add(size=meter.size)
            message.spec.unit = unit
            self._name_type(message.index_type_name, meter.index_declared)
            self._preamble(message.preamble, self._meters[meter.name], meter)
        elif meter.table in self._used.tables:
            direct = self._info.direct_meters.add(direct_table_id=self._tables[self._program.tables[meter.table].name])
            direct.spec.unit = unit
            self._preamble(direct.preamble, self._direct_meters[meter.name], meter)

    def _register(self, register: ir.Register) -> None:
        message = self._info.registers.add(size=register.size)
        message.type_spec.CopyFrom(self._types.spec(register.struct or register.element, register.declared))
        self._name_type(message.index_type_name, register.index_declared)
        self._preamble(message.preamble, self._registers[register.name], register)

    def _value_set(self, value_set: ir.ValueSet) -> None:
        message = self._info.value_sets.add(size=value_set.size)
        self._preamble(message.preamble, self._value_sets[value_set.name], value_set)
        for key, id_ in zip(value_set.keys, allocate_field_ids([k.annotations for k in value_set.keys]), strict=True):
            field = message.match.add(id=id_, name=key.name, match_type=_MATCH[key.match])
            field.bitwidth = self._types.width(key.type, key.declared)
            annotate(field, [a for a in key.annotations if a.name != "match"])
            _document(field.doc, key.annotations)

    def _digest(self, digest: ir.Digest) -> None:
        message = self._info.digests.add()
        message.type_spec.CopyFrom(self._types.spec(digest.struct, None))
        self._preamble(message.preamble, self._digests[digest.name], digest)

    def _header(self, header: ir.ControllerHeader) -> None:
        message = self._info.controller_packet_metadata.add()
        message.preamble.id = self._headers[header.header.name]
        message.preamble.name = message.preamble.alias = header.name
        annotate(message.preamble, header.annotations)
        _document(message.preamble.doc, header.annotations)
        fields = flat_fields(header.header.fields)
        for f, id_ in zip(fields, allocate_field_ids([f.annotations for f in fields]), strict=True):
            if any(a.name == "hidden" for a in f.annotations):
                continue
            metadata = message.metadata.add(id=id_, name=field_name(f))
            metadata.bitwidth = self._types.width(f.type, f.declared)
            self._types.spec(f.type, f.declared)
            self._name_type(metadata.type_name, f.declared)
            annotate(metadata, f.annotations)

    # -- parts -----------------------------------------------------------------------------------

    def _preamble(self, preamble: p4i.Preamble, id_: int, item: _Named, hide: frozenset[str] = frozenset()) -> None:
        preamble.id = id_
        preamble.name = item.name
        preamble.alias = self._aliases[item.name]
        annotate(preamble, [a for a in item.annotations if a.name not in hide])
        _document(preamble.doc, item.annotations)

    def _match_field(self, field: p4i.MatchField, key: ir.TableKey) -> None:
        field.name = key.name
        field.match_type = _MATCH[key.match]
        field.bitwidth = self._types.width(key.type, key.declared)
        self._types.spec(key.type, key.declared)
        self._name_type(field.type_name, key.declared)
        annotate(field, key.annotations)
        _document(field.doc, key.annotations)

    def _name_type(self, named: p4t.P4NamedType, declared: str | None) -> None:
        """Set a type_name, which only types introduced by `type` have."""
        if declared is not None and self._types.is_new_type(declared):
            named.name = declared


class _Named(_Annotated, Protocol):
    @property
    def name(self) -> str: ...


class _HeaderName:
    """A controller header under the name of its type, which its id is made from."""

    def __init__(self, header: ir.ControllerHeader) -> None:
        self.name = header.header.name
        self.annotations = header.annotations


def _ids(prefix: int, items: Iterable[_Named]) -> dict[str, int]:
    given = {}
    for item in items:
        id_ = _id_annotation(item.annotations)
        given[item.name] = None if id_ is None else id_ & 0xFFFFFF
    return allocate_ids(prefix, given)


def _id_annotation(annotations: Iterable[Annotation]) -> int | None:
    for annotation in annotations:
        if annotation.name == "id" and annotation.body:
            return int(annotation.body[0])
    return None


def _in_source_order(actions: Sequence[ir.Action]) -> list[ir.Action]:
    """Control by control: what is declared outside of controls at its first use, then the control's own as declared."""
    controls = list(dict.fromkeys(a.control for a in actions))
    return sorted(
        actions,
        key=lambda a: (
            controls.index(a.control),
            not a.shared,
            (a.index, 0) if a.shared else (a.location.line, a.location.column),
        ),
    )


def _hidden(item: _Annotated) -> bool:
    return any(a.name == "hidden" for a in item.annotations)


def _document(doc: p4i.Documentation, annotations: Iterable[Annotation]) -> None:
    for annotation in annotations:
        if annotation.name in ("brief", "description") and annotation.body:
            setattr(doc, annotation.name, str(annotation.body[0]))
