"""Where commands look for the controller, and what they say of what answers there."""

from __future__ import annotations

import grp
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import grpc
import pytest

from bmv2_testbed.processes import child_environment
from kvcast.cli import main
from kvcast.errors import UsageError
from kvcast.operator import ADDRESS_DEFAULT, find_controller
from kvdaemon.what_answers import in_words, what_answers


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("KVCAST_CONTROLLER", raising=False)
    (tmp_path / "kvcast").mkdir()
    return tmp_path / "kvcast"


def test_the_option_then_the_variable_then_the_file_then_loopback(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_controller(None).addresses == ADDRESS_DEFAULT
    assert str(home / "config.yaml") in find_controller(None).said_by
    (home / "config.yaml").write_text("controller: 10.0.0.3:4800\n")
    assert find_controller(None).shown == f"10.0.0.3:4800 ({home / 'config.yaml'})"
    monkeypatch.setenv("KVCAST_CONTROLLER", "10.0.0.2:4800")
    assert find_controller(None).shown == "10.0.0.2:4800 ($KVCAST_CONTROLLER)"
    assert find_controller("10.0.0.1:4800").shown == "10.0.0.1:4800 (--controller)"


def test_a_bad_file_is_one_line(home: Path) -> None:
    (home / "config.yaml").write_text("contoller: 10.0.0.3:4800\n")
    with pytest.raises(UsageError, match="unknown key 'contoller': did you mean 'controller'"):
        find_controller(None)


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Tests are silent."""


@pytest.fixture
def http_port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_what_answers(http_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "an HTTP server listens there" in what_answers(f"127.0.0.1:{http_port}")
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        assert what_answers(f"127.0.0.1:{held.getsockname()[1]}") == "no process listens there"
        held.listen()
        monkeypatch.setattr("kvdaemon.what_answers.TIMEOUT_S", 0.05)
        assert "a process listens there and does not answer" in what_answers(f"127.0.0.1:{held.getsockname()[1]}")
    assert "is not HOST:PORT" in what_answers("somewhere")
    assert "is not HOST:PORT" in what_answers("127.0.0.1:70000")
    assert "cannot be reached" in what_answers("nonesuch.invalid:4800")


def test_what_answers_at_a_file(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/switch.sock"
    assert what_answers(address) == "it cannot be reached: No such file or directory"
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(address.removeprefix("unix:"))
        assert what_answers(address) == "no process listens there"


def test_grpcs_own_words_are_not_passed_on() -> None:
    assert in_words("Stream removed (Socket closed)") == "the connection broke off"
    assert in_words("no node is called 'n9'") == "no node is called 'n9'"


def test_another_grpc_server_is_named_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    assert main(["ls", "--controller", f"127.0.0.1:{port}"]) == 2
    server.stop(None).wait()
    assert "a gRPC server that is no kvcast-controller" in capsys.readouterr().err


def test_one_line_and_none_of_grpcs_own(http_port: int) -> None:
    argv = [sys.executable, "-m", "kvcast.cli", "ls", "--controller", f"127.0.0.1:{http_port}"]
    done = subprocess.run(argv, env=child_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"kvcast ls: no controller answers at 127.0.0.1:{http_port} (--controller): an HTTP server")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_no_access_to_an_agents_socket_names_the_group() -> None:
    script = (
        "import os, sys; from kvclient import AgentClient, AgentUnavailableError\n"
        "from kvcast.doctor.agent_checks import no_access\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: AgentClient(sys.argv[1])\n"
        "except AgentUnavailableError as error: print(error, no_access(sys.argv[1]).remedy)"
    )
    with tempfile.TemporaryDirectory(prefix="kvcast-") as folder, socket.socket(socket.AF_UNIX) as listener:
        path = Path(folder) / "agent.sock"
        listener.bind(str(path))
        path.chmod(0o660)
        said = []
        for group, mode in ((0, 0o755), (1, 0o755), (1, 0o700)):
            os.chown(path, 0, group)
            Path(folder).chmod(mode)
            argv = [sys.executable, "-c", script, str(path)]
            said.append(subprocess.check_output(argv, env=child_environment(), text=True))
    assert "permission denied; name a group of engines' users in the agent's configuration (api.group" in said[0]
    name = grp.getgrgid(1).gr_name
    assert f"permission denied; join the group that may, {name} (usermod -aG {name} USER" in said[1]
    assert said[1].count("join the group that may") == 2, "the doctor says it, too"
    assert f"this user may not enter {folder}" in said[2]


def test_a_name_may_stand_for_several_controllers(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"ctl.test": ["192.0.2.1", "192.0.2.2"], "one.test": ["192.0.2.3"]}

    def look(host: str, port: None, family: int, kind: int) -> list[object]:
        if host not in names:
            raise OSError("no such name")
        return [(family, kind, 6, "", (address, 0)) for address in names[host]]

    monkeypatch.setattr("socket.getaddrinfo", look)
    for given, each in (
        ("ctl.test:4800", ["192.0.2.1:4800", "192.0.2.2:4800"]),
        ("one.test:4800", ["one.test:4800"]),
        ("nowhere.test:1,ctl.test:2,192.0.2.1:2", ["nowhere.test:1", "192.0.2.1:2", "192.0.2.2:2"]),
    ):
        assert find_controller(given).each() == each
