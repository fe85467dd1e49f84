"""C for externs: registers, counters, meters, hashes, requests to the runtime."""

from __future__ import annotations

from p4switch.codegen.functions import FunctionRenderer
from p4switch.codegen.layout import bytes_of, member, storage_bytes
from p4switch.codegen.packets import pack_dynamic, store_leaves
from p4switch.codegen.packing import c_string, packed_bytes, packed_offsets
from p4switch.ir import expr as ir
from p4switch.ir import stmt as s
from p4switch.ir import types as irt


class ExternRenderer(FunctionRenderer):
    """Renders calls of externs."""

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
        self.note_write(st.target)

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

    def _register_access(self, st: s.RegisterAccess) -> None:
        self.line(f'if (PS_UNLIKELY(ctx->trace_enabled)) ps_trace(ctx, "register action %s", {c_string(st.action)});')
        self.body(st.body)

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
        self.note_write(st.target)

    def _direct_meter(self, st: s.DirectMeterRead) -> None:
        color = f"(uint64_t){color_name(st.meter)}"
        self.line(f"{self.place(st.target).z} = {self.convert(color, 32, irt.width_of(st.target.type))};")
        self.note_write(st.target)

    def _random(self, st: s.Random) -> None:
        bits = irt.width_of(st.target.type)
        value = f"ps_random(ctx, {self.low64(st.low)}, {self.low64(st.high)})"
        self.line(f"{self.place(st.target).z} = {self.mask(self.convert(value, 64, bits), bits)};")
        self.note_write(st.target)

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

    def hash_value(self, algorithm: s.HashAlgorithm, fields: tuple[ir.Expr, ...], payload: bool = False) -> str:
        """Render the buffer; gives the C call that hashes it."""
        if algorithm is s.HashAlgorithm.RANDOM:
            return "ps_random64(ctx)"
        self._fields_buffer(fields, payload)
        if algorithm is s.HashAlgorithm.IDENTITY:
            return "ps_identity(buffer, length)"
        return f"ctx->api->{algorithm.value}(buffer, length)"

    def _hash(self, st: s.Hash) -> None:
        self.open("{")
        value = self.hash_value(st.algorithm, st.fields)
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
        self.note_write(st.target)

    def _verify(self, st: s.VerifyChecksum) -> None:
        self.open(f"if ({self.expr(st.condition)}) {{")
        value = self.hash_value(st.algorithm, st.fields, st.with_payload)
        bits = irt.width_of(st.expected.type)
        found = self.mask(f"(uint64_t){value}", min(bits, 64))
        self.line(f"if ({found} != {self.low64(st.expected)}) p->standard_metadata.checksum_error = 1;")
        self.close()

    def _update(self, st: s.UpdateChecksum) -> None:
        self.open(f"if ({self.expr(st.condition)}) {{")
        value = self.hash_value(st.algorithm, st.fields, st.with_payload)
        bits = irt.width_of(st.target.type)
        self.line(f"{self.place(st.target).z} = {self.mask(self.convert(f'(uint64_t){value}', 64, bits), bits)};")
        self.close()

    def _checksum_get(self, st: s.ChecksumGet) -> None:
        self.open("{")
        value = self.hash_value(s.HashAlgorithm.CSUM16, st.fields)
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

    def _mirror(self, st: s.MirrorPacket) -> None:
        self.open("{")
        self._fields_buffer(st.fields, payload=False)
        self.line(f"ps_mirror(ctx, (uint32_t){self.low64(st.session)}, buffer, length);")
        self.close()

    def _truncate(self, st: s.Truncate) -> None:
        self.line(f"ps_truncate(ctx, (uint32_t){self.low64(st.length)});")

    def _drop(self, st: s.MarkToDrop) -> None:
        place = self.place(st.metadata)
        if place.foreign:
            self.line(f"ps_mark_to_drop(&{place.z});")
            return
        self.line(f"{place.z}.{member('egress_spec')} = PS_PORT_DROP; {place.z}.{member('mcast_grp')} = 0;")

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
        if self.block == "deparse":  # the packet's fate is settled
            self.line("goto finished;")
        else:
            self.line("ps_mark_to_drop(&p->standard_metadata);")
            self.line(f"goto {'rejected' if self.block == 'parse' else 'finished'};")
        self.close()


def color_name(meter: int) -> str:
    """C variable with the colour of a direct meter in the current function."""
    return f"meter_color_{meter}"


def _list(index: int | None) -> int:
    return -1 if index is None else index
