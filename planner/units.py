"""Rates and sizes as people write them on this command line: `100g` of a link is Gbit/s, `256g` of memory GiB."""

from __future__ import annotations

from typing import Final

from kvproto.units import parse_rate_bit_s, parse_size_bytes
from planner.errors import PlanError

SRAM_BYTES: Final = 15 * 2**20
"""Of one Tofino 1 pipe, all twelve stages: what a chunk cache in an ASIC could have at most."""


def link_rate(text: str) -> float:
    """`100g` -> 12.5e9 bytes per second. Raises PlanError."""
    try:
        return parse_rate_bit_s(text) / 8
    except ValueError as error:
        raise PlanError(f"link {error}") from None


def memory_bytes(text: str) -> int:
    """`256g` and `256GiB` -> 274_877_906_944. `0` and `none` are nothing. Raises PlanError."""
    text = text.strip()
    if text.lower() in ("0", "none"):
        return 0
    if text.isdigit():
        raise PlanError(f"size {text!r} has no unit: write {text}g, {text}GiB, or none")
    try:
        return parse_size_bytes(text)
    except ValueError as error:
        raise PlanError(f"{error}, nor none") from None


def switch_bytes(text: str) -> int:
    """`sram`, `none`, or a size like `64g`. Raises PlanError."""
    return SRAM_BYTES if text.strip().lower() == "sram" else memory_bytes(text)


def format_seconds(seconds: float) -> str:
    """0.0123 -> `12.3 ms`."""
    if seconds >= 999.5:
        return f"{seconds:,.0f} s"
    if seconds >= 1 or seconds == 0:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"
