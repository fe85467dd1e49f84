"""Starts an agent as systemd does a service of Type=notify with a file descriptor store, and keeps what it is given."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
from pathlib import Path

from bmv2_testbed.processes import handing_over, python_module

ROOT = Path(__file__).parents[3]
DEADLINE_S = 120.0


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
        self._process = subprocess.Popen(
            handing_over(self.store, python_module("hostagent", "--config", str(self._config))),
            cwd=ROOT,
            env={**os.environ, "NOTIFY_SOCKET": self._path},
            pass_fds=list(self.store.values()),
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
