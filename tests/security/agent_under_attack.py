"""A running agent, and what an engine that lies can do to it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.ports import free_port

ROOT = Path(__file__).parents[2]
READY_LINE = "kvcast-agent ready node=n0 "


class AttackedAgent:
    """A process of `kvcast-agent` with a socket that every user may open."""

    def __init__(self, folder: Path, *, pool: str = "{size: 16MiB}", more: str = "") -> None:
        folder.chmod(0o755)
        self.socket = str(folder / "agent.sock")
        config = folder / "agent.yaml"
        config.write_text(
            "node: n0\n"
            f"data: {{address: 127.81.0.1, cast_port: {free_port()}, control_port: {free_port()}, read_port: 0}}\n"
            f"pool: {pool}\napi: {{socket: {self.socket}, mode: 0666}}\nhttp: {{port: 0}}\n{more}"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hostagent", "--config", str(config)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith(READY_LINE), line

    def end(self) -> str:
        """Stop it in order; its log. It must be alive until then, and have met no defect of its own."""
        assert self.process.poll() is None, f"the agent ended with {self.process.returncode}"
        self.process.send_signal(signal.SIGTERM)
        _, log = self.process.communicate(timeout=30)
        assert self.process.returncode == 0, log
        assert "Traceback" not in log, log
        return log


@contextlib.contextmanager
def attacked_agent(**options: str) -> Iterator[AttackedAgent]:
    """An agent; in the end it must still be alive."""
    with tempfile.TemporaryDirectory(prefix="kvcast-") as folder:
        agent = AttackedAgent(Path(folder), **options)
        try:
            yield agent
            agent.end()
        finally:
            agent.process.kill()
            agent.process.communicate()
