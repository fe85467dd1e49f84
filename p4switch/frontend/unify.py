"""Unification of types: what type variables have to be for a declaration to take its arguments.

`bindings` is what is known of the variables and grows; `free` are those that may still be chosen.
"""

from __future__ import annotations

from p4switch.frontend import ast
from p4switch.frontend.types import (
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
    block_bindings,
    resolve_deep,
    substitute,
)


def unify_types(formal: Type, actual: Type, bindings: dict[TVar, Type], free: set[TVar]) -> bool:
    """True when the types can be made equal; records what variables had to be."""
    if isinstance(formal, TVar) and formal in free:
        return _bind_variable(formal, actual, bindings, free)
    if isinstance(actual, TVar) and actual in free:
        return _bind_variable(actual, formal, bindings, free)
    if formal == actual or UNKNOWN in (formal, actual) or ANY in (formal, actual):
        return True
    if isinstance(formal, TStruct) and isinstance(actual, TStruct):
        return formal.decl is actual.decl and _unify_all(formal.arguments, actual.arguments, bindings, free)
    if isinstance(formal, TBlock) and isinstance(actual, TBlock):
        return not unify_blocks(formal, actual, bindings, free)
    if isinstance(formal, TTuple) and isinstance(actual, TTuple):
        return _unify_all(formal.elements, actual.elements, bindings, free)
    if isinstance(formal, TStruct) and isinstance(actual, TTuple):
        return _unify_all(tuple(t for _, t in formal.fields()), actual.elements, bindings, free)
    if isinstance(formal, TStruct) and isinstance(actual, TRecord):
        given = dict(actual.fields)
        return all(n not in given or unify_types(t, given[n], bindings, free) for n, t in formal.fields())
    if isinstance(formal, TStack) and isinstance(actual, TStack):
        return formal.size == actual.size and unify_types(formal.element, actual.element, bindings, free)
    if isinstance(formal, TList | TSet) and isinstance(actual, TList | TSet):
        return unify_types(formal.element, actual.element, bindings, free)
    if isinstance(formal, TList) and isinstance(actual, TTuple):
        return all(unify_types(formal.element, t, bindings, free) for t in actual.elements)
    if isinstance(formal, TNew) and isinstance(actual, TNew):
        return formal.decl is actual.decl and unify_types(formal.underlying, actual.underlying, bindings, free)
    return actual is INT and isinstance(formal, TBits)


def _unify_all(formal: tuple[Type, ...], actual: tuple[Type, ...], bindings: dict[TVar, Type], free: set[TVar]) -> bool:
    return len(formal) == len(actual) and all(
        unify_types(f, a, bindings, free) for f, a in zip(formal, actual, strict=True)
    )


def _bind_variable(variable: TVar, actual: Type, bindings: dict[TVar, Type], free: set[TVar]) -> bool:
    if actual == variable or actual in (DOTS, INVALID):
        return True
    before = bindings.get(variable)
    if before is None or before is ANY or (before is INT and isinstance(actual, TBits)):
        if not isinstance(actual, TName | TCallable):
            bindings[variable] = actual
        return True
    if before == actual or actual is INT:
        return True
    return unify_types(before, actual, bindings, free)


def unify_blocks(formal: TBlock, actual: TBlock, bindings: dict[TVar, Type], free: set[TVar]) -> str:
    """Empty when `actual` can be passed for `formal`, else what is wrong."""
    wrong = f"expected {formal.kind} {formal}, found {actual.kind} {actual}"
    if formal.decl is actual.decl:
        if formal.arguments and actual.arguments and not _unify_all(formal.arguments, actual.arguments, bindings, free):
            return wrong
        return ""
    mine, theirs = formal.decl, actual.decl
    if not isinstance(mine, ast.ParserDecl | ast.ControlDecl) or type(mine) is not type(theirs) or not mine.is_type:
        return wrong
    assert isinstance(theirs, ast.ParserDecl | ast.ControlDecl)
    left_out = mine.parameters[len(theirs.parameters) :]
    if len(theirs.parameters) > len(mine.parameters) or not all(p.is_optional for p in left_out):
        return f"{wrong}: it has {len(theirs.parameters)} parameters, not {len(mine.parameters)}"
    formals = block_bindings(formal) or {TVar(p.name, id(mine)): TVar(p.name, id(mine)) for p in mine.type_parameters}
    inner = {TVar(p.name, id(theirs)) for p in theirs.type_parameters}
    theirs_bound = block_bindings(actual)
    for m, t in zip(mine.parameters, theirs.parameters, strict=False):
        if m.direction != t.direction:
            have_direction, want_direction = t.direction or "none", m.direction or "none"
            return f"{wrong}: parameter '{t.name}' has direction '{have_direction}', not '{want_direction}'"
        want = substitute(m.type, formals)
        have = substitute(t.type, theirs_bound)
        if not unify_types(want, have, bindings, free | inner):
            return f"{wrong}: parameter '{t.name}' has type {have}, not {resolve_deep(want, bindings)}"
    return ""
