"""P4Runtime's byte strings: big-endian, shortest form, leading zeros accepted.

Source: P4Runtime specification, "Bytestrings". A string that does not fit its type is OUT_OF_RANGE.
"""

from __future__ import annotations

from p4switch.server.status import out_of_range


def decode_unsigned(value: bytes, width_bits: int, what: str) -> int:
    """The number in `value`, checked to fit bit<width_bits>; `what` names it in the error."""
    if not value:
        raise out_of_range(f"{what}: empty byte string")
    number = int.from_bytes(value, "big")
    if number.bit_length() > width_bits:
        raise out_of_range(f"{what}: 0x{_brief(value)} does not fit bit<{width_bits}>")
    return number


def encode_unsigned(number: int) -> bytes:
    """The shortest string of a number >= 0; zero is one zero byte."""
    return number.to_bytes(max(1, (number.bit_length() + 7) // 8), "big")


def decode_signed(value: bytes, width_bits: int, what: str) -> int:
    """The two's complement number in `value`, checked to fit int<width_bits>; as a bit pattern of that width."""
    if not value:
        raise out_of_range(f"{what}: empty byte string")
    number = int.from_bytes(value, "big", signed=True)
    half = 1 << max(width_bits - 1, 0)
    if not -half <= number < half:
        raise out_of_range(f"{what}: 0x{_brief(value)} does not fit int<{width_bits}>")
    return number & ((1 << width_bits) - 1)


def encode_signed(pattern: int, width_bits: int) -> bytes:
    """The shortest two's complement string of a bit pattern of `width_bits` bits."""
    number = pattern - (1 << width_bits) if width_bits and pattern >> (width_bits - 1) else pattern
    bits = (number if number >= 0 else ~number).bit_length() + 1
    return number.to_bytes((bits + 7) // 8, "big", signed=True)


def _brief(value: bytes) -> str:
    return value.hex() if len(value) <= 32 else f"{value[:32].hex()}... ({len(value)} bytes)"
