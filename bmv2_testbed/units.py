"""Rates and sizes as people write them: `100mbit`, `16MiB`. Pure."""

from __future__ import annotations

import re
from typing import Final

_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)bit(?:/s|ps)?", re.IGNORECASE)
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|kB|KB|MB|GB)?")
_DECIMAL: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_BYTES: Final = {
    None: 1,
    "B": 1,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
}


def parse_rate_bit_s(text: str) -> int:
    """`100mbit` -> 100_000_000. Raises ValueError with a line that names the text and what would do."""
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"rate {text!r} is not a number with kbit, mbit or gbit behind it, as in 100mbit")
    rate = round(float(match[1]) * _DECIMAL[match[2].lower()])
    if rate <= 0:
        raise ValueError(f"rate {text!r} is not above zero")
    return rate


def parse_size_bytes(text: str) -> int:
    """`16MiB` -> 16_777_216. Raises ValueError with a line that names the text and what would do."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"size {text!r} is not a number with B, KiB, MiB or GiB behind it, as in 16MiB")
    size = round(float(match[1]) * _BYTES[match[2]])
    if size <= 0:
        raise ValueError(f"size {text!r} is not above zero")
    return size


def format_size(size_bytes: int) -> str:
    """16_777_216 -> `16 MiB`."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.4g} {unit}"
    return f"{size_bytes} B"


def format_rate(rate_bit_s: int) -> str:
    """100_000_000 -> `100mbit`."""
    for unit, scale in (("gbit", 10**9), ("mbit", 10**6), ("kbit", 10**3)):
        if rate_bit_s >= scale:
            return f"{rate_bit_s / scale:.4g}{unit}"
    return f"{rate_bit_s}bit"
