"""Commands on a terminal, as an operator runs them."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from collections.abc import Sequence

from bmv2_testbed.processes import child_environment


def on_a_terminal(words: Sequence[str], kind: str = "xterm-256color", hangs_s: float = 60.0) -> tuple[int, str]:
    """Exit status of a `kvcast` command, and what its terminal gets. Raises subprocess.TimeoutExpired for one that
    hangs."""
    ours, theirs = pty.openpty()
    pieces: list[bytes] = []

    def listen() -> None:
        try:
            while piece := os.read(ours, 1 << 16):
                pieces.append(piece)
        except OSError:  # nobody has the other end any more
            return

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        environment = child_environment() | {"TERM": kind, "COLUMNS": "250", "LINES": "60"}
        argv = [sys.executable, "-m", "kvcast.cli", *words]
        status = subprocess.run(
            argv, stdout=theirs, stderr=theirs, env=environment, timeout=hangs_s, check=False
        ).returncode
    finally:
        os.close(theirs)
        listener.join()
        os.close(ours)
    return status, b"".join(pieces).decode()
