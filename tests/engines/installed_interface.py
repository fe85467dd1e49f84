"""Whether the engine of this environment has what tools/engine_interfaces.py looks for."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools/engine_interfaces.py"


def assert_has_all(engine: str) -> None:
    """An engine by its package's name."""
    done = subprocess.run(
        [sys.executable, str(TOOL), engine, sysconfig.get_path("purelib")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
