"""Types of the lowered IR: what a value looks like, with every name, width and generic argument resolved.

Nominal types (structs, headers, unions, enumerations) are compared by name; a program never holds two
different types of one name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Annotation:
    """One source annotation, `@name(...)`, as the control plane sees it.

    `body` holds the evaluated arguments of an ordinary annotation (ints, strings, bools) in order;
    `pairs` those of a key-value one; `text` the unparsed tokens, always.
    """

    name: str
    body: tuple[int | str | bool, ...] = ()
    pairs: tuple[tuple[str, int | str | bool], ...] = ()
    text: str = ""
    structured: bool = False


@dataclass(frozen=True, slots=True)
class Bits:
    """`bit<width>` or `int<width>`; width in bits, 0 allowed by the language for bit<0>."""

    width: int
    signed: bool = False

    def __str__(self) -> str:
        return f"{'int' if self.signed else 'bit'}<{self.width}>"


@dataclass(frozen=True, slots=True)
class Bool:
    """The two truth values."""

    def __str__(self) -> str:
        return "bool"


@dataclass(frozen=True, slots=True)
class Varbits:
    """`varbit<max_width>`: a bit string with a length of its own."""

    max_width: int

    def __str__(self) -> str:
        return f"varbit<{self.max_width}>"


@dataclass(frozen=True, slots=True)
class EnumType:
    """An enumeration without representation (`error` is one): values are indices into `members`."""

    name: str
    members: tuple[str, ...]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Field:
    """A named part of a struct, header or union.

    `declared` is the name of the `type` or serializable enum it was declared with, where that
    name matters to the control plane (P4Info type_name).
    """

    name: str
    type: Type
    annotations: tuple[Annotation, ...] = ()
    declared: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class StructType:
    """A struct or (with a synthetic name) a tuple."""

    name: str
    fields: tuple[Field, ...]
    annotations: tuple[Annotation, ...] = ()
    is_tuple: bool = False

    def field(self, name: str) -> Field:
        """The field of that name; KeyError when there is none (a bug of the lowering)."""
        return _field(self.name, self.fields, name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StructType) and other.name == self.name

    def __hash__(self) -> int:
        return hash(("struct", self.name))

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False)
class HeaderType:
    """A header: fields in wire order plus a validity bit."""

    name: str
    fields: tuple[Field, ...]
    annotations: tuple[Annotation, ...] = ()

    def field(self, name: str) -> Field:
        """The field of that name; KeyError when there is none (a bug of the lowering)."""
        return _field(self.name, self.fields, name)

    def width_bits(self) -> int:
        """Bits of the fixed part (varbit fields count 0)."""
        return sum(width_of(f.type) for f in self.fields)

    def varbit_field(self) -> Field | None:
        """The one varbit field, if the header has any."""
        return next((f for f in self.fields if isinstance(f.type, Varbits)), None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HeaderType) and other.name == self.name

    def __hash__(self) -> int:
        return hash(("header", self.name))

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False)
class UnionType:
    """A header union: at most one of its headers is valid."""

    name: str
    fields: tuple[Field, ...]
    annotations: tuple[Annotation, ...] = ()

    def field(self, name: str) -> Field:
        """The field of that name; KeyError when there is none (a bug of the lowering)."""
        return _field(self.name, self.fields, name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnionType) and other.name == self.name

    def __hash__(self) -> int:
        return hash(("union", self.name))

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class StackType:
    """A header stack of `size` headers (or header unions) with a next index."""

    element: HeaderType | UnionType
    size: int

    def __str__(self) -> str:
        return f"{self.element}[{self.size}]"


Type: TypeAlias = Bits | Bool | Varbits | EnumType | StructType | HeaderType | UnionType | StackType
Scalar: TypeAlias = Bits | Bool | EnumType

ENUM_BITS = 32
"""Width of an enumeration's index wherever it needs one (keys, hashes)."""


def width_of(t: Type) -> int:
    """Bits that a value of `t` takes on a wire or in a key; varbits count 0."""
    if isinstance(t, Bits):
        return t.width
    if isinstance(t, Bool):
        return 1
    if isinstance(t, EnumType):
        return ENUM_BITS
    if isinstance(t, Varbits):
        return 0
    if isinstance(t, StackType):
        return t.size * width_of(t.element)
    return sum(width_of(f.type) for f in t.fields)


def _field(owner: str, fields: tuple[Field, ...], name: str) -> Field:
    for f in fields:
        if f.name == name:
            return f
    raise KeyError(f"{owner} has no field {name}")
