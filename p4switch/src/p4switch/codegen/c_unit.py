"""What the functions of one C file share: program, layout of types, places of variables, constants, texts.

Nothing that the program's author wrote becomes C text. Types, members, variables and labels have numbers. Names and
messages are arrays of numbers, which the C refers to by number: what they say can change nothing of the C around them.
"""

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
    texts: list[str] = field(default_factory=list)
    """Definitions of the strings of the program."""
    temporaries: int = 0

    def text(self, content: str) -> str:
        """C name of a new array that holds a string of the program, as UTF-8 with a zero behind it."""
        name = f"text_{len(self.texts)}"
        numbers = ", ".join(str(byte - 256 if byte > 127 else byte) for byte in (*content.encode(), 0))
        self.texts.append(f"static const char {name}[] = {{{numbers}}};")
        return name
