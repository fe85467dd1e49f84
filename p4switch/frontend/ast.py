"""The syntax tree. Every node knows its offset in the preprocessed text (`at`).

The checker fills `type` (frontend.types), `value` (compile-time constant, if any) and `decl`/`target` links in place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from p4switch.frontend.types import Type


@dataclass(slots=True, eq=False)
class Annotation:
    """`@name`, `@name(tokens)` or `@name[expressions]`; tokens are kept raw with their offsets."""

    at: int
    name: str
    tokens: list[tuple[str, str, int]] = field(default_factory=list)  # kind, text, offset
    structured: bool = False
    expressions: list[Expr] = field(default_factory=list)
    pairs: list[tuple[str, Expr]] = field(default_factory=list)
    text: str = ""


# ------------------------------------------------------------------ types as written


@dataclass(slots=True, eq=False)
class NamedType:
    """A type by name, maybe with type arguments."""

    at: int
    name: str
    absolute: bool = False
    arguments: list[TypeRef] | None = None


@dataclass(slots=True, eq=False)
class SizedType:
    """bit<..>, int<..> or varbit<..>."""

    at: int
    kind: str
    width: Expr | None  # None: plain `bit`, 1 bit


@dataclass(slots=True, eq=False)
class BaseType:
    """bool, error, match_kind, string, void, int (arbitrary precision) or `_`."""

    at: int
    kind: str


@dataclass(slots=True, eq=False)
class StackTypeRef:
    """element[size]."""

    at: int
    element: TypeRef
    size: Expr


@dataclass(slots=True, eq=False)
class TupleTypeRef:
    """tuple<..>."""

    at: int
    elements: list[TypeRef]


@dataclass(slots=True, eq=False)
class ListTypeRef:
    """list<..>."""

    at: int
    element: TypeRef


TypeRef: TypeAlias = NamedType | SizedType | BaseType | StackTypeRef | TupleTypeRef | ListTypeRef


# ------------------------------------------------------------------ expressions


@dataclass(slots=True, eq=False, kw_only=True)
class Expression:
    """What all expressions share."""

    at: int
    type: Type = None  # type: ignore[assignment]
    value: Any = None


@dataclass(slots=True, eq=False, kw_only=True)
class IntLiteral(Expression):
    """A number."""

    number: int
    width: int | None
    signed: bool


@dataclass(slots=True, eq=False, kw_only=True)
class BoolLiteral(Expression):
    """true or false."""

    truth: bool


@dataclass(slots=True, eq=False, kw_only=True)
class StringLiteral(Expression):
    """A string."""

    text: str


@dataclass(slots=True, eq=False, kw_only=True)
class Name(Expression):
    """An identifier, `.identifier` (absolute), or `error` / `this`."""

    name: str
    absolute: bool = False
    decl: Any = None


@dataclass(slots=True, eq=False, kw_only=True)
class TypeExpr(Expression):
    """A specialised type used as an expression (`S<bit<8>>(..)` or `T.member`)."""

    ref: TypeRef


@dataclass(slots=True, eq=False, kw_only=True)
class Member(Expression):
    """base.name."""

    base: Expr
    name: str
    name_at: int
    decl: Any = None


@dataclass(slots=True, eq=False, kw_only=True)
class Index(Expression):
    """base[index]."""

    base: Expr
    index: Expr


@dataclass(slots=True, eq=False, kw_only=True)
class Slice(Expression):
    """base[high:low], or with `plus` base[low +: width] (then high holds the start and low the width)."""

    base: Expr
    high: Expr
    low: Expr
    plus: bool = False
    bounds: tuple[int, int] | None = None


@dataclass(slots=True, eq=False)
class Argument:
    """A positional or named argument; expr None for `_`."""

    at: int
    name: str | None
    expr: Expr | None


@dataclass(slots=True, eq=False, kw_only=True)
class Call(Expression):
    """function<types>(arguments); also constructor calls."""

    function: Expr
    type_arguments: list[TypeRef] | None
    arguments: list[Argument]
    target: Any = None  # resolved callee: frontend.check.Callee


@dataclass(slots=True, eq=False, kw_only=True)
class Unary(Expression):
    """op operand."""

    op: str
    operand: Expr


@dataclass(slots=True, eq=False, kw_only=True)
class Binary(Expression):
    """left op right."""

    op: str
    left: Expr
    right: Expr


@dataclass(slots=True, eq=False, kw_only=True)
class Ternary(Expression):
    """condition ? yes : no."""

    condition: Expr
    yes: Expr
    no: Expr


@dataclass(slots=True, eq=False, kw_only=True)
class Cast(Expression):
    """(type) operand; the checker inserts implicit ones with ref None."""

    ref: TypeRef | None
    operand: Expr


@dataclass(slots=True, eq=False, kw_only=True)
class ListExpr(Expression):
    """{a, b}; `dots`: ends in `...`."""

    items: list[Expr]
    dots: bool = False


@dataclass(slots=True, eq=False, kw_only=True)
class StructExpr(Expression):
    """{a = 1, b = 2}; `dots`: ends in `...`."""

    fields: list[tuple[str, int, Expr]]
    dots: bool = False


@dataclass(slots=True, eq=False, kw_only=True)
class InvalidExpr(Expression):
    """{#}: an invalid header."""


@dataclass(slots=True, eq=False, kw_only=True)
class DotsExpr(Expression):
    """`...`: default values."""


@dataclass(slots=True, eq=False, kw_only=True)
class DefaultExpr(Expression):
    """default or `_` in a keyset."""


@dataclass(slots=True, eq=False, kw_only=True)
class Mask(Expression):
    """left &&& right."""

    left: Expr
    right: Expr


@dataclass(slots=True, eq=False, kw_only=True)
class Range(Expression):
    """left .. right."""

    left: Expr
    right: Expr


@dataclass(slots=True, eq=False, kw_only=True)
class TupleKeyset(Expression):
    """(a, b, _) in a select case or a table entry."""

    items: list[Expr]


Expr: TypeAlias = Expression


# ------------------------------------------------------------------ declarations


@dataclass(slots=True, eq=False)
class Parameter:
    """direction is '', 'in', 'out' or 'inout'."""

    at: int
    name: str
    direction: str
    ref: TypeRef
    default: Expr | None
    annotations: list[Annotation]
    type: Type = None  # type: ignore[assignment]

    @property
    def is_optional(self) -> bool:
        """@optional: a caller or an implementation may leave it out."""
        return any(annotation.name == "optional" for annotation in self.annotations)


@dataclass(slots=True, eq=False)
class TypeParameter:
    """A generic parameter."""

    at: int
    name: str


@dataclass(slots=True, eq=False, kw_only=True)
class Declaration:
    """What all declarations share."""

    at: int
    name: str
    annotations: list[Annotation] = field(default_factory=list)


@dataclass(slots=True, eq=False, kw_only=True)
class Constant(Declaration):
    """const type name = value."""

    ref: TypeRef
    init: Expr
    type: Type = None  # type: ignore[assignment]
    value: Any = None


@dataclass(slots=True, eq=False, kw_only=True)
class VariableDecl(Declaration):
    """type name [= value]."""

    ref: TypeRef
    init: Expr | None
    type: Type = None  # type: ignore[assignment]


@dataclass(slots=True, eq=False, kw_only=True)
class Instantiation(Declaration):
    """Type(arguments) name [= { abstract methods }]."""

    ref: TypeRef
    arguments: list[Argument]
    body: list[Declaration] | None = None
    type: Type = None  # type: ignore[assignment]
    target: Any = None


@dataclass(slots=True, eq=False, kw_only=True)
class FieldDecl(Declaration):
    """A field of a struct, header or union."""

    ref: TypeRef
    type: Type = None  # type: ignore[assignment]


@dataclass(slots=True, eq=False, kw_only=True)
class StructDecl(Declaration):
    """struct, header or header_union (kind)."""

    kind: str
    type_parameters: list[TypeParameter]
    fields: list[FieldDecl]


@dataclass(slots=True, eq=False, kw_only=True)
class EnumDecl(Declaration):
    """enum; with `ref` a serializable one. Members: name, offset, value."""

    ref: TypeRef | None
    members: list[tuple[str, int, Expr | None]]
    values: dict[str, int] = field(default_factory=dict)
    type: Type = None  # type: ignore[assignment]


@dataclass(slots=True, eq=False, kw_only=True)
class ErrorDecl(Declaration):
    """error { .. }."""

    members: list[tuple[str, int]]


@dataclass(slots=True, eq=False, kw_only=True)
class MatchKindDecl(Declaration):
    """match_kind { .. }."""

    members: list[tuple[str, int]]


@dataclass(slots=True, eq=False, kw_only=True)
class TypedefDecl(Declaration):
    """typedef (or, with `distinct`, type)."""

    ref: TypeRef | StructDecl | EnumDecl
    distinct: bool
    type: Type = None  # type: ignore[assignment]


@dataclass(slots=True, eq=False, kw_only=True)
class FunctionDecl(Declaration):
    """A function, an extern function (body None), or an extern's method."""

    returns: TypeRef
    type_parameters: list[TypeParameter]
    parameters: list[Parameter]
    body: Block | None
    is_abstract: bool = False
    return_type: Type = None  # type: ignore[assignment]
    type_vars: list[Any] = field(default_factory=list)


@dataclass(slots=True, eq=False, kw_only=True)
class ConstructorDecl(Declaration):
    """Constructor of an extern."""

    parameters: list[Parameter]


@dataclass(slots=True, eq=False, kw_only=True)
class ExternDecl(Declaration):
    """extern name<..> { constructors and methods }."""

    type_parameters: list[TypeParameter]
    constructors: list[ConstructorDecl]
    methods: list[FunctionDecl]
    type_vars: list[Any] = field(default_factory=list)


@dataclass(slots=True, eq=False, kw_only=True)
class ActionDecl(Declaration):
    """action name(parameters) { }."""

    parameters: list[Parameter]
    body: Block


@dataclass(slots=True, eq=False, kw_only=True)
class KeyElement:
    """expression : match_kind annotations."""

    at: int
    expr: Expr
    match_kind: str
    match_at: int
    annotations: list[Annotation]
    text: str = ""


@dataclass(slots=True, eq=False, kw_only=True)
class ActionRef:
    """An action in a table's list, maybe with arguments."""

    at: int
    name: str
    absolute: bool
    arguments: list[Argument] | None
    annotations: list[Annotation]
    decl: ActionDecl | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class Entry:
    """An entry written in the source."""

    at: int
    is_const: bool
    priority: Expr | None
    keys: list[Expr]
    action: ActionRef
    annotations: list[Annotation]


@dataclass(slots=True, eq=False, kw_only=True)
class Property:
    """A table property other than key, actions and entries."""

    at: int
    name: str
    is_const: bool
    value: Expr
    annotations: list[Annotation]


@dataclass(slots=True, eq=False, kw_only=True)
class TableDecl(Declaration):
    """A table."""

    keys: list[KeyElement]
    actions: list[ActionRef]
    entries: list[Entry]
    entries_const: bool
    properties: list[Property]
    has_actions: bool = False
    has_key: bool = False


@dataclass(slots=True, eq=False, kw_only=True)
class ValueSetDecl(Declaration):
    """value_set<type>(size) name."""

    ref: TypeRef
    size: Expr
    type: Type = None  # type: ignore[assignment]


@dataclass(slots=True, eq=False, kw_only=True)
class SelectCase:
    """keyset : state."""

    at: int
    keyset: Expr
    state: str
    state_at: int


@dataclass(slots=True, eq=False, kw_only=True)
class StateDecl(Declaration):
    """A parser state. `next_state` for a plain transition, else select."""

    body: list[Statement]
    next_state: str | None
    next_at: int
    select: list[Expr] | None
    cases: list[SelectCase]


@dataclass(slots=True, eq=False, kw_only=True)
class ParserDecl(Declaration):
    """A parser, or (states empty and is_type) its type."""

    type_parameters: list[TypeParameter]
    parameters: list[Parameter]
    constructor_parameters: list[Parameter]
    locals: list[Declaration]
    states: list[StateDecl]
    is_type: bool
    type_vars: list[Any] = field(default_factory=list)


@dataclass(slots=True, eq=False, kw_only=True)
class ControlDecl(Declaration):
    """A control, or (is_type) its type."""

    type_parameters: list[TypeParameter]
    parameters: list[Parameter]
    constructor_parameters: list[Parameter]
    locals: list[Declaration]
    body: Block | None
    is_type: bool
    type_vars: list[Any] = field(default_factory=list)


@dataclass(slots=True, eq=False, kw_only=True)
class PackageDecl(Declaration):
    """package name<..>(parameters)."""

    type_parameters: list[TypeParameter]
    parameters: list[Parameter]
    type_vars: list[Any] = field(default_factory=list)


# ------------------------------------------------------------------ statements


@dataclass(slots=True, eq=False, kw_only=True)
class Statement:
    """What all statements share."""

    at: int


@dataclass(slots=True, eq=False, kw_only=True)
class Block(Statement):
    """{ .. }."""

    body: list[Statement]
    annotations: list[Annotation] = field(default_factory=list)
    end: int = 0


@dataclass(slots=True, eq=False, kw_only=True)
class DeclStatement(Statement):
    """A variable, constant or (refused later) instance among statements."""

    decl: Declaration


@dataclass(slots=True, eq=False, kw_only=True)
class Assignment(Statement):
    """target op= value; op '' for a plain one."""

    target: Expr
    op: str
    value: Expr


@dataclass(slots=True, eq=False, kw_only=True)
class CallStatement(Statement):
    """A call for its effects."""

    call: Call


@dataclass(slots=True, eq=False, kw_only=True)
class Conditional(Statement):
    """if."""

    condition: Expr
    then: Statement
    otherwise: Statement | None


@dataclass(slots=True, eq=False, kw_only=True)
class SwitchCase:
    """label : block; label None for default, body None for fall-through."""

    at: int
    label: Expr | None
    body: Block | None


@dataclass(slots=True, eq=False, kw_only=True)
class Switch(Statement):
    """switch."""

    selector: Expr
    cases: list[SwitchCase]


@dataclass(slots=True, eq=False, kw_only=True)
class Return(Statement):
    """return."""

    value: Expr | None


@dataclass(slots=True, eq=False, kw_only=True)
class Exit(Statement):
    """exit."""


@dataclass(slots=True, eq=False, kw_only=True)
class Break(Statement):
    """break."""


@dataclass(slots=True, eq=False, kw_only=True)
class Continue(Statement):
    """continue."""


@dataclass(slots=True, eq=False, kw_only=True)
class Empty(Statement):
    """;."""


@dataclass(slots=True, eq=False, kw_only=True)
class For(Statement):
    """for (init; condition; update) body."""

    init: list[Statement]
    condition: Expr
    update: list[Statement]
    body: Statement


@dataclass(slots=True, eq=False, kw_only=True)
class ForIn(Statement):
    """for (type name in collection) body; collection may be a Range."""

    decl: VariableDecl
    collection: Expr
    body: Statement


@dataclass(slots=True, eq=False)
class Program:
    """All declarations of a program, includes in place."""

    declarations: list[Declaration]
