"""What a node sends to the switch's pool address leaves by the data interface, whatever its routes are."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from bmv2_testbed.processes import child_environment

POOL = "10.75.255.254"
"""In no node's subnet here."""
SEND = textwrap.dedent(
    f"""
    import sys
    from hostagent.transport.host import bound_udp
    sock = bound_udp("192.168.77.1", 0, "data.cast_port")
    sock.sendto(b"KV", ("{POOL}", 4791))
    """
)
RECEIVE = textwrap.dedent(
    f"""
    import select, socket, sys
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("{POOL}", 4791))
    print("bound", flush=True)
    sys.stdin.readline()
    print(sock.recv(16).decode() if select.select([sock], [], [], float(sys.argv[1]))[0] else "nothing")
    """
)

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2"),
]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def networks() -> Iterator[tuple[str, str, str]]:
    """A node with a data network and a management network that has the default route; both have a host with POOL."""
    node, data, management = (f"kv{os.getpid()}{part}" for part in ("n", "d", "m"))
    try:
        for space in (node, data, management):
            ip("netns", "add", space)
        for interface, address, far in (("data0", "192.168.77.1/24", data), ("mgmt0", "192.168.78.1/24", management)):
            ip("link", "add", interface, "netns", node, "type", "veth", "peer", "name", "eth0", "netns", far)
            ip("-n", node, "address", "add", address, "dev", interface)
            ip("-n", node, "link", "set", interface, "up")
            ip("-n", far, "address", "add", f"{address.rpartition('.')[0]}.2/24", "dev", "eth0")
            ip("-n", far, "address", "add", f"{POOL}/32", "dev", "eth0")
            ip("-n", far, "link", "set", "eth0", "up")
        ip("-n", node, "route", "add", "default", "via", "192.168.78.2")
        yield node, data, management
    finally:
        for space in (node, data, management):
            subprocess.run(["ip", "netns", "delete", space], check=False, capture_output=True)


def inside(space: str, script: str, *words: str) -> subprocess.Popen[str]:
    argv = ["ip", "netns", "exec", space, sys.executable, "-c", script, *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, env=child_environment())


def test_fills_go_by_the_data_interface(networks: tuple[str, str, str]) -> None:
    node, data, management = networks
    with inside(data, RECEIVE, "20") as wanted, inside(management, RECEIVE, "0") as unwanted:
        for receiver in (wanted, unwanted):
            assert receiver.stdout is not None
            assert receiver.stdout.readline() == "bound\n"
        with inside(node, SEND) as sender:
            assert sender.wait(60) == 0
        said = [receiver.communicate("now\n", timeout=60)[0].strip() for receiver in (wanted, unwanted)]
    assert said == ["KV", "nothing"]
