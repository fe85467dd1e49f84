"""Where the wheel finds the P4 programs: in an sdist beside this file, in a checkout in the folder above."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class P4Programs(BuildHookInterface):
    """Adds the P4 programs to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See base. An editable install finds the checkout's (`kvproto.programs`)."""
        here = Path(self.root)
        if version != "editable":
            build_data["force_include"][str(next(p for p in (here / "p4", here.parent / "p4") if p.is_dir()))] = (
                "kvproto/p4_programs"
            )
