"""Figures that a command has measured: the file for programs, and what a reader wants to know of the machine."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

from rich.console import Console

from kvcast.errors import UsageError


def write_figures(console: Console, path: Path | None, figures: object) -> None:
    """Write `figures` as JSON where the user asked for a file, and say where they are."""
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    console.print(f"figures: {path}")


def machine_facts() -> dict[str, Any]:
    """What a reader of the figures wants to know of the machine."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    return {"cpu": model, "cores": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()}
