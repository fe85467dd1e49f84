"""The daemon as a process: readiness, HTTP, orderly and disorderly ends, and one clear line for what cannot be."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from hostagent.daemon import main
from kvclient.client import AgentClient
from tests.ports import free_port
from tests.unit.hostagent.agent_harness import key

START_S = 20.0


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kvcast-") as made:
        yield Path(made)


def configuration(folder: Path, **replaced: str) -> str:
    sections = {
        "node": "node: n0",
        "data": f"data: {{address: 127.80.0.1, cast_port: {free_port()}, control_port: {free_port()}, read_port: 0}}",
        "pool": "pool: {size: 4MiB, prefault: true}",
        "api": f"api: {{socket: {folder}/agent.sock}}",
        "http": "http: {port: 0}",
        "ready_file": f"ready_file: {folder}/ready",
    }
    sections.update(replaced)
    path = folder / "agent.yaml"
    path.write_text("\n".join(sections.values()) + "\n")
    return str(path)


def launch(config: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hostagent", "--config", config],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )


def complaint(errors: str) -> str:
    """The one line that says what is wrong, apart from the log of how far the agent came."""
    lines = [line for line in errors.splitlines() if " INFO " not in line]
    assert len(lines) == 1, errors
    return lines[0]


@pytest.fixture
def agent(folder: Path) -> Iterator[subprocess.Popen[str]]:
    process = launch(configuration(folder))
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("kvcast-agent ready node=n0 "), line
        yield process
    finally:
        process.kill()
        process.communicate()


def test_ready_file_http_and_orderly_stop(folder: Path, agent: subprocess.Popen[str]) -> None:
    ready = json.loads((folder / "ready").read_text())
    assert ready["pid"] == agent.pid
    assert ready["data_address"] == "127.80.0.1"
    with AgentClient(ready["socket"]) as client:
        client.put(key(1), None, b"x" * 1000)
    with urllib.request.urlopen(f"http://{ready['http']}/healthz", timeout=5) as answer:
        health = json.load(answer)
    assert (health["status"], health["controller"], health["pool"]["chunks"]) == ("ok", "none", 1)
    with urllib.request.urlopen(f"http://{ready['http']}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    assert "kvcast_agent_pool_chunks 1.0" in text
    assert 'kvcast_agent_fetch_chunks_total{source="cast"} 0.0' in text
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(10) == 0
    assert not (folder / "ready").exists()
    assert not (folder / "agent.sock").exists()


@pytest.fixture
def hangups() -> Iterator[None]:
    """A hangup has its ordinary meaning here and in what is started, also where the tests run under nohup(1)."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangups")
def test_a_full_disk_and_a_hangup_end_nothing(folder: Path) -> None:
    config = configuration(folder)
    with open("/dev/full", "w") as full:
        process = subprocess.Popen(
            [sys.executable, "-m", "hostagent", "--config", config],
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
    assert process.stderr is not None
    said = ""
    try:
        while "standard output takes nothing: No space left on device" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        process.send_signal(signal.SIGHUP)
        while "SIGHUP changes nothing" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        with AgentClient(folder / "agent.sock") as client:
            assert client.stats()["pool_chunks"] == 0
        process.send_signal(signal.SIGTERM)
        said += process.communicate(timeout=20)[1]
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()
    assert "Traceback" not in said and "Exception ignored" not in said


def test_killed_agent_leaves_nothing_that_stops_the_next(folder: Path, agent: subprocess.Popen[str]) -> None:
    shared = {name for name in os.listdir("/dev/shm") if "kvcast" in name}
    agent.kill()
    agent.wait(10)
    assert {name for name in os.listdir("/dev/shm") if "kvcast" in name} == shared == set()
    again = launch(str(folder / "agent.yaml"))
    try:
        assert again.stdout is not None
        assert again.stdout.readline().startswith("kvcast-agent ready")
        with AgentClient(folder / "agent.sock") as client:
            assert client.stats()["pool_chunks"] == 0
        again.send_signal(signal.SIGINT)
        assert again.wait(10) == 0
    finally:
        again.kill()
        again.communicate()


def test_killed_engine_loses_its_leases(folder: Path, agent: subprocess.Popen[str]) -> None:
    engine = subprocess.Popen(
        [
            sys.executable,
            "-c",
            (
                "import sys; from kvclient.client import AgentClient\n"
                "client = AgentClient(sys.argv[1]); client.put(bytes(16), None, b'x' * 1000)\n"
                "lease = client.fetch([bytes(16)], deadline_s=1); client.pin([bytes(16)])\n"
                "print(lease.count, flush=True); sys.stdin.read()"
            ),
            str(folder / "agent.sock"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    try:
        assert engine.stdout is not None
        assert engine.stdout.readline() == "1\n"
        with AgentClient(folder / "agent.sock") as client:
            assert client.stats()["pool_pinned_bytes"] == 4096
            engine.kill()
            engine.wait(10)
            deadline = time.monotonic() + START_S
            while client.stats()["pool_pinned_bytes"]:
                assert time.monotonic() < deadline
    finally:
        engine.kill()
        engine.communicate()


@pytest.mark.parametrize(
    ("section", "text", "said"),
    [
        ("data", "data: {interface: nosuch0}", "there is no interface nosuch0"),
        (
            "data",
            "data: {address: 203.0.113.7}",
            "no interface of this machine has 203.0.113.7: data.address is one of ",
        ),
        ("api", "api: {socket: /nonexistent/folder/agent.sock}", "set api.socket to another path"),
        ("extra", "colour: red", "unknown key 'colour'"),
    ],
)
def test_what_cannot_be_is_one_clear_line(folder: Path, section: str, text: str, said: str) -> None:
    process = launch(configuration(folder, **{section: text}))
    out, errors = process.communicate(timeout=START_S)
    assert process.returncode == (2 if section == "extra" else 1)
    assert out == ""
    assert said in complaint(errors)
    assert complaint(errors).startswith("kvcast-agent: ")
    assert not (folder / "agent.sock").exists()


@pytest.mark.parametrize(
    ("section", "text", "said"),
    [
        ("extra", "colour: red", "unknown key 'colour'"),
        (
            "pool",
            "pool: {size: 4MiB, colour: red}",
            "unknown key 'pool.colour': known are huge_pages, keep, keeper, prefault, size",
        ),
        ("pool", "pool: {size: 5 bananas}", "pool.size: size '5 bananas' is not a number with B, KiB"),
        ("pool", "pool: {size: 1000}", "pool.size: 1000 is not a multiple of 4096 bytes from 1MiB to 16TiB"),
        ("data", "data: {}", "data.address is missing"),
        ("data", "data: {address: 10.0.0.300}", "is not an IPv4 or IPv6 address"),
        ("data", "data: {address: 127.0.0.1, group: 10.0.0.1}", "is not a multicast address"),
        ("http", "http: {port: 99999}", "http.port: 99999 is not a whole number from 0 to 65535"),
        ("node", "node: 'a b'", "is not a name"),
        ("frames", "data: {transport: frames, frames: {local: 'a:1'}}", "data.frames is gone: testbeds use namespaces"),
        ("disk", "disk: {path: /nowhere}", "disk.path and disk.size go together"),
        ("controller", "controller: {address: nowhere}", "is not HOST:PORT"),
        ("standby", "controller: {address: ['a:1', 'b']}", "'b' is not HOST:PORT"),
        ("controller twice", "controller: {address: ['a:1', 'a:1']}", "names an address twice"),
    ],
)
def test_a_wrong_configuration_is_one_clear_line(
    folder: Path, section: str, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--config", configuration(folder, **{section: text})]) == 2
    out, errors = capsys.readouterr()
    assert out == ""
    assert said in complaint(errors)
    assert complaint(errors).startswith("kvcast-agent: ")


@pytest.mark.parametrize("taken", ["http", "read_port", "control_port"])
def test_port_in_use_is_one_clear_line(folder: Path, taken: str) -> None:
    kind = socket.SOCK_DGRAM if taken == "control_port" else socket.SOCK_STREAM
    with socket.socket(socket.AF_INET, kind) as holder:
        holder.bind(("127.80.0.1", 0))
        if kind is socket.SOCK_STREAM:
            holder.listen()
        port = holder.getsockname()[1]
        ports = {"cast_port": free_port(), "control_port": free_port(), "read_port": 0}
        replaced = {}
        if taken == "http":
            replaced["http"] = f"http: {{address: 127.80.0.1, port: {port}}}"
        else:
            ports[taken] = port
        data = ", ".join(f"{name}: {number}" for name, number in ports.items())
        process = launch(configuration(folder, data=f"data: {{address: 127.80.0.1, {data}}}", **replaced))
        _, errors = process.communicate(timeout=START_S)
    assert process.returncode == 1
    assert str(port) in complaint(errors)
    assert "in use" in complaint(errors)
