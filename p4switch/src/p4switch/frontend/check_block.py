"""Parsers and controls."""

from __future__ import annotations

from p4switch.frontend import ast
from p4switch.frontend.check_arguments import is_elaboration_constant
from p4switch.frontend.check_context import CheckContext, rebuilt
from p4switch.frontend.check_convert import value_of
from p4switch.frontend.check_function import check_parameters
from p4switch.frontend.check_keyset import check_constant_keyset
from p4switch.frontend.check_stmt import check_statement, check_statements
from p4switch.frontend.check_types import resolve_type
from p4switch.frontend.p4_types import (
    ANY,
    BOOL,
    ERROR,
    INT,
    STRING,
    UNKNOWN,
    VOID,
    TBits,
    TBlock,
    TEnum,
    TNew,
    TSet,
    TStruct,
    TTuple,
    TVar,
    Type,
)


def _block_head(ctx: CheckContext, decl: ast.ParserDecl | ast.ControlDecl) -> None:
    """Open the scope of a parser or control."""
    ctx.push()
    ctx.declare_type_parameters(decl.type_parameters, decl)
    check_parameters(ctx, decl.parameters, "control" if isinstance(decl, ast.ControlDecl) else "parser")
    check_parameters(ctx, decl.constructor_parameters, "constructor")
    for p in decl.constructor_parameters:
        if p.direction:
            ctx.reporter.error(p.at, "constructor parameters have no direction")


def check_parser(ctx: CheckContext, decl: ast.ParserDecl) -> None:
    _block_head(ctx, decl)
    ctx.where = "parser"
    ctx.in_parser = True
    if not decl.is_type:
        _parser_body(ctx, decl)
    ctx.in_parser = False
    ctx.where = "top"
    ctx.pop()
    ctx.declare(decl.name, decl, decl.at)


def _parser_body(ctx: CheckContext, decl: ast.ParserDecl) -> None:
    for local in decl.locals:
        ctx.declaration(local)
    names: dict[str, ast.StateDecl] = {}
    for state in decl.states:
        if state.name in ("accept", "reject"):
            ctx.reporter.error(state.at, f"state '{state.name}' is built in")
        elif state.name in names:
            ctx.reporter.error(state.at, f"parser {decl.name} has two states '{state.name}'")
        names[state.name] = state
    if "start" not in names:
        ctx.reporter.error(decl.at, f"parser {decl.name} has no state 'start'")
    known = set(names) | {"accept", "reject"}
    for state in decl.states:
        _state(ctx, state, known)
    if "start" in names and not _ends(names):
        ctx.reporter.error(decl.at, f"parser {decl.name} never reaches accept or reject")


def _state(ctx: CheckContext, state: ast.StateDecl, known: set[str]) -> None:
    ctx.push()
    ctx.where = "state"
    for statement in state.body:
        check_statement(ctx, statement)
    if state.next_state is not None and state.next_state not in known:
        ctx.reporter.error(state.next_at, f"there is no state '{state.next_state}'")
    if state.select is not None:
        _select(ctx, state, known)
    ctx.where = "parser"
    ctx.pop()


def _select(ctx: CheckContext, state: ast.StateDecl, known: set[str]) -> None:
    assert state.select is not None
    keys = tuple(value_of(ctx, e) for e in state.select)
    if len(keys) == 1 and isinstance(keys[0], ast.ListExpr) and isinstance(ctx.types[keys[0]], TTuple):
        keys = keys[0].items
    ctx.facts.selects[state] = keys
    types = [ctx.types[e] for e in keys]
    for e in keys:
        if ctx.types[e] is INT and ctx.values.get(e) is not None:
            ctx.reporter.error(e.at, "a select needs a value with a width")
        elif not isinstance(ctx.types[e], TBits | TEnum | TNew | TVar | TTuple) and ctx.types[e] not in (
            BOOL,
            ERROR,
            UNKNOWN,
        ):
            ctx.reporter.error(e.at, f"select is not defined for {ctx.types[e]}")
    for case in state.cases:
        _select_case(ctx, case, types)
        if case.state not in known:
            ctx.reporter.error(case.state_at, f"there is no state '{case.state}'")


def _select_case(ctx: CheckContext, case: ast.SelectCase, types: list[Type]) -> None:
    keyset = case.keyset
    if isinstance(keyset, ast.DefaultExpr):
        ctx.check(keyset)
        return
    if isinstance(keyset, ast.TupleKeyset):
        if len(keyset.items) != len(types):
            ctx.reporter.error(keyset.at, f"the select has {len(types)} values, this case {len(keyset.items)}")
            return
        items = tuple(check_constant_keyset(ctx, k, t) for k, t in zip(keyset.items, types, strict=True))
        ctx.settle(keyset, ctx.typed(rebuilt(keyset, items=items), TSet(ANY)))
        return
    if isinstance(keyset, ast.Name) and isinstance(ctx.lookup(keyset.name, keyset.absolute), ast.ValueSetDecl):
        ctx.check(keyset)
        return
    if len(types) != 1:
        checked = ctx.check(keyset)
        if isinstance(ctx.types[checked], TTuple | TStruct):
            return
        ctx.reporter.error(keyset.at, f"the select has {len(types)} values, this case one")
        return
    ctx.settle(keyset, check_constant_keyset(ctx, keyset, types[0]))


def check_value_set(ctx: CheckContext, decl: ast.ValueSetDecl) -> None:
    t = ctx.types[decl] = resolve_type(ctx, decl.ref)
    if t in (INT, STRING, VOID) or isinstance(t, TBlock):
        ctx.reporter.error(decl.at, f"there are no value sets of {t}")
    size = value_of(ctx, decl.size)
    if ctx.types[size] is not UNKNOWN and not is_elaboration_constant(ctx, size):
        ctx.reporter.error(size.at, "the size of a value set must be known at compile time")
    ctx.declare(decl.name, decl, decl.at)


def check_control(ctx: CheckContext, decl: ast.ControlDecl) -> None:
    _block_head(ctx, decl)
    if decl.body is not None:
        ctx.where = "control"
        ctx.push()
        for local in decl.locals:
            ctx.declaration(local)
        ctx.where, ctx.return_type = "apply", VOID
        check_statements(ctx, decl.body)
        ctx.pop()
    ctx.where = "top"
    ctx.pop()
    ctx.declare(decl.name, decl, decl.at)


def _ends(states: dict[str, ast.StateDecl]) -> bool:
    """Whether a path from `start` leaves the parser; a select may reject when nothing matches."""
    seen: set[str] = set()
    waiting = ["start"]
    while waiting:
        name = waiting.pop()
        if name not in states or states[name].next_state is None:
            return True
        if name in seen:
            continue
        seen.add(name)
        following = states[name].next_state
        assert following is not None
        waiting.append(following)
    return False
