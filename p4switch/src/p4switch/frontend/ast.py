"""The syntax tree, as the parser makes it and nobody changes it.

Every node knows its offset in the preprocessed text (`at`). Nodes are equal only to themselves: what the checker finds
out about them is in tables by node (frontend.facts).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, eq=False)
class Annotation:
    """`@name`, `@name(tokens)` or `@name[expressions]`; tokens are kept raw with their offsets."""

    at: int
    name: str
    tokens: tuple[tuple[str, str, int], ...] = ()  # kind, text, offset
    structured: bool = False
    expressions: tuple[Expr, ...] = ()
    pairs: tuple[tuple[str, Expr], ...] = ()
    text: str = ""


# ------------------------------------------------------------------ types as written


@dataclass(frozen=True, slots=True, eq=False)
class NamedType:
    """A type by name, maybe with type arguments."""

    at: int
    name: str
    absolute: bool = False
    arguments: tuple[TypeRef, ...] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SizedType:
    """bit<..>, int<..> or varbit<..>."""

    at: int
    kind: str
    width: Expr | None  # None: plain `bit`, 1 bit


@dataclass(frozen=True, slots=True, eq=False)
class BaseType:
    """bool, error, match_kind, string, void, int (arbitrary precision) or `_`."""

    at: int
    kind: str


@dataclass(frozen=True, slots=True, eq=False)
class StackTypeRef:
    """element[size]."""

    at: int
    element: TypeRef
    size: Expr


@dataclass(frozen=True, slots=True, eq=False)
class TupleTypeRef:
    """tuple<..>."""

    at: int
    elements: tuple[TypeRef, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ListTypeRef:
    """list<..>."""

    at: int
    element: TypeRef


TypeRef: TypeAlias = NamedType | SizedType | BaseType | StackTypeRef | TupleTypeRef | ListTypeRef


# ------------------------------------------------------------------ expressions


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Expression:
    """What all expressions share."""

    at: int


Expr: TypeAlias = Expression


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class IntLiteral(Expression):
    """A number."""

    number: int
    width: int | None
    signed: bool


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BoolLiteral(Expression):
    """true or false."""

    truth: bool


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StringLiteral(Expression):
    """A string."""

    text: str


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Name(Expression):
    """An identifier, `.identifier` (absolute), or `error` / `this`."""

    name: str
    absolute: bool = False


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TypeExpr(Expression):
    """A specialised type used as an expression (`S<bit<8>>(..)` or `T.member`)."""

    ref: TypeRef


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Member(Expression):
    """base.name."""

    base: Expr
    name: str
    name_at: int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Index(Expression):
    """base[index]."""

    base: Expr
    index: Expr


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Slice(Expression):
    """base[high:low], or with `plus` base[low +: width] (then high holds the start and low the width)."""

    base: Expr
    high: Expr
    low: Expr
    plus: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Argument:
    """A positional or named argument; expr None for `_`."""

    at: int
    name: str | None
    expr: Expr | None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Call(Expression):
    """function<types>(arguments); also constructor calls."""

    function: Expr
    type_arguments: tuple[TypeRef, ...] | None
    arguments: tuple[Argument, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Unary(Expression):
    """op operand."""

    op: str
    operand: Expr


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Binary(Expression):
    """left op right."""

    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Ternary(Expression):
    """condition ? yes : no."""

    condition: Expr
    yes: Expr
    no: Expr


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Cast(Expression):
    """(type) operand; the checker inserts implicit ones with ref None."""

    ref: TypeRef | None
    operand: Expr


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ListExpr(Expression):
    """{a, b}; `dots`: ends in `...`."""

    items: tuple[Expr, ...]
    dots: bool = False


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StructExpr(Expression):
    """{a = 1, b = 2}; `dots`: ends in `...`."""

    fields: tuple[tuple[str, int, Expr], ...]
    dots: bool = False


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class InvalidExpr(Expression):
    """{#}: an invalid header."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DotsExpr(Expression):
    """`...`: default values."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DefaultExpr(Expression):
    """default or `_` in a keyset."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Mask(Expression):
    """left &&& right."""

    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Range(Expression):
    """left .. right."""

    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TupleKeyset(Expression):
    """(a, b, _) in a select case or a table entry."""

    items: tuple[Expr, ...]


# ------------------------------------------------------------------ declarations without statements


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


# ------------------------------------------------------------------ statements


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


# ------------------------------------------------------------------ declarations with statements, and the program


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
