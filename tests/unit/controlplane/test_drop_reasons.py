"""Drop reasons and events of the orbit are named after the P4 programs' own enums, which P4Info does not carry."""

from __future__ import annotations

import re
from pathlib import Path

from controlplane.p4runtime.drops import REASONS
from controlplane.p4runtime.orbit import EVENTS

P4 = Path(__file__).resolve().parents[3] / "p4"


def members(file: str, enum: str) -> list[tuple[str, int]]:
    body = re.search(rf"enum bit<8> {enum} \{{(.*?)\n\}}", (P4 / file).read_text(), re.DOTALL)
    assert body is not None
    return [(name.lower(), int(number)) for name, number in re.findall(r"^\s+([A-Z_]+)\s*=\s*(\d+)", body[1], re.M)]


def test_names_and_numbers_are_those_of_the_program() -> None:
    assert members("include/drops.p4", "DropReason") == [(name, at) for at, name in enumerate(REASONS)]
    assert members("tna/types.p4", "OrbitEvent") == [(name, at) for at, name in enumerate(EVENTS)]
