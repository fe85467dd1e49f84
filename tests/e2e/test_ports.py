"""Where nodes are, on real agents, switch and controller: a typo costs casts and not IP; nobody speaks for another."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bmv2_testbed import client
from bmv2_testbed.bench.group import ReaderGroup, put_prefix
from bmv2_testbed.client import Testbed
from bmv2_testbed.configs import CONTROLLER_METRICS_PORT, CONTROLLER_PORT, DATA_INTERFACE
from bmv2_testbed.content import Prefix
from bmv2_testbed.processes import python_module
from bmv2_testbed.spec import CONTROLLER_MANAGEMENT_IP, TestbedSpec, data_ip, data_mac, host_name

pytestmark = pytest.mark.root

DEADLINE_S = 30.0
PORT = 5001
SERVE = """
import socket, sys
with socket.create_server((sys.argv[1], int(sys.argv[2]))) as server:
    print("ready", flush=True)
    with server.accept()[0] as peer:
        peer.sendall(peer.recv(64))
"""
ECHO = """
import socket, sys, time
until = time.monotonic() + 20
while True:
    try:
        with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10) as peer:
            peer.sendall(b"over TCP")
            print(peer.recv(64).decode())
        break
    except ConnectionRefusedError:
        assert time.monotonic() < until
"""
FORGE = """
import socket, struct, sys
interface, frame = sys.argv[1], bytes.fromhex(sys.argv[2])
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as wire:
    wire.bind((interface, 0))
    wire.send(frame)
"""
METRICS = """
import sys, urllib.request
print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())
"""


def python(testbed: Testbed, host: str, script: str, *words: str) -> str:
    """Run a script at a host; returns what it prints."""
    testbed.run("script", host, [sys.executable, "-c", script, *words])
    return testbed.finish("script", DEADLINE_S).stdout.strip()


def over_tcp(testbed: Testbed, server: int, asker: int) -> str:
    """What comes back from an echo of one host to another over the data network."""
    where = [data_ip(server), str(PORT)]
    testbed.run("echo", host_name(server), [sys.executable, "-c", SERVE, *where])
    said = python(testbed, host_name(asker), ECHO, *where)
    testbed.finish("echo", DEADLINE_S)
    return said


def nodes(testbed: Testbed) -> dict[str, Any]:
    address = f"{CONTROLLER_MANAGEMENT_IP}:{CONTROLLER_PORT}"
    testbed.run("top", "switch", python_module("kvcast.cli", "top", "--once", "--json", "--controller", address))
    status = json.loads(testbed.finish("top", DEADLINE_S).stdout)["status"]
    return {node["name"]: node for node in status["nodes"]}


def drops(testbed: Testbed, reason: str) -> int:
    """Packets that the switch dropped for this reason, as the controller shows them."""
    url = f"http://{CONTROLLER_MANAGEMENT_IP}:{CONTROLLER_METRICS_PORT}/metrics"
    wanted = f'kvcast_controller_switch_drops_total{{reason="{reason}"}} '
    lines = python(testbed, "switch", METRICS, url).splitlines()
    return sum(int(float(line.removeprefix(wanted))) for line in lines if line.startswith(wanted))


def eventually(condition: Callable[[], bool], what: str) -> None:
    """For what the controller polls."""
    until = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < until, what


def test_a_typo_in_a_port_costs_casts_and_not_tcp() -> None:
    spec = TestbedSpec(hosts=3, pool_bytes=64 * 2**20, controller_settings={"nodes": {"h0": {"port": 9}}})
    with client.running(spec) as testbed:
        assert over_tcp(testbed, 0, 1) == "over TCP"
        assert over_tcp(testbed, 2, 0) == "over TCP"
        seen = nodes(testbed)
        assert seen["h0"]["port_problem"] == "switch port 9 is configured, and it was seen at switch port 1"
        assert (seen["h0"]["switch_port"], seen["h0"]["member"]) == (1, None)
        assert (seen["h1"]["switch_port"], seen["h1"]["port_problem"]) == (2, None)
        assert testbed.log("controller").count("node h0: switch port 9 is configured") == 1
        prefix = Prefix(seed=5, size_bytes=2 * 256 * 1024, chunk_bytes=256 * 1024)
        put_prefix(testbed, prefix)
        with ReaderGroup(testbed, prefix, (1, 2), deadline_s=DEADLINE_S) as readers:
            readers.start()
            for report in readers.reports():
                assert report is not None
                assert report.verified, report.reason


@pytest.fixture(scope="module")
def testbed() -> Iterator[Testbed]:
    with client.running(TestbedSpec(hosts=3, pool_bytes=64 * 2**20)) as running:
        yield running


def mac(host: int) -> bytes:
    return bytes.fromhex(data_mac(host).replace(":", ""))


def ip(host: int) -> bytes:
    return bytes(map(int, data_ip(host).split(".")))


def test_ports_are_learned_where_nobody_wrote_them_down(testbed: Testbed) -> None:
    assert {name: (node["switch_port"], node["member"]) for name, node in nodes(testbed).items()} == {
        "h0": (1, 0),
        "h1": (2, 1),
        "h2": (3, 2),
    }


def test_a_forged_source_is_dropped_and_counted(testbed: Testbed) -> None:
    before = drops(testbed, "forged_source")
    frame = mac(2) + mac(0) + b"\x88\xb5" + b"as another".ljust(46, b"\0")
    python(testbed, "h1", FORGE, DATA_INTERFACE, frame.hex())
    eventually(lambda: drops(testbed, "forged_source") == before + 1, "a drop is counted")


def test_arp_spoofing_comes_to_nothing(testbed: Testbed) -> None:
    assert over_tcp(testbed, 0, 2) == "over TCP"
    before = drops(testbed, "forged_arp")
    reply = bytes.fromhex("0001080006040002") + mac(1) + ip(0) + mac(2) + ip(2)
    python(testbed, "h1", FORGE, DATA_INTERFACE, (mac(2) + mac(1) + b"\x08\x06" + reply.ljust(46, b"\0")).hex())
    eventually(lambda: drops(testbed, "forged_arp") == before + 1, "a drop is counted")
    testbed.run("neighbours", "h2", ["ip", "neighbour", "show", data_ip(0)])
    neighbour = testbed.finish("neighbours", DEADLINE_S).stdout
    assert data_mac(0) in neighbour
    assert data_mac(1) not in neighbour
