"""A slow, obvious evaluation of IR expressions on Python integers, to hold generated C against."""

from __future__ import annotations

from collections.abc import Mapping

from p4switch.ir import expr as ir
from p4switch.ir import types as irt
from p4switch.ir.expr import BinaryOp, UnaryOp


def evaluate(e: ir.Expr, variables: Mapping[str, int]) -> int:
    """The bit pattern (or 0/1) of an expression; variables hold bit patterns."""
    if isinstance(e, ir.Const):
        return e.value
    if isinstance(e, ir.VarRef):
        return variables[e.name]
    if isinstance(e, ir.Unary):
        return _unary(e, variables)
    if isinstance(e, ir.Binary):
        return _binary(e, variables)
    if isinstance(e, ir.Slice):
        return (evaluate(e.operand, variables) >> e.low) & _ones(e.high - e.low + 1)
    if isinstance(e, ir.Cast):
        return _cast(e, variables)
    if isinstance(e, ir.Mux):
        return evaluate(e.yes if evaluate(e.condition, variables) else e.no, variables)
    raise TypeError(f"no value of {e}")


def _ones(width: int) -> int:
    return (1 << width) - 1


def number(value: int, t: irt.Type) -> int:
    """A bit pattern as the number it stands for."""
    if isinstance(t, irt.Bits) and t.signed and value >> (t.width - 1):
        return value - (1 << t.width)
    return value


def _pattern(value: int, t: irt.Type) -> int:
    return value & _ones(irt.width_of(t))


def _unary(e: ir.Unary, variables: Mapping[str, int]) -> int:
    value = evaluate(e.operand, variables)
    if e.op is UnaryOp.NOT:
        return int(not value)
    return _pattern(~value if e.op is UnaryOp.COMPLEMENT else -value, e.type)


def _cast(e: ir.Cast, variables: Mapping[str, int]) -> int:
    value = evaluate(e.operand, variables)
    if isinstance(e.type, irt.Bool):
        return int(value != 0)
    return _pattern(number(value, e.operand.type), e.type)


def _binary(e: ir.Binary, variables: Mapping[str, int]) -> int:
    a, b = evaluate(e.left, variables), evaluate(e.right, variables)
    x, y = number(a, e.left.type), number(b, e.right.type)
    op = e.op
    if op is BinaryOp.CONCAT:
        return a << irt.width_of(e.right.type) | b
    if op is BinaryOp.SHL:
        return _pattern(x << b, e.type) if b < 1 << 16 else 0
    if op is BinaryOp.SHR:
        return _pattern(x >> min(b, 1 << 16), e.type)
    if op in (BinaryOp.SAT_ADD, BinaryOp.SAT_SUB):
        return _saturated(x + y if op is BinaryOp.SAT_ADD else x - y, e.type)
    if op in (BinaryOp.DIV, BinaryOp.MOD):
        return 0 if b == 0 else (a // b if op is BinaryOp.DIV else a % b)
    simple = {
        BinaryOp.ADD: lambda: x + y,
        BinaryOp.SUB: lambda: x - y,
        BinaryOp.MUL: lambda: x * y,
        BinaryOp.AND: lambda: a & b,
        BinaryOp.OR: lambda: a | b,
        BinaryOp.XOR: lambda: a ^ b,
        BinaryOp.EQ: lambda: int(x == y),
        BinaryOp.NE: lambda: int(x != y),
        BinaryOp.LT: lambda: int(x < y),
        BinaryOp.LE: lambda: int(x <= y),
        BinaryOp.GT: lambda: int(x > y),
        BinaryOp.GE: lambda: int(x >= y),
        BinaryOp.LAND: lambda: int(bool(a and b)),
        BinaryOp.LOR: lambda: int(bool(a or b)),
    }
    return _pattern(simple[op](), e.type)


def _saturated(value: int, t: irt.Type) -> int:
    width = irt.width_of(t)
    if isinstance(t, irt.Bits) and t.signed:
        low, high = -(1 << (width - 1)), (1 << (width - 1)) - 1
    else:
        low, high = 0, _ones(width)
    return _pattern(max(low, min(high, value)), t)
