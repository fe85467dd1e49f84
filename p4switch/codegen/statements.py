"""C for tables, the parser and the deparser; the table of all statements."""

from __future__ import annotations

from p4switch.codegen.externs import ExternRenderer, color_name
from p4switch.codegen.layout import Layout, Place, bytes_of
from p4switch.codegen.packets import load_fields, load_leaves, split_at_varbit, store_leaves
from p4switch.codegen.packing import packed_offsets, table_key_bytes
from p4switch.ir import expr as ir
from p4switch.ir import stmt as s
from p4switch.ir import types as irt
from p4switch.ir.program import MatchKind, Program, Table


class StatementRenderer(ExternRenderer):
    """Renders every statement of the IR."""

    def __init__(self, program: Program, layout: Layout) -> None:
        super().__init__(program, layout)
        self.rules = {
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
            s.RegisterAccess: self._register_access,
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
            s.MirrorPacket: self._mirror,
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
        self.line("if (PS_UNLIKELY(ctx->trace_enabled))")
        self.line("    ps_trace_table(ctx, table, key, ps_hit(table, entry), actions, action);")
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
        self.open("{")
        value = self.hash_value(profile.selector_algorithm, tuple(selectors))
        self.line(f"selection = (uint32_t){value};")
        self.close()
        self.line("const struct ps_action *action = ps_select_action(table, entry, selection);")

    def _parameters(self, arm: s.ActionArm) -> None:
        action = self.program.actions[arm.action]
        offsets = packed_offsets([p.type for p in action.parameters])
        for (offset, size), variable in zip(offsets, arm.parameters, strict=True):
            target = self.roots[variable].z
            self.line(f"memcpy(&{target}, action->params + {offset}, {size});")

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
