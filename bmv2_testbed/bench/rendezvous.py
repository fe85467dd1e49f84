"""Where the readers of a benchmark meet: each says when it is ready, all get their start time, each reports.

A UNIX socket in the run's directory: hosts share the file system but not the network, so that no byte of this is
counted on a data link. Times are CLOCK_MONOTONIC, which namespaces share.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from bmv2_testbed.errors import TestbedError

_SOCKET_NAME: Final = "rendezvous.sock"


class Rendezvous:
    """The benchmark's side. Readers are known by name."""

    def __init__(self, outside: Path, inside: str) -> None:
        """`outside`, `inside`: the run's directory as the benchmark and as the hosts see it."""
        self.address = f"{inside}/{_SOCKET_NAME}"
        self._path = outside / _SOCKET_NAME
        self._path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._path))
        self._listener.listen(128)
        self._readers: dict[str, socket.socket] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._readers.values():
            connection.close()
        self._listener.close()
        self._path.unlink(missing_ok=True)

    def await_ready(self, count: int, deadline_s: float, check: Callable[[], None]) -> None:
        """Wait until `count` readers said that they are ready. `check` raises if waiting on makes no sense."""
        self._listener.settimeout(0.2)
        while len(self._readers) < count:
            if time.monotonic() > deadline_s:
                raise TestbedError(f"only {len(self._readers)} of {count} readers are ready in time")
            check()
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            connection.settimeout(5)
            hello = receive_line(connection)
            if hello is None:
                connection.close()
                continue
            self._readers[hello["name"]] = connection

    def start(self, start_at_s: Mapping[str, float]) -> None:
        """Send every reader its start time (CLOCK_MONOTONIC seconds)."""
        for name, connection in self._readers.items():
            send_line(connection, {"start_at_s": start_at_s[name]})

    def results(self, deadline_s: float, tick: Callable[[], None], tick_s: float = 0.2) -> dict[str, dict[str, Any]]:
        """Collect every reader's report, but for readers that close without one; call `tick` at least so often."""
        found: dict[str, dict[str, Any]] = {}
        with selectors.DefaultSelector() as waiting:
            for name, connection in self._readers.items():
                waiting.register(connection, selectors.EVENT_READ, name)
            while waiting.get_map() and time.monotonic() < deadline_s:
                for key, _ in waiting.select(tick_s):
                    connection = self._readers[key.data]
                    waiting.unregister(connection)
                    report = receive_line(connection)
                    if report is not None:
                        found[key.data] = report
                tick()
        return found


def meet(address: str, name: str) -> socket.socket:
    """The reader's side: connect and say that `name` is ready."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    send_line(connection, {"name": name})
    return connection


def await_start(connection: socket.socket) -> float:
    """Wait for the start time and then for that moment; returns it. Raises TestbedError if the benchmark has ended."""
    message = receive_line(connection)
    if message is None:
        raise TestbedError("the benchmark ended before the start")
    start_at_s = float(message["start_at_s"])
    while (left_s := start_at_s - time.monotonic()) > 0:
        # The last millisecond is spent awake: waking up late would be counted as time of the fetch.
        if left_s > 0.001:
            time.sleep(left_s - 0.001)
    return start_at_s


def send_line(connection: socket.socket, message: Mapping[str, Any]) -> None:
    """Send one message."""
    connection.sendall(json.dumps(message).encode() + b"\n")


def receive_line(connection: socket.socket) -> dict[str, Any] | None:
    """Receive one message; None when the other side has closed the connection."""
    line = b""
    while not line.endswith(b"\n"):
        try:
            part = connection.recv(65536)
        except (ConnectionError, TimeoutError):
            return None
        if not part:
            return None
        line += part
    message: dict[str, Any] = json.loads(line)
    return message
