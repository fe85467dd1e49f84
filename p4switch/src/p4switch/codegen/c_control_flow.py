"""C for assignments and control flow."""

from __future__ import annotations

from typing import Any

from p4switch.codegen.c_expressions import c_constant, c_place, c_value, resized
from p4switch.codegen.function_writer import FunctionWriter, StatementRules
from p4switch.codegen.layout import bytes_of
from p4switch.ir import expr as ir
from p4switch.ir import stmt as s
from p4switch.ir import types as irt

MAX_LOOP_TURNS = 1 << 20
"""A `for` loop ends after this many iterations: a packet must not stop the switch."""


def note_write(w: FunctionWriter, target: ir.LValue) -> None:
    """Tell the runtime that egress changed a header."""
    if not w.tracks_writes:
        return
    root: Any = target
    while isinstance(root, ir.Member | ir.Element):
        root = root.base
    if root.name == w.thread.headers.name:
        w.line("ctx->headers_written = 1;")


def render_assign(w: FunctionWriter, st: s.Assign) -> None:
    assign_text(w, st.target, st.value)
    note_write(w, st.target)


def assign_text(w: FunctionWriter, target: ir.LValue, value: ir.Expr) -> None:
    """target = value, aggregates part by part."""
    place = c_place(w.unit, target)
    t = target.type
    if isinstance(t, irt.Bits | irt.Bool | irt.EnumType | irt.Varbits):
        w.line(f"{place.z} = {c_value(w.unit, value)};")
        return
    assert isinstance(value, ir.VarRef | ir.Member | ir.Element)
    source = c_place(w.unit, value)
    if place.foreign or source.foreign:
        _copy_foreign(w, target, value)
        return
    if w.unit.layout.z_type(t) is not None:
        w.line(f"{place.z} = {source.z};")
    if w.unit.layout.f_type(t) is not None:
        w.line(f"{place.f} = {source.f};")


def _copy_foreign(w: FunctionWriter, target: ir.LValue, value: ir.LValue) -> None:
    """Between a struct of the runtime's and a copy of it, field by field."""
    t = target.type
    assert isinstance(t, irt.StructType)
    for f in t.fields:
        left = c_place(w.unit, ir.Member(target, f.name, f.type)).z
        w.line(f"{left} = {c_place(w.unit, ir.Member(value, f.name, f.type)).z};")


def render_assign_slice(w: FunctionWriter, st: s.AssignSlice) -> None:
    place = c_place(w.unit, st.target).z
    bits = irt.width_of(st.target.type)
    width = st.high - st.low + 1
    value = c_value(w.unit, st.value)
    if bits > 128:
        size, source = bytes_of(bits), irt.width_of(st.value.type)
        wide = resized(w.unit, value, source, max(source, 129))
        name = w.temporary("part")
        part = bytes_of(max(source, 129))
        w.line(f"{{ {w.unit.layout.wide(part)} {name} = {wide};")
        w.line(f"  ps_wide_insert({place}.b, {size}, {name}.b, {part}, {st.low}, {width}); }}")
    elif bits > 64:
        wide = resized(w.unit, value, irt.width_of(st.value.type), bits)
        hole = f"(PS_ONES128({width}) << {st.low})"
        w.line(f"{place} = ({place} & ~{hole}) | ({wide} << {st.low});")
    else:
        keep = ((1 << bits) - 1) & ~(((1 << width) - 1) << st.low)
        w.line(f"{place} = ((uint64_t){place} & {keep:#x}ull) | ({value} << {st.low});")
    note_write(w, st.target)


def render_set_validity(w: FunctionWriter, st: s.SetValidity) -> None:
    place = c_place(w.unit, st.header)
    if st.valid:
        if w.unit.layout.f_type(st.header.type) is None:
            w.line(f"{place.z} = 1;")
        else:
            w.line(f"if (!{place.z}) {{ memset(&{place.f}, 0, sizeof {place.f}); {place.z} = 1; }}")
    else:
        w.line(f"{place.z} = 0;")
    note_write(w, st.header)


def render_set_next(w: FunctionWriter, st: s.SetNextIndex) -> None:
    w.line(f"{c_place(w.unit, st.stack).z}.next = {c_value(w.unit, st.value)};")


def render_shift_stack(w: FunctionWriter, st: s.ShiftStack) -> None:
    place = c_place(w.unit, st.stack)
    t = st.stack.type
    assert isinstance(t, irt.StackType)
    has_f = w.unit.layout.f_type(t.element) is not None
    n, keep = abs(st.count), t.size - abs(st.count)
    for part, present in ((place.z, True), (place.f, has_f)):
        if not present:
            continue
        if st.count > 0:
            w.line(f"memmove(&{part}.e[{n}], &{part}.e[0], {keep} * sizeof {part}.e[0]);")
        else:
            w.line(f"memmove(&{part}.e[0], &{part}.e[{n}], {keep} * sizeof {part}.e[0]);")
    first = 0 if st.count > 0 else keep
    w.line(f"memset(&{place.z}.e[{first}], 0, {n} * sizeof {place.z}.e[0]);")
    if st.count > 0:
        w.line(f"{place.z}.next = {place.z}.next + {n} > {t.size} ? {t.size} : {place.z}.next + {n};")
    else:
        w.line(f"{place.z}.next = {place.z}.next > {n} ? {place.z}.next - {n} : 0;")
    note_write(w, st.stack)


# ---------------------------------------------------------------- control flow


def render_if(w: FunctionWriter, st: s.If) -> None:
    if not st.then and not st.otherwise:
        return
    condition = c_value(w.unit, st.condition)
    if not condition.startswith("("):
        condition = f"({condition})"
    w.open(f"if {condition} {{")
    w.body(st.then)
    if st.otherwise:
        w.depth -= 1
        w.open("} else {")
        w.body(st.otherwise)
    w.close()


def render_switch(w: FunctionWriter, st: s.Switch) -> None:
    if irt.width_of(st.selector.type) > 64:
        _wide_switch(w, st)
        return
    w.open(f"switch ({c_value(w.unit, st.selector)}) {{")
    for case in st.cases:
        for value in case.values:
            w.line(f"case {c_constant(w.unit, value, irt.Bits(64))}:")
        w.depth += 1
        w.line("{")
        w.body(case.body)
        w.line("} break;")
        w.depth -= 1
    w.open("default: {")
    w.body(st.default)
    w.close("} break;")
    w.close()


def _wide_switch(w: FunctionWriter, st: s.Switch) -> None:
    keyword = "if"
    for case in st.cases:
        tests = [
            c_value(w.unit, ir.Binary(ir.BinaryOp.EQ, st.selector, ir.Const(v, st.selector.type), irt.Bool()))
            for v in case.values
        ]
        w.open(f"{keyword} ({' || '.join(tests)}) {{")
        w.body(case.body)
        w.depth -= 1
        keyword = "} else if"
    w.open("} else {" if st.cases else "{")
    w.body(st.default)
    w.close()


def render_labelled(w: FunctionWriter, st: s.Labelled) -> None:
    label = w.label(st.label)
    w.body(st.body)
    if label in w.used_labels:
        w.line(f"{label}:;")


def render_leave(w: FunctionWriter, st: s.Leave) -> None:
    label = w.label(st.label)
    w.used_labels.add(label)
    w.line(f"goto {label};")


def render_loop(w: FunctionWriter, st: s.Loop) -> None:
    label = w.label(st.label)
    turns = w.temporary("turns")
    w.open(f"for (uint32_t {turns} = 0; {turns} < {MAX_LOOP_TURNS}u; {turns}++) {{")
    w.body(st.body)
    w.close()
    if label in w.used_labels:
        w.line(f"{label}:;")


def render_nothing(w: FunctionWriter, st: object) -> None:
    """A statement without effect of its own."""


RULES: StatementRules = {
    s.Assign: render_assign,
    s.AssignSlice: render_assign_slice,
    s.SetValidity: render_set_validity,
    s.SetNextIndex: render_set_next,
    s.ShiftStack: render_shift_stack,
    s.If: render_if,
    s.Switch: render_switch,
    s.Labelled: render_labelled,
    s.Leave: render_leave,
    s.Loop: render_loop,
}
