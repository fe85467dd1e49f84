"""Types from their written form, and rules about them."""

from __future__ import annotations

from typing import Any

from p4switch.frontend import ast
from p4switch.frontend.check_context import CheckContext
from p4switch.frontend.check_convert import constant_int
from p4switch.frontend.p4_types import (
    ANY,
    BOOL,
    ERROR,
    INT,
    MATCH_KIND,
    STRING,
    UNKNOWN,
    VOID,
    TBase,
    TBits,
    TBlock,
    TEnum,
    TList,
    TNew,
    TStack,
    TStruct,
    TTuple,
    TVar,
    TVarbits,
    Type,
    has_variables,
)
from p4switch.frontend.source import AbortError

MAX_BIT_WIDTH = 1 << 16
"""Widest bit<W>; nothing real comes near, and a typing mistake must not eat the memory."""


MAX_STACK_SIZE = 1 << 12


_BASE: dict[str, Type] = {
    "bool": BOOL,
    "error": ERROR,
    "match_kind": MATCH_KIND,
    "string": STRING,
    "void": VOID,
    "int": INT,
    "_": ANY,
}


def resolve_type(ctx: CheckContext, ref: ast.TypeRef) -> Type:
    """The type that a reference means; UNKNOWN after a reported error."""
    try:
        return _resolve(ctx, ref)
    except AbortError:
        return UNKNOWN


def _resolve(ctx: CheckContext, ref: ast.TypeRef) -> Type:
    if isinstance(ref, ast.BaseType):
        return _BASE[ref.kind]
    if isinstance(ref, ast.SizedType):
        return _sized(ctx, ref)
    if isinstance(ref, ast.TupleTypeRef):
        elements = tuple(_resolve(ctx, e) for e in ref.elements)
        for e, t in zip(ref.elements, elements, strict=True):
            if isinstance(t, TBlock) or t is VOID:
                raise ctx.reporter.fail(e.at, f"a tuple cannot hold {t}")
        return TTuple(elements)
    if isinstance(ref, ast.ListTypeRef):
        return TList(_resolve(ctx, ref.element))
    if isinstance(ref, ast.StackTypeRef):
        return _stack(ctx, ref)
    return _named(ctx, ref)


def _sized(ctx: CheckContext, ref: ast.SizedType) -> Type:
    width = 1 if ref.width is None else constant_int(ctx, ref.width, f"the width of {ref.kind}<>")
    if width < 0:
        raise ctx.reporter.fail(ref.at, f"the width of {ref.kind}<> must not be negative")
    if width > MAX_BIT_WIDTH:
        raise ctx.reporter.fail_unsupported(ref.at, f"{ref.kind}<{width}> is wider than {MAX_BIT_WIDTH} bits")
    if ref.kind == "varbit":
        return TVarbits(width)
    if ref.kind == "int" and width == 0:
        raise ctx.reporter.fail(ref.at, "int<0> is not a type")
    return TBits(width, ref.kind == "int")


def _stack(ctx: CheckContext, ref: ast.StackTypeRef) -> Type:
    element = _resolve(ctx, ref.element)
    size = constant_int(ctx, ref.size, "the size of a header stack")
    if size <= 0:
        raise ctx.reporter.fail(ref.size.at, "the size of a header stack must be positive")
    if size > MAX_STACK_SIZE:
        raise ctx.reporter.fail_unsupported(ref.size.at, f"header stacks larger than {MAX_STACK_SIZE}")
    if isinstance(element, TBlock):
        raise ctx.reporter.fail_unsupported(ref.at, "arrays of instances")
    if isinstance(element, TBase) and element in (VOID, INT, STRING, MATCH_KIND):
        raise ctx.reporter.fail(ref.at, f"there are no arrays of {element}")
    return TStack(element, size)


def _named(ctx: CheckContext, ref: ast.NamedType) -> Type:
    decl = ctx.lookup(ref.name, ref.absolute)
    if decl is None:
        raise ctx.reporter.fail(ref.at, f"type '{ref.name}' is not declared")
    arguments = None if ref.arguments is None else tuple(_resolve(ctx, a) for a in ref.arguments)
    return type_of_decl(ctx, decl, ref.name, arguments, ref.at)


def type_of_decl(ctx: CheckContext, decl: Any, name: str, arguments: tuple[Type, ...] | None, at: int) -> Type:
    """The type a declaration introduces, applied to arguments."""
    if isinstance(decl, ast.StructDecl | ast.ParserDecl | ast.ControlDecl | ast.PackageDecl | ast.ExternDecl):
        expected = len(decl.type_parameters)
        if arguments is not None and len(arguments) != expected:
            raise ctx.reporter.fail(at, f"'{name}' takes {expected} type arguments, not {len(arguments)}")
        if isinstance(decl, ast.StructDecl):
            if expected and arguments is None:
                raise ctx.reporter.fail(at, f"generic type '{name}' needs type arguments")
            return ctx.facts.struct(decl, arguments or ())
        return TBlock(decl, arguments or ())
    if arguments is not None:
        raise ctx.reporter.fail(at, f"'{name}' is not generic")
    if isinstance(decl, TVar):
        return decl
    if isinstance(decl, ast.EnumDecl | ast.TypedefDecl):
        return ctx.types[decl]
    raise ctx.reporter.fail(at, f"'{name}' is not a type")


# ---------------------------------------------------------------- rules about types


def check_field(ctx: CheckContext, owner: ast.StructDecl, f: ast.FieldDecl) -> None:
    """Which types may be fields of what."""
    t = ctx.types[f]
    if t is UNKNOWN or isinstance(t, TVar):
        return
    if has_variables(t) and not (isinstance(t, TTuple) and owner.kind != "struct"):
        return
    if owner.kind == "header" and isinstance(t, TStack) and _fits_header(t.element):
        raise ctx.reporter.fail_unsupported(f.at, f"not supported: an array of {t.element} in a header")
    if owner.kind == "header":
        good = _fits_header(t)
    elif owner.kind == "header_union":
        good = isinstance(t, TStruct) and t.kind == "header"
    else:
        good = not isinstance(t, TBlock) and t not in (VOID, INT, STRING, MATCH_KIND, ANY)
    if not good:
        ctx.reporter.error(f.at, f"a field of {owner.kind} {owner.name} cannot have type {t}")


def _fits_header(t: Type) -> bool:
    if isinstance(t, TBits | TVarbits) or t == BOOL:
        return True
    if isinstance(t, TNew):
        return _fits_header(t.underlying)
    if isinstance(t, TEnum):
        return t.underlying is not None
    return isinstance(t, TStruct) and t.kind == "struct" and all(_fits_header(f) for _, f in t.fields())
