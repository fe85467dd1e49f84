"""Operators, slices and casts. Operands read before a call are saved first."""

from __future__ import annotations

from p4switch.frontend import ast
from p4switch.frontend.lower.aggregates import equality
from p4switch.frontend.lower.ir_helpers import is_scalar, negate, unsigned
from p4switch.frontend.lower.known_values import known_int, known_value
from p4switch.frontend.lower.lowering import BIT32, Lowering
from p4switch.frontend.lower.places import expr_of_width
from p4switch.frontend.lower.types_to_ir import ir_type
from p4switch.frontend.p4_types import INT, TStack, TStruct, TTuple
from p4switch.ir import expr as ir
from p4switch.ir import types as irt
from p4switch.ir.expr import BinaryOp, UnaryOp
from p4switch.ir.stmt import Assign, If

_BINARY = {op.value: op for op in BinaryOp}


_UNARY = {"-": UnaryOp.NEGATE, "~": UnaryOp.COMPLEMENT, "!": UnaryOp.NOT}


def lower_unary(low: Lowering, e: ast.Unary) -> ir.Expr:
    operand = low.expr(e.operand)
    return operand if e.op == "+" else ir.Unary(_UNARY[e.op], operand, operand.type)


def lower_binary(low: Lowering, e: ast.Binary) -> ir.Expr:
    if e.op in ("&&", "||"):
        return _logical(low, e)
    left = low.expr(e.left)
    mark_after = len(low.out)
    if isinstance(e.right, ast.IntLiteral | ast.Cast | ast.Name) and low.concrete(low.types[e.right]) is INT:
        right: ir.Expr = _shift_amount(low, e)
    else:
        right = low.expr(e.right)
    if len(low.out) > mark_after:
        left = saved_before(low, left, mark_after)
    if e.op in ("==", "!="):
        equal = equality(left, right)
        return equal if e.op == "==" else negate(equal)
    op = _BINARY[e.op]
    if op in ir.COMPARISONS:
        return ir.Binary(op, left, right, irt.Bool())
    return ir.Binary(op, left, right, ir_type(low, low.concrete(low.types[e]), e.at))


def _shift_amount(low: Lowering, e: ast.Binary) -> ir.Const:
    """A number without width: only shifts have one on the right."""
    value = known_int(low, e.right, "the shift amount")
    return ir.Const(min(value, (1 << 32) - 1), BIT32)


def saved_before(low: Lowering, value: ir.Expr, mark: int) -> ir.Expr:
    """Keep an operand's value from before the statements emitted since `mark`."""
    if isinstance(value, ir.Const):
        return value
    variable = low.new_variable("left", value.type)
    low.out.insert(mark, Assign(variable, value))
    return variable


def _logical(low: Lowering, e: ast.Binary) -> ir.Expr:
    left = low.expr(e.left)
    with low.body() as statements:
        right = low.expr(e.right)
    op = BinaryOp.LAND if e.op == "&&" else BinaryOp.LOR
    if not statements:
        return ir.Binary(op, left, right, irt.Bool())
    result = low.new_variable("logic", irt.Bool())
    low.emit(Assign(result, left))
    body = (*statements, Assign(result, right))
    condition = result if op is BinaryOp.LAND else negate(result)
    low.emit(If(condition, body, ()))
    return result


def lower_slice(low: Lowering, e: ast.Slice) -> ir.Expr:
    base = low.expr(e.base)
    t = ir_type(low, low.concrete(low.types[e]), e.at)
    if e in low.facts.bounds:
        return ir.Slice(base, *low.facts.bounds[e], t)
    start = expr_of_width(low, e.high)
    return ir.Cast(unsigned(ir.Binary(BinaryOp.SHR, unsigned(base), start, unsigned(base).type)), t)


def lower_ternary(low: Lowering, e: ast.Ternary) -> ir.Expr:
    known = known_value(low, e.condition)
    if isinstance(known, bool):
        return low.expr(e.yes if known else e.no)
    condition = low.expr(e.condition)
    with low.body() as yes_statements:
        yes = low.expr(e.yes)
    with low.body() as no_statements:
        no = low.expr(e.no)
    if not yes_statements and not no_statements and is_scalar(yes.type):
        return ir.Mux(condition, yes, no, yes.type)
    result = low.new_variable("choice", yes.type)
    low.emit(If(condition, (*yes_statements, Assign(result, yes)), (*no_statements, Assign(result, no))))
    return result


def lower_cast(low: Lowering, e: ast.Cast) -> ir.Expr:
    target = low.concrete(low.types[e])
    source = low.concrete(low.types[e.operand])
    if isinstance(target, TStruct | TTuple | TStack) and source != target:
        return _cast_aggregate(low, e)
    operand = low.expr(e.operand)
    t = ir_type(low, target, e.at)
    return operand if operand.type == t else ir.Cast(operand, t)


def _cast_aggregate(low: Lowering, e: ast.Cast) -> ir.Expr:
    source = low.expr(e.operand)
    assert isinstance(source, ir.VarRef | ir.Member | ir.Element)
    assert isinstance(source.type, irt.StructType)
    t = ir_type(low, low.concrete(low.types[e]), e.at)
    result = low.new_variable("cast", t)
    if not isinstance(t, irt.StructType | irt.HeaderType):
        raise low.unsupported(e.at, f"a cast to {t}")
    for mine, theirs in zip(t.fields, source.type.fields, strict=True):
        low.emit(Assign(ir.Member(result, mine.name, mine.type), ir.Member(source, theirs.name, theirs.type)))
    return result
