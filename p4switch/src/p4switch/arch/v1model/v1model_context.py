"""What v1model's rules share while a program is lowered."""

from __future__ import annotations

from dataclasses import dataclass, field

from p4switch.frontend.lower.lowering import Lowering
from p4switch.ir import expr as ir


@dataclass(slots=True)
class V1Lowering:
    """The lowering, and the packet's variables as soon as the package's blocks give their types."""

    low: Lowering
    metadata: ir.VarRef = field(init=False)
    standard_metadata: ir.VarRef = field(init=False)
