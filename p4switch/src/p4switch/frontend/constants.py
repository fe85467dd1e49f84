"""Compile-time arithmetic of P4_16 on Python integers; values of bit<W> are kept in 0..2^W-1, of int<W> signed."""

from __future__ import annotations

from p4switch.frontend.p4_types import BOOL, INT, TBits, TEnum, TNew, Type

MAX_SHIFT = 1 << 16
"""Largest shift of an arbitrary-precision integer: keeps `1 << huge` from eating the memory."""


class ConstantError(Exception):
    """The operation has no value; the message says why."""


def wrap(value: int, t: Type) -> int:
    """Bring a value into the range of its type."""
    if isinstance(t, TNew):
        return wrap(value, t.underlying)
    if isinstance(t, TEnum) and t.underlying is not None:
        return wrap(value, t.underlying)
    if not isinstance(t, TBits):
        return value
    value &= (1 << t.width) - 1
    if t.signed and t.width and value >> (t.width - 1):
        value -= 1 << t.width
    return value


def fits(value: int, t: TBits) -> bool:
    """Whether the type holds the value without wrapping."""
    if t.signed:
        return t.width > 0 and -(1 << (t.width - 1)) <= value < 1 << (t.width - 1)
    return 0 <= value < 1 << t.width


def saturate(value: int, t: TBits) -> int:
    """Clamp into the range of the type."""
    low, high = (-(1 << (t.width - 1)), (1 << (t.width - 1)) - 1) if t.signed else (0, (1 << t.width) - 1)
    return max(low, min(high, value))


def unary(op: str, value: int | bool, t: Type) -> int | bool:
    """Value of `op value`."""
    if op == "!":
        return not value
    if op == "+":
        return value
    return wrap(~int(value) if op == "~" else -int(value), t)


def binary(op: str, left: int, right: int, t: Type, right_type: Type) -> int | bool:
    """Value of `left op right`; `t` is the left operand's type. ConstantError for what has none."""
    comparisons = {
        "==": left == right,
        "!=": left != right,
        "<": left < right,
        "<=": left <= right,
        ">": left > right,
        ">=": left >= right,
    }
    if op in comparisons:
        return comparisons[op]
    if op in ("/", "%"):
        if right == 0:
            raise ConstantError("division by zero")
        if t == INT and (left < 0 or right < 0):
            raise ConstantError(f"'{op}' is not defined for negative numbers")
        return wrap(left // right if op == "/" else left % right, t)
    if op in ("<<", ">>"):
        if right < 0:
            raise ConstantError("shift by a negative amount")
        return _shift(op, left, right, t)
    if op == "++":
        if not isinstance(t, TBits) or not isinstance(right_type, TBits):
            raise ConstantError("'++' needs operands of known width")
        joined = (left & ((1 << t.width) - 1)) << right_type.width | (right & ((1 << right_type.width) - 1))
        return wrap(joined, TBits(t.width + right_type.width, t.signed))
    plain = {
        "+": left + right,
        "-": left - right,
        "*": left * right,
        "&": left & right,
        "|": left | right,
        "^": left ^ right,
    }
    if op in plain:
        return wrap(plain[op], t)
    if op in ("|+|", "|-|") and isinstance(t, TBits):
        return saturate(left + right if op == "|+|" else left - right, t)
    raise ConstantError(f"'{op}' has no compile-time value here")


def _shift(op: str, left: int, right: int, t: Type) -> int:
    if isinstance(t, TBits) and right >= t.width:
        return -1 if op == ">>" and left < 0 else 0
    if op == "<<" and right > MAX_SHIFT:
        raise ConstantError(f"shift by more than {MAX_SHIFT}")
    return wrap(left << right, t) if op == "<<" else wrap(left >> min(right, MAX_SHIFT), t)


def cast(value: int | bool, target: Type) -> int | bool:
    """Value after an explicit or implicit cast."""
    if target == BOOL:
        return bool(value)
    return wrap(int(value), target)
