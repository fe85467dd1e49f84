"""Declarations with statements in them: functions, actions, parsers and controls; the program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from p4switch.frontend.ast.declaration_nodes import Declaration, Parameter, StructDecl, TypeParameter
from p4switch.frontend.ast.expression_nodes import Expr, TypeRef
from p4switch.frontend.ast.statement_nodes import Block, Statement


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FunctionDecl(Declaration):
    """A function, an extern function (body None), or an extern's method."""

    returns: TypeRef
    type_parameters: tuple[TypeParameter, ...]
    parameters: tuple[Parameter, ...]
    body: Block | None
    is_abstract: bool = False


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ConstructorDecl(Declaration):
    """Constructor of an extern."""

    parameters: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ExternDecl(Declaration):
    """extern name<..> { constructors and methods }."""

    type_parameters: tuple[TypeParameter, ...]
    constructors: tuple[ConstructorDecl, ...]
    methods: tuple[FunctionDecl, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ActionDecl(Declaration):
    """action name(parameters) { }."""

    parameters: tuple[Parameter, ...]
    body: Block


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SelectCase:
    """keyset : state."""

    at: int
    keyset: Expr
    state: str
    state_at: int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StateDecl(Declaration):
    """A parser state. `next_state` for a plain transition, else select."""

    body: tuple[Statement, ...]
    next_state: str | None
    next_at: int
    select: tuple[Expr, ...] | None
    cases: tuple[SelectCase, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ParserDecl(Declaration):
    """A parser, or (states empty and is_type) its type."""

    type_parameters: tuple[TypeParameter, ...]
    parameters: tuple[Parameter, ...]
    constructor_parameters: tuple[Parameter, ...]
    locals: tuple[Declaration, ...]
    states: tuple[StateDecl, ...]
    is_type: bool


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ControlDecl(Declaration):
    """A control, or (is_type) its type."""

    type_parameters: tuple[TypeParameter, ...]
    parameters: tuple[Parameter, ...]
    constructor_parameters: tuple[Parameter, ...]
    locals: tuple[Declaration, ...]
    body: Block | None
    is_type: bool


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PackageDecl(Declaration):
    """package name<..>(parameters)."""

    type_parameters: tuple[TypeParameter, ...]
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """All declarations of a program, includes in place."""

    declarations: tuple[Declaration, ...]


GenericDecl: TypeAlias = StructDecl | FunctionDecl | ExternDecl | ParserDecl | ControlDecl | PackageDecl
