"""Types as the checker sees them: generic, nominal, with arbitrary-precision `int` and types of non-values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from p4switch.frontend import ast


@dataclass(frozen=True, slots=True)
class TBits:
    """bit<width> or int<width>."""

    width: int
    signed: bool = False

    def __str__(self) -> str:
        return f"{'int' if self.signed else 'bit'}<{self.width}>"


@dataclass(frozen=True, slots=True)
class TVarbits:
    """varbit<width>."""

    width: int

    def __str__(self) -> str:
        return f"varbit<{self.width}>"


@dataclass(frozen=True, slots=True)
class TBase:
    """A type without structure: int, bool, string, error, match_kind, void, _, or a kind of declaration."""

    name: str

    def __str__(self) -> str:
        return self.name


INT = TBase("int")
BOOL = TBase("bool")
STRING = TBase("string")
ERROR = TBase("error")
MATCH_KIND = TBase("match_kind")
VOID = TBase("void")
ANY = TBase("_")
STATE = TBase("state")
INVALID = TBase("{#}")  # type of an invalid-header expression before it has one
DOTS = TBase("...")
UNKNOWN = TBase("<unknown>")  # an error was reported for this; fits everything


@dataclass(frozen=True, slots=True)
class TStruct:
    """A struct, header or union, with its type arguments."""

    decl: ast.StructDecl
    arguments: tuple[Type, ...]
    declared: tuple[Type, ...] = field(compare=False, repr=False)
    """Types of the fields as they are declared, before type arguments are put in."""

    @property
    def kind(self) -> str:
        """'struct', 'header' or 'header_union'."""
        return self.decl.kind

    def fields(self) -> list[tuple[str, Type]]:
        """Names and types of the fields, type arguments put in."""
        bound = bindings_of(self)
        return [(f.name, substitute(t, bound)) for f, t in zip(self.decl.fields, self.declared, strict=True)]

    def field(self, name: str) -> Type | None:
        """Type of one field."""
        for f, t in zip(self.decl.fields, self.declared, strict=True):
            if f.name == name:
                return substitute(t, bindings_of(self)) if self.arguments else t
        return None

    def __str__(self) -> str:
        return self.decl.name + _angles(self.arguments)


@dataclass(frozen=True, slots=True)
class TStack:
    """A header stack, or an array of anything as newer P4_16 has it."""

    element: Type
    size: int

    def __str__(self) -> str:
        return f"{self.element}[{self.size}]"


@dataclass(frozen=True, slots=True)
class TTuple:
    """tuple<..>, also the type of a list expression."""

    elements: tuple[Type, ...]

    def __str__(self) -> str:
        return "tuple" + (_angles(self.elements) or "<>")


@dataclass(frozen=True, slots=True)
class TRecord:
    """Type of a struct expression whose struct is not known yet."""

    fields: tuple[tuple[str, Type], ...]

    def __str__(self) -> str:
        return "{" + ", ".join(f"{n}: {t}" for n, t in self.fields) + "}"


@dataclass(frozen=True, slots=True)
class TList:
    """list<..>, constant lists for constructors."""

    element: Type

    def __str__(self) -> str:
        return f"list<{self.element}>"


@dataclass(frozen=True, slots=True)
class TSet:
    """A keyset over a type."""

    element: Type

    def __str__(self) -> str:
        return f"set<{self.element}>"


@dataclass(frozen=True, slots=True)
class TEnum:
    """An enumeration; `underlying` for a serializable one."""

    decl: ast.EnumDecl
    underlying: TBits | None = None

    def __str__(self) -> str:
        return self.decl.name


@dataclass(frozen=True, slots=True)
class TNew:
    """`type underlying name`."""

    decl: ast.TypedefDecl
    underlying: Type

    def __str__(self) -> str:
        return self.decl.name


@dataclass(frozen=True, slots=True)
class TVar:
    """A type parameter; `owner` distinguishes those of different declarations."""

    name: str
    owner: int

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class TBlock:
    """A parser, control, package or extern type, with its type arguments."""

    decl: ast.ParserDecl | ast.ControlDecl | ast.PackageDecl | ast.ExternDecl
    arguments: tuple[Type, ...] = ()

    @property
    def kind(self) -> str:
        """'parser', 'control', 'package' or 'extern'."""
        return {
            ast.ParserDecl: "parser",
            ast.ControlDecl: "control",
            ast.PackageDecl: "package",
            ast.ExternDecl: "extern",
        }[type(self.decl)]

    def __str__(self) -> str:
        return self.decl.name + _angles(self.arguments)


@dataclass(frozen=True, slots=True)
class TTable:
    """A table; `what` 'table', 'result' of apply, or 'action' for result.action_run."""

    decl: ast.TableDecl
    what: str = "table"

    def __str__(self) -> str:
        return {"table": "table ", "result": "result of table ", "action": "action list of table "}[
            self.what
        ] + self.decl.name


@dataclass(frozen=True, slots=True)
class TCallable:
    """Functions (overloads), actions and methods as expressions."""

    name: str

    def __str__(self) -> str:
        return f"function {self.name}"


@dataclass(frozen=True, slots=True)
class TName:
    """The type of an expression that names a type."""

    named: Type

    def __str__(self) -> str:
        return f"type {self.named}"


Type: TypeAlias = (
    TBits
    | TVarbits
    | TBase
    | TStruct
    | TStack
    | TTuple
    | TRecord
    | TList
    | TSet
    | TEnum
    | TNew
    | TVar
    | TBlock
    | TTable
    | TCallable
    | TName
)


@dataclass(frozen=True, slots=True)
class EnumValue:
    """A constant of an enumeration without representation, of error, or of match_kind."""

    enum: str
    member: str


Bindings: TypeAlias = Mapping[TVar, Type]


def _angles(arguments: tuple[Type, ...]) -> str:
    return "<" + ", ".join(map(str, arguments)) + ">" if arguments else ""


def type_variables(decl: ast.GenericDecl) -> list[TVar]:
    """The type variables that a generic declaration declares."""
    return [TVar(p.name, id(decl)) for p in decl.type_parameters]


def bindings_of(t: TStruct | TBlock) -> dict[TVar, Type]:
    """Type parameters of a generic declaration to the arguments that `t` gives them."""
    return {TVar(p.name, id(t.decl)): a for p, a in zip(t.decl.type_parameters, t.arguments, strict=False)}


def substitute(t: Type, bound: Bindings) -> Type:
    """`t` with type variables replaced."""
    if not bound or isinstance(t, TBits | TBase | TVarbits | TEnum | TCallable | TTable):
        return t
    if isinstance(t, TVar):
        return bound.get(t, t)
    if isinstance(t, TStruct):
        return replace(t, arguments=tuple(substitute(a, bound) for a in t.arguments)) if t.arguments else t
    if isinstance(t, TBlock):
        return TBlock(t.decl, tuple(substitute(a, bound) for a in t.arguments)) if t.arguments else t
    if isinstance(t, TStack):
        return TStack(substitute(t.element, bound), t.size)
    if isinstance(t, TTuple):
        return TTuple(tuple(substitute(e, bound) for e in t.elements))
    if isinstance(t, TRecord):
        return TRecord(tuple((n, substitute(e, bound)) for n, e in t.fields))
    if isinstance(t, TList):
        return TList(substitute(t.element, bound))
    if isinstance(t, TSet):
        return TSet(substitute(t.element, bound))
    if isinstance(t, TNew):
        return TNew(t.decl, substitute(t.underlying, bound))
    return TName(substitute(t.named, bound))


def resolve_deep(t: Type, bound: Bindings) -> Type:
    """Substitute until nothing changes (bindings may refer to each other)."""
    for _ in range(8):
        following = substitute(t, bound)
        if following == t:
            return t
        t = following
    return t


def has_variables(t: Type) -> bool:
    """Whether a type variable occurs in `t`."""
    if isinstance(t, TVar):
        return True
    if isinstance(t, TStruct | TBlock):
        return any(has_variables(a) for a in t.arguments)
    if isinstance(t, TStack | TList | TSet):
        return has_variables(t.element)
    if isinstance(t, TTuple):
        return any(has_variables(e) for e in t.elements)
    if isinstance(t, TRecord):
        return any(has_variables(e) for _, e in t.fields)
    return has_variables(t.underlying) if isinstance(t, TNew) else False


def is_header_like(t: Type) -> bool:
    """Header or header union."""
    return isinstance(t, TStruct) and t.kind in ("header", "header_union")


def width_of(t: Type) -> int | None:
    """Bits of a value of fixed size, or None; varbits give None."""
    if isinstance(t, TBits):
        return t.width
    if t == BOOL:
        return 1
    if isinstance(t, TEnum):
        return t.underlying.width if t.underlying else None
    if isinstance(t, TNew):
        return width_of(t.underlying)
    if isinstance(t, TStack):
        element = width_of(t.element)
        return None if element is None else element * t.size
    parts: list[Type]
    if isinstance(t, TStruct):
        parts = [f for _, f in t.fields()]
    elif isinstance(t, TTuple):
        parts = list(t.elements)
    else:
        return None
    widths = [width_of(p) for p in parts]
    return None if any(w is None for w in widths) else sum(w for w in widths if w is not None)


def size_range(t: Type) -> tuple[int, int] | None:
    """Smallest and largest size in bits, varbits included."""
    if isinstance(t, TVarbits):
        return 0, t.width
    fixed = width_of(t)
    if fixed is not None and not (isinstance(t, TStruct) and t.kind == "header_union"):
        return fixed, fixed
    if isinstance(t, TStack):
        inner = size_range(t.element)
        return None if inner is None else (inner[0] * t.size, inner[1] * t.size)
    if not isinstance(t, TStruct):
        return None
    parts = [size_range(f) for _, f in t.fields()]
    if any(p is None for p in parts):
        return None
    known = [p for p in parts if p is not None]
    if t.kind == "header_union":
        return min(p[0] for p in known), max(p[1] for p in known)
    return sum(p[0] for p in known), sum(p[1] for p in known)
