"""Expressions, by kind. Calls inside become statements before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from p4switch.errors import InternalError
from p4switch.frontend import ast
from p4switch.frontend.lower.aggregates import build
from p4switch.frontend.lower.calls import call_value
from p4switch.frontend.lower.known_values import known_value
from p4switch.frontend.lower.lowering import Lowering
from p4switch.frontend.lower.operators import lower_binary, lower_cast, lower_slice, lower_ternary, lower_unary
from p4switch.frontend.lower.places import lower_place
from p4switch.frontend.lower.table_calls import lower_member
from p4switch.frontend.lower.types_to_ir import ir_constant
from p4switch.frontend.p4_types import INT
from p4switch.ir import expr as ir


def lower_expression(low: Lowering, e: ast.Expr) -> ir.Expr:
    """Lower a value. Aggregates come back as places."""
    placed = low.placed.get(e)
    if placed is not None:
        return placed
    known = known_value(low, e)
    if known is not None and not isinstance(known, tuple | str):
        t = low.concrete(low.types[e])
        if t is INT:
            raise low.reporter.fail(e.at, "the width of this number is not known")
        return ir_constant(low, known, t, e.at)
    rule = EXPRESSIONS.get(type(e))
    if rule is None:
        raise InternalError(f"no rule lowers {type(e).__name__} at {low.reporter.source.place(e.at)}")
    return rule(low, e)


def _not_a_value(low: Lowering, e: ast.Expr) -> ir.Expr:
    raise low.unsupported(e.at, "this expression")


EXPRESSIONS: dict[type[ast.Expr], Callable[[Lowering, Any], ir.Expr]] = {
    ast.Name: lower_place,
    ast.Index: lower_place,
    ast.Member: lower_member,
    ast.Call: call_value,
    ast.Unary: lower_unary,
    ast.Binary: lower_binary,
    ast.Slice: lower_slice,
    ast.Ternary: lower_ternary,
    ast.Cast: lower_cast,
    ast.ListExpr: build,
    ast.StructExpr: build,
    ast.InvalidExpr: build,
    ast.DotsExpr: build,
    # Literals are known values; the remaining kinds have none of their own.
    ast.IntLiteral: _not_a_value,
    ast.BoolLiteral: _not_a_value,
    ast.StringLiteral: _not_a_value,
    ast.TypeExpr: _not_a_value,
    ast.DefaultExpr: _not_a_value,
    ast.Mask: _not_a_value,
    ast.Range: _not_a_value,
    ast.TupleKeyset: _not_a_value,
}
"""What lowers each kind of expression whose value is not known at elaboration."""
