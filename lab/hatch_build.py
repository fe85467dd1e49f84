"""Where the wheel finds its packages: in an sdist beside this file; in a checkout in the folder above, for pip, which
makes a wheel of the checkout without an sdist.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class LabPackages(BuildHookInterface):
    """Adds the packages of a checkout to its wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See base. An editable install names the folder above by itself."""
        here = Path(self.root)
        if version != "editable":
            for name in self.build_config.packages:
                if not (here / name).is_dir():
                    build_data["force_include"][str(here.parent / name)] = name
