"""What the checker hands on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from p4switch.frontend import ast
from p4switch.frontend.facts import Facts
from p4switch.frontend.source import Reporter


@dataclass(frozen=True, slots=True)
class CheckedProgram:
    """A program without errors."""

    program: ast.Program
    """As the parser made it."""
    facts: Facts
    names: Mapping[str, Any]
    """Declarations at the top level, by name; a list of overloads for a function."""
    errors: tuple[str, ...]
    """Members of `error` in order of declaration."""
    reporter: Reporter
    """Has the warnings, and takes what later passes find."""
