"""Expressions of the lowered IR: pure, typed, every call already hoisted into statements.

Evaluating an expression has no effect and cannot fail: reading an invalid header gives
unspecified bits, an index out of range the zero value, a division by zero zero.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

from p4switch.ir.types import Bits, Bool, Type


class UnaryOp(enum.Enum):
    """Operators with one operand."""

    NEGATE = "-"
    COMPLEMENT = "~"
    NOT = "!"


class BinaryOp(enum.Enum):
    """Operators with two operands. Signedness is that of the left operand's type.

    Operands of all but CONCAT and the shifts have one type. Comparisons and LAND/LOR give Bool.
    Shifts take any unsigned amount; shifting by the width or more gives 0 (or the sign).
    """

    ADD = "+"
    SUB = "-"
    MUL = "*"
    DIV = "/"
    MOD = "%"
    SAT_ADD = "|+|"
    SAT_SUB = "|-|"
    AND = "&"
    OR = "|"
    XOR = "^"
    SHL = "<<"
    SHR = ">>"
    CONCAT = "++"
    EQ = "=="
    NE = "!="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="
    LAND = "&&"
    LOR = "||"


COMPARISONS = frozenset({BinaryOp.EQ, BinaryOp.NE, BinaryOp.LT, BinaryOp.LE, BinaryOp.GT, BinaryOp.GE})


@dataclass(frozen=True, slots=True)
class Const:
    """A value known at compile time: the bit pattern (never negative), a truth value as 0 or 1, an enum index."""

    value: int
    type: Type


@dataclass(frozen=True, slots=True)
class VarRef:
    """A variable of the packet or of the block, by its unique name."""

    name: str
    type: Type


@dataclass(frozen=True, slots=True)
class Member:
    """A field of a struct, header or union."""

    base: LValue
    field: str
    type: Type


@dataclass(frozen=True, slots=True)
class Element:
    """One header (or union) of a stack; an index out of range reads as an invalid, zero header."""

    base: LValue
    index: Expr
    type: Type


@dataclass(frozen=True, slots=True)
class IsValid:
    """Whether a header is valid, or any header of a union."""

    header: LValue

    @property
    def type(self) -> Type:
        """Always Bool."""
        return Bool()


@dataclass(frozen=True, slots=True)
class NextIndex:
    """The stack's next index (a bit<32>): where `next` points."""

    stack: LValue

    @property
    def type(self) -> Type:
        """Always bit<32>."""
        return Bits(32)


@dataclass(frozen=True, slots=True)
class VarbitLength:
    """Current length of a varbit in bits (bit<32>)."""

    operand: LValue

    @property
    def type(self) -> Type:
        """Always bit<32>."""
        return Bits(32)


@dataclass(frozen=True, slots=True)
class PacketLength:
    """Length in bytes of the packet that the parser reads (bit<32>)."""

    @property
    def type(self) -> Type:
        """Always bit<32>."""
        return Bits(32)


@dataclass(frozen=True, slots=True)
class Unary:
    """One operand."""

    op: UnaryOp
    operand: Expr
    type: Type


@dataclass(frozen=True, slots=True)
class Binary:
    """Two operands."""

    op: BinaryOp
    left: Expr
    right: Expr
    type: Type


@dataclass(frozen=True, slots=True)
class Slice:
    """Bits high..low of the operand, both inclusive."""

    operand: Expr
    high: int
    low: int
    type: Type


@dataclass(frozen=True, slots=True)
class Cast:
    """Change of type: extend by the *operand's* sign, truncate, reinterpret, bool from and to bit<1>."""

    operand: Expr
    type: Type


@dataclass(frozen=True, slots=True)
class Mux:
    """condition ? yes : no."""

    condition: Expr
    yes: Expr
    no: Expr
    type: Type


LValue: TypeAlias = VarRef | Member | Element
Expr: TypeAlias = (
    Const
    | VarRef
    | Member
    | Element
    | IsValid
    | NextIndex
    | VarbitLength
    | PacketLength
    | Unary
    | Binary
    | Slice
    | Cast
    | Mux
)
