"""Lowering of parsers: sub-parsers become states with names of their own, select becomes matches on saved keys."""

from __future__ import annotations

from p4switch.frontend import ast
from p4switch.frontend.check_call import Callee
from p4switch.frontend.lower.base import Env, Instance
from p4switch.frontend.lower.calls import Frame, actual_callee
from p4switch.frontend.lower.expressions import is_scalar
from p4switch.frontend.lower.statements import StatementLowering
from p4switch.frontend.types import EnumValue, TTuple
from p4switch.ir import expr as ir
from p4switch.ir import types as irt
from p4switch.ir.program import REJECT, MatchKind, MatchOp, ParserState, SelectCase, SelectMatch, TableKey, Transition
from p4switch.ir.stmt import Location, Stmt

MAX_PARSER_STATES = 4096


class ParserLowering(StatementLowering):
    """Builds the list of states of the one parser of a program."""

    states: list[ParserState]

    def parser_states(self, decl: ast.ParserDecl, env: Env, prefix: str, accept: str) -> str:
        """Lower all states of a parser; `accept` is where its accept leads. Gives the name of its start state."""
        names = {s.name: self.fresh_name(prefix + s.name) for s in decl.states}
        names["accept"] = accept
        names["reject"] = REJECT
        start = next(s for s in decl.states if s.name == "start")
        ordered = [start, *(s for s in decl.states if s is not start)]
        for state in ordered:
            self._state(state, env, names, prefix)
        return names["start"]

    def _state(self, state: ast.StateDecl, env: Env, names: dict[str, str], prefix: str) -> None:
        if len(self.states) > MAX_PARSER_STATES:
            raise self.unsupported(state.at, f"more than {MAX_PARSER_STATES} parser states")
        name = names[state.name]
        location = self.location(state.at)
        with self.within(Env(env)):
            outer, self.out = self.out, []
            name = self._state_body(state.body, name, location, prefix)
            transition = self._transition(state, names)
            self.states.append(ParserState(name, tuple(self.out), transition, location))
            self.out = outer

    def _state_body(self, body: list[ast.Statement], name: str, location: Location, prefix: str) -> str:
        """Lower statements; a sub-parser ends the current state. Gives the name of the state now open."""
        for s in body:
            if isinstance(s, ast.Block):
                name = self._state_body(s.body, name, location, prefix)
            elif isinstance(s, ast.CallStatement) and is_parser_apply(s.call):
                name = self._sub_parser(s.call, name, location, prefix)
            else:
                self.statement(s)
        return name

    def _sub_parser(self, e: ast.Call, name: str, location: Location, prefix: str) -> str:
        callee = e.target
        assert isinstance(callee, Callee)
        instance = self.block_instance(e, callee)
        assert instance.env is not None
        callee = actual_callee(callee, instance.decl)
        env = Env(instance.env, {v: self.concrete(t) for v, t in callee.bindings.items()})
        frame = Frame(self.fresh_name("subparser"))
        self.bind_arguments(env, callee, frame, isolate=self.overlapping(callee))
        with self.within(env):
            self.initialise_locals(callee.decl)
        before: list[Stmt] = self.out
        following = self.fresh_name(f"{name}_after")
        inner_prefix = f"{prefix}{instance.name.rsplit('.', 1)[-1]}."
        mark = len(self.states)
        self.out = []
        with self.within(env):
            start = self.parser_states(callee.decl, env, inner_prefix, following)
        goto = Transition((), (SelectCase((), start),))
        self.states.insert(mark, ParserState(name, tuple(before), goto, location))
        self.out = []
        self.finish(frame)
        return following

    def _transition(self, state: ast.StateDecl, names: dict[str, str]) -> Transition:
        if state.select is None:
            target = names[state.next_state] if state.next_state is not None else REJECT
            return Transition((), (SelectCase((), target),))
        keys = [leaf for e in state.select for leaf in self._key(e)]
        saved = tuple(self.save(k, "key") for k in keys)
        cases = tuple(self._case(c, state.select, saved, names) for c in state.cases)
        return Transition(saved, cases)

    def _key(self, e: ast.Expr) -> list[ir.Expr]:
        value = self.expr(e)
        if is_scalar(value.type):
            return [value]
        leaves = self.leaves(value)
        if not all(is_scalar(leaf.type) for leaf in leaves):
            raise self.unsupported(e.at, f"select on {e.type}")
        return leaves

    def _case(
        self, case: ast.SelectCase, select: list[ast.Expr], keys: tuple[ir.Expr, ...], names: dict[str, str]
    ) -> SelectCase:
        target = names[case.state]
        keyset = case.keyset
        if isinstance(keyset, ast.DefaultExpr):
            return SelectCase(tuple(SelectMatch(MatchOp.ANY) for _ in keys), target)
        if isinstance(keyset, ast.Name):
            found = self.env.find(keyset.decl)
            if isinstance(found, Instance) and found.kind == "value_set":
                return SelectCase((SelectMatch(MatchOp.VALUE_SET, found.index),), target)
        items: list[ast.Expr | None]
        listed = (
            isinstance(keyset, ast.ListExpr) and isinstance(keyset.type, TTuple) and len(select) == len(keyset.items)
        )
        if isinstance(keyset, ast.TupleKeyset) or (listed and isinstance(keyset, ast.ListExpr)):
            items = list(keyset.items)
        else:
            items = [keyset]
        matches: list[SelectMatch] = []
        at = 0
        for item, key in zip(items, select, strict=True):
            width = len(self._key_shape(key))
            for part in self._parts(item, width):
                matches.append(self._match(part, keys[at]))
                at += 1
        return SelectCase(tuple(matches), target)

    def _key_shape(self, e: ast.Expr) -> list[irt.Type]:
        t = self.type(self.concrete(e.type), e.at)
        out: list[irt.Type] = []
        _shape(t, out)
        return out

    def _parts(self, e: ast.Expr | None, count: int) -> list[ast.Expr | None]:
        """A keyset element spread over the scalars of its key."""
        if e is None or isinstance(e, ast.DefaultExpr):
            return [e] * count
        if isinstance(e, ast.ListExpr):
            return [p for item in e.items for p in self._parts(item, 1)]
        if isinstance(e, ast.StructExpr):
            return [p for _, _, item in e.fields for p in self._parts(item, 1)]
        return [e]

    def _match(self, e: ast.Expr | None, key: ir.Expr) -> SelectMatch:
        if e is None or isinstance(e, ast.DefaultExpr):
            return SelectMatch(MatchOp.ANY)
        if isinstance(e, ast.Mask):
            mask = self._number(e.right, _key(key), e.right.type)
            return SelectMatch(MatchOp.MASK, self._number(e.left, _key(key), e.left.type) & mask, mask)
        if isinstance(e, ast.Range):
            return SelectMatch(
                MatchOp.RANGE,
                self._number(e.left, _key(key), e.left.type),
                self._number(e.right, _key(key), e.right.type),
            )
        value = self.known(e)
        if isinstance(value, EnumValue):
            return SelectMatch(MatchOp.VALUE, self.constant(value, self.concrete(e.type), e.at).value)
        return SelectMatch(MatchOp.VALUE, self._number(e, _key(key), e.type))


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


def is_parser_apply(e: ast.Call) -> bool:
    """Whether a call applies a parser."""
    return (
        isinstance(e.target, Callee)
        and e.target.kind in ("apply", "direct")
        and isinstance(e.target.decl, ast.ParserDecl)
    )
