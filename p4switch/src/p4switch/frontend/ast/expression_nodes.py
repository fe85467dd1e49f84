"""Annotations, types as they are written, and expressions."""

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
