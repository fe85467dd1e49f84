"""Sizes and rates as people write and read them: `16MiB`, `100mbit`; `16 MiB`, `100 Mbit/s`. Pure."""

import re
from typing import Final

_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])?(?:bit(?:/s|ps)?|bps)|([kmgt]))", re.IGNORECASE)
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?b)?|b)?", re.IGNORECASE)
_POWER: Final = {"k": 1, "m": 2, "g": 3, "t": 4}
_BINARY: Final = (("PiB", 2**50), ("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_DECIMAL: Final = (("Tbit/s", 10**12), ("Gbit/s", 10**9), ("Mbit/s", 10**6), ("kbit/s", 10**3))


def parse_rate_bit_s(text: str) -> int:
    """`100mbit`, `100m`, `100 Mbit/s` -> 100_000_000. Raises ValueError: one line that names text and remedy."""
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"rate {text!r} is not a number with kbit, mbit or gbit behind it, as in 100mbit")
    rate = round(float(match[1]) * _scale(1000, match[2] or match[3]))
    if rate <= 0:
        raise ValueError(f"rate {text!r} is not above zero")
    return rate


def parse_size_bytes(text: str) -> int:
    """`16MiB`, `16m` -> 16_777_216; `16MB` -> 16_000_000. Raises ValueError: one line that names text and remedy."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"size {text!r} is not a number with B, KiB, MiB, GiB or TiB behind it, as in 16MiB")
    base = 1000 if (match[3] or "").lower() == "b" else 1024
    size_bytes = round(float(match[1]) * _scale(base, match[2]))
    if size_bytes <= 0:
        raise ValueError(f"size {text!r} is not above zero")
    return size_bytes


def format_bytes(size_bytes: float) -> str:
    """16_777_216 -> `16 MiB`; three digits."""
    return _shown(size_bytes, _BINARY, "B")


def format_rate(rate_bit_s: float) -> str:
    """100_000_000 -> `100 Mbit/s`; three digits."""
    return _shown(rate_bit_s, _DECIMAL, "bit/s")


def _scale(base: int, letter: str | None) -> int:
    return int(base ** (_POWER[letter.lower()] if letter else 0))


def _shown(value: float, units: tuple[tuple[str, int], ...], least: str) -> str:
    unit, scale = next(((unit, scale) for unit, scale in units if value >= scale), (least, 1))
    number = value / scale
    # Up to 1023 of a binary unit have four digits.
    return f"{number:.0f} {unit}" if number >= 999.5 or scale == 1 else f"{number:.3g} {unit}"
