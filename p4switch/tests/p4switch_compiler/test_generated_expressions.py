"""Generated C computes what the plain evaluation of the IR computes, for random expressions of random widths."""

from __future__ import annotations

import ctypes
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p4switch.build import build_shared_object
from p4switch.codegen.c_expressions import c_value
from p4switch.codegen.c_program import SUPPORT
from p4switch.codegen.c_unit import CUnit
from p4switch.codegen.layout import Place, storage_bytes
from p4switch.ir import expr as ir
from p4switch.ir import types as irt
from p4switch.ir.expr import BinaryOp, UnaryOp
from p4switch.ir.program import Program
from p4switch.runtime import INCLUDE_DIR
from p4switch_compiler import ir_evaluator

EXPRESSIONS_A_PROGRAM = 40
FLAGS = ("-O1", "-w", "-fvisibility=default")
WIDTHS = st.one_of(
    st.sampled_from([1, 7, 8, 9, 16, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129, 136, 160, 255, 256, 257]),
    st.integers(1, 300),
)
TYPES = st.builds(irt.Bits, WIDTHS, st.booleans())
_ARITHMETIC = [
    BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.SAT_ADD, BinaryOp.SAT_SUB, BinaryOp.AND, BinaryOp.OR,
    BinaryOp.XOR,
]  # fmt: skip
_COMPARISONS = sorted(ir.COMPARISONS, key=lambda op: op.value)


@st.composite
def values(draw: st.DrawFn, width: int) -> int:
    """A bit pattern: corners more often than chance gives them."""
    ones = (1 << width) - 1
    corners = [0, 1, ones, 1 << (width - 1), (1 << (width - 1)) - 1]
    return draw(st.one_of(st.sampled_from([c & ones for c in corners]), st.integers(0, ones)))


@st.composite
def expressions(draw: st.DrawFn, t: irt.Type, variables: dict[str, tuple[irt.Type, int]], depth: int) -> ir.Expr:
    """An expression of a type; variables are invented as they are needed."""
    if depth == 0 or draw(st.integers(0, 5)) == 0:
        value = draw(values(irt.width_of(t)))
        if draw(st.booleans()):
            return ir.Const(value, t)
        name = f"x{len(variables)}"
        variables[name] = (t, value)
        return ir.VarRef(name, t)

    def sub(inner: irt.Type) -> ir.Expr:
        return draw(expressions(inner, variables, depth - 1))

    if isinstance(t, irt.Bool):
        kind = draw(st.sampled_from(["compare", "logic", "not", "cast"]))
        if kind == "compare":
            operand = draw(TYPES)
            return ir.Binary(draw(st.sampled_from(_COMPARISONS)), sub(operand), sub(operand), t)
        if kind == "logic":
            return ir.Binary(draw(st.sampled_from([BinaryOp.LAND, BinaryOp.LOR])), sub(t), sub(t), t)
        return ir.Unary(UnaryOp.NOT, sub(t), t) if kind == "not" else ir.Cast(sub(irt.Bits(1)), t)
    assert isinstance(t, irt.Bits)
    kind = draw(st.sampled_from(["arith", "div", "shift", "concat", "slice", "cast", "unary", "mux"]))
    if kind == "div" and not t.signed:
        return ir.Binary(draw(st.sampled_from([BinaryOp.DIV, BinaryOp.MOD])), sub(t), sub(t), t)
    if kind == "shift":
        amount = draw(st.sampled_from([irt.Bits(4), irt.Bits(9), irt.Bits(64), irt.Bits(130)]))
        return ir.Binary(draw(st.sampled_from([BinaryOp.SHL, BinaryOp.SHR])), sub(t), sub(amount), t)
    if kind == "concat" and t.width > 1:
        left = draw(st.integers(1, t.width - 1))
        return ir.Binary(BinaryOp.CONCAT, sub(irt.Bits(left, t.signed)), sub(irt.Bits(t.width - left)), t)
    if kind == "slice" and not t.signed:
        low, above = draw(st.integers(0, 140)), draw(st.integers(0, 140))
        return ir.Slice(sub(irt.Bits(low + t.width + above, draw(st.booleans()))), low + t.width - 1, low, t)
    if kind == "cast":
        return ir.Cast(sub(draw(TYPES)), t)
    if kind == "unary":
        return ir.Unary(draw(st.sampled_from([UnaryOp.NEGATE, UnaryOp.COMPLEMENT])), sub(t), t)
    if kind == "mux":
        return ir.Mux(sub(irt.Bool()), sub(t), sub(t), t)
    return ir.Binary(draw(st.sampled_from(_ARITHMETIC)), sub(t), sub(t), t)


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[ir.Expr, dict[str, tuple[irt.Type, int]]]]:
    """Several expressions, each with its own variables."""
    out = []
    for _ in range(EXPRESSIONS_A_PROGRAM):
        variables: dict[str, tuple[irt.Type, int]] = {}
        t: irt.Type = draw(st.one_of(TYPES, st.just(irt.Bool())))
        out.append((draw(expressions(t, variables, draw(st.integers(1, 4)))), variables))
    return out


def _pack(value: int, t: irt.Type) -> bytes:
    return value.to_bytes(storage_bytes(t), "little" if irt.width_of(t) <= 128 else "big")


def run_c(program: list[tuple[ir.Expr, dict[str, tuple[irt.Type, int]]]], directory: Path) -> list[int]:
    """Compile all expressions into one object and evaluate them; variables arrive at run time."""
    unit = CUnit(Program("", "", ()))
    functions: list[str] = []
    for index, (e, variables) in enumerate(program):
        lines = [f"void f{index}(const uint8_t *in, uint8_t *out) {{"]
        offset = 0
        for name, (t, _) in variables.items():
            lines.append(f"    {unit.layout.scalar(t)} {name}; memcpy(&{name}, in + {offset}, {storage_bytes(t)});")
            unit.roots[name] = Place(name, "")
            offset += storage_bytes(t)
        kind = unit.layout.scalar(e.type)
        lines.append(f"    {kind} result = {c_value(unit, e)}; memcpy(out, &result, {storage_bytes(e.type)});")
        functions += [*lines, "}"]
    head = ["#include <stdarg.h>", "#include <stdio.h>", '#include "p4switch_abi.h"']
    text = [*head, SUPPORT.read_text(), *unit.layout.lines, *unit.constants, *functions]
    source = directory / "expressions.c"
    source.write_text("\n".join(text))
    library = ctypes.CDLL(str(build_shared_object("expressions", [source], include_dirs=(INCLUDE_DIR,), flags=FLAGS)))
    results: list[int] = []
    for index, (e, variables) in enumerate(program):
        out = ctypes.create_string_buffer(storage_bytes(e.type))
        packed = b"".join(_pack(value, t) for t, value in variables.values())
        library[f"f{index}"](packed, out)
        results.append(int.from_bytes(out.raw, "little" if irt.width_of(e.type) <= 128 else "big"))
    return results


@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(programs())
def test_generated_c_agrees_with_the_plain_evaluation(
    tmp_path_factory, program: list[tuple[ir.Expr, dict[str, tuple[irt.Type, int]]]]
) -> None:
    results = run_c(program, tmp_path_factory.mktemp("expressions"))
    for (e, variables), result in zip(program, results, strict=True):
        plain = ir_evaluator.evaluate(e, {name: value for name, (_, value) in variables.items()})
        assert result == plain, f"{e}\nwith {variables}: C gives {result:#x}, the plain evaluation {plain:#x}"
