"""Declarations of values and types."""

from __future__ import annotations

from p4switch.frontend import ast
from p4switch.frontend.check_arguments import is_elaboration_constant
from p4switch.frontend.check_context import CheckContext
from p4switch.frontend.check_convert import value_of
from p4switch.frontend.check_types import check_field, resolve_type
from p4switch.frontend.p4_types import (
    ANY,
    BOOL,
    INT,
    MATCH_KIND,
    STRING,
    UNKNOWN,
    VOID,
    TBits,
    TBlock,
    TEnum,
    TNew,
    TVar,
    TVarbits,
    Type,
)
from p4switch.frontend.source import AbortError


def check_constant(ctx: CheckContext, decl: ast.Constant) -> None:
    t = ctx.types[decl] = resolve_type(ctx, decl.ref)
    if isinstance(t, TBlock) or t is VOID:
        raise ctx.reporter.fail(decl.at, f"a constant cannot have type {t}")
    init = ctx.settle(decl.init, value_of(ctx, decl.init, t))
    value = ctx.values.get(init)
    if value is not None:
        ctx.values[decl] = value
    elif ctx.types[init] is not UNKNOWN and not is_elaboration_constant(ctx, init):
        ctx.reporter.error(init.at, f"the value of constant '{decl.name}' is not known at compile time")
    ctx.declare(decl.name, decl, decl.at)


def check_variable(ctx: CheckContext, decl: ast.VariableDecl) -> None:
    if ctx.where == "top":
        ctx.reporter.error(decl.at, "variables cannot be declared at the top level")
    t = resolve_type(ctx, decl.ref)
    if isinstance(t, TBlock) or t in (VOID, INT, STRING, MATCH_KIND, ANY):
        ctx.reporter.error(decl.at, f"a variable cannot have type {t}")
        t = UNKNOWN
    ctx.types[decl] = t
    if decl.init is not None:
        ctx.settle(decl.init, value_of(ctx, decl.init, t))
    ctx.declare(decl.name, decl, decl.at)


def check_struct_decl(ctx: CheckContext, decl: ast.StructDecl) -> None:
    ctx.push()
    ctx.declare_type_parameters(decl.type_parameters, decl)
    seen: set[str] = set()
    varbits = 0
    for f in decl.fields:
        t = ctx.types[f] = resolve_type(ctx, f.ref)
        check_field(ctx, decl, f)
        if f.name in seen:
            ctx.reporter.error(f.at, f"{decl.kind} {decl.name} has two fields '{f.name}'")
        seen.add(f.name)
        varbits += isinstance(t, TVarbits)
        if isinstance(t, TVarbits) and decl.kind == "header" and varbits > 1:
            ctx.reporter.error(f.at, f"header {decl.name} has two varbit fields")
    ctx.pop()
    ctx.declare(decl.name, decl, decl.at)


def check_enum(ctx: CheckContext, decl: ast.EnumDecl) -> None:
    underlying: TBits | None = None
    if decl.ref is not None:
        t = resolve_type(ctx, decl.ref)
        if not isinstance(t, TBits):
            if t is not UNKNOWN:
                ctx.reporter.error(decl.at, f"the underlying type of an enum must be bit<> or int<>, not {t}")
            raise AbortError
        underlying = t
    ctx.types[decl] = TEnum(decl, underlying)
    values = ctx.facts.members[decl] = {}
    for index, (name, at, value) in enumerate(decl.members):
        if name in values:
            ctx.reporter.error(at, f"enum {decl.name} has two members '{name}'")
        if underlying is None:
            if value is not None:
                ctx.reporter.error(at, "only an enum with an underlying type gives its members values")
            values[name] = index
            continue
        if value is None:
            ctx.reporter.error(at, f"member '{name}' of enum {decl.name} needs a value")
            values[name] = 0
            continue
        checked = value_of(ctx, value, underlying)
        number = ctx.values.get(checked)
        if ctx.types[checked] is not UNKNOWN and not isinstance(number, int):
            ctx.reporter.error(value.at, f"the value of '{name}' must be known at compile time")
        values[name] = number if isinstance(number, int) else 0
    ctx.declare(decl.name, decl, decl.at)


def check_error_decl(ctx: CheckContext, decl: ast.ErrorDecl) -> None:
    for name, at in decl.members:
        if name in ctx.errors:
            ctx.reporter.error(at, f"error '{name}' is already declared")
        else:
            ctx.errors[name] = len(ctx.errors)


def check_match_kind(ctx: CheckContext, decl: ast.MatchKindDecl) -> None:
    for name, at in decl.members:
        if name in ctx.match_kinds:
            ctx.reporter.error(at, f"match_kind '{name}' is already declared")
        ctx.match_kinds.add(name)


def check_typedef(ctx: CheckContext, decl: ast.TypedefDecl) -> None:
    target: Type
    if isinstance(decl.ref, ast.StructDecl | ast.EnumDecl):
        ctx.declaration(decl.ref)
        named = decl.ref
        target = ctx.facts.struct(named) if isinstance(named, ast.StructDecl) else ctx.types.get(named, UNKNOWN)
    else:
        target = resolve_type(ctx, decl.ref)
    if decl.distinct:
        base = target
        while isinstance(base, TNew):
            base = base.underlying
        if not (isinstance(base, TBits) or base == BOOL or base is UNKNOWN or isinstance(base, TEnum | TVar)):
            ctx.reporter.error(decl.at, f"'type' cannot be made from {target}")
        ctx.types[decl] = TNew(decl, target)
    else:
        ctx.types[decl] = target
    ctx.declare(decl.name, decl, decl.at)
