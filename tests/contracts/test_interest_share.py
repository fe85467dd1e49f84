"""What one port may take of the interest table is far more than an honest node needs, and never all of it."""

from __future__ import annotations

import re
from pathlib import Path

from kvproto.limits import JOINED_MAX
from kvsim.switch import INTEREST_OF_PORT

SIZES = Path(__file__).resolve().parents[2] / "p4" / "include" / "sizes.p4"


def size(name: str) -> int:
    """A default of the switch programs."""
    found = re.search(rf"^#define {name} (\d+)$", SIZES.read_text(), re.MULTILINE)
    assert found is not None, name
    return int(found[1])


def test_a_node_never_needs_more_than_its_share() -> None:
    """It joins so many chunks at a time, all of them again under another salt, and as many LEAVEs may get lost."""
    assert size("INTEREST_OF_PORT") >= 4 * JOINED_MAX


def test_all_members_together_have_no_more_than_the_table() -> None:
    """A port has as many entries again that it paid for in the window before."""
    assert 2 * size("INTEREST_OF_PORT") * size("MEMBERS") <= size("INTEREST")


def test_the_simulators_switch_has_the_same_share() -> None:
    assert size("INTEREST_OF_PORT") == INTEREST_OF_PORT
