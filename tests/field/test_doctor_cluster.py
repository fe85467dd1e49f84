"""`kvcast doctor cluster` on a healthy network, and on networks that the test breaks, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from tests.field.cluster_in_lab import Cluster, cluster_in
from tests.field.conftest import Office
from tests.field.lab import wait_until

pytestmark = pytest.mark.field

FIREWALL = "nft 'add table inet field; add chain inet field {0} {{ type filter hook {0} priority 0; }}; {1}'"
OPEN = "nft flush ruleset"


def address(number: int) -> str:
    return f"172.31.7.{number}/16"


@dataclass(frozen=True)
class Broken:
    """One way to break a network, how to mend it, and what the doctor must say: check, path, some of what it found."""

    name: str
    machine: str
    breaking: str = ""
    mending: str = ""
    frozen: str = ""
    """Instead of commands: this daemon is stopped by a signal, and continued."""
    expected: tuple[tuple[str, str, str], ...] = field(default_factory=tuple)


NETWORKS = (
    Broken(
        "MTU of a host",
        "n2",
        "ip link set eth1 mtu 1500",
        "ip link set eth1 mtu 9000",
        expected=(("MTU", "n2", "eth1 has MTU 1500"),),
    ),
    Broken(
        "MTU of a port of the switch",
        "sw",
        "ip link set eth3 mtu 1500",
        "ip link set eth3 mtu 9000",
        expected=(("MTU", "n3 <-> all others", "packets of 4220 bytes are lost"),),
    ),
    Broken(
        "a firewall against casts",
        "n1",
        FIREWALL.format("input", "add rule inet field input udp dport 4791 drop"),
        OPEN,
        expected=(("data", "all others -> n1", "UDP 4791 does not pass, TCP does"),),
    ),
    Broken(
        "a firewall against reads",
        "n2",
        FIREWALL.format("input", "add rule inet field input tcp dport 4790 drop"),
        OPEN,
        expected=(("read", "n2 -> all others", "came by a cast"),),
    ),
    Broken(
        "no way from one host to another",
        "n3",
        FIREWALL.format("input", "add rule inet field input ip saddr 172.31.7.1 drop"),
        OPEN,
        expected=(("data", "n1 -> n3", "nothing passes"),),
    ),
    Broken(
        "a cable pulled",
        "sw",
        "ip link set eth2 down",
        "ip link set eth2 up",
        expected=(("data", "n2 <-> all others", "nothing passes"),),
    ),
    Broken(
        "a host that hangs", "n3", frozen="kvcast-agent", expected=(("management", "controller -> n3", "no answer"),)
    ),
    Broken(
        "a switch that hangs",
        "sw",
        frozen="kvcast switch",
        expected=(
            ("switch", "controller -> switch", "10.0.0.1:9559"),
            ("data", "all nodes", "no node reaches another"),
        ),
    ),
)


@pytest.fixture(scope="module")
def cluster(office: Office, installed: str) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield cluster_in(stack.enter_context(office.lab("doctor", installed)), address)


def test_a_healthy_cluster(cluster: Cluster) -> None:
    said = cluster.kvcast("doctor cluster", machine="n2")
    assert "nothing is broken" in said
    assert all(len(line) <= 80 for line in said.splitlines()), said
    assert f"\n{said}".count("\nok ") >= 11, said
    # Nothing is left behind.
    wait_until(lambda: cluster.json("ls") == [], "an empty pool")
    assert cluster.json("top --once")["status"]["switch"]["slots_used"] == 0


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.name.replace(" ", "-"))
def test_the_doctor_finds(cluster: Cluster, network: Broken) -> None:
    machine = cluster.lab[network.machine]
    daemon = machine.running(network.frozen) if network.frozen else None
    if daemon is not None:
        daemon.freeze()
    else:
        machine.say(network.breaking)
    try:
        if network.frozen == "kvcast switch":
            wait_until(lambda: switch_state(cluster) != "ready", "the controller to miss the switch")
        examined = cluster.json("doctor cluster")
    finally:
        if daemon is not None:
            daemon.thaw()
        else:
            machine.say(network.mending)
    broken = [(one["check"], one["path"], one["found"]) for one in examined["findings"] if one["level"] == "broken"]
    assert len(broken) == len(network.expected) == examined["broken"], examined
    for (check, path, found), (wanted_check, wanted_path, word) in zip(broken, network.expected, strict=True):
        assert (check, path) == (wanted_check, wanted_path), broken
        assert word in found
    assert all(one["remedy"] for one in examined["findings"] if one["level"] == "broken")
    cluster.wait_for_agents()


def switch_state(cluster: Cluster) -> str:
    state: str = cluster.json("top --once")["status"]["switch"]["state"]
    return state


def test_a_host_at_another_port_than_configured(cluster: Cluster) -> None:
    configuration = cluster.lab["sw"].home / "controller.yaml"
    before = configuration.read_text()
    try:
        restart_controller(cluster, before + "nodes: {n2: {port: 5}}\n")
        examined = cluster.json("doctor cluster")
    finally:
        restart_controller(cluster, before)
    broken = [(one["check"], one["path"]) for one in examined["findings"] if one["level"] == "broken"]
    assert broken == [("switch", "switch -> n2")], examined


def restart_controller(cluster: Cluster, configuration: str) -> None:
    machine = cluster.lab["sw"]
    machine.running("kvcast-controller").stop()
    (machine.home / "controller.yaml").write_text(configuration)
    cluster.controllers[0] = machine.start("kvcast-controller --config controller.yaml", "ready")
    cluster.wait_for_agents()


def test_a_host_in_another_subnet(cluster: Cluster) -> None:
    machine = cluster.lab["n3"]
    machine.running("kvcast-agent").stop()
    machine.say("ip addr flush dev eth1 && ip addr add 192.168.77.3/24 dev eth1")
    cluster.agents["n3"] = machine.start("kvcast-agent --config agent.yaml", "ready")
    cluster.wait_for_agents()
    examined = cluster.json("doctor cluster")
    broken = {(one["check"], one["path"]): one["found"] for one in examined["findings"] if one["level"] == "broken"}
    assert broken["addresses", "n3"] == "eth1 is 192.168.77.3/24, the others are in 172.31.0.0/16"


def test_no_controller_at_all(cluster: Cluster) -> None:
    status, said = cluster.lab["n1"].run("kvcast doctor cluster --controller 10.0.0.12:4800")
    assert status == 1
    assert "here -> controller" in said
    assert "no process listens there" in " ".join(said.split()), "the table breaks lines where it must"
