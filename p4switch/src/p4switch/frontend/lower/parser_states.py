"""Parsers: sub-parsers become states with names of their own, select becomes matches on saved keys."""

from __future__ import annotations

from collections.abc import Sequence

from p4switch.frontend import ast
from p4switch.frontend.lower.aggregates import leaves_of
from p4switch.frontend.lower.bindings import Env, Frame, Instance
from p4switch.frontend.lower.calls import block_instance
from p4switch.frontend.lower.entries import key_number
from p4switch.frontend.lower.inlining import actual_callee, bind_arguments, finish, initialise_locals, overlapping
from p4switch.frontend.lower.ir_helpers import is_scalar
from p4switch.frontend.lower.known_values import known_value
from p4switch.frontend.lower.lowering import Lowering
from p4switch.frontend.lower.types_to_ir import ir_constant, ir_type
from p4switch.frontend.p4_types import EnumValue, TTuple
from p4switch.ir import expr as ir
from p4switch.ir import types as irt
from p4switch.ir.program import REJECT, MatchKind, MatchOp, ParserState, SelectCase, SelectMatch, TableKey, Transition
from p4switch.ir.stmt import Location, Stmt

MAX_PARSER_STATES = 4096


def parser_states(low: Lowering, decl: ast.ParserDecl, env: Env, prefix: str, accept: str) -> str:
    """Lower all states of a parser; `accept` is where its accept leads. Gives the name of its start state."""
    names = {s.name: low.fresh_name(prefix + s.name) for s in decl.states}
    names["accept"] = accept
    names["reject"] = REJECT
    start = next(s for s in decl.states if s.name == "start")
    ordered = [start, *(s for s in decl.states if s is not start)]
    for state in ordered:
        _state(low, state, env, names, prefix)
    return names["start"]


def _state(low: Lowering, state: ast.StateDecl, env: Env, names: dict[str, str], prefix: str) -> None:
    if len(low.states) > MAX_PARSER_STATES:
        raise low.unsupported(state.at, f"more than {MAX_PARSER_STATES} parser states")
    name = names[state.name]
    location = low.location(state.at)
    with low.within(Env(env)):
        outer, low.out = low.out, []
        name = _state_body(low, state.body, name, location, prefix)
        transition = _transition(low, state, names)
        low.states.append(ParserState(name, tuple(low.out), transition, location))
        low.out = outer


def _state_body(low: Lowering, body: Sequence[ast.Statement], name: str, location: Location, prefix: str) -> str:
    """Lower statements; a sub-parser ends the current state. Gives the name of the state now open."""
    for s in body:
        if isinstance(s, ast.Block):
            name = _state_body(low, s.body, name, location, prefix)
        elif isinstance(s, ast.CallStatement) and (call := _parser_apply(low, s)) is not None:
            name = _sub_parser(low, call, name, location, prefix)
        else:
            low.statement(s)
    return name


def _sub_parser(low: Lowering, e: ast.Call, name: str, location: Location, prefix: str) -> str:
    callee = low.facts.callees[e]
    instance = block_instance(low, e, callee)
    assert instance.env is not None
    callee = actual_callee(callee, instance.decl)
    env = Env(instance.env, {v: low.concrete(t) for v, t in callee.bindings.items()})
    frame = Frame(low.fresh_name("subparser"))
    bind_arguments(low, env, callee, frame, isolate=overlapping(low, callee))
    with low.within(env):
        initialise_locals(low, callee.decl)
    before: list[Stmt] = low.out
    following = low.fresh_name(f"{name}_after")
    inner_prefix = f"{prefix}{instance.name.rsplit('.', 1)[-1]}."
    mark = len(low.states)
    low.out = []
    with low.within(env):
        start = parser_states(low, callee.decl, env, inner_prefix, following)
    goto = Transition((), (SelectCase((), start),))
    low.states.insert(mark, ParserState(name, tuple(before), goto, location))
    low.out = []
    finish(low, frame)
    return following


def _transition(low: Lowering, state: ast.StateDecl, names: dict[str, str]) -> Transition:
    if state.select is None:
        target = names[state.next_state] if state.next_state is not None else REJECT
        return Transition((), (SelectCase((), target),))
    select = low.facts.selects[state]
    keys = [leaf for e in select for leaf in _select_keys(low, e)]
    saved = tuple(low.save(k, "key") for k in keys)
    cases = tuple(_select_case(low, c, select, saved, names) for c in state.cases)
    return Transition(saved, cases)


def _select_keys(low: Lowering, e: ast.Expr) -> list[ir.Expr]:
    value = low.expr(e)
    if is_scalar(value.type):
        return [value]
    leaves = leaves_of(value)
    if not all(is_scalar(leaf.type) for leaf in leaves):
        raise low.unsupported(e.at, f"select on {low.types[e]}")
    return leaves


def _select_case(
    low: Lowering, case: ast.SelectCase, select: Sequence[ast.Expr], keys: tuple[ir.Expr, ...], names: dict[str, str]
) -> SelectCase:
    target = names[case.state]
    keyset = low.checked_form(case.keyset)
    if isinstance(keyset, ast.DefaultExpr):
        return SelectCase(tuple(SelectMatch(MatchOp.ANY) for _ in keys), target)
    if isinstance(keyset, ast.Name):
        found = low.env.find(low.facts.decls.get(keyset))
        if isinstance(found, Instance) and found.kind == "value_set":
            return SelectCase((SelectMatch(MatchOp.VALUE_SET, found.index),), target)
    items: list[ast.Expr | None]
    listed = isinstance(keyset, ast.ListExpr) and isinstance(low.types[keyset], TTuple)
    if isinstance(keyset, ast.TupleKeyset) or (
        isinstance(keyset, ast.ListExpr) and listed and len(select) == len(keyset.items)
    ):
        items = list(keyset.items)
    else:
        items = [keyset]
    matches: list[SelectMatch] = []
    at = 0
    for item, key in zip(items, select, strict=True):
        width = len(_key_shape(low, key))
        for part in _keyset_parts(low, item, width):
            matches.append(_match(low, part, keys[at]))
            at += 1
    return SelectCase(tuple(matches), target)


def _key_shape(low: Lowering, e: ast.Expr) -> list[irt.Type]:
    t = ir_type(low, low.concrete(low.types[e]), e.at)
    out: list[irt.Type] = []
    _shape(t, out)
    return out


def _keyset_parts(low: Lowering, e: ast.Expr | None, count: int) -> list[ast.Expr | None]:
    """A keyset element spread over the scalars of its key."""
    if e is None or isinstance(e, ast.DefaultExpr):
        return [e] * count
    if isinstance(e, ast.ListExpr):
        return [p for item in e.items for p in _keyset_parts(low, item, 1)]
    if isinstance(e, ast.StructExpr):
        return [p for _, _, item in e.fields for p in _keyset_parts(low, item, 1)]
    return [e]


def _match(low: Lowering, e: ast.Expr | None, key: ir.Expr) -> SelectMatch:
    if e is None or isinstance(e, ast.DefaultExpr):
        return SelectMatch(MatchOp.ANY)
    if isinstance(e, ast.Mask):
        mask = key_number(low, e.right, _key(key), low.types[e.right])
        return SelectMatch(MatchOp.MASK, key_number(low, e.left, _key(key), low.types[e.left]) & mask, mask)
    if isinstance(e, ast.Range):
        return SelectMatch(
            MatchOp.RANGE,
            key_number(low, e.left, _key(key), low.types[e.left]),
            key_number(low, e.right, _key(key), low.types[e.right]),
        )
    value = known_value(low, e)
    if isinstance(value, EnumValue):
        return SelectMatch(MatchOp.VALUE, ir_constant(low, value, low.concrete(low.types[e]), e.at).value)
    return SelectMatch(MatchOp.VALUE, key_number(low, e, _key(key), low.types[e]))


def _key(key: ir.Expr) -> TableKey:
    """A select key in the form that numbers of entries are read for."""
    t = key.type
    assert isinstance(t, irt.Bits | irt.Bool | irt.EnumType)
    return TableKey("", t, MatchKind.EXACT)


def _shape(t: irt.Type, out: list[irt.Type]) -> None:
    if is_scalar(t):
        out.append(t)
    elif isinstance(t, irt.StackType):
        for _ in range(t.size):
            _shape(t.element, out)
    elif isinstance(t, irt.StructType | irt.HeaderType | irt.UnionType):
        for f in t.fields:
            _shape(f.type, out)


def _parser_apply(low: Lowering, s: ast.CallStatement) -> ast.Call | None:
    """The call, if it applies a parser."""
    call = low.checked_form(s.call)
    assert isinstance(call, ast.Call)
    callee = low.facts.callees[call]
    return call if callee.kind in ("apply", "direct") and isinstance(callee.decl, ast.ParserDecl) else None
