"""Unification of types: what type variables have to be for a declaration to take its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from p4switch.frontend import ast
from p4switch.frontend.facts import Typed
from p4switch.frontend.p4_types import (
    ANY,
    DOTS,
    INT,
    INVALID,
    UNKNOWN,
    TBits,
    TBlock,
    TCallable,
    TList,
    TName,
    TNew,
    TRecord,
    TSet,
    TStack,
    TStruct,
    TTuple,
    TVar,
    Type,
    bindings_of,
    resolve_deep,
    substitute,
)


@dataclass(frozen=True, slots=True)
class Inference:
    """What is known while type variables are inferred."""

    types: Mapping[Typed, Type]
    """Those of the parameters of parsers and controls."""
    bindings: dict[TVar, Type]
    """What is known of the variables; grows."""
    free: set[TVar]
    """Those that may still be chosen."""


def unify_types(known: Inference, formal: Type, actual: Type) -> bool:
    """True when the types can be made equal; records what variables had to be."""
    if isinstance(formal, TVar) and formal in known.free:
        return _bind_variable(known, formal, actual)
    if isinstance(actual, TVar) and actual in known.free:
        return _bind_variable(known, actual, formal)
    if formal == actual or UNKNOWN in (formal, actual) or ANY in (formal, actual):
        return True
    if isinstance(formal, TStruct) and isinstance(actual, TStruct):
        return formal.decl is actual.decl and _unify_all(known, formal.arguments, actual.arguments)
    if isinstance(formal, TBlock) and isinstance(actual, TBlock):
        return not unify_blocks(known, formal, actual)
    if isinstance(formal, TTuple) and isinstance(actual, TTuple):
        return _unify_all(known, formal.elements, actual.elements)
    if isinstance(formal, TStruct) and isinstance(actual, TTuple):
        return _unify_all(known, tuple(t for _, t in formal.fields()), actual.elements)
    if isinstance(formal, TStruct) and isinstance(actual, TRecord):
        given = dict(actual.fields)
        return all(n not in given or unify_types(known, t, given[n]) for n, t in formal.fields())
    if isinstance(formal, TStack) and isinstance(actual, TStack):
        return formal.size == actual.size and unify_types(known, formal.element, actual.element)
    if isinstance(formal, TList | TSet) and isinstance(actual, TList | TSet):
        return unify_types(known, formal.element, actual.element)
    if isinstance(formal, TList) and isinstance(actual, TTuple):
        return all(unify_types(known, formal.element, t) for t in actual.elements)
    if isinstance(formal, TNew) and isinstance(actual, TNew):
        return formal.decl is actual.decl and unify_types(known, formal.underlying, actual.underlying)
    return actual is INT and isinstance(formal, TBits)


def _unify_all(known: Inference, formal: tuple[Type, ...], actual: tuple[Type, ...]) -> bool:
    return len(formal) == len(actual) and all(unify_types(known, f, a) for f, a in zip(formal, actual, strict=True))


def _bind_variable(known: Inference, variable: TVar, actual: Type) -> bool:
    if actual == variable or actual in (DOTS, INVALID):
        return True
    before = known.bindings.get(variable)
    if before is None or before is ANY or (before is INT and isinstance(actual, TBits)):
        if not isinstance(actual, TName | TCallable):
            known.bindings[variable] = actual
        return True
    if before == actual or actual is INT:
        return True
    return unify_types(known, before, actual)


def unify_blocks(known: Inference, formal: TBlock, actual: TBlock) -> str:
    """Empty when `actual` can be passed for `formal`, else what is wrong."""
    wrong = f"expected {formal.kind} {formal}, found {actual.kind} {actual}"
    if formal.decl is actual.decl:
        if formal.arguments and actual.arguments and not _unify_all(known, formal.arguments, actual.arguments):
            return wrong
        return ""
    mine, theirs = formal.decl, actual.decl
    if not isinstance(mine, ast.ParserDecl | ast.ControlDecl) or type(mine) is not type(theirs) or not mine.is_type:
        return wrong
    assert isinstance(theirs, ast.ParserDecl | ast.ControlDecl)
    left_out = mine.parameters[len(theirs.parameters) :]
    if len(theirs.parameters) > len(mine.parameters) or not all(p.is_optional for p in left_out):
        return f"{wrong}: it has {len(theirs.parameters)} parameters, not {len(mine.parameters)}"
    formals = bindings_of(formal) or {TVar(p.name, id(mine)): TVar(p.name, id(mine)) for p in mine.type_parameters}
    inner = {TVar(p.name, id(theirs)) for p in theirs.type_parameters}
    theirs_bound = bindings_of(actual)
    within = replace(known, free=known.free | inner)
    for m, t in zip(mine.parameters, theirs.parameters, strict=False):
        if m.direction != t.direction:
            have_direction, want_direction = t.direction or "none", m.direction or "none"
            return f"{wrong}: parameter '{t.name}' has direction '{have_direction}', not '{want_direction}'"
        want = substitute(known.types[m], formals)
        have = substitute(known.types[t], theirs_bound)
        if not unify_types(within, want, have):
            return f"{wrong}: parameter '{t.name}' has type {have}, not {resolve_deep(want, known.bindings)}"
    return ""
