"""Statement nodes of the syntax tree."""

from __future__ import annotations

from dataclasses import dataclass

from p4switch.frontend.ast.declaration_nodes import Declaration, VariableDecl
from p4switch.frontend.ast.expression_nodes import Annotation, Call, Expr


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Statement:
    """What all statements share."""

    at: int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Block(Statement):
    """{ .. }."""

    body: tuple[Statement, ...]
    annotations: tuple[Annotation, ...] = ()
    end: int = 0


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DeclStatement(Statement):
    """A variable, constant or (refused later) instance among statements."""

    decl: Declaration


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Assignment(Statement):
    """target op= value; op '' for a plain one."""

    target: Expr
    op: str
    value: Expr


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CallStatement(Statement):
    """A call for its effects."""

    call: Call


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Conditional(Statement):
    """if."""

    condition: Expr
    then: Statement
    otherwise: Statement | None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SwitchCase:
    """label : block; label None for default, body None for fall-through."""

    at: int
    label: Expr | None
    body: Block | None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Switch(Statement):
    """switch."""

    selector: Expr
    cases: tuple[SwitchCase, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Return(Statement):
    """return."""

    value: Expr | None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Exit(Statement):
    """exit."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Break(Statement):
    """break."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Continue(Statement):
    """continue."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Empty(Statement):
    """;."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class For(Statement):
    """for (init; condition; update) body."""

    init: tuple[Statement, ...]
    condition: Expr
    update: tuple[Statement, ...]
    body: Statement


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ForIn(Statement):
    """for (type name in collection) body; collection may be a Range."""

    decl: VariableDecl
    collection: Expr
    body: Statement
