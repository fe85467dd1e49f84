"""One C function under construction: its lines, names and labels. Rules given to it say what a statement becomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from p4switch.codegen.c_unit import CUnit
from p4switch.codegen.layout import Place, is_wide
from p4switch.errors import InternalError
from p4switch.ir import types as irt
from p4switch.ir.program import Thread, Variable
from p4switch.ir.stmt import Body

StatementRules: TypeAlias = Mapping[type, Callable[["FunctionWriter", Any], None]]
"""For each kind of statement what writes it."""


@dataclass(slots=True)
class FunctionWriter:
    """Writes the body of one function of a thread."""

    unit: CUnit
    thread: Thread
    rules: StatementRules
    block: str
    """What the function is: 'parse', 'deparse', or a control's name."""
    tracks_writes: bool = False
    """Whether the runtime wants to know that a header was changed."""
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    variables: int = 0
    """How many are declared."""
    labels: dict[str, str] = field(default_factory=dict)
    """C labels, by IR label."""
    used_labels: set[str] = field(default_factory=set)

    def line(self, text: str) -> None:
        """One line at the current depth."""
        self.lines.append("    " * self.depth + text)

    def open(self, text: str) -> None:
        """A line that opens a brace."""
        self.line(text)
        self.depth += 1

    def close(self, text: str = "}") -> None:
        """Close a brace."""
        self.depth -= 1
        self.line(text)

    def temporary(self, hint: str) -> str:
        """A fresh C name in the file."""
        self.unit.temporaries += 1
        return f"{hint}{self.unit.temporaries}"

    def declare(self, variables: tuple[Variable, ...]) -> None:
        """Declare a block's variables."""
        layout = self.unit.layout
        for v in variables:
            name = f"v{self.variables}"
            self.variables += 1
            z, f = layout.z_type(v.type), layout.f_type(v.type)
            if z is not None:
                plain = isinstance(v.type, irt.Bits | irt.Bool | irt.EnumType | irt.HeaderType) and not is_wide(v.type)
                self.line(f"{z} {name} = {'0' if plain else '{0}'};")
            if f is not None:
                self.line(f"{f} {name}_f;")
            self.unit.roots[v.name] = Place(name, f"{name}_f")

    def body(self, statements: Body) -> None:
        """Write statements in order. InternalError for one without a rule."""
        for statement in statements:
            rule = self.rules.get(type(statement))
            if rule is None:
                raise InternalError(f"no C for {statement} in {self.block} of {self.unit.program.source}")
            rule(self, statement)

    def label(self, name: str) -> str:
        """C label of an IR label."""
        return self.labels.setdefault(name, f"l{len(self.labels)}")


def color_name(meter: int) -> str:
    """C variable with the colour of a direct meter in the current function."""
    return f"meter_color_{meter}"
