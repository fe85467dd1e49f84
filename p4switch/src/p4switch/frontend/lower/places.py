"""Expressions that name storage."""

from __future__ import annotations

from p4switch.frontend import ast
from p4switch.frontend.lower.aggregates import build
from p4switch.frontend.lower.bindings import Instance, Known
from p4switch.frontend.lower.ir_helpers import unsigned
from p4switch.frontend.lower.known_values import known_int
from p4switch.frontend.lower.lowering import BIT32, Lowering
from p4switch.frontend.p4_types import INT, TStack, TTuple
from p4switch.ir import expr as ir
from p4switch.ir import types as irt
from p4switch.ir.expr import BinaryOp
from p4switch.ir.stmt import Assign, ParserCheck


def expr_of_width(low: Lowering, e: ast.Expr) -> ir.Expr:
    """A value; a number without width becomes bit<32>."""
    if low.concrete(low.types[e]) is INT:
        return ir.Const(known_int(low, e, "this number") & 0xFFFFFFFF, BIT32)
    return low.expr(e)


def lower_place(low: Lowering, e: ast.Expr) -> ir.LValue:
    """Lower an expression that names storage; a value that has none gets a variable."""
    placed = low.placed.get(e)
    if placed is not None:
        return placed
    if isinstance(e, ast.Name):
        return _name_place(low, e)
    if isinstance(e, ast.Member):
        return _member_place(low, e)
    if isinstance(e, ast.Index):
        return _index_place(low, e)
    value = low.expr(e)
    if isinstance(value, ir.VarRef | ir.Member | ir.Element):
        return value
    saved = low.new_variable("value", value.type)
    low.emit(Assign(saved, value))
    return saved


def _name_place(low: Lowering, e: ast.Name) -> ir.LValue:
    decl = low.facts.decls.get(e)
    binding = low.env.find(decl)
    if isinstance(binding, ir.VarRef | ir.Member | ir.Element):
        return binding
    if isinstance(decl, ast.Constant):
        return build(low, low.checked_form(decl.init))
    if isinstance(binding, Known):
        raise low.unsupported(e.at, f"constructor parameter {e.name} of type {binding.type}")
    if isinstance(binding, Instance):
        raise low.unsupported(e.at, f"instance {e.name} as a value")
    raise low.unsupported(e.at, f"'{e.name}' here")


def _member_place(low: Lowering, e: ast.Member) -> ir.LValue:
    base = low.types[e.base]
    if isinstance(base, TStack) and e.name in ("next", "last"):
        return _next_or_last(low, e)
    place = lower_place(low, e.base)
    t = place.type
    if isinstance(t, irt.StructType | irt.HeaderType | irt.UnionType):
        return ir.Member(place, e.name, t.field(e.name).type)
    raise low.unsupported(e.at, f"member {e.name} of {t}")


def _next_or_last(low: Lowering, e: ast.Member) -> ir.LValue:
    stack = lower_place(low, e.base)
    t = stack.type
    assert isinstance(t, irt.StackType)
    index: ir.Expr = ir.NextIndex(stack)
    out_of_bounds = ir.Const(low.errors.members.index("StackOutOfBounds"), low.errors)
    if e.name == "next":
        low.emit(ParserCheck(ir.Binary(BinaryOp.LT, index, ir.Const(t.size, BIT32), irt.Bool()), out_of_bounds))
    else:
        low.emit(ParserCheck(ir.Binary(BinaryOp.NE, index, ir.Const(0, BIT32), irt.Bool()), out_of_bounds))
        index = ir.Binary(BinaryOp.SUB, index, ir.Const(1, BIT32), BIT32)
    return ir.Element(stack, index, t.element)


def _index_place(low: Lowering, e: ast.Index) -> ir.LValue:
    if isinstance(low.types[e.base], TTuple):
        base = lower_place(low, e.base)
        at = known_int(low, e.index, "the index")
        t = base.type
        assert isinstance(t, irt.StructType)
        return ir.Member(base, f"f{at}", t.fields[at].type)
    base = lower_place(low, e.base)
    t = base.type
    assert isinstance(t, irt.StackType)
    index = expr_of_width(low, e.index)
    if not isinstance(index, ir.Const):
        index = low.save(unsigned(index), "index")
    return ir.Element(base, index, t.element)
