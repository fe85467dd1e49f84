"""Assignments, to slices too."""

from __future__ import annotations

from p4switch.frontend import ast
from p4switch.frontend.lower.aggregates import invalidate, store
from p4switch.frontend.lower.ir_helpers import unsigned
from p4switch.frontend.lower.lowering import Lowering
from p4switch.frontend.lower.places import expr_of_width, lower_place
from p4switch.frontend.p4_types import TBits
from p4switch.ir import expr as ir
from p4switch.ir import types as irt
from p4switch.ir.expr import BinaryOp, UnaryOp
from p4switch.ir.stmt import Assign, AssignSlice


def assign_operated(low: Lowering, target: ast.Expr, value: ast.Expr) -> None:
    """Lower target op= value, where `value` is `target op value`: the place is worked out once."""
    base = target
    while isinstance(base, ast.Slice):
        base = base.base
    low.placed[base] = lower_place(low, base)
    assign(low, target, value)
    del low.placed[base]


def assign(low: Lowering, target: ast.Expr, value: ast.Expr) -> None:
    """Lower target = value."""
    if isinstance(target, ast.Slice):
        _assign_slice(low, target, value)
        return
    place = lower_place(low, target)
    if isinstance(value, ast.InvalidExpr) and isinstance(place.type, irt.HeaderType | irt.UnionType):
        invalidate(low, place)
        return
    store(low, place, low.expr(value))


def _assign_slice(low: Lowering, target: ast.Slice, value: ast.Expr) -> None:
    high, last = 0, 0
    base: ast.Expr = target
    first = True
    while isinstance(base, ast.Slice):
        bounds = low.facts.bounds.get(base)
        if bounds is None:
            _assign_computed_slice(low, base, value, first)
            return
        if first:
            high, last = bounds
            first = False
        else:
            high, last = high + bounds[1], last + bounds[1]
        base = base.base
    place = lower_place(low, base)
    low.emit(AssignSlice(place, high, last, low.expr(value)))


def _assign_computed_slice(low: Lowering, target: ast.Slice, value: ast.Expr, outermost: bool) -> None:
    """base[start +: width] = value, by mask and shift."""
    if not outermost:
        raise low.unsupported(target.at, "a slice of a slice whose start is computed")
    place = lower_place(low, target.base)
    t = place.type
    assert isinstance(t, irt.Bits)
    start = low.save(expr_of_width(low, target.high), "start")
    width = low.types[target]
    assert isinstance(width, TBits)
    plain = irt.Bits(t.width)
    ones = ir.Const(((1 << width.width) - 1) & ((1 << t.width) - 1), plain)
    mask = ir.Binary(BinaryOp.SHL, ones, start, plain)
    part = ir.Binary(BinaryOp.SHL, ir.Cast(low.expr(value), plain), start, plain)
    part = ir.Binary(BinaryOp.AND, part, mask, plain)
    kept = ir.Binary(BinaryOp.AND, unsigned(place), ir.Unary(UnaryOp.COMPLEMENT, mask, plain), plain)
    joined: ir.Expr = ir.Binary(BinaryOp.OR, kept, part, plain)
    low.emit(Assign(place, joined if t == plain else ir.Cast(joined, t)))
