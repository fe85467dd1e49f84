"""`kvcast pin --switch` in a network that nobody made for kvcast: a subnet of its own, no ports written down, and a
management network with the default route."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from bmv2_testbed.content import Prefix, prefix_arguments
from bmv2_testbed.processes import child_environment, python_module

pytestmark = pytest.mark.root

DEADLINE_S = 60.0
HOSTS = (1, 2)
CONTROLLER = "192.168.78.9:4800"
CHUNK = 256 * 1024


@dataclass
class Place:
    """One network namespace, and what runs in it."""

    name: str

    def ip(self, *words: str) -> None:
        subprocess.run(["ip", "-n", self.name, *words], check=True, capture_output=True)

    def inside(self, argv: list[str]) -> list[str]:
        return ["ip", "netns", "exec", self.name, *argv]

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            self.inside(list(argv)), env=child_environment(), capture_output=True, text=True, timeout=DEADLINE_S
        )

    def sent_bytes(self, interface: str) -> int:
        return int(self.run("cat", f"/sys/class/net/{interface}/statistics/tx_bytes").stdout)


@dataclass
class Cluster:
    """A switch with a controller, and two hosts with agents."""

    switch: Place
    hosts: Mapping[int, Place]
    folder: Path

    def socket(self, host: int) -> Path:
        return self.folder / f"n{host}.sock"

    def kvcast(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.switch.run(*python_module("kvcast.cli", *words, "--controller", CONTROLLER))

    def put(self, prefix: Prefix) -> str:
        """Put a prefix at host 1; returns its last key, once the controller knows it."""
        words = ["put", "--address", str(self.socket(1)), *prefix_arguments(prefix)]
        done = self.hosts[1].run(*python_module("bmv2_testbed.bench.holder", *words))
        assert done.returncode == 0, done.stderr
        key: str = prefix.chunk_keys()[-1].hex()
        until = time.monotonic() + DEADLINE_S
        while self.kvcast("ls", key, "--json").returncode:
            assert time.monotonic() < until, "the controller never knows the chunk"
        return key


def started(stack: contextlib.ExitStack, place: Place, ready: Path, log: Path, argv: list[str]) -> None:
    """Start a daemon that writes `ready` when it is; it ends with the stack."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            place.inside(argv),
            env=child_environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    stack.callback(end, process)
    until = time.monotonic() + DEADLINE_S
    while not ready.exists():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < until, log.read_text()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)


def end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("own")
    with contextlib.ExitStack() as stack:

        def place(name: str) -> Place:
            made = Place(f"kv{os.getpid()}{name}")
            subprocess.run(["ip", "netns", "add", made.name], check=True)
            stack.callback(subprocess.run, ["ip", "netns", "delete", made.name], check=False)
            made.ip("link", "set", "lo", "up")
            return made

        switch, hosts = place("s"), {host: place(f"h{host}") for host in HOSTS}
        switch.ip("link", "add", "mgmt", "type", "bridge")
        switch.ip("address", "add", "192.168.78.9/24", "dev", "mgmt")
        switch.ip("link", "set", "mgmt", "up")
        for host, there in hosts.items():
            for here, far, address in ((f"s{host}", "data0", "192.168.77"), (f"m{host}", "mgmt0", "192.168.78")):
                pair = ["link", "add", here, "mtu", "9000", "type", "veth", "peer", "name", far]
                switch.ip(*pair, "mtu", "9000", "netns", there.name)
                switch.ip("link", "set", here, "up")
                there.ip("address", "add", f"{address}.{host}/24", "dev", far)
                there.ip("link", "set", far, "up")
            switch.ip("link", "set", f"m{host}", "master", "mgmt")
            there.ip("route", "add", "default", "via", "192.168.78.9")
        run_everything(stack, Cluster(switch, hosts, folder))
        yield Cluster(switch, hosts, folder)


def run_everything(stack: contextlib.ExitStack, cluster: Cluster) -> None:
    """Switch, controller and agents, and wait until the switch has seen both."""
    folder, switch = cluster.folder, cluster.switch

    def config(name: str, settings: Mapping[str, object]) -> str:
        path = folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(dict(settings)))
        return str(path)

    argv = python_module("kvcast.cli", "switch", "--grpc", "127.0.0.1:9559", "-D", "SLOTS=256")
    argv += ["-i", "1@s1", "-i", "2@s2", "--ready-file", str(folder / "switch.ready")]
    started(stack, switch, folder / "switch.ready", folder / "switch.log", argv)
    settings = {
        "listen": CONTROLLER,
        "insecure": True,
        "metrics": "",
        "ready_file": str(folder / "controller.ready"),
        "switch": {"target": "p4switch", "address": "127.0.0.1:9559"},
    }
    argv = python_module("controlplane", "--config", config("controller", settings))
    started(stack, switch, folder / "controller.ready", folder / "controller.log", argv)
    for host, there in cluster.hosts.items():
        settings = {
            "node": f"n{host}",
            "insecure": True,
            "ready_file": str(folder / f"n{host}.ready"),
            "data": {"transport": "sockets", "interface": "data0", "address": f"192.168.77.{host}"},
            "controller": {"address": CONTROLLER},
            "pool": {"size": "32MiB"},
            "api": {"socket": str(cluster.socket(host))},
        }
        argv = python_module("hostagent", "--config", config(f"n{host}", settings))
        started(stack, there, folder / f"n{host}.ready", folder / f"n{host}.log", argv)
    until = time.monotonic() + DEADLINE_S
    while True:
        shown = cluster.kvcast("top", "--once", "--json")
        nodes = json.loads(shown.stdout)["status"]["nodes"] if shown.returncode == 0 else []
        if {node["name"]: node["switch_port"] for node in nodes if node["member"] is not None} == {"n1": 1, "n2": 2}:
            return
        assert time.monotonic() < until, (shown.stdout, shown.stderr)


def test_a_prefix_comes_into_the_switch_by_the_data_network(cluster: Cluster) -> None:
    prefix = Prefix(seed=1, size_bytes=4 * CHUNK, chunk_bytes=CHUNK)
    key = cluster.put(prefix)
    before = cluster.hosts[1].sent_bytes("mgmt0")
    done = cluster.kvcast("pin", key, "--switch", "--timeout", "40")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the switch serves 4 of them" in done.stdout
    assert cluster.hosts[1].sent_bytes("mgmt0") - before < CHUNK, "KV does not leave by the management network"
    shown = json.loads(cluster.kvcast("ls", key, "--json").stdout)
    assert {chunk["switch"] for chunk in shown} == {"serving"}
    assert cluster.kvcast("evict", prefix.chunk_keys()[0].hex()).returncode == 0


def test_where_the_data_network_is_cut_it_says_so(cluster: Cluster) -> None:
    prefix = Prefix(seed=2, size_bytes=2 * CHUNK, chunk_bytes=CHUNK)
    key = cluster.put(prefix)
    cluster.switch.ip("link", "set", "s1", "down")
    try:
        done = cluster.kvcast("pin", key, "--switch", "--timeout", "15")
        assert done.returncode == 1
        assert "the switch serves 0 of them so far" in done.stdout
        assert "n1: 0 of 64 segments acknowledged" in done.stdout
    finally:
        cluster.switch.ip("link", "set", "s1", "up")
    done = cluster.kvcast("pin", key, "--switch", "--timeout", "40")
    assert done.returncode == 0, done.stdout + done.stderr
