"""The admin socket: one JSON object per line in, one per line out, on a UNIX socket of the switch's owner.

    {"op": "stats"}                                       counters of the switch and of each port
    {"op": "set_port", "port": 3, "options": {"loss": "0.01", "rate": "100mbit", "seed": "7"}}
    {"op": "add_port", "spec": "4@eth4"}                  {"op": "remove_port", "port": 4}
    {"op": "load", "path": "/srv/program.p4", "defines": {"SIZE": "64"}, "include_dirs": []}
    {"op": "ping"}

Answers are `{"ok": true, ...}` or `{"ok": false, "error": "one line"}`. `set_port` replaces all options of the port.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import socketserver
import stat
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from p4switch.device_config import ProgramSource, parse_device_config
from p4switch.errors import SwitchError
from p4switch.ports import PortOptions, PortSpec, parse_port, port_options
from p4switch.server.target import ConfigError

log = logging.getLogger(__name__)

LINE_BYTES_MAX = 1 << 20
"""Longest request."""


class Administered(Protocol):
    """What the admin socket can do to a switch. Refusals are SwitchError."""

    def stats(self) -> dict[str, Any]: ...

    def add_port(self, spec: PortSpec) -> None: ...

    def remove_port(self, number: int) -> None: ...

    def set_port_options(self, number: int, options: PortOptions) -> None: ...

    def set_exclusion(self, exclusion_id: int, ports: Iterable[int]) -> None: ...

    def load(self, source: ProgramSource) -> None: ...


class AdminServer:
    """Listens on a UNIX socket while it is entered. Raises SwitchError when it cannot."""

    def __init__(self, path: Path, switch: Administered) -> None:
        self._path = path
        _remove_stale(path)
        try:
            self._server = _Server(str(path), switch)
        except OSError as error:
            raise SwitchError(f"cannot listen on {path}: {error.strerror or error}") from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="p4switch-admin", daemon=True)

    def __enter__(self) -> AdminServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._path.unlink(missing_ok=True)


def answer(switch: Administered, line: bytes) -> dict[str, Any]:
    """Carry out one request."""
    try:
        request = json.loads(line)
        if not isinstance(request, dict):
            raise SwitchError("a request is a JSON object")
        return {"ok": True} | _carry_out(switch, request)
    except ValueError as error:
        return {"ok": False, "error": f"no JSON: {error}"}
    except SwitchError as error:
        return {"ok": False, "error": str(error)}


def _carry_out(switch: Administered, request: Mapping[str, Any]) -> dict[str, Any]:
    match request.get("op"):
        case "ping":
            return {"pid": os.getpid()}
        case "stats":
            return switch.stats()
        case "set_port":
            options = request.get("options", {})
            if not isinstance(options, dict):
                raise SwitchError("options must be an object")
            switch.set_port_options(_port(request), port_options({k: str(v) for k, v in options.items()}))
        case "add_port":
            switch.add_port(parse_port(str(request.get("spec", ""))))
        case "remove_port":
            switch.remove_port(_port(request))
        case "set_exclusion":
            match request:
                case {"id": int(exclusion_id), "ports": [*ports]} if all(isinstance(p, int) for p in ports):
                    switch.set_exclusion(exclusion_id, ports)
                case _:
                    raise SwitchError("set_exclusion takes a number `id` and a list of port numbers `ports`")
        case "load":
            envelope = {k: v for k, v in request.items() if k != "op"}
            try:
                switch.load(parse_device_config(json.dumps(envelope).encode()))
            except ConfigError as error:
                raise SwitchError(str(error)) from error
        case op:
            raise SwitchError(
                f"unknown op {op!r}: one of ping, stats, set_port, add_port, remove_port, set_exclusion, load"
            )
    return {}


def _port(request: Mapping[str, Any]) -> int:
    number = request.get("port")
    if not isinstance(number, int):
        raise SwitchError("port must be a number")
    return number


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, path: str, switch: Administered) -> None:
        self.switch = switch
        super().__init__(path, _Handler)

    def server_bind(self) -> None:
        # The file takes the socket's mode: there is no moment at which others could connect.
        os.fchmod(self.socket.fileno(), stat.S_IRUSR | stat.S_IWUSR)
        super().server_bind()


class _Handler(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        while line := self.rfile.readline(LINE_BYTES_MAX):
            reply = answer(self.server.switch, line)
            self.wfile.write(json.dumps(reply).encode() + b"\n")


def _remove_stale(path: Path) -> None:
    """Remove a socket that a killed switch left behind; refuse to touch anything else."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise SwitchError(f"cannot listen on {path}: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        raise SwitchError(f"cannot listen on {path}: it exists and is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise SwitchError(f"cannot listen on {path}: {error.strerror}") from error
    raise SwitchError(f"cannot listen on {path}: another process does")
