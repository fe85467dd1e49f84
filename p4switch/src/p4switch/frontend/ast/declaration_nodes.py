"""Declarations without statements in them: of values, types, fields and tables."""

from __future__ import annotations

from dataclasses import dataclass

from p4switch.frontend.ast.expression_nodes import Annotation, Argument, Expr, TypeRef


@dataclass(frozen=True, slots=True, eq=False)
class Parameter:
    """direction is '', 'in', 'out' or 'inout'."""

    at: int
    name: str
    direction: str
    ref: TypeRef
    default: Expr | None
    annotations: tuple[Annotation, ...]

    @property
    def is_optional(self) -> bool:
        """@optional: a caller or an implementation may leave it out."""
        return any(annotation.name == "optional" for annotation in self.annotations)


@dataclass(frozen=True, slots=True, eq=False)
class TypeParameter:
    """A generic parameter."""

    at: int
    name: str


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Declaration:
    """What all declarations share."""

    at: int
    name: str
    annotations: tuple[Annotation, ...] = ()


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Constant(Declaration):
    """const type name = value."""

    ref: TypeRef
    init: Expr


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class VariableDecl(Declaration):
    """type name [= value]."""

    ref: TypeRef
    init: Expr | None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Instantiation(Declaration):
    """Type(arguments) name [= { abstract methods }]."""

    ref: TypeRef
    arguments: tuple[Argument, ...]
    body: tuple[Declaration, ...] | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FieldDecl(Declaration):
    """A field of a struct, header or union."""

    ref: TypeRef


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StructDecl(Declaration):
    """struct, header or header_union (kind)."""

    kind: str
    type_parameters: tuple[TypeParameter, ...]
    fields: tuple[FieldDecl, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class EnumDecl(Declaration):
    """enum; with `ref` a serializable one. Members: name, offset, value."""

    ref: TypeRef | None
    members: tuple[tuple[str, int, Expr | None], ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ErrorDecl(Declaration):
    """error { .. }."""

    members: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MatchKindDecl(Declaration):
    """match_kind { .. }."""

    members: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TypedefDecl(Declaration):
    """typedef (or, with `distinct`, type)."""

    ref: TypeRef | StructDecl | EnumDecl
    distinct: bool


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ValueSetDecl(Declaration):
    """value_set<type>(size) name."""

    ref: TypeRef
    size: Expr


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class KeyElement:
    """expression : match_kind annotations."""

    at: int
    expr: Expr
    match_kind: str
    match_at: int
    annotations: tuple[Annotation, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ActionRef:
    """An action in a table's list, maybe with arguments."""

    at: int
    name: str
    absolute: bool
    arguments: tuple[Argument, ...] | None
    annotations: tuple[Annotation, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Entry:
    """An entry written in the source."""

    at: int
    is_const: bool
    priority: Expr | None
    keys: tuple[Expr, ...]
    action: ActionRef
    annotations: tuple[Annotation, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Property:
    """A table property other than key, actions and entries."""

    at: int
    name: str
    is_const: bool
    value: Expr
    annotations: tuple[Annotation, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TableDecl(Declaration):
    """A table."""

    keys: tuple[KeyElement, ...]
    actions: tuple[ActionRef, ...]
    entries: tuple[Entry, ...]
    entries_const: bool
    properties: tuple[Property, ...]
    has_actions: bool
