"""Operators and casts, and what they come to at compile time."""

from __future__ import annotations

from typing import Any

from p4switch.frontend import ast, constants
from p4switch.frontend.check_context import CheckContext, rebuilt
from p4switch.frontend.check_convert import castable, coerce, implicit_cast, value_of
from p4switch.frontend.check_types import resolve_type
from p4switch.frontend.constants import ConstantError
from p4switch.frontend.p4_types import (
    BOOL,
    DOTS,
    INT,
    INVALID,
    STATE,
    STRING,
    UNKNOWN,
    VOID,
    TBits,
    TBlock,
    TEnum,
    TTable,
    TVar,
    Type,
)
from p4switch.frontend.source import AbortError

RELATIONAL = frozenset({"<", "<=", ">", ">="})


def check_unary(ctx: CheckContext, e: ast.Unary) -> ast.Expr:
    """A unary operator."""
    operand = value_of(ctx, e.operand)
    t = ctx.types[operand]
    if t is UNKNOWN:
        raise AbortError
    if isinstance(t, TEnum) and t.underlying is not None:
        operand, t = implicit_cast(ctx, operand, t.underlying), t.underlying
    good = t == BOOL if e.op == "!" else isinstance(t, TBits) or (t is INT and e.op != "~")
    if not good:
        raise ctx.reporter.fail(e.at, f"operator '{e.op}' is not defined for {t}")
    value = ctx.values.get(operand)
    folded = constants.unary(e.op, value, t) if isinstance(value, int) else None
    return ctx.typed(rebuilt(e, operand=operand), t, folded)


def as_underlying(ctx: CheckContext, e: ast.Expr) -> ast.Expr:
    """A serializable enum as the number that it stands for; anything else as it is."""
    t = ctx.types[e]
    return implicit_cast(ctx, e, t.underlying) if isinstance(t, TEnum) and t.underlying is not None else e


def check_binary(ctx: CheckContext, e: ast.Binary) -> ast.Expr:
    """A binary operator."""
    left, right = value_of(ctx, e.left), value_of(ctx, e.right)
    if ctx.types[left] is UNKNOWN or ctx.types[right] is UNKNOWN:
        raise AbortError
    e = rebuilt(e, left=left, right=right)
    t: Type = BOOL
    if e.op in ("&&", "||"):
        e = rebuilt(e, left=coerce(ctx, left, BOOL), right=coerce(ctx, right, BOOL))
    elif e.op in ("==", "!="):
        e, t = _equality(ctx, e)
    elif e.op in ("<<", ">>"):
        e, t = _shift(ctx, e)
    elif e.op == "++":
        e, t = _concat(ctx, e)
    else:
        e, t = _arithmetic(ctx, e)
    return ctx.typed(e, t, _folded(ctx, e))


def _bad_operands(ctx: CheckContext, e: ast.Binary) -> AbortError:
    return ctx.reporter.fail(e.at, f"operator '{e.op}' is not defined for {ctx.types[e.left]} and {ctx.types[e.right]}")


def _underlying_operands(ctx: CheckContext, e: ast.Binary) -> ast.Binary:
    return rebuilt(e, left=as_underlying(ctx, e.left), right=as_underlying(ctx, e.right))


def balanced(ctx: CheckContext, left: ast.Expr, right: ast.Expr) -> tuple[ast.Expr, ast.Expr]:
    """Two operands, a number without width brought to the other's type."""
    if ctx.types[left] is INT and isinstance(ctx.types[right], TBits):
        return implicit_cast(ctx, left, ctx.types[right]), right
    if ctx.types[right] is INT and isinstance(ctx.types[left], TBits):
        return left, implicit_cast(ctx, right, ctx.types[left])
    return left, right


def _balanced_operands(ctx: CheckContext, e: ast.Binary) -> ast.Binary:
    left, right = balanced(ctx, e.left, e.right)
    return rebuilt(e, left=left, right=right)


def _equality(ctx: CheckContext, e: ast.Binary) -> tuple[ast.Binary, Type]:
    if ctx.types[e.left] != ctx.types[e.right]:
        e = _balanced_operands(ctx, _underlying_operands(ctx, e))
    left, right = ctx.types[e.left], ctx.types[e.right]
    if left != right:
        if isinstance(e.right, ast.ListExpr | ast.StructExpr | ast.InvalidExpr):
            e = rebuilt(e, right=coerce(ctx, e.right, left))
        elif isinstance(e.left, ast.ListExpr | ast.StructExpr | ast.InvalidExpr):
            e = rebuilt(e, left=coerce(ctx, e.left, right))
        else:
            raise _bad_operands(ctx, e)
    t = ctx.types[e.left]
    if isinstance(t, TBlock | TTable | TVar) or t in (STATE, INVALID, DOTS, VOID):
        raise _bad_operands(ctx, e)
    return e, BOOL


def _shift(ctx: CheckContext, e: ast.Binary) -> tuple[ast.Binary, Type]:
    e = _underlying_operands(ctx, e)
    left, right = ctx.types[e.left], ctx.types[e.right]
    amount = ctx.values.get(e.right)
    if not (isinstance(left, TBits) or left is INT) or not (isinstance(right, TBits) or right is INT):
        raise _bad_operands(ctx, e)
    if isinstance(right, TBits) and right.signed and amount is None:
        raise ctx.reporter.fail(e.right.at, f"the shift amount must be unsigned, found {right}")
    if isinstance(amount, int) and amount < 0:
        raise ctx.reporter.fail(e.right.at, "the shift amount must not be negative")
    if left is INT and amount is None and right is not INT:
        raise ctx.reporter.fail(e.left.at, "a number without width cannot be shifted by a value known only at run time")
    return e, left


def _concat(ctx: CheckContext, e: ast.Binary) -> tuple[ast.Binary, Type]:
    e = _underlying_operands(ctx, e)
    left, right = ctx.types[e.left], ctx.types[e.right]
    if left == STRING and right == STRING:
        return e, STRING
    if not isinstance(left, TBits) or not isinstance(right, TBits):
        raise _bad_operands(ctx, e)
    return e, TBits(left.width + right.width, left.signed)


def _arithmetic(ctx: CheckContext, e: ast.Binary) -> tuple[ast.Binary, Type]:
    e = _underlying_operands(ctx, e)
    if e.op in ("/", "%"):
        for operand in (e.left, e.right):
            value = ctx.values.get(operand)
            if ctx.types[operand] is INT and isinstance(value, int) and value < 0:
                raise ctx.reporter.fail(operand.at, f"operator '{e.op}' is not defined for negative numbers")
    e = _balanced_operands(ctx, e)
    t = ctx.types[e.left]
    if t != ctx.types[e.right] or not (isinstance(t, TBits) or t is INT):
        raise _bad_operands(ctx, e)
    if t is INT and e.op in ("|+|", "|-|"):
        raise _bad_operands(ctx, e)
    if e.op in ("/", "%"):
        if isinstance(t, TBits) and t.signed:
            raise ctx.reporter.fail(e.at, f"operator '{e.op}' is not defined for signed {t}")
        if ctx.values.get(e.right) == 0:
            raise ctx.reporter.fail(e.right.at, "division by zero")
    return e, BOOL if e.op in RELATIONAL else t


def _folded(ctx: CheckContext, e: ast.Binary) -> Any:
    """The value at compile time, or None."""
    left, right = ctx.values.get(e.left), ctx.values.get(e.right)
    if e.op in ("&&", "||"):
        if isinstance(left, bool) and left == (e.op == "||"):
            return left
        return right if isinstance(left, bool) and isinstance(right, bool) else None
    if left is None or right is None:
        return None
    if isinstance(left, int) and isinstance(right, int):
        try:
            return constants.binary(e.op, left, right, ctx.types[e.left], ctx.types[e.right])
        except ConstantError as problem:
            raise ctx.reporter.fail(e.at, str(problem)) from problem
    if e.op in ("==", "!="):
        return (left == right) == (e.op == "==")
    return left + str(right) if e.op == "++" and isinstance(left, str) else None


def check_ternary(ctx: CheckContext, e: ast.Ternary) -> ast.Expr:
    """`condition ? yes : no`."""
    condition = value_of(ctx, e.condition, BOOL)
    yes, no = value_of(ctx, e.yes), value_of(ctx, e.no)
    if ctx.types[yes] is UNKNOWN or ctx.types[no] is UNKNOWN:
        raise AbortError
    if ctx.types[yes] != ctx.types[no]:
        before = (yes, no)
        yes, no = balanced(ctx, yes, no)
        if (yes, no) == before:
            if isinstance(yes, ast.ListExpr | ast.StructExpr | ast.InvalidExpr):
                yes = coerce(ctx, yes, ctx.types[no])
            else:
                no = coerce(ctx, no, ctx.types[yes])
    taken = ctx.values.get(condition)
    value = ctx.values.get(yes if taken else no) if isinstance(taken, bool) else None
    return ctx.typed(rebuilt(e, condition=condition, yes=yes, no=no), ctx.types[yes], value)


def check_cast(ctx: CheckContext, e: ast.Cast) -> ast.Expr:
    """`(type) operand`, as it is written; implicit casts are checked where they are made."""
    assert e.ref is not None
    target = resolve_type(ctx, e.ref)
    operand = value_of(ctx, e.operand)
    source = ctx.types[operand]
    if target is UNKNOWN or source is UNKNOWN:
        raise AbortError
    if isinstance(operand, ast.ListExpr | ast.StructExpr | ast.InvalidExpr) or source in (DOTS, INVALID):
        return coerce(ctx, operand, target)
    if not castable(source, target):
        raise ctx.reporter.fail(e.at, f"cannot cast {source} to {target}")
    value = ctx.values.get(operand)
    if isinstance(value, int):
        if source is INT and target == BOOL and value not in (0, 1):
            raise ctx.reporter.fail(e.at, "only 0 and 1 can be cast to bool")
        value = constants.cast(value, target)
    return ctx.typed(rebuilt(e, operand=operand), target, value)
