"""The admin socket: requests, refusals, and what it leaves behind."""

from __future__ import annotations

import json
import os
import socket
import stat
from typing import Any

import pytest

from p4switch.admin import AdminServer, answer
from p4switch.errors import SwitchError
from p4switch.ports import PortOptions, PortSpec, parse_port


class Recorder:
    """Notes what it is asked to do; port 9 does not exist."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def stats(self) -> dict[str, Any]:
        return {"switch": {"received": 3}}

    def add_port(self, spec: PortSpec) -> None:
        self.calls.append(("add", spec))

    def remove_port(self, number: int) -> None:
        if number == 9:
            raise SwitchError("no port 9")
        self.calls.append(("remove", number))

    def set_port_options(self, number: int, options: PortOptions) -> None:
        self.calls.append(("options", number, options))

    def load(self, source: Any) -> None:
        self.calls.append(("load", source.path, source.defines))


def ask(path: Any, *lines: bytes) -> list[dict[str, Any]]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(10)
        client.connect(str(path))
        client.sendall(b"".join(line + b"\n" for line in lines))
        client.shutdown(socket.SHUT_WR)
        replies = client.makefile("rb").readlines()
    return [json.loads(reply) for reply in replies]


def test_requests_over_the_socket(tmp_path):
    switch, path = Recorder(), tmp_path / "admin"
    with AdminServer(path, switch):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        replies = ask(
            path,
            b'{"op": "ping"}',
            b'{"op": "stats"}',
            b'{"op": "set_port", "port": 3, "options": {"loss": 0.5, "rate": "1mbit"}}',
            b'{"op": "add_port", "spec": "4@memory"}',
            b'{"op": "remove_port", "port": 4}',
            b'{"op": "load", "path": "/a.p4", "defines": {"A": "1"}}',
        )
    assert replies == [{"ok": True, "pid": os.getpid()}, {"ok": True, "switch": {"received": 3}}, *[{"ok": True}] * 4]
    assert [call[0] for call in switch.calls] == ["options", "add", "remove", "load"]
    assert switch.calls[0] == ("options", 3, PortOptions(loss=0.5, rate_bits=1_000_000))
    assert switch.calls[1] == ("add", parse_port("4@memory"))
    assert not path.exists()


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"op": "dance"}',
        b'{"op": "remove_port", "port": 9}',
        b'{"op": "remove_port"}',
        b'{"op": "remove_port", "port": "x"}',
        b'{"op": "set_port", "port": 1, "options": 5}',
        b'{"op": "set_port", "port": 1, "options": {"loss": "much"}}',
        b'{"op": "add_port"}',
        b'{"op": "load"}',
        b"\xff\xfe",
    ],
)
def test_refusals_are_one_line(line):
    reply = answer(Recorder(), line)
    assert reply["ok"] is False
    assert reply["error"]
    assert "\n" not in reply["error"]


def test_a_socket_left_behind_is_replaced_and_one_in_use_is_not(tmp_path):
    path = tmp_path / "admin"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(str(path))
    with AdminServer(path, Recorder()), pytest.raises(SwitchError, match="another process"):
        AdminServer(path, Recorder())
    path.write_text("a file")
    with pytest.raises(SwitchError, match="is no socket"):
        AdminServer(path, Recorder())
    with pytest.raises(SwitchError, match="cannot listen"):
        AdminServer(tmp_path / "no" / "admin", Recorder())
