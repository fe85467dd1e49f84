"""Lists, struct expressions, masks and ranges."""

from __future__ import annotations

from p4switch.frontend import ast
from p4switch.frontend.check_context import CheckContext, rebuilt
from p4switch.frontend.check_convert import value_of, values_of
from p4switch.frontend.check_operators import as_underlying, balanced
from p4switch.frontend.p4_types import INT, UNKNOWN, TBits, TRecord, TSet, TTuple
from p4switch.frontend.source import AbortError


def check_list(ctx: CheckContext, e: ast.ListExpr) -> ast.Expr:
    """{a, b}: a tuple until more is known."""
    items = tuple(value_of(ctx, item) for item in e.items)
    value = None if e.dots else values_of(ctx, items)
    return ctx.typed(rebuilt(e, items=items), TTuple(tuple(ctx.types[item] for item in items)), value)


def check_struct(ctx: CheckContext, e: ast.StructExpr) -> ast.Expr:
    """{a = 1, b = 2}: a record until its struct is known."""
    fields = tuple((name, at, value_of(ctx, item)) for name, at, item in e.fields)
    seen: set[str] = set()
    for name, at, _ in fields:
        if name in seen:
            ctx.reporter.error(at, f"field '{name}' has two values")
        seen.add(name)
    return ctx.typed(rebuilt(e, fields=fields), TRecord(tuple((name, ctx.types[item]) for name, _, item in fields)))


def check_mask(ctx: CheckContext, e: ast.Mask) -> ast.Expr:
    """value &&& mask."""
    return _pair(ctx, e, "&&&")


def check_range(ctx: CheckContext, e: ast.Range) -> ast.Expr:
    """low .. high."""
    return _pair(ctx, e, "..")


def _pair(ctx: CheckContext, e: ast.Mask | ast.Range, what: str) -> ast.Expr:
    left = as_underlying(ctx, value_of(ctx, e.left))
    right = as_underlying(ctx, value_of(ctx, e.right))
    left, right = balanced(ctx, left, right)
    t = ctx.types[left]
    if UNKNOWN in (t, ctx.types[right]):
        raise AbortError
    if t != ctx.types[right] or not (isinstance(t, TBits) or t is INT):
        raise ctx.reporter.fail(e.at, f"'{what}' is not defined for {t} and {ctx.types[right]}")
    return ctx.typed(rebuilt(e, left=left, right=right), TSet(t))
