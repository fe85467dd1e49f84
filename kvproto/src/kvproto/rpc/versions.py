"""Versions of the channel between agents and controller, and how far apart two ends may be. Pure.

The number grows when a message changes its meaning; a new field that may be ignored is no reason. Neighbours understand
each other, so a cluster can be upgraded one daemon at a time.
"""

from __future__ import annotations

from typing import Final

PROTOCOL: Final = 1
APART_MAX: Final = 1


def skew(who: str, version: str, protocol: int, own_version: str, own_protocol: int = PROTOCOL) -> str:
    """Why the other end, `who` with this program's `version`, is not understood; empty if it is."""
    if abs(protocol - own_protocol) <= APART_MAX:
        return ""
    older = who if protocol < own_protocol else "this side"
    return (
        f"{who} runs kvcast {version or 'of an unknown version'} (protocol {protocol}), this side {own_version}"
        f" (protocol {own_protocol}): only neighbours understand each other, upgrade {older} step by step"
    )
