"""The program's descriptor: what the runtime must know of tables, actions, registers and the rest."""

from __future__ import annotations

from typing import Any

from p4switch.codegen.c_unit import CUnit
from p4switch.codegen.layout import bytes_of, storage_bytes
from p4switch.codegen.packing import packed_bytes, packed_offsets, table_key_bytes
from p4switch.ir import types as irt
from p4switch.ir.program import CounterKind, MatchKind, Table, TableKey
from p4switch.values import ActionCall

_MATCH = {
    MatchKind.EXACT: "PS_EXACT",
    MatchKind.LPM: "PS_LPM",
    MatchKind.TERNARY: "PS_TERNARY",
    MatchKind.RANGE: "PS_RANGE",
    MatchKind.OPTIONAL: "PS_OPTIONAL",
}
_UNITS = {CounterKind.BYTES: "PS_UNIT_BYTES", CounterKind.PACKETS: "PS_UNIT_PACKETS", CounterKind.BOTH: "PS_UNIT_BOTH"}
CORE_ERRORS = 7


class Descriptors:
    """Renders static tables of C structs."""

    def __init__(self, unit: CUnit, present: frozenset[str], max_header_bytes: int, flags: list[str]) -> None:
        self.text = unit.text
        self.program = unit.program
        self.present = present
        self.max_header_bytes = max_header_bytes
        self.flags = flags
        self.lines: list[str] = []

    def render(self) -> list[str]:
        """All lines, the exported function last."""
        self._actions()
        self._tables()
        self._simple()
        self._digests()
        self._errors()
        self._program()
        return self.lines

    def _array(self, kind: str, name: str, items: list[str]) -> str:
        """A static array; its name, or NULL when it would be empty."""
        if not items:
            return "NULL"
        self.lines.append(f"static const {kind} {name}[] = {{")
        self.lines += [f"    {item}," for item in items]
        self.lines.append("};")
        return name

    # ---------------------------------------------------------------- packed values

    def _packed_field(self, name: str, number: int, t: Any, offset: int) -> str:
        bits = irt.width_of(t)
        order = "PS_NATIVE" if bits <= 128 else "PS_BIG"
        return f"{{{self.text(name)}, {number}, {bits}, {offset}, 0, {order}, {{0, 0}}}}"

    def _pack(self, values: tuple[int, ...], types: list[Any]) -> bytes:
        out = bytearray(packed_bytes(types))
        for value, t, (offset, size) in zip(values, types, packed_offsets(types), strict=True):
            native = irt.width_of(t) <= 128
            out[offset : offset + size] = value.to_bytes(size, "little" if native else "big")
        return bytes(out)

    def _bytes(self, name: str, content: bytes) -> str:
        if not content:
            return "NULL"
        self.lines.append(f"static const uint8_t {name}[] = {{{', '.join(str(b) for b in content)}}};")
        return name

    # ---------------------------------------------------------------- actions and tables

    def _actions(self) -> None:
        items: list[str] = []
        for a in self.program.actions:
            types = [p.type for p in a.parameters]
            offsets = packed_offsets(types)
            fields = [self._packed_field(p.name, i + 1, p.type, offsets[i][0]) for i, p in enumerate(a.parameters)]
            params = self._array("struct ps_field_desc", f"action_{a.index}_params", fields)
            items.append(f"{{{self.text(a.name)}, 0, {len(fields)}, {packed_bytes(types)}, {params}}}")
        self.actions = self._array("struct ps_action_desc", "actions", items)

    def _key_fields(self, keys: tuple[TableKey, ...], name: str) -> str:
        offset = 0
        items: list[str] = []
        for i, k in enumerate(keys):
            bits = irt.width_of(k.type)
            items.append(f"{{{self.text(k.name)}, {i + 1}, {bits}, {offset}, {_MATCH[k.match]}, PS_BIG, {{0, 0}}}}")
            offset += bytes_of(bits)
        return self._array("struct ps_field_desc", name, items)

    def _call(self, call: ActionCall, name: str) -> str:
        types = [p.type for p in self.program.actions[call.action].parameters]
        values = call.arguments + (0,) * (len(types) - len(call.arguments))
        return self._bytes(name, self._pack(values, types))

    def _tables(self) -> None:
        items = [self._table(t) for t in self.program.tables]
        for v in self.program.value_sets:
            keys = self._key_fields(v.keys, f"value_set_{v.index}_keys")
            key_bytes = table_key_bytes([k.type for k in v.keys])
            items.append(
                f"{{{self.text(v.name)}, 0, PS_TABLE_VALUE_SET, {v.size}, {len(v.keys)}, {key_bytes}, {keys}, "
                "0, PS_NO_ACTION, NULL, NULL, PS_NO_PROFILE, 0, NULL}"
            )
        self.tables = self._array("struct ps_table_desc", "tables", items)

    def _table_flags(self, t: Table) -> str:
        flags: list[str] = []
        if t.direct_counter is not None:
            kind = self.program.counters[t.direct_counter].kind
            if kind is not CounterKind.BYTES:
                flags.append("PS_TABLE_COUNTS_PACKETS")
            if kind is not CounterKind.PACKETS:
                flags.append("PS_TABLE_COUNTS_BYTES")
        if t.direct_meter is not None:
            packets = self.program.meters[t.direct_meter].kind is CounterKind.PACKETS
            flags += ["PS_TABLE_METERS", *(["PS_TABLE_METERS_PACKETS"] if packets else [])]
        if t.support_timeout:
            flags.append("PS_TABLE_AGES")
        if t.const_entries:
            flags.append("PS_TABLE_CONST_ENTRIES")
        if t.const_default:
            flags.append("PS_TABLE_CONST_DEFAULT")
        return " | ".join(flags) or "0"

    def _table(self, t: Table) -> str:
        name = f"table_{t.index}"
        keys = self._key_fields(t.keys, f"{name}_keys")
        actions = self._array("uint32_t", f"{name}_actions", [str(a.action) for a in t.actions])
        default = self._call(t.default_action, f"{name}_default")
        entries = self._entries(t, name)
        key_bytes = table_key_bytes([k.type for k in t.keys])
        profile = "PS_NO_PROFILE" if t.implementation is None else str(t.implementation)
        return (
            f"{{{self.text(t.name)}, 0, {self._table_flags(t)}, {t.size}, {len(t.keys)}, {key_bytes}, {keys}, "
            f"{len(t.actions)}, {t.default_action.action}, {actions}, {default}, {profile}, "
            f"{len(t.entries)}, {entries}}}"
        )

    def _entries(self, t: Table, name: str) -> str:
        exact = all(k.match is MatchKind.EXACT for k in t.keys)
        key_bytes = table_key_bytes([k.type for k in t.keys])
        items: list[str] = []
        for i, entry in enumerate(t.entries):
            key = mask = b""
            for match, k in zip(entry.keys, t.keys, strict=True):
                size = bytes_of(irt.width_of(k.type))
                key += match.value.to_bytes(size, "big")
                mask += match.mask.to_bytes(size, "big")
            key_name = self._bytes(f"{name}_entry_{i}_key", key.ljust(key_bytes, b"\0"))
            mask_name = "NULL" if exact else self._bytes(f"{name}_entry_{i}_mask", mask.ljust(key_bytes, b"\0"))
            params = self._call(entry.call, f"{name}_entry_{i}_params")
            items.append(f"{{{key_name}, {mask_name}, {entry.priority}, {entry.call.action}, {params}}}")
        return self._array("struct ps_const_entry", f"{name}_entries", items)

    # ---------------------------------------------------------------- the rest

    def _simple(self) -> None:
        program = self.program
        profiles: list[str] = []
        for a in program.action_profiles:
            members = sorted({x.action for i in a.tables for x in program.tables[i].actions})
            actions = self._array("uint32_t", f"profile_{a.index}_actions", [str(m) for m in members])
            selector = int(a.selector_algorithm is not None)
            profiles.append(f"{{{self.text(a.name)}, 0, {selector}, {a.size}, {len(members)}, {actions}}}")
        self.profiles = self._array("struct ps_profile_desc", "profiles", profiles)
        registers: list[str] = []
        for r in program.registers:
            bits = irt.width_of(r.element)
            size = storage_bytes(r.element)
            native = bits <= 128
            initial = b"" if r.initial == 0 else r.initial.to_bytes(size, "little" if native else "big")
            start = self._bytes(f"register_{r.index}_initial", initial)
            order = "PS_NATIVE" if native else "PS_BIG"
            registers.append(f"{{{self.text(r.name)}, 0, {bits}, {r.size}u, {size}, {order}, {start}}}")
        self.registers = self._array("struct ps_register_desc", "registers", registers)
        counters = [
            f"{{{self.text(c.name)}, 0, {_UNITS[c.kind]}, {c.size}u}}" for c in program.counters if not c.direct
        ]
        self.counters = self._array("struct ps_counter_desc", "counters", counters)
        self.counter_count = len(counters)
        meters = [f"{{{self.text(m.name)}, 0, {_UNITS[m.kind]}, {m.size}u}}" for m in program.meters if not m.direct]
        self.meters = self._array("struct ps_meter_desc", "meters", meters)
        self.meter_count = len(meters)

    def _digests(self) -> None:
        items: list[str] = []
        for d in self.program.digests:
            types = [f.type for f in d.fields]
            offsets = packed_offsets(types)
            fields = [self._packed_field(f.name, i + 1, f.type, offsets[i][0]) for i, f in enumerate(d.fields)]
            name = self._array("struct ps_field_desc", f"digest_{d.index}_fields", fields)
            items.append(f"{{{self.text(d.name)}, 0, {len(fields)}, {name}, {packed_bytes(types)}, 0}}")
        self.digests = self._array("struct ps_digest_desc", "digests", items)

    def _errors(self) -> None:
        own = self.program.errors.members[CORE_ERRORS:]
        self.errors = "NULL"
        if own:
            names = ", ".join(self.text(e) for e in own)
            self.lines.append(f"static const char *const errors[] = {{{names}, NULL}};")
            self.errors = "errors"

    def _program(self) -> None:
        p = self.program

        def function(name: str) -> str:
            return name if name in self.present else "NULL"

        tna = p.architecture == "tna"
        state = "struct ingress_state" if tna else "struct state"
        self.lines += [
            "static const struct ps_program program = {",
            "    .abi_version = PS_ABI_VERSION,",
            "    .descriptor_bytes = sizeof(struct ps_program),",
            f"    .name = {self.text(p.source.rsplit('/', 1)[-1])},",
            f"    .flags = {' | '.join(self.flags) or '0'},",
            f"    .architecture = {'PS_TNA' if tna else 'PS_V1MODEL'},",
            f"    .phv_bytes = (sizeof({state}) + 63) / 64 * 64,",
            f"    .metadata_bytes = offsetof({state}, metadata_end),",
            f"    .zero_bytes = offsetof({state}, zero_end),",
            f"    .max_header_bytes = {self.max_header_bytes},",
            "    .scratch_bytes = 0,",
            f"    .parse = {'ingress_parse' if tna else 'parse'},",
            f"    .verify_checksum = {function('verify_checksum')},",
            "    .ingress = ingress,",
            f"    .egress = {function('egress')},",
            f"    .compute_checksum = {function('compute_checksum')},",
            f"    .deparse = {'ingress_deparse' if tna else 'deparse'},",
            f"    .copy_field_list = {'copy_field_list' if p.field_lists else 'NULL'},",
            "    .copy_phv = copy_phv,",
            *self._second_thread(tna),
            f"    .action_count = {len(p.actions)},",
            f"    .table_count = {len(p.tables) + len(p.value_sets)},",
            f"    .profile_count = {len(p.action_profiles)},",
            f"    .register_count = {len(p.registers)},",
            f"    .counter_count = {self.counter_count},",
            f"    .meter_count = {self.meter_count},",
            f"    .digest_count = {len(p.digests)},",
            f"    .actions = {self.actions},",
            f"    .tables = {self.tables},",
            f"    .profiles = {self.profiles},",
            f"    .registers = {self.registers},",
            f"    .counters = {self.counters},",
            f"    .meters = {self.meters},",
            f"    .digests = {self.digests},",
            f"    .errors = {self.errors},",
            "};",
            "",
            '__attribute__((visibility("default")))',
            "const struct ps_program *p4switch_program(void) { return &program; }",
        ]

    def _second_thread(self, tna: bool) -> list[str]:
        if not tna:
            return []
        return [
            "    .egress_phv_bytes = (sizeof(struct egress_state) + 63) / 64 * 64,",
            "    .egress_zero_bytes = offsetof(struct egress_state, zero_end),",
            "    .egress_parse = egress_parse,",
            "    .egress_deparse = egress_deparse,",
        ]
