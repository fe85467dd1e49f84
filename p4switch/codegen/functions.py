"""C functions line by line: output, assignments, control flow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from p4switch.codegen.expressions import ExpressionRenderer, variable_name
from p4switch.codegen.layout import Layout, Place, bytes_of, is_wide
from p4switch.ir import expr as ir
from p4switch.ir import stmt as s
from p4switch.ir import types as irt
from p4switch.ir.program import Program, Variable

MAX_LOOP_TURNS = 1 << 20
"""A `for` loop is left after so many turns: a packet must not stop the switch."""


class FunctionRenderer(ExpressionRenderer):
    """Renders assignments and control flow into `lines`; the layers above add the other statements to `rules`."""

    def __init__(self, program: Program, layout: Layout) -> None:
        super().__init__(layout)
        self.program = program
        self.thread = program.threads[0]
        self.lines: list[str] = []
        self.depth = 1
        self.taken: set[str] = set()
        self.labels: dict[str, str] = {}
        self.used_labels: set[str] = set()
        self.block = ""
        self.tracks_writes = False
        self.temporaries = 0
        self.rules: dict[type, Callable[[Any], None]] = {}

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
            self.rules[type(statement)](statement)

    def label(self, name: str) -> str:
        """C label of an IR label."""
        if name not in self.labels:
            self.labels[name] = variable_name("L_" + name, self.taken)
        return self.labels[name]

    # ---------------------------------------------------------------- assignment

    def note_write(self, target: ir.LValue) -> None:
        """Tell the runtime that egress changed a header."""
        if not self.tracks_writes:
            return
        root: Any = target
        while isinstance(root, ir.Member | ir.Element):
            root = root.base
        if root.name == self.thread.headers.name:
            self.line("ctx->headers_written = 1;")

    def _assign(self, st: s.Assign) -> None:
        self.assign_text(st.target, st.value)
        self.note_write(st.target)

    def assign_text(self, target: ir.LValue, value: ir.Expr) -> None:
        """target = value, aggregates part by part."""
        place = self.place(target)
        t = target.type
        if isinstance(t, irt.Bits | irt.Bool | irt.EnumType | irt.Varbits):
            self.line(f"{place.z} = {self.expr(value)};")
            return
        assert isinstance(value, ir.VarRef | ir.Member | ir.Element)
        source = self.place(value)
        if place.foreign or source.foreign:
            self._copy_foreign(target, value)
            return
        if self.layout.z_type(t) is not None:
            self.line(f"{place.z} = {source.z};")
        if self.layout.f_type(t) is not None:
            self.line(f"{place.f} = {source.f};")

    def _copy_foreign(self, target: ir.LValue, value: ir.LValue) -> None:
        """Between a struct of the runtime's and a copy of it, field by field."""
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
        self.note_write(st.target)

    def _set_validity(self, st: s.SetValidity) -> None:
        place = self.place(st.header)
        if st.valid:
            if self.layout.f_type(st.header.type) is None:
                self.line(f"{place.z} = 1;")
            else:
                self.line(f"if (!{place.z}) {{ memset(&{place.f}, 0, sizeof {place.f}); {place.z} = 1; }}")
        else:
            self.line(f"{place.z} = 0;")
        self.note_write(st.header)

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
        self.note_write(st.stack)

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
