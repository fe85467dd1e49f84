"""Rates and sizes as people write them on this command line: `100g` of a link is Gbit/s, `256g` of memory GiB. Pure."""

from __future__ import annotations

import re
from typing import Final

from planner.errors import PlanError

_NUMBER: Final = r"(\d+(?:\.\d+)?)\s*"
_RATE: Final = re.compile(_NUMBER + r"([kmgt])(?:bit)?(?:/s|ps)?", re.IGNORECASE)
_SIZE: Final = re.compile(_NUMBER + r"([kmgt])(?:i?b)?", re.IGNORECASE)
_POWER: Final = {"k": 1, "m": 2, "g": 3, "t": 4}
SRAM_BYTES: Final = 15 * 2**20
"""Of one Tofino 1 pipe, all twelve stages: what a chunk cache in an ASIC could have at most."""


def link_rate(text: str) -> float:
    """`100g` -> 12.5e9 bytes per second. Raises PlanError."""
    match = _RATE.fullmatch(text.strip())
    rate = float(match[1]) * 1000 ** _POWER[match[2].lower()] / 8 if match else 0.0
    if rate <= 0:
        raise PlanError(f"link rate '{text}' is not a number above zero with m, g or t behind it, as in 100g (Gbit/s)")
    return rate


def memory_bytes(text: str) -> int:
    """`256g` -> 256 GiB in bytes. `0` and `none` are nothing. Raises PlanError."""
    if text.strip().lower() in ("0", "none"):
        return 0
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise PlanError(f"size '{text}' is not a number with m, g or t behind it, as in 256g (GiB), nor none")
    return round(float(match[1]) * float(1024 ** _POWER[match[2].lower()]))


def switch_bytes(text: str) -> int:
    """`sram`, `none`, or a size like `64g`. Raises PlanError."""
    return SRAM_BYTES if text.strip().lower() == "sram" else memory_bytes(text)


def format_rate(bytes_per_s: float) -> str:
    """12.5e9 -> `100 Gbit/s`."""
    bits = bytes_per_s * 8
    for unit, scale in (("Tbit/s", 1e12), ("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bits >= scale:
            return f"{bits / scale:.3g} {unit}"
    return f"{bits:.3g} bit/s"


def format_bytes(size: float) -> str:
    """2.5e12 -> `2.27 TiB`."""
    for unit, scale in (("PiB", 2**50), ("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.0f} B"


def format_seconds(seconds: float) -> str:
    """0.0123 -> `12.3 ms`."""
    if seconds >= 999.5:
        return f"{seconds:,.0f} s"
    if seconds >= 1 or seconds == 0:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"
