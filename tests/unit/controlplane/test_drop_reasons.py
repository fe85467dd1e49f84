"""Drop reasons are named after the P4 program's own enum, which P4Info does not carry."""

from __future__ import annotations

import re
from pathlib import Path

from controlplane.switch.drops import REASONS

DROPS = Path(__file__).resolve().parents[3] / "p4" / "include" / "drops.p4"


def test_names_and_numbers_are_those_of_the_program() -> None:
    found = re.findall(r"^\s+([A-Z_]+)\s*=\s*(\d+)", DROPS.read_text(), re.MULTILINE)
    assert [(name.lower(), int(number)) for name, number in found] == [(n, i) for i, n in enumerate(REASONS)]
