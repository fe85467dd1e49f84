"""How fast the switch is, beside a bare loop that only forwards: ``python -m p4switch.bench``."""

from pathlib import Path

from p4switch.runtime.build import build_shared_object

_HERE = Path(__file__).parent


def build_l2_program() -> Path:
    """The hand-written L2 program (l2_program.c), compiled."""
    return build_shared_object("l2", [_HERE / "l2_program.c"])
