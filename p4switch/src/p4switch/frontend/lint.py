"""What is legal and probably not meant: unused names, variables read before they have a value, headers that nothing
makes valid, states without a transition or that nothing reaches. Warnings only; it finds less than there may be, and
says nothing that no run of the program can show. Source: p4c's warnings of the same kinds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from p4switch.frontend import ast
from p4switch.frontend.callee import Callee
from p4switch.frontend.checked_program import CheckedProgram
from p4switch.frontend.facts import Facts
from p4switch.frontend.p4_types import TStack, TStruct, TTuple, TVar
from p4switch.ir.walk import nodes
from p4switch.recursion import deep_recursion

_NAMED = (ast.VariableDecl, ast.Instantiation, ast.ActionDecl, ast.TableDecl, ast.ValueSetDecl)
Place: TypeAlias = tuple[int, str]
"""A field of a declared struct, or (with an empty name) a variable."""


@deep_recursion()
def lint(checked: CheckedProgram) -> None:
    """Reports warnings about the bodies of parsers, controls, functions and actions."""
    used = _used(checked.facts)
    headers = _Headers(checked)
    for decl in checked.program.declarations:
        if isinstance(decl, ast.ParserDecl | ast.ControlDecl | ast.FunctionDecl | ast.ActionDecl):
            _unused(checked, decl, used)
            headers.look(decl)
            _flow(checked, decl)
        if isinstance(decl, ast.ParserDecl) and not decl.is_type:
            _states(checked, decl)


# ------------------------------------------------------------------ names


def _used(facts: Facts) -> set[int]:
    """Identities of all declarations that a name stands for somewhere."""
    found: set[int] = set()
    for decl in (*facts.decls.values(), *(callee.decl for callee in facts.callees.values())):
        found.update(map(id, decl) if isinstance(decl, list) else (id(decl),))
    return found


def _unused(checked: CheckedProgram, block: ast.Declaration, used: set[int]) -> None:
    for node in nodes(block):
        named = (node,) if isinstance(node, _NAMED) and node is not block else ()
        for decl in (*named, *(node.parameters if isinstance(node, ast.ActionDecl) else ())):
            if id(decl) not in used:
                checked.reporter.warning(decl.at, f"'{decl.name}' is unused")


# ------------------------------------------------------------------ states


def _states(checked: CheckedProgram, parser: ast.ParserDecl) -> None:
    reached, waiting = {"start"}, ["start"]
    states = {state.name: state for state in parser.states}
    while waiting:
        state = states.get(waiting.pop())
        if state is None:
            continue
        following = {case.state for case in state.cases} | ({state.next_state} if state.next_state else set())
        waiting += following - reached
        reached |= following
    for state in parser.states:
        if state.name not in reached:
            checked.reporter.warning(state.at, f"no state leads to '{state.name}'")
        elif state.next_state is None and state.select is None:
            checked.reporter.warning(state.at, f"'{state.name}' has no transition: it rejects")


# ------------------------------------------------------------------ headers


class _Headers:
    """Which headers something in the program makes valid, wherever it is."""

    def __init__(self, checked: CheckedProgram) -> None:
        self.checked = checked
        self.facts = checked.facts
        self.valid: set[Place] = set()
        self.whole: set[int] = set()
        """Declarations of structs that are assigned or handed on as a whole: any of their headers may be valid."""
        for callee in self.facts.callees.values():
            self._called(callee)
        for node in nodes(checked.program):
            if isinstance(node, ast.Assignment):
                self._made(self.facts.checked.get(node.target, node.target))
            elif isinstance(node, ast.VariableDecl) and node.init is not None:
                self.valid.add((id(node), ""))

    def _called(self, callee: Callee) -> None:
        if callee.kind == "builtin" and callee.receiver is not None and callee.name != "setInvalid":
            if callee.name != "isValid":
                self._made(callee.receiver)
            return
        extern = callee.kind in ("method", "constructor") or getattr(callee.decl, "body", True) is None
        for parameter, expr in callee.arguments:
            if expr is not None and parameter.direction in ("out", "inout"):
                self._made(expr, handed_on=not extern)

    def _made(self, e: ast.Expr, *, handed_on: bool = False) -> None:
        """`e` is written as a whole. A block that a struct is handed to makes its headers valid itself, or does not."""
        place = self._place(e)
        if place is not None:
            self.valid.add(place)
        t = self.facts.types.get(e)
        if isinstance(t, TStruct) and t.kind == "struct" and not handed_on:
            self.whole.add(id(t.decl))

    def _place(self, e: ast.Expr) -> Place | None:
        if isinstance(e, ast.Name):
            decl = self.facts.decls.get(e)
            return (id(decl), "") if isinstance(decl, ast.VariableDecl) else None
        if isinstance(e, ast.Member):
            base = self.facts.types.get(e.base)
            return (id(base.decl), e.name) if isinstance(base, TStruct) else None
        return None

    def look(self, block: ast.Declaration) -> None:
        """Warns of fields of headers that are never valid."""
        for written in nodes(block):
            e = self.facts.checked.get(written) if isinstance(written, ast.Expression) else None
            for node in nodes(e) if e is not None else ():
                if isinstance(node, ast.Member):
                    self._field(node)

    def _field(self, e: ast.Member) -> None:
        t = self.facts.types.get(e.base)
        if not isinstance(t, TStruct) or t.kind != "header" or self.facts.types.get(e) is None:
            return
        place = self._place(e.base)
        if place is None or place in self.valid or place[0] in self.whole:
            return
        name = e.base.name if isinstance(e.base, ast.Name | ast.Member) else ""
        if e.name in {field for field, _ in t.fields()}:
            self.valid.add(place)  # said once
            self.checked.reporter.warning(
                e.base.at, f"nothing makes the header '{name}' valid: its fields have no value"
            )


# ------------------------------------------------------------------ values


Unset: TypeAlias = frozenset[int]
"""Identities of variables that may have no value yet."""


class _Flow:
    """Goes through the statements of one body in order. `None` as a state: control does not get there."""

    def __init__(self, checked: CheckedProgram) -> None:
        self.checked = checked
        self.facts = checked.facts

    def body(self, name: str, parameters: Sequence[ast.Parameter], statements: Sequence[ast.Statement]) -> None:
        outs = [p for p in parameters if p.direction == "out" and self._is_number(p)]
        self.left: list[Unset] = []
        end = self.statements(statements, frozenset(map(id, outs)))
        unset = frozenset[int]().union(*self.left, end or frozenset())
        for parameter in outs:
            if id(parameter) in unset:
                self.checked.reporter.warning(parameter.at, f"'{name}' may end without a value for '{parameter.name}'")

    def _is_number(self, decl: ast.Parameter | ast.VariableDecl) -> bool:
        return not isinstance(self.facts.types.get(decl), TStruct | TStack | TTuple | TVar)

    def statements(self, body: Sequence[ast.Statement], unset: Unset | None) -> Unset | None:
        for statement in body:
            if unset is None:
                return None
            unset = self.statement(statement, unset)
        return unset

    def statement(self, s: ast.Statement, unset: Unset) -> Unset | None:
        match s:
            case ast.Block():
                return self.statements(s.body, unset)
            case ast.DeclStatement(decl=ast.VariableDecl() as decl):
                if decl.init is not None:
                    return self.read(self._meant(decl.init), unset)
                return unset | {id(decl)} if self._is_number(decl) else unset
            case ast.Assignment():
                if s.op:
                    unset = self.read(self._meant(s.target), unset)
                return self.written(self._meant(s.target), self.read(self._meant(s.value), unset))
            case ast.CallStatement():
                return self.read(self._meant(s.call), unset)
            case ast.Conditional():
                unset = self.read(self._meant(s.condition), unset)
                otherwise = self.statement(s.otherwise, unset) if s.otherwise is not None else unset
                return _joined([self.statement(s.then, unset), otherwise])
            case ast.Switch():
                return self.switch(s, self.read(self._meant(s.selector), unset))
            case ast.Return(value=value):
                self.left.append(self.read(self._meant(value), unset) if value is not None else unset)
                return None
            case ast.For():
                begun = self.statements(s.init, unset)
                begun = self.read(self._meant(s.condition), begun if begun is not None else unset)
                self.statement(s.body, begun)
                return begun
            case ast.ForIn():
                begun = self.read(self._meant(s.collection), unset)
                self.statement(s.body, begun)
                return begun
            case ast.Exit() | ast.Break() | ast.Continue():
                return None
        return unset

    def switch(self, s: ast.Switch, unset: Unset) -> Unset | None:
        ends = [self.statement(case.body, unset) for case in s.cases if case.body is not None]
        has_default = any(case.label is None or isinstance(case.label, ast.DefaultExpr) for case in s.cases)
        return _joined([*ends, *(() if has_default else (unset,))])

    def _meant(self, e: ast.Expr) -> ast.Expr:
        return self.facts.checked.get(e, e)

    def written(self, e: ast.Expr, unset: Unset) -> Unset:
        """After a value for all of a place, or for a part of it: whoever fills piece by piece is believed."""
        while isinstance(e, ast.Member | ast.Index | ast.Slice):
            e = e.base
        return unset - {id(self.facts.decls.get(e))} if isinstance(e, ast.Name) else unset

    def read(self, e: ast.Expr, unset: Unset) -> Unset:
        """Warns of what an expression reads too early; after what its calls write."""
        if isinstance(e, ast.Call) and e in self.facts.callees:
            return self.call(self.facts.callees[e], unset)
        if isinstance(e, ast.Name):
            decl = self.facts.decls.get(e)
            if id(decl) in unset and isinstance(decl, ast.VariableDecl | ast.Parameter):
                self.checked.reporter.warning(e.at, f"'{e.name}' may have no value here")
                return unset - {id(decl)}
            return unset
        for part in _parts(e):
            unset = self.read(part, unset)
        return unset

    def call(self, callee: Callee, unset: Unset) -> Unset:
        given = [(p, e) for p, e in callee.arguments if e is not None]
        for parameter, e in given:
            if parameter.direction != "out":
                unset = self.read(e, unset)
        for parameter, e in given:
            if parameter.direction in ("out", "inout"):
                unset = self.written(e, unset)
        return unset


def _joined(ends: Sequence[Unset | None]) -> Unset | None:
    living = [end for end in ends if end is not None]
    return frozenset[int]().union(*living) if living else None


def _parts(e: ast.Expr) -> Iterator[ast.Expr]:
    """The expressions directly inside one."""
    if isinstance(e, ast.Call):
        yield e.function
        yield from (a.expr for a in e.arguments if a.expr is not None)
        return
    for name in e.__dataclass_fields__:
        part: Any = getattr(e, name)
        for one in part if isinstance(part, tuple) else (part,):
            if isinstance(one, ast.Expression):
                yield one
            elif isinstance(one, tuple):  # a field of a struct expression
                yield from (x for x in one if isinstance(x, ast.Expression))


def _flow(checked: CheckedProgram, block: ast.Declaration) -> None:
    """Every body in a block: its own, and those of actions and functions, and of each state."""
    flow = _Flow(checked)
    for node in nodes(block):
        if isinstance(node, ast.ActionDecl | ast.FunctionDecl | ast.ControlDecl) and node.body is not None:
            flow.body(node.name, node.parameters, node.body.body)
        elif isinstance(node, ast.StateDecl):
            flow.body(node.name, (), node.body)
