"""Values checked, implicit conversions, and what can be written to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from p4switch.frontend import ast, constants
from p4switch.frontend.check_context import CheckContext, rebuilt
from p4switch.frontend.p4_types import (
    ANY,
    BOOL,
    DOTS,
    INT,
    INVALID,
    UNKNOWN,
    TBits,
    TCallable,
    TEnum,
    TList,
    TName,
    TNew,
    TRecord,
    TSet,
    TStack,
    TStruct,
    TTable,
    TTuple,
    TVar,
    TVarbits,
    Type,
    is_header_like,
)
from p4switch.frontend.source import AbortError


def constant_int(ctx: CheckContext, e: ast.Expr, what: str) -> int:
    """Check an expression that must be an integer known at compile time."""
    checked = ctx.check(e)
    value = ctx.values.get(checked)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if ctx.types[checked] is UNKNOWN:
        raise AbortError(what)
    raise ctx.reporter.fail(e.at, f"{what} must be an integer known at compile time")


# ---------------------------------------------------------------- conversions


def mismatch(ctx: CheckContext, e: ast.Expr, want: Type) -> ast.Expr:
    """Report that a type does not fit."""
    if ctx.types[e] is not UNKNOWN and want is not UNKNOWN:
        ctx.reporter.error(e.at, f"expected {want}, found {ctx.types[e]}")
    ctx.types[e] = UNKNOWN
    return e


def coerce(ctx: CheckContext, e: ast.Expr, want: Type) -> ast.Expr:
    """Convert implicitly as the language allows, or report."""
    t = ctx.types[e]
    if t == want or t is UNKNOWN or want is UNKNOWN or want is ANY:
        return e
    if isinstance(e, ast.ListExpr):
        return _coerce_list(ctx, e, want)
    if isinstance(e, ast.StructExpr):
        return _coerce_struct(ctx, e, want)
    if t is DOTS:
        ctx.types[e] = want
        return e
    if t is INVALID:
        if not is_header_like(want) and not isinstance(want, TVar):
            return mismatch(ctx, e, want)
        ctx.types[e] = want
        return e
    if isinstance(e, ast.Ternary) and (t is INT or isinstance(t, TTuple | TRecord)):
        chosen = rebuilt(e, yes=coerce(ctx, e.yes, want), no=coerce(ctx, e.no, want))
        return ctx.typed(chosen, want, ctx.values.get(e))
    if t is INT and isinstance(want, TBits | TNew) and castable(t, want):
        return implicit_cast(ctx, e, want)
    if isinstance(t, TEnum) and t.underlying is not None and isinstance(want, TBits) and t.underlying == want:
        return implicit_cast(ctx, e, want)
    return mismatch(ctx, e, want)


def implicit_cast(ctx: CheckContext, e: ast.Expr, want: Type) -> ast.Expr:
    """Wrap in an implicit cast."""
    value = ctx.values.get(e)
    converted = None
    if isinstance(value, int):
        if isinstance(want, TBits) and ctx.types[e] is INT and not constants.fits(value, want):
            unsigned_ok = want.signed is False and constants.fits(value, TBits(want.width, True))
            if not unsigned_ok:
                ctx.reporter.warning(e.at, f"{value} does not fit in {want}")
        converted = constants.cast(value, want)
    return ctx.typed(ast.Cast(at=e.at, ref=None, operand=e), want, converted)


def _coerce_list(ctx: CheckContext, e: ast.ListExpr, want: Type) -> ast.Expr:
    if isinstance(want, TStruct) and want.kind != "header_union":
        targets = [f for _, f in want.fields()]
    elif isinstance(want, TTuple):
        targets = list(want.elements)
    elif isinstance(want, TStack | TList):
        targets = [want.element] * (len(e.items) if isinstance(want, TList) else want.size)
    elif isinstance(want, TVar):
        return e
    else:
        return mismatch(ctx, e, want)
    short = len(e.items) < len(targets) and (e.dots or isinstance(want, TStack))
    if len(e.items) > len(targets) or (len(e.items) < len(targets) and not short):
        raise ctx.reporter.fail(e.at, f"{want} has {len(targets)} parts, this list has {len(e.items)}")
    items = tuple(coerce(ctx, item, target) for item, target in zip(e.items, targets, strict=False))
    value = ctx.values.get(e) if short else values_of(ctx, items) or ctx.values.get(e)
    return ctx.typed(rebuilt(e, items=items), want, value)


def values_of(ctx: CheckContext, items: Iterable[ast.Expr]) -> tuple[Any, ...] | None:
    """The values of expressions, or None when one of them has none."""
    values = tuple(ctx.values.get(item) for item in items)
    return None if any(v is None for v in values) else values


def _coerce_struct(ctx: CheckContext, e: ast.StructExpr, want: Type) -> ast.Expr:
    if isinstance(want, TVar):
        return e
    if not isinstance(want, TStruct) or want.kind == "header_union":
        return mismatch(ctx, e, want)
    given = {name: (at, item) for name, at, item in e.fields}
    out: list[tuple[str, int, ast.Expr]] = []
    for name, t in want.fields():
        if name in given:
            at, item = given.pop(name)
            out.append((name, at, coerce(ctx, item, t)))
        elif not e.dots:
            ctx.reporter.error(e.at, f"field '{name}' of {want} has no value")
    for name, (at, _) in given.items():
        ctx.reporter.error(at, f"{want} has no field '{name}'")
    value = None if e.dots else values_of(ctx, (item for _, _, item in out))
    return ctx.typed(rebuilt(e, fields=tuple(out)), want, value)


# ---------------------------------------------------------------- places


def require_place(ctx: CheckContext, e: ast.Expr, what: str) -> None:
    """Report unless the expression can be written to."""
    if ctx.types[e] is UNKNOWN:
        return
    problem = _place_problem(ctx, e)
    if problem:
        ctx.reporter.error(e.at, f"{what} must be something that can be written: {problem}")


def _place_problem(ctx: CheckContext, e: ast.Expr) -> str:
    if isinstance(e, ast.Name):
        decl = ctx.facts.decls.get(e)
        if isinstance(decl, ast.VariableDecl):
            return ""
        if isinstance(decl, ast.Parameter):
            if decl.direction in ("out", "inout"):
                return ""
            return (
                f"parameter '{e.name}' is read-only"
                if decl.direction == "in"
                else f"parameter '{e.name}' has no direction"
            )
        return f"'{e.name}' is not a variable"
    if isinstance(e, ast.Member):
        if isinstance(ctx.types[e.base], TStack) and e.name in ("lastIndex", "size"):
            return f"'{e.name}' is read-only"
        if isinstance(ctx.types[e.base], TStruct | TStack):
            return _place_problem(ctx, e.base)
        return f"'{e.name}' is not a field"
    if isinstance(e, ast.Index | ast.Slice):
        return _place_problem(ctx, e.base)
    return "this is a value"


def castable(source: Type, target: Type) -> bool:
    """Whether an explicit cast exists."""
    if source == target:
        return True
    if isinstance(target, TVar) or isinstance(source, TVar):
        return True
    if isinstance(target, TNew):
        return source == target.underlying or (source is INT and castable(source, target.underlying))
    if isinstance(source, TNew):
        return castable(source.underlying, target)
    if isinstance(source, TEnum):
        return source.underlying is not None and castable(source.underlying, target)
    if isinstance(target, TEnum):
        return target.underlying is not None and castable(source, target.underlying)
    if source is INT:
        return isinstance(target, TBits) or target == BOOL
    if isinstance(source, TBits) and isinstance(target, TBits):
        return source.width == target.width or source.signed == target.signed
    if target == BOOL:
        return source == TBits(1)
    if source == BOOL:
        return target == TBits(1)
    if isinstance(source, TBits) and target is INT:
        return True
    return isinstance(source, TVarbits) and isinstance(target, TVarbits) and source == target


def value_of(ctx: CheckContext, e: ast.Expr, want: Type | None = None) -> ast.Expr:
    """As check, but the expression must be a value (not a type, function, table...)."""
    e = ctx.check(e)
    t = ctx.types[e]
    if isinstance(t, TName | TCallable | TTable | TSet) and not (isinstance(t, TTable) and t.what == "result"):
        ctx.reporter.error(e.at, f"{t} is not a value")
        ctx.types[e] = UNKNOWN
    return e if want is None else coerce(ctx, e, want)
