"""Small IR expressions that several rules make."""

from __future__ import annotations

from p4switch.frontend.lower.lowering import TRUE
from p4switch.ir import expr as ir
from p4switch.ir import types as irt
from p4switch.ir.expr import BinaryOp, UnaryOp


def negate(e: ir.Expr) -> ir.Expr:
    """Not e."""
    return ir.Unary(UnaryOp.NOT, e, irt.Bool())


def conjunction(parts: list[ir.Expr]) -> ir.Expr:
    """All parts hold."""
    if not parts:
        return TRUE
    result = parts[0]
    for p in parts[1:]:
        result = ir.Binary(BinaryOp.LAND, result, p, irt.Bool())
    return result


def unsigned(e: ir.Expr) -> ir.Expr:
    """The bit pattern as bit<W>."""
    t = e.type
    return ir.Cast(e, irt.Bits(t.width)) if isinstance(t, irt.Bits) and t.signed else e


def is_scalar(t: irt.Type) -> bool:
    """Bits, bool or an enumeration."""
    return isinstance(t, irt.Bits | irt.Bool | irt.EnumType)
