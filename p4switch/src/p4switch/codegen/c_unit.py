"""What the functions of one C file share: program, layout of types, places of variables, wide constants."""

from __future__ import annotations

from dataclasses import dataclass, field

from p4switch.codegen.layout import Layout, Place
from p4switch.ir.program import Program


@dataclass(slots=True)
class CUnit:
    """One C file under construction."""

    program: Program
    layout: Layout = field(default_factory=Layout)
    roots: dict[str, Place] = field(default_factory=dict)
    """C lvalues of the variables, by name."""
    constants: list[str] = field(default_factory=list)
    """Definitions of the constants that are byte arrays."""
    constant_names: dict[tuple[int, int], str] = field(default_factory=dict)
    """Their names, by value and size in bytes."""
    temporaries: int = 0
