"""Starts an agent as systemd does a service of Type=notify with a file descriptor store, and keeps what it is given."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
DEADLINE_S = 20.0
_LAUNCH = """
import os, sys
kept = [int(word) for word in sys.argv[2].split(",") if word]
for place, descriptor in enumerate([os.dup2(one, 200 + place, inheritable=True) for place, one in enumerate(kept)]):
    os.dup2(descriptor, 3 + place, inheritable=True)
    os.close(descriptor)
if kept:
    os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(kept)), LISTEN_FDNAMES=sys.argv[3])
os.execv(sys.executable, [sys.executable, "-m", "hostagent", "--config", sys.argv[1]])
"""


class ServiceManager:
    """sd_notify's receiver, and one service."""

    def __init__(self, folder: Path, config: Path) -> None:
        self._config = config
        self._path = str(folder / "notify")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._listener.bind(self._path)
        self.store: dict[str, int] = {}
        """Descriptors by name, as the file descriptor store has them."""
        self.told: list[str] = []
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the service and wait until it is ready."""
        names, descriptors = list(self.store), list(self.store.values())
        argv = [sys.executable, "-c", _LAUNCH, str(self._config), ",".join(map(str, descriptors)), ":".join(names)]
        self._process = subprocess.Popen(
            argv,
            cwd=ROOT,
            env={**os.environ, "NOTIFY_SOCKET": self._path},
            pass_fds=descriptors,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        while not self._hear():
            pass

    def _hear(self) -> bool:
        """Take a message in; whether it says that the service is ready."""
        assert self._process is not None
        errors = self._process.stderr
        readable, _, _ = select.select([self._listener], [], [], DEADLINE_S)
        if not readable or self._process.poll() is not None:
            self._process.kill()
            raise AssertionError(f"the service is not ready: {errors.read() if errors is not None else ''}")
        message, descriptors, _, _ = socket.recv_fds(self._listener, 4096, 4)
        text = message.decode()
        self.told.append(text)
        assignments = dict(line.split("=", 1) for line in text.splitlines())
        name = assignments.get("FDNAME", "stored")
        if "FDSTORE" in assignments:
            (self.store[name],) = descriptors
        elif "FDSTOREREMOVE" in assignments:
            os.close(self.store.pop(name))
        return "READY" in assignments

    def end(self, number: signal.Signals = signal.SIGKILL) -> str:
        """End the service; its log."""
        assert self._process is not None
        self._process.send_signal(number)
        _, log = self._process.communicate(timeout=DEADLINE_S)
        self._process = None
        return log

    def close(self) -> None:
        if self._process is not None:
            self.end()
        for descriptor in self.store.values():
            os.close(descriptor)
        self._listener.close()
