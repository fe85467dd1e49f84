"""Leaves, names, indexes and slices."""

from __future__ import annotations

from typing import Any

from p4switch.frontend import ast, constants
from p4switch.frontend.check_context import CheckContext, rebuilt
from p4switch.frontend.check_convert import coerce, constant_int, implicit_cast, value_of
from p4switch.frontend.check_types import resolve_type, type_of_decl
from p4switch.frontend.p4_types import (
    ANY,
    BOOL,
    DOTS,
    ERROR,
    INT,
    INVALID,
    MATCH_KIND,
    STATE,
    STRING,
    UNKNOWN,
    EnumValue,
    TBits,
    TBlock,
    TCallable,
    TEnum,
    TName,
    TNew,
    TSet,
    TStack,
    TTable,
    TTuple,
    Type,
)
from p4switch.frontend.source import AbortError


def check_int(ctx: CheckContext, e: ast.IntLiteral) -> ast.Expr:
    if e.width is None:
        return ctx.typed(e, INT, e.number)
    if e.width == 0 and e.signed:
        raise ctx.reporter.fail(e.at, "a signed number needs at least one bit")
    t = TBits(e.width, e.signed)
    if e.number >= 1 << e.width:
        ctx.reporter.warning(e.at, f"{e.number} does not fit in {t}")
    return ctx.typed(e, t, constants.wrap(e.number, t))


def check_bool(ctx: CheckContext, e: ast.BoolLiteral) -> ast.Expr:
    return ctx.typed(e, BOOL, e.truth)


def check_string(ctx: CheckContext, e: ast.StringLiteral) -> ast.Expr:
    return ctx.typed(e, STRING, e.text)


def check_invalid(ctx: CheckContext, e: ast.InvalidExpr) -> ast.Expr:
    return ctx.typed(e, INVALID)


def check_dots(ctx: CheckContext, e: ast.DotsExpr) -> ast.Expr:
    return ctx.typed(e, DOTS)


def check_default(ctx: CheckContext, e: ast.DefaultExpr) -> ast.Expr:
    return ctx.typed(e, TSet(ANY))


def check_name(ctx: CheckContext, e: ast.Name) -> ast.Expr:
    if e.name == "error" and not e.absolute:
        return ctx.typed(e, TName(ERROR))
    decl = ctx.lookup(e.name, e.absolute)
    if decl is None:
        if e.name == "this":
            raise ctx.reporter.fail(e.at, "'this' stands for an instance inside the methods that it implements")
        if e.name in ctx.match_kinds:
            return ctx.typed(e, MATCH_KIND, EnumValue("match_kind", e.name))
        raise ctx.reporter.fail(e.at, f"'{e.name}' is not declared")
    ctx.facts.decls[e] = decl
    value = ctx.values.get(decl) if isinstance(decl, ast.Constant) else None
    return ctx.typed(e, _type_of_name(ctx, e, decl), value)


def _type_of_name(ctx: CheckContext, e: ast.Name, decl: Any) -> Type:
    if isinstance(decl, ast.Constant | ast.VariableDecl | ast.Parameter | ast.Instantiation):
        return ctx.types[decl]
    if isinstance(decl, list):
        return TCallable(e.name)
    if isinstance(decl, ast.ActionDecl):
        return TCallable(e.name)
    if isinstance(decl, ast.TableDecl):
        return TTable(decl)
    if isinstance(decl, ast.ValueSetDecl):
        return TSet(ctx.types[decl])
    if isinstance(decl, ast.StateDecl):
        return STATE
    if isinstance(decl, ast.MatchKindDecl):
        return TName(MATCH_KIND)
    if isinstance(decl, ast.ParserDecl | ast.ControlDecl | ast.PackageDecl | ast.ExternDecl):
        return TName(TBlock(decl))
    if isinstance(decl, ast.StructDecl):
        return TName(ctx.facts.struct(decl))
    return TName(type_of_decl(ctx, decl, e.name, None, e.at))


def check_type_expr(ctx: CheckContext, e: ast.TypeExpr) -> ast.Expr:
    t = resolve_type(ctx, e.ref)
    if t is UNKNOWN:
        raise AbortError
    return ctx.typed(e, TName(t))


def check_index(ctx: CheckContext, e: ast.Index) -> ast.Expr:
    """base[index], of a stack or a tuple."""
    base, index = value_of(ctx, e.base), value_of(ctx, e.index)
    t, index_type = ctx.types[base], ctx.types[index]
    if t is UNKNOWN or index_type is UNKNOWN:
        raise AbortError
    if isinstance(index_type, TEnum) and index_type.underlying is not None:
        index = coerce(ctx, index, index_type.underlying)
    elif index_type is not INT and not isinstance(index_type, TBits):
        raise ctx.reporter.fail(index.at, f"an index must be a number, found {index_type}")
    e = rebuilt(e, base=base, index=index)
    at = ctx.values.get(index)
    if isinstance(t, TTuple):
        if not isinstance(at, int):
            raise ctx.reporter.fail(index.at, "the index of a tuple must be known at compile time")
        if not 0 <= at < len(t.elements):
            raise ctx.reporter.fail(index.at, f"index {at} is outside of {t}")
        whole = ctx.values.get(base)
        return ctx.typed(e, t.elements[at], whole[at] if isinstance(whole, tuple) else None)
    if not isinstance(t, TStack):
        raise ctx.reporter.fail(e.at, f"{t} cannot be indexed")
    if isinstance(at, int) and not 0 <= at < t.size:
        raise ctx.reporter.fail(index.at, f"index {at} is outside of the stack's {t.size} elements")
    return ctx.typed(e, t.element)


def check_slice(ctx: CheckContext, e: ast.Slice) -> ast.Expr:
    """base[high:low] or base[start +: width]."""
    base = value_of(ctx, e.base)
    t = ctx.types[base]
    if t is UNKNOWN:
        raise AbortError
    if isinstance(t, TEnum) and t.underlying is not None:
        base, t = implicit_cast(ctx, base, t.underlying), t.underlying
    if isinstance(t, TNew):
        raise ctx.reporter.fail(e.at, f"{t} has no bit slices; cast it first")
    if not isinstance(t, TBits) and t is not INT:
        raise ctx.reporter.fail(e.at, f"{t} has no bit slices")
    if e.plus:
        start = value_of(ctx, e.high)
        width = constant_int(ctx, e.low, "the width of a slice")
        if width <= 0:
            raise ctx.reporter.fail(e.low.at, "the width of a slice must be positive")
        e = rebuilt(e, base=base, high=start)
        lowest = ctx.values.get(start)
        if isinstance(lowest, int):
            return _bounded_slice(ctx, e, t, lowest + width - 1, lowest)
        return ctx.typed(e, TBits(width))
    high = constant_int(ctx, e.high, "a bound of a slice")
    low = constant_int(ctx, e.low, "a bound of a slice")
    return _bounded_slice(ctx, rebuilt(e, base=base), t, high, low)


def _bounded_slice(ctx: CheckContext, e: ast.Slice, base: Type, high: int, low: int) -> ast.Expr:
    if low < 0 or high < low:
        raise ctx.reporter.fail(e.high.at, f"bit slice [{high}:{low}] is backwards or negative")
    if isinstance(base, TBits) and high >= base.width:
        raise ctx.reporter.fail(e.high.at, f"bit {high} is outside of {base}")
    ctx.facts.bounds[e] = (high, low)
    whole = ctx.values.get(e.base)
    value = (whole >> low) & ((1 << (high - low + 1)) - 1) if isinstance(whole, int) else None
    return ctx.typed(e, TBits(high - low + 1), value)
