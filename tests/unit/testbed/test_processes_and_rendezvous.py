"""Processes by name, the readers' meeting place, the small protocols of peers and switch."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pytest

from bmv2_testbed.bench.rendezvous import Rendezvous, await_start, meet, receive_line, send_line
from bmv2_testbed.bench.sources import receive_into, redis_command
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.processes import Supervisor, process_cpu_s
from bmv2_testbed.spec import Faults
from bmv2_testbed.switch_admin import SwitchAdmin, port_options


def _launch(
    argv: Sequence[str],
    environment: Mapping[str, str],
    out: IO[bytes],
    err: IO[bytes],
    descriptors: Sequence[int],
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(argv, env=environment, stdout=out, stderr=err, pass_fds=descriptors)


def test_processes_by_name(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    supervisor.start("talker", [sys.executable, "-c", "print('hello'); raise SystemExit(3)"], _launch)
    outcome = supervisor.wait("talker", 10)
    assert outcome is not None
    assert (outcome.status, outcome.stdout) == (3, "hello\n")
    supervisor.restart("talker")
    assert supervisor.wait("talker", 10) is not None
    supervisor.forget("talker")
    with pytest.raises(TestbedError, match="no process talker"):
        supervisor.log_tail("talker")


def test_a_killed_process_is_gone(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    pid = supervisor.start("sleeper", ["sleep", "1000"], _launch)
    with pytest.raises(TestbedError, match="already running"):
        supervisor.start("sleeper", ["sleep", "1000"], _launch)
    assert supervisor.wait("sleeper", 0.01) is None
    supervisor.kill("sleeper")
    assert supervisor.status() == {"sleeper": -signal.SIGKILL}
    assert process_cpu_s(pid) == 0.0
    supervisor.stop_all()


def test_what_cannot_start_says_so(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    with pytest.raises(TestbedError, match="cannot start ghost"):
        supervisor.start("ghost", ["/nonexistent/ghost"], _launch)


def test_waiting_ends_when_the_process_does(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    supervisor.start("broken", [sys.executable, "-c", "raise SystemExit('no such interface')"], _launch)
    with pytest.raises(TestbedError, match="no such interface"):
        supervisor.await_ready("broken", time.monotonic() + 10)
    supervisor.stop_all()


def test_a_process_says_when_it_is_ready(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    program = "import sys; from kvdaemon.notify import notify_ready; sys.stdin.readline(); notify_ready()"
    gate_read, gate_write = os.pipe()

    def launch(*args: Any) -> subprocess.Popen[bytes]:
        argv, environment, out, err, _ = args
        return subprocess.Popen(argv, env=environment, stdin=gate_read, stdout=out, stderr=err)

    supervisor.start("slow", [sys.executable, "-c", program], launch)
    os.close(gate_read)
    with pytest.raises(TestbedError, match="slow is not ready in time"):
        supervisor.await_ready("slow", time.monotonic() + 0.01)
    os.write(gate_write, b"\n")
    os.close(gate_write)
    supervisor.await_ready("slow", time.monotonic() + 10)
    assert supervisor.wait("slow", 10) is not None
    supervisor.await_ready("slow", time.monotonic() + 10)  # It was, before it ended.
    supervisor.forget("slow")
    assert list(tmp_path.iterdir()) == []


KEEPER = """
import os
from kvdaemon import notify
kept = notify.kept_files()
print({name: os.pread(descriptor, 100, 0).decode() for name, descriptor in kept.items()})
if not kept:
    for name in ("one", "other"):
        descriptor = os.memfd_create(name)
        os.write(descriptor, b"of " + name.encode())
        notify.keep_file(name, descriptor)
else:
    notify.forget_file("other")
"""


def test_what_a_process_gives_to_be_kept_is_there_at_its_next_start(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    supervisor.start("keeper", [sys.executable, "-c", KEEPER], _launch)
    assert supervisor.wait("keeper", 10) is not None
    for with_kept in (True, True, False, False):
        supervisor.restart("keeper", with_kept=with_kept)
        assert supervisor.wait("keeper", 10) is not None
    outcome = supervisor.wait("keeper", 10)
    assert outcome is not None
    found = ["{}", "{'one': 'of one', 'other': 'of other'}", "{'one': 'of one'}", "{}", "{}"]
    assert outcome.stdout.splitlines() == found
    before = len(os.listdir("/proc/self/fd"))
    supervisor.restart("keeper", with_kept=True)
    assert supervisor.wait("keeper", 10) is not None
    supervisor.forget("keeper")
    assert len(os.listdir("/proc/self/fd")) == before - 1, "nothing is left: neither its words nor its files"


def test_readers_meet_start_and_report(tmp_path: Path) -> None:
    starts: dict[str, float] = {}

    def reader(name: str) -> None:
        with meet(rendezvous.address, name) as connection:
            starts[name] = await_start(connection)
            if name != "silent":
                send_line(connection, {"name": name, "at": time.monotonic()})

    with Rendezvous(tmp_path, str(tmp_path)) as rendezvous:
        threads = [threading.Thread(target=reader, args=(name,)) for name in ("one", "two", "silent")]
        for thread in threads:
            thread.start()
        rendezvous.await_ready(3, time.monotonic() + 10, lambda: None)
        start_s = time.monotonic()
        rendezvous.start({"one": start_s, "two": start_s + 0.05, "silent": start_s})
        found = rendezvous.results(time.monotonic() + 10, lambda: None)
        for thread in threads:
            thread.join()
    assert found.keys() == {"one", "two"}
    assert found["two"]["at"] >= start_s + 0.05
    assert starts["one"] == start_s


def test_a_missing_reader_is_told(tmp_path: Path) -> None:
    with Rendezvous(tmp_path, str(tmp_path)) as rendezvous, pytest.raises(TestbedError, match="0 of 1"):
        rendezvous.await_ready(1, time.monotonic() + 0.1, lambda: None)


def test_redis_commands() -> None:
    assert redis_command(b"GET", b"key") == b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n"


def test_a_stream_that_ends_early_is_told() -> None:
    near, far = socket.socketpair()
    with near, far:
        far.sendall(b"abc")
        far.shutdown(socket.SHUT_WR)
        with pytest.raises(TestbedError, match="early"):
            receive_into(near, memoryview(bytearray(4)))


@pytest.fixture
def switch(tmp_path: Path) -> Path:
    """Speaks the admin protocol: refuses port 9, else repeats the question."""
    path = tmp_path / "switch.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def answer() -> None:
        with listener:
            connection, _ = listener.accept()
            with connection:
                question = receive_line(connection)
                assert question is not None
                refused = question.get("port") == 9
                send_line(
                    connection,
                    {"ok": False, "error": "no port 9"} if refused else {"ok": True, "ports": {"1": question}},
                )

    threading.Thread(target=answer, daemon=True).start()
    return path


def test_switch_admin_asks(switch: Path) -> None:
    assert SwitchAdmin(str(switch)).port_statistics() == {"1": {"op": "stats"}}


def test_switch_admin_tells_refusals(switch: Path) -> None:
    with pytest.raises(TestbedError, match="no port 9"):
        SwitchAdmin(str(switch)).set_port(9, {})


def test_port_options_are_the_switchs_words() -> None:
    options = port_options(Faults(loss=0.01, delay_ms=1.5), 100_000_000, seed=3)
    assert options == {
        "loss": "0.01",
        "delay": "1500us",
        "seed": "3",
        "rate": "100000000bit",
        "burst": "25000b",
        "queue": "262144b",
    }
    assert port_options(Faults(), None, seed=3) == {}


def test_no_switch_is_told(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="does not answer"):
        SwitchAdmin(str(tmp_path / "nobody")).port_statistics()


def test_lines_are_json() -> None:
    near, far = socket.socketpair()
    with near, far:
        send_line(near, {"a": 1})
        assert far.recv(100) == json.dumps({"a": 1}).encode() + b"\n"
