"""What an architecture gives the compiler: its externs, and how its package's arguments make a program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from p4switch.frontend.lower.architecture_rules import ArchitectureRules
from p4switch.frontend.lower.lowering import Lowering


@dataclass(frozen=True, slots=True)
class Architecture:
    """One that programs may be written for."""

    name: str
    """As P4Info's pkg_info.arch has it; its declarations are `include/<name>.p4`."""
    package: str
    """The package that `main` instantiates."""
    begin: Callable[[Lowering], ArchitectureRules]
