"""The IR's rules, checked after the lowering: a broken rule is a bug of the compiler, found here, not in C."""

from __future__ import annotations

from p4switch.ir.program import Program


class VerifyError(AssertionError):
    """The IR breaks one of its rules."""


def verify(program: Program) -> None:
    """Check every rule."""
