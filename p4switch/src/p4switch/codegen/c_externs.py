"""C for externs: registers, counters, meters, requests to the runtime."""

from __future__ import annotations

from p4switch.codegen.c_control_flow import note_write
from p4switch.codegen.c_expressions import c_place, c_value, low64, masked, resized, saturating64
from p4switch.codegen.c_hashes import fields_buffer
from p4switch.codegen.function_writer import FunctionWriter, StatementRules, color_name
from p4switch.codegen.layout import member_of, storage_bytes
from p4switch.codegen.packing import packed_bytes, packed_offsets
from p4switch.ir import expr as ir
from p4switch.ir import stmt as s
from p4switch.ir import types as irt
from p4switch.ir.program import Counter, Meter


def render_register_read(w: FunctionWriter, st: s.RegisterRead) -> None:
    size = storage_bytes(w.unit.program.registers[st.register].element)
    cell = w.temporary("cell")
    target = c_place(w.unit, st.target).z
    register = f"&ctx->registers[{st.register}]"
    w.line(f"{{ const uint8_t *{cell} = ps_register_cell({register}, {saturating64(w.unit, st.index)}, {size});")
    w.line(f"  if (PS_LIKELY({cell} != NULL)) memcpy(&{target}, {cell}, {size}); else memset(&{target}, 0, {size}); }}")
    note_write(w, st.target)


def render_register_write(w: FunctionWriter, st: s.RegisterWrite) -> None:
    element = w.unit.program.registers[st.register].element
    size = storage_bytes(element)
    cell = w.temporary("cell")
    value = c_value(w.unit, st.value)
    index = saturating64(w.unit, st.index)
    w.open(f"{{ uint8_t *{cell} = ps_register_cell(&ctx->registers[{st.register}], {index}, {size});")
    if isinstance(st.value, ir.VarRef | ir.Member | ir.Element):
        w.line(f"if (PS_LIKELY({cell} != NULL)) memcpy({cell}, &{c_place(w.unit, st.value).z}, {size});")
    else:
        w.line(f"{w.unit.layout.scalar(element)} value = {value};")
        w.line(f"if (PS_LIKELY({cell} != NULL)) memcpy({cell}, &value, {size});")
    w.close()


def render_register_access(w: FunctionWriter, st: s.RegisterAccess) -> None:
    w.line(f'if (PS_UNLIKELY(ctx->trace_enabled)) ps_trace(ctx, "register action %s", {w.unit.text(st.action)});')
    w.body(st.body)


def render_count(w: FunctionWriter, st: s.CounterCount) -> None:
    counter = array_index(w.unit.program.counters, st.counter)
    w.line(f"ps_count(ctx, &ctx->counters[{counter}], {saturating64(w.unit, st.index)});")


def array_index(objects: tuple[Counter, ...] | tuple[Meter, ...], index: int) -> int:
    """Position among the indirect counters or meters, which is what the descriptor lists."""
    return sum(1 for o in objects[:index] if not o.direct)


def render_meter(w: FunctionWriter, st: s.MeterExecute) -> None:
    color = w.temporary("color")
    target = c_place(w.unit, st.target).z
    meter = f"&ctx->meters[{array_index(w.unit.program.meters, st.meter)}]"
    index = saturating64(w.unit, st.index)
    w.line(f"{{ uint32_t {color} = {_pre_color(w, st.pre_color)}; ps_meter(ctx, {meter}, {index}, &{color});")
    w.line(f"  {target} = {resized(w.unit, f'(uint64_t){color}', 32, irt.width_of(st.target.type))}; }}")
    note_write(w, st.target)


def render_direct_meter(w: FunctionWriter, st: s.DirectMeterRead) -> None:
    color = f"(uint64_t){color_name(st.meter)}"
    w.line(f"{c_place(w.unit, st.target).z} = {resized(w.unit, color, 32, irt.width_of(st.target.type))};")
    note_write(w, st.target)


def render_direct_count(w: FunctionWriter, st: s.DirectCounterCount) -> None:
    if w.unit.program.counters[st.counter].called:
        w.line("ps_count_entry(ctx, entry);")


def render_direct_meter_execute(w: FunctionWriter, st: s.DirectMeterExecute) -> None:
    color = f"(uint64_t)ps_meter_entry(ctx, entry, {_pre_color(w, st.pre_color)})"
    w.line(f"{c_place(w.unit, st.target).z} = {resized(w.unit, color, 32, irt.width_of(st.target.type))};")
    note_write(w, st.target)


def _pre_color(w: FunctionWriter, color: ir.Expr | None) -> str:
    return "PS_GREEN" if color is None else f"(uint32_t){c_value(w.unit, color)}"


def render_random(w: FunctionWriter, st: s.Random) -> None:
    bits = irt.width_of(st.target.type)
    value = f"ps_random(ctx, {low64(w.unit, st.low)}, {low64(w.unit, st.high)})"
    w.line(f"{c_place(w.unit, st.target).z} = {masked(w.unit, resized(w.unit, value, 64, bits), bits)};")
    note_write(w, st.target)


# ---------------------------------------------------------------- requests to the runtime


def render_send_digest(w: FunctionWriter, st: s.SendDigest) -> None:
    digest = w.unit.program.digests[st.digest]
    types = [f.type for f in digest.fields]
    offsets = packed_offsets(types)
    total = packed_bytes(types)
    w.open("{")
    w.line(f"_Alignas(16) uint8_t packed[{max(1, total)}] = {{0}};")
    for (offset, size), value in zip(offsets, st.values, strict=True):
        name = w.temporary("value")
        w.line(f"{{ {w.unit.layout.scalar(value.type)} {name} = {c_value(w.unit, value)};")
        w.line(f"  memcpy(packed + {offset}, &{name}, {size}); }}")
    w.line(f"ps_digest(ctx, {st.digest}, packed);")
    w.close()


def render_clone(w: FunctionWriter, st: s.Clone) -> None:
    w.line(f"ps_clone(ctx, (uint32_t){low64(w.unit, st.session)}, {_list_number(st.field_list)});")


def render_resubmit(w: FunctionWriter, st: s.Resubmit) -> None:
    w.line(f"ps_resubmit(ctx, {_list_number(st.field_list)});")


def render_recirculate(w: FunctionWriter, st: s.Recirculate) -> None:
    w.line(f"ps_recirculate(ctx, {_list_number(st.field_list)});")


def render_mirror(w: FunctionWriter, st: s.MirrorPacket) -> None:
    w.open("{")
    fields_buffer(w, st.fields, payload=False)
    w.line(f"ps_mirror(ctx, (uint32_t){low64(w.unit, st.session)}, buffer, length);")
    w.close()


def render_truncate(w: FunctionWriter, st: s.Truncate) -> None:
    w.line(f"ps_truncate(ctx, (uint32_t){low64(w.unit, st.length)});")


def render_drop(w: FunctionWriter, st: s.MarkToDrop) -> None:
    place = c_place(w.unit, st.metadata)
    if place.foreign:
        w.line(f"ps_mark_to_drop(&{place.z});")
        return
    port, group = (member_of(st.metadata.type, field) for field in ("egress_spec", "mcast_grp"))
    w.line(f"{place.z}.{port} = PS_PORT_DROP; {place.z}.{group} = 0;")


def render_log(w: FunctionWriter, st: s.LogMessage) -> None:
    form = w.unit.text(st.text)
    shown = st.values[: st.text.count("{}")]
    values = ", ".join(low64(w.unit, v) for v in shown) or "0"
    w.open("if (PS_UNLIKELY(ctx->log_enabled)) {")
    w.line(f"const uint64_t values[] = {{{values}}};")
    w.line(f"ps_log(ctx, {form}, sizeof {form} - 1, values, {len(shown)});")
    w.close()


def render_assert(w: FunctionWriter, st: s.Assertion) -> None:
    text = f"assertion failed at {st.location.file}:{st.location.line}: {st.text}"
    w.open(f"if (PS_UNLIKELY(!({c_value(w.unit, st.condition)}))) {{")
    message = w.unit.text(text)
    w.line(f"if (ctx->log_enabled) ctx->api->log(ctx, PS_LOG_MSG, {message}, sizeof {message} - 1);")
    if w.block == "deparse":  # the packet's fate is settled
        w.line("goto finished;")
    else:
        w.line("ps_mark_to_drop(&p->standard_metadata);")
        w.line(f"goto {'rejected' if w.block == 'parse' else 'finished'};")
    w.close()


def _list_number(index: int | None) -> int:
    return -1 if index is None else index


RULES: StatementRules = {
    s.RegisterRead: render_register_read,
    s.RegisterWrite: render_register_write,
    s.RegisterAccess: render_register_access,
    s.CounterCount: render_count,
    s.MeterExecute: render_meter,
    s.DirectMeterRead: render_direct_meter,
    s.DirectMeterExecute: render_direct_meter_execute,
    s.DirectCounterCount: render_direct_count,
    s.Random: render_random,
    s.SendDigest: render_send_digest,
    s.Clone: render_clone,
    s.Resubmit: render_resubmit,
    s.Recirculate: render_recirculate,
    s.MirrorPacket: render_mirror,
    s.Truncate: render_truncate,
    s.MarkToDrop: render_drop,
    s.LogMessage: render_log,
    s.Assertion: render_assert,
}
