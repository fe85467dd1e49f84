"""Where the protocol's P4 programs lie: `p4/` of a checkout, or the copy that a wheel of kvproto carries.

The headers in `p4/include` own the wire layouts that `kvproto.wire` is generated from: one distribution has both.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).resolve().parent
_CARRIED: Final = _HERE / "p4_programs"
"""In a wheel; pyproject.toml puts it there."""
_CHECKOUT: Final = _HERE.parents[2] / "p4"


class Architecture(StrEnum):
    """Of a switch; the values are names of folders in `p4/`."""

    V1MODEL = "v1model"
    TNA = "tna"


def programs_directory() -> Path:
    """The folder with `v1model/`, `tna/` and `include/`; the programs include each other's files by relative paths."""
    return _CARRIED if _CARRIED.is_dir() else _CHECKOUT


def program_for(architecture: Architecture) -> Path:
    """The program to load into a switch of this architecture."""
    return programs_directory() / architecture / "kvcast.p4"
