"""C for tables: the key, the lookup, the chosen action's body."""

from __future__ import annotations

from p4switch.codegen.c_expressions import c_value
from p4switch.codegen.c_hashes import hash_value
from p4switch.codegen.function_writer import FunctionWriter, StatementRules, color_name
from p4switch.codegen.layout import bytes_of
from p4switch.codegen.packing import packed_offsets, table_key_bytes
from p4switch.ir import expr as ir
from p4switch.ir import stmt as s
from p4switch.ir import types as irt
from p4switch.ir.program import MatchKind, Table


def pack_key(w: FunctionWriter, name: str, key_bytes: int, parts: list[tuple[str, irt.Type]]) -> None:
    """Fill a key buffer: each field big-endian in whole bytes."""
    w.line(f"_Alignas(8) uint8_t {name}[{max(8, key_bytes)}] = {{0}};")
    offset = 0
    for text, t in parts:
        bits, size = irt.width_of(t), bytes_of(irt.width_of(t))
        at = f"{name} + {offset}" if offset else name
        if bits > 128:
            w.line(f"memcpy({at}, {text}.b, {size});")
        elif bits > 64:
            w.line(f"ps_store128({at}, {text}, {size});")
        elif bits:
            w.line(f"ps_store_be({at}, {text}, {size});")
        offset += size


def render_apply_table(w: FunctionWriter, st: s.ApplyTable) -> None:
    table = w.unit.program.tables[st.table]
    w.open(f"{{ /* table {table.index} */")
    w.line(f"const struct ps_table *table = &ctx->tables[{st.table}];")
    count = len(table.keys)
    key_bytes = table_key_bytes([k.type for k in table.keys])
    pack_key(w, "key", key_bytes, [(c_value(w.unit, e), e.type) for e in st.keys[:count]])
    exact = count > 0 and all(k.match is MatchKind.EXACT for k in table.keys)
    call = f"ps_lookup_exact(table, key, {key_bytes})" if exact else "ps_lookup(table, key)"
    w.line(f"struct ps_entry *entry = {call};")
    _entry_effects(w, table)
    _chosen_action(w, table, st.keys[count:])
    if st.hit is not None:
        w.line(f"{w.unit.roots[st.hit].z} = (uint8_t)ps_hit(table, entry);")
    w.line("if (PS_UNLIKELY(ctx->trace_enabled))")
    w.line("    ps_trace_table(ctx, table, key, ps_hit(table, entry), actions, action);")
    w.open("switch (action->index) {")
    for position, arm in enumerate(st.arms):
        w.open(f"case {arm.action}: {{")
        if st.action_run is not None:
            w.line(f"{w.unit.roots[st.action_run].z} = {position};")
        _parameters(w, arm)
        w.body(arm.body)
        w.close("} break;")
    w.open("default:")
    if st.action_run is not None:
        w.line(f"{w.unit.roots[st.action_run].z} = UINT32_MAX;")
    w.line("break;")
    w.depth -= 1
    w.close()
    w.close()


def _entry_effects(w: FunctionWriter, table: Table) -> None:
    if table.direct_counter is not None and not w.unit.program.counters[table.direct_counter].called:
        w.line("ps_count_entry(ctx, entry);")
    if table.support_timeout:
        w.line("ps_touch_entry(ctx, entry);")
    if table.direct_meter is not None and not w.unit.program.meters[table.direct_meter].called:
        w.line(f"{color_name(table.direct_meter)} = ps_meter_entry(ctx, entry, PS_GREEN);")


def _chosen_action(w: FunctionWriter, table: Table, selectors: tuple[ir.Expr, ...]) -> None:
    profile = None if table.implementation is None else w.unit.program.action_profiles[table.implementation]
    if profile is None or profile.selector_algorithm is None:
        w.line("const struct ps_action *action = ps_entry_action(entry);")
        return
    w.line("uint32_t selection = 0;")
    w.open("{")
    value = hash_value(w, profile.selector_algorithm, tuple(selectors))
    w.line(f"selection = (uint32_t){value};")
    w.close()
    w.line("const struct ps_action *action = ps_select_action(table, entry, selection);")


def _parameters(w: FunctionWriter, arm: s.ActionArm) -> None:
    action = w.unit.program.actions[arm.action]
    offsets = packed_offsets([p.type for p in action.parameters])
    for (offset, size), variable in zip(offsets, arm.parameters, strict=True):
        target = w.unit.roots[variable].z
        w.line(f"memcpy(&{target}, action->params + {offset}, {size});")


RULES: StatementRules = {s.ApplyTable: render_apply_table}
