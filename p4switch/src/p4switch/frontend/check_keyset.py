"""Keysets of select cases and table entries."""

from __future__ import annotations

from p4switch.frontend import ast
from p4switch.frontend.check_arguments import is_elaboration_constant
from p4switch.frontend.check_context import CheckContext, rebuilt
from p4switch.frontend.check_convert import coerce
from p4switch.frontend.p4_types import INT, UNKNOWN, TEnum, TNew, TSet, Type


def check_keyset(ctx: CheckContext, e: ast.Expr, key: Type) -> ast.Expr:
    """Check one element of a keyset against the key's type."""
    e = ctx.check(e)
    if ctx.types[e] is UNKNOWN or key is UNKNOWN:
        return e
    if isinstance(e, ast.DefaultExpr):
        return e
    base = key
    while isinstance(base, TNew):
        base = base.underlying
    if (
        isinstance(base, TEnum)
        and base.underlying is not None
        and (isinstance(e, ast.Mask | ast.Range) or ctx.types[e] != base)
    ):
        base = base.underlying
    if isinstance(e, ast.Mask | ast.Range):
        pair = rebuilt(e, left=coerce(ctx, e.left, base), right=coerce(ctx, e.right, base))
        return ctx.typed(pair, TSet(base))
    t = ctx.types[e]
    if isinstance(t, TSet):
        if t.element != key:
            ctx.reporter.error(e.at, f"expected a set of {key}, found {t}")
        return e
    if isinstance(t, TNew) and t == key:
        return e
    return coerce(ctx, e, base) if t is INT or base is not key else coerce(ctx, e, key)


def check_constant_keyset(ctx: CheckContext, e: ast.Expr, t: Type) -> ast.Expr:
    checked = check_keyset(ctx, e, t)
    if (
        isinstance(checked, ast.DefaultExpr)
        or ctx.types[checked] is UNKNOWN
        or (isinstance(ctx.types[checked], TSet) and isinstance(checked, ast.Name))
    ):
        return checked
    parts = [checked.left, checked.right] if isinstance(checked, ast.Mask | ast.Range) else [checked]
    for part in parts:
        if ctx.types[part] is not UNKNOWN and ctx.values.get(part) is None and not is_elaboration_constant(ctx, part):
            ctx.reporter.error(part.at, "a keyset must be known at compile time")
    if isinstance(checked, ast.Range):
        low, high = ctx.values.get(checked.left), ctx.values.get(checked.right)
        if isinstance(low, int) and isinstance(high, int) and low > high:
            ctx.reporter.warning(checked.at, "this range is empty: its low end is above its high end")
    return checked
