"""The state of the checker: scopes of names, where it is, and the ways back into expressions and declarations.

Expressions, types, statements and declarations contain each other, so their rules call each other through this:
`CheckContext.check` and `CheckContext.declaration` look up the rules that the checker was started with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from p4switch.errors import InternalError
from p4switch.frontend import ast
from p4switch.frontend.facts import Facts
from p4switch.frontend.p4_types import UNKNOWN, VOID, TVar, Type
from p4switch.frontend.source import AbortError, Reporter

E = TypeVar("E", bound=ast.Expression)


@dataclass(frozen=True, slots=True)
class CheckRules:
    """What checks each kind of expression, and each kind of declaration that may stand in several places."""

    expressions: Mapping[type[ast.Expr], Callable[[CheckContext, Any], ast.Expr]]
    declarations: Mapping[type[ast.Declaration], Callable[[CheckContext, Any], None]]


class CheckContext:
    """One program being checked."""

    def __init__(self, reporter: Reporter, rules: CheckRules) -> None:
        self.reporter = reporter
        self._expressions = rules.expressions
        self._declarations = rules.declarations
        self.facts = Facts()
        self.types = self.facts.types
        self.values = self.facts.values
        self._checked = self.facts.checked
        self.scopes: list[dict[str, Any]] = [{}]
        self.errors: dict[str, int] = {}
        """Members of `error` in order of declaration."""
        self.match_kinds: set[str] = set()
        self.where = "top"
        """'top', 'parser', 'state', 'control', 'apply', 'action', 'function', 'key'."""
        self.in_parser = False
        self.return_type: Type = VOID
        self.loop_depth = 0

    # ---------------------------------------------------------------- the ways back in

    def check(self, e: ast.Expr) -> ast.Expr:
        """Type-check an expression. Gives the (maybe wrapped) expression.

        After a reported error the type is UNKNOWN, which fits everywhere, so one mistake gives one message.
        """
        done = self._checked.get(e)
        if done is not None:
            return done
        rule = self._expressions.get(type(e))
        if rule is None:
            raise InternalError(f"no rule checks {type(e).__name__} at {self.reporter.source.place(e.at)}")
        try:
            result = rule(self, e)
        except AbortError:
            result = self.typed(e, UNKNOWN)
        if result is not e:
            self._checked[e] = result
        return result

    def typed(self, e: E, t: Type, value: Any = None) -> E:
        """Note what an expression is: checked, of a type, maybe with a value."""
        self.types[e] = t
        if value is not None:
            self.values[e] = value
        self._checked[e] = e
        return e

    def settle(self, written: ast.Expr, result: ast.Expr) -> ast.Expr:
        """Note what an expression in a statement or declaration means, conversions included."""
        self._checked[written] = result
        return result

    def declaration(self, decl: ast.Declaration) -> None:
        """A declaration that may stand in several places."""
        rule = self._declarations.get(type(decl))
        if rule is None:
            raise InternalError(f"no rule checks {type(decl).__name__} at {self.reporter.source.place(decl.at)}")
        try:
            rule(self, decl)
        except AbortError:
            if self.scopes[-1].get(decl.name) is None and isinstance(
                decl, ast.Constant | ast.VariableDecl | ast.Instantiation | ast.ValueSetDecl
            ):
                self.types[decl] = UNKNOWN
                self.scopes[-1][decl.name] = decl

    # ---------------------------------------------------------------- scopes

    def declare(self, name: str, decl: Any, at: int) -> None:
        """Put a name into the innermost scope; functions overload by number of parameters."""
        scope = self.scopes[-1]
        before = scope.get(name)
        if before is None:
            scope[name] = [decl] if isinstance(decl, ast.FunctionDecl) else decl
            return
        if isinstance(before, list) and isinstance(decl, ast.FunctionDecl):
            names = [p.name for p in decl.parameters]
            if all([p.name for p in other.parameters] != names for other in before):
                before.append(decl)
                return
        self.reporter.error(at, f"'{name}' is already declared in this scope")

    def lookup(self, name: str, absolute: bool = False) -> Any:
        """What a name means here, or None."""
        if absolute:
            return self.scopes[0].get(name)
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return None

    def push(self) -> None:
        """Open a scope."""
        self.scopes.append({})

    def pop(self) -> None:
        """Close the innermost scope."""
        self.scopes.pop()

    def declare_type_parameters(self, parameters: Sequence[ast.TypeParameter], owner: object) -> list[TVar]:
        """Declare type variables of a generic declaration."""
        out = []
        for p in parameters:
            var = TVar(p.name, id(owner))
            self.declare(p.name, var, p.at)
            out.append(var)
        return out


def rebuilt(e: E, **parts: Any) -> E:
    """The expression with these parts; itself when they are its own."""
    for name, part in parts.items():
        if getattr(e, name) is not part and not _same(getattr(e, name), part):
            return replace(e, **parts)
    return e


def _same(old: Any, new: Any) -> bool:
    if isinstance(old, tuple) and isinstance(new, tuple):
        return len(old) == len(new) and all(map(_same, old, new))
    return old is new or (isinstance(old, str | int) and old == new)
