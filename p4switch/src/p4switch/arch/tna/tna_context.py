"""What tna's rules share while a program is lowered."""

from __future__ import annotations

from dataclasses import dataclass, field

from p4switch.frontend.lower.lowering import Lowering
from p4switch.ir import expr as ir
from p4switch.ir.stmt import HashAlgorithm


@dataclass(slots=True)
class TnaLowering:
    """The lowering, and what stateful ALUs are asked for."""

    low: Lowering
    gress: str = "ingress"
    actions_of: dict[int, int] = field(default_factory=dict)
    """How many actions each register has."""
    hashes: list[HashAlgorithm] = field(default_factory=list)
    access_offsets: dict[int, int] = field(default_factory=dict)
    """Where register accesses are in the source, by the identity of the statement."""
    entry_offsets: dict[int, int] = field(default_factory=dict)
    """Where direct meters and counters are called in the source, by the identity of the statement."""
    running: dict[str, ir.VarRef] = field(default_factory=dict)
    """What parser counters and checksums hold while a packet is parsed, by the name of the instance."""
    parameters: list[tuple[int, ir.VarRef]] | None = None
    """Reads of register parameters in the action at hand; None outside of register actions."""
