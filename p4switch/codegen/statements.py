"""IR statements as C statements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from p4switch.codegen.expressions import ExpressionRenderer, variable_name
from p4switch.codegen.layout import Layout, Place, bytes_of, is_wide, member, storage_bytes
from p4switch.codegen.packets import load_fields, load_leaves, pack_dynamic, split_at_varbit, store_leaves
from p4switch.ir import expr as ir
from p4switch.ir import stmt as s
from p4switch.ir import types as irt
from p4switch.ir.program import MatchKind, Program, Table, Variable

MAX_LOOP_TURNS = 1 << 20
"""A `for` loop is left after so many turns: a packet must not stop the switch."""


class StatementRenderer(ExpressionRenderer):
    """Renders the statements of one function after the other into `lines`."""

    def __init__(self, program: Program, layout: Layout) -> None:
        super().__init__(layout)
        self.program = program
        self.lines: list[str] = []
        self.depth = 1
        self.taken: set[str] = set()
        self.labels: dict[str, str] = {}
        self.used_labels: set[str] = set()
        self.block = ""
        self.tracks_writes = False
        self.temporaries = 0
        self._rules: dict[type, Callable[[Any], None]] = {
            s.Assign: self._assign,
            s.AssignSlice: self._assign_slice,
            s.SetValidity: self._set_validity,
            s.SetNextIndex: self._set_next,
            s.ShiftStack: self._shift_stack,
            s.If: self._if,
            s.Switch: self._switch,
            s.Labelled: self._labelled,
            s.Leave: self._leave,
            s.Loop: self._loop,
            s.ApplyTable: self._apply,
            s.RegisterRead: self._register_read,
            s.RegisterWrite: self._register_write,
            s.CounterCount: self._count,
            s.DirectCounterCount: self._nothing,
            s.MeterExecute: self._meter,
            s.DirectMeterRead: self._direct_meter,
            s.Hash: self._hash,
            s.VerifyChecksum: self._verify,
            s.UpdateChecksum: self._update,
            s.ChecksumGet: self._checksum_get,
            s.Random: self._random,
            s.SendDigest: self._digest,
            s.Clone: self._clone,
            s.Resubmit: self._resubmit,
            s.Recirculate: self._recirculate,
            s.Truncate: self._truncate,
            s.MarkToDrop: self._drop,
            s.LogMessage: self._log,
            s.Assertion: self._assert,
            s.Extract: self._extract,
            s.Lookahead: self._lookahead,
            s.Advance: self._advance,
            s.ParserCheck: self._check,
            s.Emit: self._emit,
        }

    # ---------------------------------------------------------------- output

    def line(self, text: str) -> None:
        """One line at the current depth."""
        self.lines.append("    " * self.depth + text)

    def open(self, text: str) -> None:
        """A line that opens a brace."""
        self.line(text)
        self.depth += 1

    def close(self, text: str = "}") -> None:
        """Close a brace."""
        self.depth -= 1
        self.line(text)

    def temporary(self, hint: str) -> str:
        """A fresh C name inside the function."""
        self.temporaries += 1
        return f"{hint}{self.temporaries}"

    def declare(self, variables: tuple[Variable, ...]) -> None:
        """Declare a block's variables."""
        for v in variables:
            name = variable_name(v.name, self.taken)
            z, f = self.layout.z_type(v.type), self.layout.f_type(v.type)
            if z is not None:
                zero = (
                    "{0}"
                    if not isinstance(v.type, irt.Bits | irt.Bool | irt.EnumType | irt.HeaderType) or is_wide(v.type)
                    else "0"
                )
                self.line(f"{z} {name} = {zero};")
            if f is not None:
                self.line(f"{f} {name}_f;")
            self.roots[v.name] = Place(name, f"{name}_f")

    def body(self, statements: s.Body) -> None:
        """Render statements in order."""
        for statement in statements:
            self._rules[type(statement)](statement)

    def label(self, name: str) -> str:
        """C label of an IR label."""
        if name not in self.labels:
            self.labels[name] = variable_name("L_" + name, self.taken)
        return self.labels[name]

    # ---------------------------------------------------------------- assignment

    def _note_write(self, target: ir.LValue) -> None:
        """Tell the runtime that egress changed a header."""
        if not self.tracks_writes:
            return
        root: Any = target
        while isinstance(root, ir.Member | ir.Element):
            root = root.base
        if root.name == self.program.headers.name:
            self.line("ctx->headers_written = 1;")

    def _assign(self, st: s.Assign) -> None:
        self.assign_text(st.target, st.value)
        self._note_write(st.target)

    def assign_text(self, target: ir.LValue, value: ir.Expr) -> None:
        """target = value, aggregates part by part."""
        place = self.place(target)
        t = target.type
        if isinstance(t, irt.Bits | irt.Bool | irt.EnumType | irt.Varbits):
            self.line(f"{place.z} = {self.expr(value)};")
            return
        assert isinstance(value, ir.VarRef | ir.Member | ir.Element)
        source = self.place(value)
        if _is_standard(target) or _is_standard(value):
            self._copy_standard(target, value)
            return
        if self.layout.z_type(t) is not None:
            self.line(f"{place.z} = {source.z};")
        if self.layout.f_type(t) is not None:
            self.line(f"{place.f} = {source.f};")

    def _copy_standard(self, target: ir.LValue, value: ir.LValue) -> None:
        """Between the runtime's standard metadata and a copy of the struct."""
        t = target.type
        assert isinstance(t, irt.StructType)
        for f in t.fields:
            left = self.place(ir.Member(target, f.name, f.type)).z
            self.line(f"{left} = {self.place(ir.Member(value, f.name, f.type)).z};")

    def _assign_slice(self, st: s.AssignSlice) -> None:
        place = self.place(st.target).z
        bits = irt.width_of(st.target.type)
        width = st.high - st.low + 1
        value = self.expr(st.value)
        if bits > 128:
            size, source = bytes_of(bits), irt.width_of(st.value.type)
            wide = self.convert(value, source, max(source, 129))
            name = self.temporary("part")
            part = bytes_of(max(source, 129))
            self.line(f"{{ {self.layout.wide(part)} {name} = {wide};")
            self.line(f"  ps_wide_insert({place}.b, {size}, {name}.b, {part}, {st.low}, {width}); }}")
        elif bits > 64:
            wide = self.convert(value, irt.width_of(st.value.type), bits)
            hole = f"(PS_ONES128({width}) << {st.low})"
            self.line(f"{place} = ({place} & ~{hole}) | ({wide} << {st.low});")
        else:
            keep = ((1 << bits) - 1) & ~(((1 << width) - 1) << st.low)
            self.line(f"{place} = ((uint64_t){place} & {keep:#x}ull) | ({value} << {st.low});")
        self._note_write(st.target)

    def _set_validity(self, st: s.SetValidity) -> None:
        place = self.place(st.header)
        if st.valid:
            if self.layout.f_type(st.header.type) is None:
                self.line(f"{place.z} = 1;")
            else:
                self.line(f"if (!{place.z}) {{ memset(&{place.f}, 0, sizeof {place.f}); {place.z} = 1; }}")
        else:
            self.line(f"{place.z} = 0;")
        self._note_write(st.header)

    def _set_next(self, st: s.SetNextIndex) -> None:
        self.line(f"{self.place(st.stack).z}.next = {self.expr(st.value)};")

    def _shift_stack(self, st: s.ShiftStack) -> None:
        place = self.place(st.stack)
        t = st.stack.type
        assert isinstance(t, irt.StackType)
        has_f = self.layout.f_type(t.element) is not None
        n, keep = abs(st.count), t.size - abs(st.count)
        for part, present in ((place.z, True), (place.f, has_f)):
            if not present:
                continue
            if st.count > 0:
                self.line(f"memmove(&{part}.e[{n}], &{part}.e[0], {keep} * sizeof {part}.e[0]);")
            else:
                self.line(f"memmove(&{part}.e[0], &{part}.e[{n}], {keep} * sizeof {part}.e[0]);")
        first = 0 if st.count > 0 else keep
        self.line(f"memset(&{place.z}.e[{first}], 0, {n} * sizeof {place.z}.e[0]);")
        if st.count > 0:
            self.line(f"{place.z}.next = {place.z}.next + {n} > {t.size} ? {t.size} : {place.z}.next + {n};")
        else:
            self.line(f"{place.z}.next = {place.z}.next > {n} ? {place.z}.next - {n} : 0;")
        self._note_write(st.stack)

    # ---------------------------------------------------------------- control flow

    def _if(self, st: s.If) -> None:
        if not st.then and not st.otherwise:
            return
        condition = self.expr(st.condition)
        if not condition.startswith("("):
            condition = f"({condition})"
        self.open(f"if {condition} {{")
        self.body(st.then)
        if st.otherwise:
            self.depth -= 1
            self.open("} else {")
            self.body(st.otherwise)
        self.close()

    def _switch(self, st: s.Switch) -> None:
        if irt.width_of(st.selector.type) > 64:
            self._wide_switch(st)
            return
        self.open(f"switch ({self.expr(st.selector)}) {{")
        for case in st.cases:
            for value in case.values:
                self.line(f"case {self.constant(value, irt.Bits(64))}:")
            self.depth += 1
            self.line("{")
            self.body(case.body)
            self.line("} break;")
            self.depth -= 1
        self.open("default: {")
        self.body(st.default)
        self.close("} break;")
        self.close()

    def _wide_switch(self, st: s.Switch) -> None:
        keyword = "if"
        for case in st.cases:
            tests = [
                self.expr(ir.Binary(ir.BinaryOp.EQ, st.selector, ir.Const(v, st.selector.type), irt.Bool()))
                for v in case.values
            ]
            self.open(f"{keyword} ({' || '.join(tests)}) {{")
            self.body(case.body)
            self.depth -= 1
            keyword = "} else if"
        self.open("} else {" if st.cases else "{")
        self.body(st.default)
        self.close()

    def _labelled(self, st: s.Labelled) -> None:
        label = self.label(st.label)
        self.body(st.body)
        if label in self.used_labels:
            self.line(f"{label}:;")

    def _leave(self, st: s.Leave) -> None:
        label = self.label(st.label)
        self.used_labels.add(label)
        self.line(f"goto {label};")

    def _loop(self, st: s.Loop) -> None:
        label = self.label(st.label)
        turns = self.temporary("turns")
        self.open(f"for (uint32_t {turns} = 0; {turns} < {MAX_LOOP_TURNS}u; {turns}++) {{")
        self.body(st.body)
        self.close()
        if label in self.used_labels:
            self.line(f"{label}:;")

    def _nothing(self, st: object) -> None:
        """A statement without effect of its own."""

    # ---------------------------------------------------------------- tables

    def pack_key(self, name: str, key_bytes: int, parts: list[tuple[str, irt.Type]]) -> None:
        """Fill a key buffer: each field big-endian in whole bytes."""
        self.line(f"_Alignas(8) uint8_t {name}[{max(8, key_bytes)}] = {{0}};")
        offset = 0
        for text, t in parts:
            bits, size = irt.width_of(t), bytes_of(irt.width_of(t))
            at = f"{name} + {offset}" if offset else name
            if bits > 128:
                self.line(f"memcpy({at}, {text}.b, {size});")
            elif bits > 64:
                self.line(f"ps_store128({at}, {text}, {size});")
            elif bits:
                self.line(f"ps_store_be({at}, {text}, {size});")
            offset += size

    def _apply(self, st: s.ApplyTable) -> None:
        table = self.program.tables[st.table]
        self.open(f"{{ /* table {table.name} */")
        self.line(f"const struct ps_table *table = &ctx->tables[{st.table}];")
        count = len(table.keys)
        key_bytes = table_key_bytes([k.type for k in table.keys])
        self.pack_key("key", key_bytes, [(self.expr(e), e.type) for e in st.keys[:count]])
        exact = count > 0 and all(k.match is MatchKind.EXACT for k in table.keys)
        call = f"ps_lookup_exact(table, key, {key_bytes})" if exact else "ps_lookup(table, key)"
        self.line(f"struct ps_entry *entry = {call};")
        self._entry_effects(table)
        self._chosen_action(table, st.keys[count:])
        if st.hit is not None:
            self.line(f"{self.roots[st.hit].z} = (uint8_t)ps_hit(table, entry);")
        self._trace_lookup(table, key_bytes)
        self.open("switch (action->index) {")
        for position, arm in enumerate(st.arms):
            self.open(f"case {arm.action}: {{ /* {self.program.actions[arm.action].name} */")
            if st.action_run is not None:
                self.line(f"{self.roots[st.action_run].z} = {position};")
            self._parameters(arm)
            self.body(arm.body)
            self.close("} break;")
        self.open("default:")
        if st.action_run is not None:
            self.line(f"{self.roots[st.action_run].z} = UINT32_MAX;")
        self.line("break;")
        self.depth -= 1
        self.close()
        self.close()

    def _trace_lookup(self, table: Table, key_bytes: int) -> None:
        known = f'action->index < {len(self.program.actions)} ? action_names[action->index] : "none"'
        self.line("if (PS_UNLIKELY(ctx->trace_enabled))")
        self.line(f"    ps_trace_table(ctx, {c_string(table.name)}, key, {key_bytes}, ps_hit(table, entry), {known});")

    def _entry_effects(self, table: Table) -> None:
        if table.direct_counter is not None:
            self.line("ps_count_entry(ctx, entry);")
        if table.support_timeout:
            self.line("ps_touch_entry(ctx, entry);")
        if table.direct_meter is not None:
            self.line(f"{color_name(table.direct_meter)} = ps_meter_entry(ctx, entry);")

    def _chosen_action(self, table: Table, selectors: tuple[ir.Expr, ...]) -> None:
        profile = None if table.implementation is None else self.program.action_profiles[table.implementation]
        if profile is None or profile.selector_algorithm is None:
            self.line("const struct ps_action *action = ps_entry_action(entry);")
            return
        self.line("uint32_t selection = 0;")
        parts = [(self.expr(e), e.type) for e in selectors]
        self.open("{")
        value = self._hash_value(profile.selector_algorithm, tuple(selectors))
        self.line(f"selection = (uint32_t){value};")
        self.close()
        del parts
        self.line("const struct ps_action *action = ps_select_action(table, entry, selection);")

    def _parameters(self, arm: s.ActionArm) -> None:
        action = self.program.actions[arm.action]
        for (offset, size), p, variable in zip(
            packed_offsets([p.type for p in action.parameters]), action.parameters, arm.parameters, strict=False
        ):
            target = self.roots[variable].z
            self.line(f"memcpy(&{target}, action->params + {offset}, {size});")
            del p

    # ---------------------------------------------------------------- registers, counters, meters

    def index(self, e: ir.Expr) -> str:
        """An index as uint64_t, too large ones saturated."""
        return self.saturating64(e)

    def _register_read(self, st: s.RegisterRead) -> None:
        size = storage_bytes(self.program.registers[st.register].element)
        cell = self.temporary("cell")
        target = self.place(st.target).z
        register = f"&ctx->registers[{st.register}]"
        self.line(f"{{ const uint8_t *{cell} = ps_register_cell({register}, {self.index(st.index)}, {size});")
        self.line(
            f"  if (PS_LIKELY({cell} != NULL)) memcpy(&{target}, {cell}, {size}); else memset(&{target}, 0, {size}); }}"
        )
        self._note_write(st.target)

    def _register_write(self, st: s.RegisterWrite) -> None:
        element = self.program.registers[st.register].element
        size = storage_bytes(element)
        cell = self.temporary("cell")
        value = self.expr(st.value)
        self.open(
            f"{{ uint8_t *{cell} = ps_register_cell(&ctx->registers[{st.register}], {self.index(st.index)}, {size});"
        )
        if isinstance(st.value, ir.VarRef | ir.Member | ir.Element):
            self.line(f"if (PS_LIKELY({cell} != NULL)) memcpy({cell}, &{self.place(st.value).z}, {size});")
        else:
            self.line(f"{self.layout.scalar(element)} value = {value};")
            self.line(f"if (PS_LIKELY({cell} != NULL)) memcpy({cell}, &value, {size});")
        self.close()

    def _count(self, st: s.CounterCount) -> None:
        self.line(f"ps_count(ctx, &ctx->counters[{self.array_index('counters', st.counter)}], {self.index(st.index)});")

    def array_index(self, kind: str, index: int) -> int:
        """Position among the indirect counters or meters, which is what the descriptor lists."""
        objects = self.program.counters if kind == "counters" else self.program.meters
        return sum(1 for o in objects[:index] if not o.direct)

    def _meter(self, st: s.MeterExecute) -> None:
        color = self.temporary("color")
        target = self.place(st.target).z
        meter = f"&ctx->meters[{self.array_index('meters', st.meter)}]"
        self.line(f"{{ uint32_t {color} = 0; ps_meter(ctx, {meter}, {self.index(st.index)}, &{color});")
        self.line(f"  {target} = {self.convert(f'(uint64_t){color}', 32, irt.width_of(st.target.type))}; }}")
        self._note_write(st.target)

    def _direct_meter(self, st: s.DirectMeterRead) -> None:
        color = f"(uint64_t){color_name(st.meter)}"
        self.line(f"{self.place(st.target).z} = {self.convert(color, 32, irt.width_of(st.target.type))};")
        self._note_write(st.target)

    def _random(self, st: s.Random) -> None:
        bits = irt.width_of(st.target.type)
        value = f"ps_random(ctx, {self.low64(st.low)}, {self.low64(st.high)})"
        self.line(f"{self.place(st.target).z} = {self.mask(self.convert(value, 64, bits), bits)};")
        self._note_write(st.target)

    # ---------------------------------------------------------------- hashes

    def _fields_buffer(self, fields: tuple[ir.Expr, ...], payload: bool) -> None:
        """Declares `buffer` and `length`: the fields as one bit string padded to bytes, then the payload if asked."""
        fixed = sum(irt.width_of(f.type) for f in fields)
        varbits = [f for f in fields if isinstance(f.type, irt.Varbits)]
        room = str(bytes_of(fixed))
        for v in varbits:
            room += f" + {self.expr(v)}.bits / 8 + 1"
        if payload:
            room += " + (ctx->packet_bytes - ctx->consumed)"
        if varbits or payload:
            self.line(f"uint32_t room = {room};")
            self.line("uint8_t buffer[room + 8];")
        else:
            self.line(f"uint8_t buffer[{bytes_of(fixed)} + 8];")
        if varbits:
            self.line("memset(buffer, 0, room);")
            self.line("uint64_t at = 0;")
            for text in pack_dynamic([(self.expr(f), f.type) for f in fields], lambda x: x):
                self.line(text)
            self.line("uint32_t length = (uint32_t)((at + 7) / 8);")
        else:
            for text in store_leaves([(self.expr(f), f.type) for f in fields], "buffer"):
                self.line(text)
            self.line(f"uint32_t length = {(fixed + 7) // 8};")
        if payload:
            self.line("memcpy(buffer + length, ctx->packet + ctx->consumed, ctx->packet_bytes - ctx->consumed);")
            self.line("length += ctx->packet_bytes - ctx->consumed;")

    def _hash_value(self, algorithm: s.HashAlgorithm, fields: tuple[ir.Expr, ...], payload: bool = False) -> str:
        """Render the buffer; gives the C call that hashes it."""
        if algorithm is s.HashAlgorithm.RANDOM:
            return "ps_random64(ctx)"
        self._fields_buffer(fields, payload)
        if algorithm is s.HashAlgorithm.IDENTITY:
            return "ps_identity(buffer, length)"
        return f"ctx->api->{algorithm.value}(buffer, length)"

    def _hash(self, st: s.Hash) -> None:
        self.open("{")
        value = self._hash_value(st.algorithm, st.fields)
        bits = irt.width_of(st.target.type)
        self.line(f"uint64_t hashed = {value};")
        if isinstance(st.max, ir.Const):
            limit = st.max.value
            if limit == 0:
                self.line("hashed = 0;")
            elif limit & (limit - 1) == 0:
                self.line(f"hashed &= {limit - 1:#x}ull;")
            else:
                self.line(f"hashed %= {limit:#x}ull;")
        else:
            self.line(f"uint64_t limit = {self.low64(st.max)};")
            self.line("hashed = limit ? hashed % limit : 0;")
        self.line(f"hashed += {self.low64(st.base)};")
        self.line(f"{self.place(st.target).z} = {self.mask(self.convert('hashed', 64, bits), bits)};")
        self.close()
        self._note_write(st.target)

    def _verify(self, st: s.VerifyChecksum) -> None:
        self.open(f"if ({self.expr(st.condition)}) {{")
        value = self._hash_value(st.algorithm, st.fields, st.with_payload)
        bits = irt.width_of(st.expected.type)
        found = self.mask(f"(uint64_t){value}", min(bits, 64))
        self.line(f"if ({found} != {self.low64(st.expected)}) p->standard_metadata.checksum_error = 1;")
        self.close()

    def _update(self, st: s.UpdateChecksum) -> None:
        self.open(f"if ({self.expr(st.condition)}) {{")
        value = self._hash_value(st.algorithm, st.fields, st.with_payload)
        bits = irt.width_of(st.target.type)
        self.line(f"{self.place(st.target).z} = {self.mask(self.convert(f'(uint64_t){value}', 64, bits), bits)};")
        self.close()

    def _checksum_get(self, st: s.ChecksumGet) -> None:
        self.open("{")
        value = self._hash_value(s.HashAlgorithm.CSUM16, st.fields)
        self.line(f"{self.place(st.target).z} = {value};")
        self.close()

    # ---------------------------------------------------------------- requests to the runtime

    def _digest(self, st: s.SendDigest) -> None:
        digest = self.program.digests[st.digest]
        types = [f.type for f in digest.fields]
        offsets = packed_offsets(types)
        total = packed_bytes(types)
        self.open("{")
        self.line(f"_Alignas(16) uint8_t packed[{max(1, total)}] = {{0}};")
        for (offset, size), value in zip(offsets, st.values, strict=True):
            name = self.temporary("value")
            self.line(f"{{ {self.layout.scalar(value.type)} {name} = {self.expr(value)};")
            self.line(f"  memcpy(packed + {offset}, &{name}, {size}); }}")
        self.line(f"ps_digest(ctx, {st.digest}, packed);")
        self.close()

    def _clone(self, st: s.Clone) -> None:
        self.line(f"ps_clone(ctx, (uint32_t){self.low64(st.session)}, {_list(st.field_list)});")

    def _resubmit(self, st: s.Resubmit) -> None:
        self.line(f"ps_resubmit(ctx, {_list(st.field_list)});")

    def _recirculate(self, st: s.Recirculate) -> None:
        self.line(f"ps_recirculate(ctx, {_list(st.field_list)});")

    def _truncate(self, st: s.Truncate) -> None:
        self.line(f"ps_truncate(ctx, (uint32_t){self.low64(st.length)});")

    def _drop(self, st: s.MarkToDrop) -> None:
        if _is_standard(st.metadata):
            self.line("ps_mark_to_drop(&p->standard_metadata);")
            return
        place = self.place(st.metadata).z
        self.line(f"{place}.{member('egress_spec')} = PS_PORT_DROP; {place}.{member('mcast_grp')} = 0;")

    def _log(self, st: s.LogMessage) -> None:
        parts = st.text.split("{}")
        shown = st.values[: len(parts) - 1]
        form = ""
        for i, part in enumerate(parts):
            form += part.replace("%", "%%")
            if i < len(parts) - 1:
                form += "%llu" if i < len(shown) else "{}"
        arguments = "".join(f", (unsigned long long)({self.low64(v)})" for v in shown)
        self.open("if (PS_UNLIKELY(ctx->log_enabled)) {")
        self.line(f"char text[{len(st.text.encode()) + 24 * len(parts)}];")
        self.line(f"int length = snprintf(text, sizeof text, {c_string(form)}{arguments});")
        self.line("ctx->api->log(ctx, PS_LOG_MSG, text, length < (int)sizeof text ? (size_t)length : sizeof text - 1);")
        self.close()

    def _assert(self, st: s.Assertion) -> None:
        text = f"assertion failed at {st.location.file}:{st.location.line}: {st.text}"
        self.open(f"if (PS_UNLIKELY(!({self.expr(st.condition)}))) {{")
        self.line(f"if (ctx->log_enabled) ctx->api->log(ctx, PS_LOG_MSG, {c_string(text)}, {len(text.encode())});")
        self.line("ps_mark_to_drop(&p->standard_metadata);")
        self.line("goto finished;")
        self.close()

    # ---------------------------------------------------------------- parsing

    def parser_error(self, name: str) -> str:
        """C statement that stops the parser with one of core.p4's errors."""
        return f"{{ error = {name}; goto rejected; }}"

    def _extract(self, st: s.Extract) -> None:
        t = st.header.type
        assert isinstance(t, irt.HeaderType)
        place = self.place(st.header)
        fixed = t.width_bits() // 8
        self.open("{")
        if st.varbit_bits is None:
            self.line(
                f"if (PS_UNLIKELY(ctx->packet_bytes - at < {fixed})) {self.parser_error('PS_ERROR_PACKET_TOO_SHORT')}"
            )
            self.line("const uint8_t *from = ctx->packet + at;")
            for text in load_fields(place.f, t, "from"):
                self.line(text)
            self.line(f"at += {fixed};")
        else:
            self._extract_varbit(t, place, fixed, st.varbit_bits)
        self.line(f"{place.z} = 1;")
        self.close()

    def _extract_varbit(self, t: irt.HeaderType, place: Place, fixed: int, bits: ir.Expr) -> None:
        before, varbit, after = split_at_varbit(t)
        assert varbit is not None
        path, kind = varbit
        self.line(f"uint64_t varbits = {self.saturating64(bits)};")
        self.line(f"if (PS_UNLIKELY(varbits % 8)) {self.parser_error('PS_ERROR_PARSER_INVALID_ARGUMENT')}")
        short = self.parser_error("PS_ERROR_PACKET_TOO_SHORT")
        self.line(f"if (PS_UNLIKELY(ctx->packet_bytes - at < {fixed} + varbits / 8)) {short}")
        self.line(f"if (PS_UNLIKELY(varbits > {kind.max_width})) {self.parser_error('PS_ERROR_HEADER_TOO_SHORT')}")
        self.line("const uint8_t *from = ctx->packet + at;")
        for text in load_leaves(place.f, before, "from"):
            self.line(text)
        start = sum(irt.width_of(leaf) for _, leaf in before) // 8
        self.line(f"from += {start};")
        self.line(f"memcpy({place.f}{path}.b, from, varbits / 8);")
        self.line(f"{place.f}{path}.bits = (uint32_t)varbits;")
        self.line("from += varbits / 8;")
        for text in load_leaves(place.f, after, "from"):
            self.line(text)
        self.line(f"at += {fixed} + (uint32_t)(varbits / 8);")

    def _lookahead(self, st: s.Lookahead) -> None:
        t = st.target.type
        place = self.place(st.target)
        bits = irt.width_of(t)
        self.open("{")
        short = self.parser_error("PS_ERROR_PACKET_TOO_SHORT")
        self.line(f"if (PS_UNLIKELY((uint64_t)(ctx->packet_bytes - at) * 8 < {bits})) {short}")
        self.line("const uint8_t *from = ctx->packet + at;")
        for text in load_fields(place.f if isinstance(t, irt.HeaderType) else place.z, t, "from"):
            self.line(text)
        if isinstance(t, irt.HeaderType):
            self.line(f"{place.z} = 1;")
        self.close()

    def _advance(self, st: s.Advance) -> None:
        name = self.temporary("bits")
        self.line(f"{{ uint64_t {name} = {self.saturating64(st.bits)};")
        self.line(f"  if (PS_UNLIKELY({name} % 8)) {self.parser_error('PS_ERROR_PARSER_INVALID_ARGUMENT')}")
        self.line(
            f"  if (PS_UNLIKELY(ctx->packet_bytes - at < {name} / 8)) {self.parser_error('PS_ERROR_PACKET_TOO_SHORT')}"
        )
        self.line(f"  at += (uint32_t)({name} / 8); }}")

    def _check(self, st: s.ParserCheck) -> None:
        error = self.expr(st.error)
        self.line(f"if (PS_UNLIKELY(!({self.expr(st.condition)}))) {{ error = (uint32_t){error}; goto rejected; }}")

    # ---------------------------------------------------------------- deparsing

    def _emit(self, st: s.Emit) -> None:
        t = st.header.type
        assert isinstance(t, irt.HeaderType)
        place = self.place(st.header)
        before, varbit, after = split_at_varbit(t)
        self.open(f"if ({place.z}) {{")
        for text in store_leaves([(place.f + path, leaf) for path, leaf in before], "out"):
            self.line(text)
        size = sum(irt.width_of(leaf) for _, leaf in before) // 8
        if size:
            self.line(f"out += {size};")
        if varbit is not None:
            field = place.f + varbit[0]
            self.line(f"memcpy(out, {field}.b, {field}.bits / 8);")
            self.line(f"out += {field}.bits / 8;")
            for text in store_leaves([(place.f + path, leaf) for path, leaf in after], "out"):
                self.line(text)
            self.line(f"out += {sum(irt.width_of(leaf) for _, leaf in after) // 8};")
        self.close()


def color_name(meter: int) -> str:
    """C variable with the colour of a direct meter in the current function."""
    return f"meter_color_{meter}"


def table_key_bytes(types: list[Any]) -> int:
    """Bytes of a packed key: each field in whole bytes, the whole a multiple of 8."""
    total = sum(bytes_of(irt.width_of(t)) for t in types)
    return (total + 7) // 8 * 8


def packed_offsets(types: list[Any]) -> list[tuple[int, int]]:
    """Offset and size of natively packed values, naturally aligned up to 8."""
    out: list[tuple[int, int]] = []
    offset = 0
    for t in types:
        size = storage_bytes(t)
        align = min(size, 8) if irt.width_of(t) <= 128 else 1
        offset = (offset + align - 1) // align * align
        out.append((offset, size))
        offset += size
    return out


def packed_bytes(types: list[Any]) -> int:
    """Bytes of a natively packed block."""
    offsets = packed_offsets(types)
    return offsets[-1][0] + offsets[-1][1] if offsets else 0


def c_string(text: str) -> str:
    """A C string literal."""
    out = ""
    for byte in text.encode():
        char = chr(byte)
        out += f"\\{byte:03o}" if byte < 32 or byte > 126 or char in '"\\?' else char
    return f'"{out}"'


def _list(index: int | None) -> int:
    return -1 if index is None else index


def _is_standard(e: ir.Expr) -> bool:
    return isinstance(e, ir.VarRef) and e.name == "standard_metadata"
