"""Members: of structs, stacks, tables, enumerations, instances."""

from __future__ import annotations

from p4switch.frontend import ast
from p4switch.frontend.check_context import CheckContext, rebuilt
from p4switch.frontend.p4_types import (
    BOOL,
    ERROR,
    UNKNOWN,
    EnumValue,
    TBits,
    TBlock,
    TCallable,
    TEnum,
    TName,
    TStack,
    TStruct,
    TTable,
    Type,
)
from p4switch.frontend.source import AbortError

HEADER_METHODS = frozenset(
    {"isValid", "setValid", "setInvalid", "minSizeInBits", "minSizeInBytes", "maxSizeInBits", "maxSizeInBytes"}
)


STACK_METHODS = frozenset(
    {"push_front", "pop_front", "minSizeInBits", "minSizeInBytes", "maxSizeInBits", "maxSizeInBytes"}
)


SIZE_METHODS = frozenset({"minSizeInBits", "minSizeInBytes", "maxSizeInBits", "maxSizeInBytes"})


def check_member(ctx: CheckContext, e: ast.Member) -> ast.Expr:
    e = rebuilt(e, base=ctx.check(e.base))
    base = ctx.types[e.base]
    if base is UNKNOWN:
        raise AbortError
    if isinstance(base, TName):
        return _static_member(ctx, e, base.named)
    if isinstance(base, TStruct):
        return _struct_member(ctx, e, base)
    if isinstance(base, TStack):
        return _stack_member(ctx, e, base)
    if isinstance(base, TTable):
        return _table_member(ctx, e, base)
    if isinstance(base, TBlock):
        return _block_member(ctx, e, base)
    if e.name in SIZE_METHODS:
        return ctx.typed(e, TCallable(e.name))
    raise ctx.reporter.fail(e.name_at, f"{base} has no member '{e.name}'")


def _static_member(ctx: CheckContext, e: ast.Member, named: Type) -> ast.Expr:
    if isinstance(named, TEnum):
        members = ctx.facts.members[named.decl]
        if e.name not in members:
            raise ctx.reporter.fail(e.name_at, f"enum {named} has no member '{e.name}'")
        return ctx.typed(e, named, members[e.name] if named.underlying else EnumValue(named.decl.name, e.name))
    if named is ERROR:
        if e.name not in ctx.errors:
            raise ctx.reporter.fail(e.name_at, f"error '{e.name}' is not declared")
        return ctx.typed(e, ERROR, EnumValue("error", e.name))
    if isinstance(named, TBlock) and e.name == "apply" and named.kind in ("parser", "control"):
        return ctx.typed(e, TCallable("apply"))
    if e.name in SIZE_METHODS:
        return ctx.typed(e, TCallable(e.name))
    raise ctx.reporter.fail(e.name_at, f"type {named} has no member '{e.name}'")


def _struct_member(ctx: CheckContext, e: ast.Member, base: TStruct) -> ast.Expr:
    t = base.field(e.name)
    if t is not None:
        whole = ctx.values.get(e.base)
        part = whole[[n for n, _ in base.fields()].index(e.name)] if isinstance(whole, tuple) else None
        return ctx.typed(e, t, part)
    methods = SIZE_METHODS if base.kind == "struct" else HEADER_METHODS
    if e.name in methods:
        return ctx.typed(e, TCallable(e.name))
    raise ctx.reporter.fail(e.name_at, f"{base.kind} {base} has no field '{e.name}'")


def _stack_member(ctx: CheckContext, e: ast.Member, base: TStack) -> ast.Expr:
    if e.name in ("next", "last"):
        if not ctx.in_parser:
            raise ctx.reporter.fail(e.name_at, f"'{e.name}' of a header stack can only be used in a parser")
        return ctx.typed(e, base.element)
    if e.name == "lastIndex":
        if not ctx.in_parser:
            raise ctx.reporter.fail(e.name_at, "'lastIndex' of a header stack can only be used in a parser")
        return ctx.typed(e, TBits(32))
    if e.name == "size":
        return ctx.typed(e, TBits(32), base.size)
    if e.name in STACK_METHODS:
        return ctx.typed(e, TCallable(e.name))
    raise ctx.reporter.fail(e.name_at, f"header stack {base} has no member '{e.name}'")


def _table_member(ctx: CheckContext, e: ast.Member, base: TTable) -> ast.Expr:
    if base.what == "table" and e.name == "apply":
        return ctx.typed(e, TCallable("apply"))
    if base.what == "result" and e.name in ("hit", "miss"):
        return ctx.typed(e, BOOL)
    if base.what == "result" and e.name == "action_run":
        return ctx.typed(e, TTable(base.decl, "action"))
    raise ctx.reporter.fail(e.name_at, f"{base} has no member '{e.name}'")


def _block_member(ctx: CheckContext, e: ast.Member, base: TBlock) -> ast.Expr:
    if isinstance(base.decl, ast.ParserDecl | ast.ControlDecl) and e.name == "apply":
        return ctx.typed(e, TCallable("apply"))
    if isinstance(base.decl, ast.ExternDecl) and any(m.name == e.name for m in base.decl.methods):
        return ctx.typed(e, TCallable(e.name))
    raise ctx.reporter.fail(e.name_at, f"{base} has no member '{e.name}'")
