"""`kvcast doctor` on machines made to order: network namespaces, an empty PATH, a user without privileges."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bmv2_testbed.network.namespaces import can_unshare
from bmv2_testbed.processes import child_environment
from hostagent.transport.base import TransportError
from hostagent.transport.interfaces import interface_address
from kvcast.commands.doctor import TOPICS, examine
from kvcast.doctor.findings import Finding, Level, judged

CONFIG = "node: n1\ndata: {interface: data0, receive_buffer: 8MiB}\npool: {size: 1MiB}\n"
CONF = "/proc/sys/net/ipv4/conf/data0"
WELL = (
    "ip link add data0 mtu 9000 type veth peer name other; ip link set other up;"
    "ip link set data0 up multicast on; ip address add 10.75.0.1/16 dev data0;"
    f"echo 1 > {CONF}/accept_local;"
)


def doctor(prepare: str, *words: str, environment: dict[str, str] | None = None) -> tuple[int, dict[str, dict]]:
    """Exit status and findings by check, in a network namespace that `prepare` (shell) has set up."""
    command = f'{prepare} exec "$0" -m kvcast.cli doctor --json "$@"'
    argv = ["unshare", "--net", "sh", "-ec", command, sys.executable, *words]
    done = subprocess.run(argv, env=child_environment(environment), capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return done.returncode, {one["check"]: one for one in json.loads(done.stdout)}


@pytest.fixture
def config(tmp_path: Path) -> str:
    if os.geteuid() != 0 or not can_unshare():
        pytest.skip("needs root for a network namespace")
    path = tmp_path / "agent.yaml"
    path.write_text(CONFIG)
    return str(path)


@pytest.mark.root
def test_a_good_node(config: str) -> None:
    status, found = doctor(WELL, "agent", "--config", config)
    assert status == 0
    assert {check for check, one in found.items() if one["level"] == "missing"} == set()
    assert found["MTU of data0"]["found"] == "9000"
    assert found["accept_local"]["level"] == found["cast buffers"]["level"] == "ok"


@pytest.mark.root
@pytest.mark.parametrize(
    ("change", "check", "level"),
    [
        ("ip link set data0 mtu 4219;", "MTU of data0", "missing"),
        ("ip link set data0 mtu 1500;", "cast buffers", "slow"),
        ("ip link set data0 multicast off;", "data0 does multicast", "missing"),
        ("ip address flush dev data0;", "data interface", "missing"),
        ("ip link delete data0;", "data interface", "missing"),
        (f"echo 0 > {CONF}/accept_local;", "accept_local", "note"),
        (
            f"ip address flush dev data0; ip address add 10.99.0.1/24 dev data0; echo 1 > {CONF}/rp_filter;",
            "rp_filter",
            "missing",
        ),
    ],
)
def test_what_is_wrong_with_a_node(config: str, change: str, check: str, level: str) -> None:
    status, found = doctor(WELL + change, "agent", "--config", config)
    assert found[check]["level"] == level
    assert found[check]["remedy"]
    assert status == any(one["level"] == "missing" for one in found.values())


@pytest.mark.root
@pytest.mark.parametrize(
    ("lines", "check", "found"),
    [
        ("controller: {address: '127.0.0.1:1'}", "controller", "127.0.0.1:1: no process listens there"),
        ("pool: {size: 8TiB}", "memory", " available"),
        ("disk: {path: /proc/nowhere, size: 1MiB}", "disk", "0 B free"),
        ("disk: {path: /dev/shm/kvcast-doctor, size: 8TiB}", "disk", " free"),
        ("api: {socket: /proc/1/agent.sock}", "api.socket", "/proc/1: not writable"),
        ("api: {socket: /etc/passwd}", "api.socket", "a file that is no socket is there"),
        ("http: {address: 203.0.113.1, port: 1}\ndata: {interface: data0, read_port: 1}", "ports", ""),
    ],
)
def test_what_an_agent_cannot_have(config: str, lines: str, check: str, found: str) -> None:
    keys = {line.partition(":")[0] for line in lines.splitlines()}
    kept = [line for line in CONFIG.splitlines() if line.partition(":")[0] not in keys]
    Path(config).write_text("\n".join([*kept, lines]) + "\n")
    status, said = (
        ports_taken(config) if check == "ports" else doctor(f"{WELL} ip link set lo up;", "agent", "--config", config)
    )
    assert said[check]["level"] == "missing", said
    assert found in said[check]["found"]
    assert status == 1


def ports_taken(config: str) -> tuple[int, dict[str, dict]]:
    """The doctor beside a program that has the port of reads."""
    script = (
        "import os, socket, subprocess, sys;"
        "held = socket.create_server(('10.75.0.1', 1));"
        "argv = [sys.executable, '-m', 'kvcast.cli', 'doctor', '--json', *sys.argv[1:]];"
        "raise SystemExit(subprocess.run(argv).returncode)"
    )
    argv = ["unshare", "--net", "sh", "-ec", f'{WELL} exec "$0" -c "{script}" "$@"', sys.executable]
    argv += ["agent", "--config", config]
    done = subprocess.run(argv, env=child_environment(None), capture_output=True, text=True, check=False)
    return done.returncode, {one["check"]: one for one in json.loads(done.stdout)}


@pytest.mark.root
def test_a_link_whose_rate_nobody_says(config: str) -> None:
    there = WELL.replace("type veth peer name other; ip link set other up;", "type bridge;")
    _, found = doctor(there, "agent", "--config", config)
    assert found["link rate"]["level"] == "note"
    assert "gate.link_rate" in found["link rate"]["remedy"]


def _run(*words: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "kvcast.cli", "doctor", *words]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)


def test_no_compiler(tmp_path: Path) -> None:
    environment = child_environment({"CC": str(tmp_path / "cc"), "COLUMNS": "200"})
    done = _run("switch", environment=environment)
    assert done.returncode == 1
    assert "C compiler" in done.stdout
    assert "missing" in done.stdout
    assert "apt install gcc" in done.stdout


def test_an_agent_needs_no_compiler_but_what_its_wheel_brings(tmp_path: Path) -> None:
    for folder, level, remedy in (("", "ok", ""), (str(tmp_path), "missing", "install kvcast's wheel for ")):
        environment = child_environment({"CC": str(tmp_path / "cc"), "KVCAST_NATIVE_DIR": folder})
        done = _run("agent", "--json", environment=environment)
        found = {one["check"]: one for one in json.loads(done.stdout)}["shared objects"]
        assert found["level"] == level
        assert found["remedy"].startswith(remedy)
        assert done.returncode == (1 if folder else 0)


def test_a_testbed_needs_its_tools_and_not_its_peers(tmp_path: Path) -> None:
    done = _run("testbed", "--json", environment={**child_environment(), "PATH": str(tmp_path)})
    found = {one["check"]: one for one in json.loads(done.stdout)}
    assert (found["ip"]["level"], found["ip"]["remedy"]) == ("missing", "apt install iproute2")
    assert found["redis-server"]["level"] == "note"
    assert done.returncode == 1


def test_unknown_topic_and_unusable_configuration(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("nodes: 1\ndata: {address: 10.0.0.1}\n")
    for words, complaint in (
        (("plumbing",), "no topic plumbing: choose among agent"),
        (("agent", "--config", str(tmp_path / "agent.yaml")), "unknown key 'nodes': did you mean 'node'?"),
    ):
        done = _run(*words, environment=child_environment())
        assert done.returncode == 2
        assert complaint in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("topic", TOPICS)
def test_every_topic_examines_without_a_configuration(topic: str) -> None:
    findings = examine(topic, None)
    assert findings
    assert all(isinstance(one, Finding) for one in findings)


def test_a_finding_has_a_remedy_exactly_when_it_needs_one() -> None:
    assert judged("x", "1", "1", True, Level.MISSING, "do").remedy == ""
    assert judged("x", "0", "1", False, Level.SLOW, "do").level is Level.SLOW
    with pytest.raises(ValueError, match="x: missing"):
        Finding("x", "0", "1", Level.MISSING)


def test_interface_without_name_needs_no_kernel() -> None:
    from hostagent.config import DataConfig

    assert interface_address(DataConfig(address="10.0.0.1")) == "10.0.0.1"
    with pytest.raises(TransportError, match="there is no interface nonesuch0"):
        interface_address(DataConfig(interface="nonesuch0"))


def test_rdma_is_asked_for_by_name_and_says_what_is_missing(tmp_path: Path) -> None:
    assert not TOPICS["rdma"].in_default
    path = tmp_path / "agent.yaml"
    path.write_text("node: n1\ndata: {address: 127.77.2.1, qkey: 0x80000001}\npool: {size: 1MiB}\n")
    argv = [sys.executable, "-m", "kvcast.cli", "doctor", "--json", "rdma", "--config", str(path)]
    done = subprocess.run(argv, env=child_environment(), capture_output=True, text=True, check=False)
    found = {one["check"]: one for one in json.loads(done.stdout)}
    assert done.returncode == 1
    assert found["RDMA port"]["level"] == "missing"
    assert found["Q_Key"]["level"] == "missing"
    assert "locked memory" in found


@pytest.mark.parametrize(
    ("pool", "wanted"),
    [("{size: 8TiB}", r"a smaller pool\.size"), ("{size: 8TiB, huge_pages: required}", r"vm\.nr_hugepages=\d+")],
    ids=["more than there is", "huge pages that are not reserved"],
)
def test_a_pool_that_does_not_fit_is_missing_with_the_remedy_of_the_start(
    tmp_path: Path, pool: str, wanted: str
) -> None:
    path = tmp_path / "agent.yaml"
    socket_path = tmp_path / "a.sock"
    path.write_text(
        "node: n1\ndata: {address: 127.77.2.1, cast_port: 14791, control_port: 14793, read_port: 0}\n"
        f"pool: {pool}\napi: {{socket: {socket_path}}}\nhttp: {{port: 0}}\n"
    )
    argv = [sys.executable, "-m", "kvcast.cli", "doctor", "--json", "agent", "--config", str(path)]
    done = subprocess.run(argv, env=child_environment(), capture_output=True, text=True, check=False)
    found = {one["check"]: one for one in json.loads(done.stdout)}
    assert done.returncode == 1
    assert found["memory"]["level"] == "missing"
    assert re.search(wanted, found["memory"]["remedy"])
    argv = [sys.executable, "-m", "hostagent", "--config", str(path)]
    started = subprocess.run(argv, env=child_environment(), capture_output=True, text=True, check=False, timeout=60)
    assert started.returncode == 1
    assert re.search(wanted, started.stderr), "doctor and agent say the same"
