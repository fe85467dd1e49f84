"""p4switch as a process and as a function: what it prints, how it ends, and its one-line errors."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from google.protobuf import text_format

from p4switch import __version__, metrics
from p4switch.cli import main
from p4switch.proto import p4info_pb2 as p4i
from p4switch.status_server import Liveness
from p4switch.testing import memory_switch

PROGRAM = Path(__file__).with_name("learning.p4")
SOURCE = Path(__file__).parents[2] / "src"
FRAME = bytes.fromhex("ffffffffffff020000000001") + b"\x88\xb5" + bytes(46)


@contextmanager
def running(*arguments: str | Path, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A p4switch process and the first line it prints; it is ended if the test has not done so."""
    command = [sys.executable, "-m", "p4switch", *map(str, arguments)]
    surroundings = os.environ | {"PYTHONPATH": str(SOURCE)} | environment
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=surroundings
    ) as process:
        try:
            assert process.stdout is not None
            assert select.select([process.stdout], [], [], 30)[0], "no line within 30 s"
            yield process, process.stdout.readline()
        finally:
            process.kill()


def failing(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """Run main, expect status 1 and one line on stderr; returns it."""
    assert main([str(a) for a in arguments]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


@pytest.fixture
def hangups():
    """A hangup has its ordinary meaning in what is started, also where the tests run under nohup(1)."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangups")
def test_a_hangup_or_a_full_disk_ends_nothing():
    command = [sys.executable, "-m", "p4switch", "--no-p4", "--grpc", "127.0.0.1:0"]
    with (
        open("/dev/full", "w") as full,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(SOURCE)},
        ) as process,
    ):
        try:
            assert process.stderr is not None
            assert process.stderr.readline() == "p4switch: standard output takes nothing: No space left on device\n"
            process.send_signal(signal.SIGHUP)
            assert process.stderr.readline().startswith("p4switch: SIGHUP changes nothing")
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serves_until_it_is_told_to_stop(tmp_path, number):
    ready, admin, bell = tmp_path / "ready", tmp_path / "admin", tmp_path / "bell"
    words = ["--grpc", "127.0.0.1:0", "--ready-file", ready, "--admin", f"unix:{admin}", "--stats"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(bell))
        manager.settimeout(10)
        with running(PROGRAM, *words, NOTIFY_SOCKET=str(bell)) as (process, line):
            assert line.startswith("listening on 127.0.0.1:")
            assert manager.recv(100) == b"READY=1"
            assert ready.read_text().strip() == line.split()[-1]
            process.send_signal(number)
            output, errors = process.communicate(timeout=15)
    assert (process.returncode, errors) == (0, "")
    assert "switch: " in output
    assert not admin.exists()


def test_datagram_ports_carry_frames_and_the_admin_socket_breaks_them(tmp_path):
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as left,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as right,
    ):
        left.bind(("127.0.0.1", 0))
        right.bind(str(tmp_path / "right"))
        left.settimeout(10)
        right.settimeout(10)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind(("127.0.0.1", 0))
            switch_address = probe.getsockname()
        peer = "{}:{}".format(*left.getsockname())
        ports = ["-i", "1@udp:{}:{},{}".format(*switch_address, peer), "-i", f"2@unix:{tmp_path}/in,{tmp_path}/right"]
        admin = tmp_path / "admin"
        with running(PROGRAM, *ports, "--flood-group", "1", "--grpc", "127.0.0.1:0", "--admin", f"unix:{admin}"):
            left.sendto(FRAME, switch_address)
            assert right.recv(2000) == FRAME
            right.sendto(FRAME, str(tmp_path / "in"))
            assert left.recv(2000) == FRAME
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as control:
                control.connect(str(admin))
                lines = control.makefile("rwb")

                def ask(**request: object) -> dict[str, object]:
                    lines.write(json.dumps(request).encode() + b"\n")
                    lines.flush()
                    return json.loads(lines.readline())

                assert ask(op="set_port", port=2, options={"loss": 1, "direction": "tx"}) == {"ok": True}
                left.sendto(FRAME, switch_address)
                deadline = time.monotonic() + 10
                while ask(op="stats")["ports"]["2"]["tx_lost"] != 1:
                    assert time.monotonic() < deadline
                    time.sleep(0.005)
                assert ask(op="set_port", port=2, options={}) == {"ok": True}
                left.sendto(FRAME, switch_address)
                assert right.recv(2000) == FRAME
                assert ask(op="remove_port", port=2) == {"ok": True}
                assert ask(op="remove_port", port=2) == {"ok": False, "error": "no port 2"}
                assert ask(op="load", path=str(PROGRAM)) == {"ok": True}
                refused = ask(op="load", path="/nowhere.p4")
                assert refused == {"ok": False, "error": "no P4 program at /nowhere.p4"}


def test_p4info(tmp_path, capsys):
    assert main([str(PROGRAM), "--p4info", "-"]) == 0
    text = capsys.readouterr().out
    parsed = text_format.Parse(text, p4i.P4Info())
    assert [t.preamble.alias for t in parsed.tables] == ["dmac", "mirror", "route"]
    for suffix in ("txtpb", "bin", "json"):
        assert main([str(PROGRAM), "--p4info", str(tmp_path / f"a.{suffix}")]) == 0
    assert p4i.P4Info.FromString((tmp_path / "a.bin").read_bytes()) == parsed
    assert "must" not in failing(capsys, PROGRAM, "--p4info", tmp_path / "a.xml")


def test_check(tmp_path, capsys):
    assert main([str(PROGRAM), "--check"]) == 0
    wrong = tmp_path / "wrong.p4"
    wrong.write_text("#include <core.p4>\nheader h_t { bit<8> a; bit<8> a; }\n")
    assert main([str(wrong), "--check"]) == 1
    assert f"{wrong}:2:" in capsys.readouterr().err


def test_one_line_errors(tmp_path, capsys):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for flag in ("--grpc", "--http"):
            line = failing(capsys, "--no-p4", "--grpc", "127.0.0.1:0", flag, address)
            assert f"cannot listen on {address}: address in use: end the process that listens there" in line
            assert line.endswith(f"or choose another port with {flag}")
    assert "no address of this machine" in failing(capsys, "--no-p4", "--grpc", "192.0.2.1:9559")
    assert "no address of this machine" in failing(
        capsys, "--no-p4", "-i", "1@udp:192.0.2.1:5001", "--grpc", "127.0.0.1:0"
    )
    for wrong in ("127.0.0.1", "127.0.0.1:x", "127.0.0.1:65536", ":9559", ""):
        assert "write HOST:PORT" in failing(capsys, "--no-p4", "--grpc", wrong)
    free = ["--grpc", "127.0.0.1:0"]
    assert "--no-p4" in failing(capsys)
    assert "unrecognized arguments: --frobnicate" in failing(capsys, PROGRAM, "--frobnicate")
    assert "no P4 program at" in failing(capsys, tmp_path / "none.p4")
    assert "no include directory" in failing(capsys, PROGRAM, "-I", tmp_path / "none")
    assert "no macro name" in failing(capsys, PROGRAM, "-D", "1=2")
    assert "no-such-if" in failing(capsys, "--no-p4", "-i", "1@no-such-if", *free)
    assert "attached already" in failing(capsys, "--no-p4", "-i", "1@memory", "-i", "1@memory", *free)
    assert "is the CPU port" in failing(capsys, "--no-p4", "-i", "1@memory", "--cpu-port", "1", *free)
    assert "no port 3" in failing(capsys, "--no-p4", "--port-option", "3:loss=1", *free)
    assert "unknown port option" in failing(capsys, "--no-p4", "--port-option", "3:colour=red", *free)
    assert "write unix:PATH" in failing(capsys, "--no-p4", "--admin", "/tmp/x", *free)
    assert "need a program" in failing(capsys, "--no-p4", "--check")
    assert "--cpu-port 600" in failing(capsys, "--no-p4", "--cpu-port", "600", *free)
    assert "--device-id -1: from 0" in failing(capsys, "--no-p4", "--device-id", "-1", *free)
    assert "cannot write" in failing(capsys, PROGRAM, "--p4info", tmp_path / "no" / "a.json")


def test_an_address_in_use_ends_a_process_with_one_line():
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [sys.executable, "-m", "p4switch", "--no-p4", "--grpc", address]
        surroundings = os.environ | {"PYTHONPATH": str(SOURCE)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=surroundings, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"p4switch: cannot listen on {address}: address in use")


def test_no_c_compiler(tmp_path):
    environment = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-m", "p4switch", PROGRAM, "--grpc", "127.0.0.1:0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=environment, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "C compiler" in line


@pytest.mark.root
def test_no_privileges(capsys, monkeypatch):
    if os.geteuid() != 0:
        pytest.skip("needs root, to give its privileges up in a child")
    command = [sys.executable, "-m", "p4switch", "--no-p4", "-i", "1@lo", "--grpc", "127.0.0.1:0"]
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        ["setpriv", "--bounding-set", "-net_raw", "--inh-caps", "-net_raw", *command],
        capture_output=True, text=True, timeout=30, env=environment, check=False,
    )  # fmt: skip
    if "setpriv" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "interface lo: Permission denied: packet sockets need root or CAP_NET_RAW" in line


def get(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def pages_of(process: subprocess.Popen[str]) -> str:
    """Where a switch serves its pages, as the second line that it prints says."""
    assert process.stdout is not None
    return process.stdout.readline().split()[-1].removeprefix("http://")


def test_pages_and_stats(capsys):
    words = ["-i", "1@memory", "-i", "2@memory", "--flood-group", "1", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    with running(PROGRAM, *words) as (process, _):
        address = pages_of(process)
        statuses = [get(address, path)[0] for path in ("/livez", "/readyz", "/healthz", "/metrics", "/stats", "/")]
        assert statuses == [200, 200, 200, 200, 200, 404]
        facts = json.loads(get(address, "/healthz")[1])
        assert (facts["status"], facts["ports_up"]) == ("ready", [1, 2])
        assert facts["p4runtime"] == {"streams": 0, "roles": {}}
        samples = dict(line.rsplit(" ", 1) for line in get(address, "/metrics")[1].splitlines())
        assert samples['p4switch_port_packets_total{port="1",direction="in"}'] == "0"
        assert samples['p4switch_port_up{port="2",medium="memory"}'] == "1"
        assert samples['p4switch_multicast_group_replicas{group="1"}'] == "2"
        assert samples['p4switch_table_entries{table="LearnIngress.dmac"}'] == "0"
        assert samples['p4switch_dropped_packets_total{reason="no_buffer"}'] == "0"
        assert main(["stats", address]) == 0
        assert "multicast group 1: 2 copies\n" in capsys.readouterr().out
        assert main(["stats", address, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["tables"]["LearnIngress.dmac"]["entries"] == 0
    assert f"no switch answers at {address}" in failing(capsys, "stats", address)


def test_not_ready_without_a_program():
    with running("--no-p4", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0") as (process, _):
        address = pages_of(process)
        assert get(address, "/livez")[0] == 200
        assert get(address, "/readyz") == (503, "no program: name one, or let a controller push one\n")
        assert json.loads(get(address, "/healthz")[1])["status"] == "no program"


def test_a_packet_thread_that_hangs_is_not_alive():
    liveness = Liveness()
    assert liveness.alive(5, 100.0)
    assert liveness.alive(5, 101.9)
    assert not liveness.alive(5, 102.0)
    assert liveness.alive(6, 102.0)


def test_prometheus_reads_the_metrics():
    parser = pytest.importorskip("prometheus_client.parser")
    with memory_switch(PROGRAM, ports=2, flood_group=1) as switch:
        text = metrics.render(switch.switch.stats(), "1.0")
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    assert all(family.documentation for family in families.values())
    assert all(f"{name}_total" in text for name, family in families.items() if family.type == "counter")
    assert families["p4switch_port_bytes"].samples[0].labels == {"port": "1", "direction": "in"}


def test_log_lines_as_json():
    words = ["--grpc", "127.0.0.1:0", "-L", "info", "--log-format", "json", "-i", "1@memory"]
    with running(PROGRAM, *words) as (process, _):
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=15)
    lines = [json.loads(line) for line in errors.splitlines()]
    assert set(lines[0]) == {"time", "level", "logger", "message"}
    assert "port 1 is up" in [line["message"] for line in lines]


def test_version(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert (end.value.code, capsys.readouterr().out) == (0, f"p4switch {__version__}\n")
