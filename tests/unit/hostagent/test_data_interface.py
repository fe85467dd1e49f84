"""What a node sends to the switch's pool address leaves by the data interface, whatever its routes are, and whichever
of the interface's addresses the node has."""

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
FIRST, SECOND, OF_LOOPBACK = "192.168.77.1", "192.168.79.1", "192.168.80.1"
NOBODYS = "192.168.81.1"
"""Sockets may have it, and no interface has."""
SEND = textwrap.dedent(
    f"""
    import sys
    from hostagent.transport.host import bound_udp
    sock = bound_udp(sys.argv[1], 0, "data.cast_port", sys.argv[2])
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
        ip("-n", node, "link", "set", "lo", "up")
        for interface, address, far in (("data0", "192.168.77.1/24", data), ("mgmt0", "192.168.78.1/24", management)):
            ip("link", "add", interface, "netns", node, "type", "veth", "peer", "name", "eth0", "netns", far)
            ip("-n", node, "address", "add", address, "dev", interface)
            ip("-n", node, "link", "set", interface, "up")
            ip("-n", far, "address", "add", f"{address.rpartition('.')[0]}.2/24", "dev", "eth0")
            ip("-n", far, "address", "add", f"{POOL}/32", "dev", "eth0")
            ip("-n", far, "link", "set", "eth0", "up")
        ip("-n", node, "route", "add", "default", "via", "192.168.78.2")
        ip("-n", node, "address", "add", SECOND + "/24", "dev", "data0", "label", "data0:kv")
        ip("-n", node, "address", "add", OF_LOOPBACK + "/32", "dev", "lo")
        ip("-n", node, "route", "add", "local", NOBODYS + "/32", "dev", "lo")
        yield node, data, management
    finally:
        for space in (node, data, management):
            subprocess.run(["ip", "netns", "delete", space], check=False, capture_output=True)


def inside(space: str, script: str, *words: str) -> subprocess.Popen[str]:
    argv = ["ip", "netns", "exec", space, sys.executable, "-c", script, *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, env=child_environment())


@pytest.mark.parametrize(
    ("address", "interface"),
    [(FIRST, ""), (SECOND, ""), (SECOND, "data0"), (OF_LOOPBACK, "data0")],
    ids=["the first", "another", "another of a named one", "the loopback's"],
)
def test_fills_go_by_the_data_interface(networks: tuple[str, str, str], address: str, interface: str) -> None:
    node, data, management = networks
    with inside(data, RECEIVE, "20") as wanted, inside(management, RECEIVE, "0") as unwanted:
        for receiver in (wanted, unwanted):
            assert receiver.stdout is not None
            assert receiver.stdout.readline() == "bound\n"
        with inside(node, SEND, address, interface) as sender:
            assert sender.wait(60) == 0
        said = [receiver.communicate("now\n", timeout=60)[0].strip() for receiver in (wanted, unwanted)]
    assert said == ["KV", "nothing"]


WHICH = textwrap.dedent(
    """
    import sys
    from hostagent.config import DataConfig
    from hostagent.transport.base import TransportError
    from hostagent.transport.host import bound_udp
    from hostagent.transport.interfaces import interface_address, interface_with
    from kvcast.doctor.agent_checks import _data_network
    for address, interface in zip(sys.argv[1::2], sys.argv[2::2]):
        data = DataConfig(address=address, interface=interface)
        try:
            print(interface_address(data), bound_udp(interface_address(data), 0, "k", interface).getsockname()[0])
        except TransportError as error:
            print(error)
        shown = ("KV leaves by", "data interface")
        print(*(f"{one.check}: {one.found}" for one in _data_network(data) if one.check in shown))
    """
)


def test_what_nothing_keeps_off_the_management_network_is_refused(networks: tuple[str, str, str]) -> None:
    asked = [(NOBODYS, ""), (FIRST, "mgmt0"), ("", "data0"), (SECOND, ""), ("", "nonesuch0")]
    with inside(networks[0], WHICH, *(word for one in asked for word in one)) as ran:
        said = ran.communicate(timeout=60)[0].splitlines()
    assert ran.returncode == 0
    addresses = f"127.0.0.1, {OF_LOOPBACK}, {FIRST}, {SECOND}, 192.168.78.1"
    nobodys = f"no interface of this machine has {NOBODYS}: data.address is one of {addresses}, or set"
    assert said[0].startswith(nobodys) and said[1].startswith(f"KV leaves by: {nobodys}")
    assert said[2].startswith(f"data.address {FIRST} is data0's, not data.interface mgmt0's, which has 192.168.78.1")
    assert said[3].startswith("data interface: data.address")
    assert said[4:8] == [f"{FIRST} {FIRST}", "KV leaves by: data0", f"{SECOND} {SECOND}", "KV leaves by: data0"]
    assert said[8].startswith("there is no interface nonesuch0; set data.interface to one of lo, ")


ANEW = textwrap.dedent(
    """
    import asyncio, logging, subprocess, sys
    from hostagent.config import DataConfig
    from hostagent.memory.pool_memory import PoolMemory
    from hostagent.transport.sockets import SocketsTransport
    from kvproto.wire.data import Fabric
    from tests.contracts.transport.harness import RecordingSink
    from tests.waiting import eventually

    def ip(*lines):
        for line in lines:
            subprocess.run(["ip", *line.split()], check=True)

    def made(name="data9"):
        made = f"link add {name} address 02:00:00:00:00:01 type bridge"
        return made, f"address add 192.168.82.1/24 dev {name}", f"link set {name} up"

    def sent(name="data9"):
        address = transport._host.address
        for sock in (transport._control._socket, transport.casts.data_socket()):
            for to in ("192.168.82.2", "239.75.86.1"):
                try:
                    sock.sendto(b"KV", (to, 4791))
                except OSError:
                    return "not sent"
        groups = open("/proc/net/igmp").read().partition(name)[2].count("01564BEF")
        return f"sent from {sock.getsockname()[0]}, {groups} memberships"

    async def change(*lines, name="data9"):
        said, told = len(lines_said), len(facts)
        ip(*lines)
        await eventually(lambda: len(lines_said) > said, f"a line for {lines}")
        print(*lines_said[said:], sent(name), *(one.read_endpoint for one in facts[told:]), sep=" | ")

    class Said(logging.Handler):
        def emit(self, record):
            lines_said.append(record.getMessage())

    async def main():
        global transport
        ip(*made(), "address add 192.168.83.1/24 dev data9")
        transport = SocketsTransport(DataConfig(interface="data9", **CONFIG), PoolMemory(1 << 20, prefault=False))
        first = await transport.start(RecordingSink(), Fabric(), facts.append)
        print(first.read_endpoint, sent())
        await SCENES()
        await transport.close()

    facts, lines_said = [], []
    logging.getLogger("hostagent").addHandler(Said())
    """
)


def scenes(body: str, config: str = "") -> str:
    played = textwrap.indent(textwrap.dedent(body), "    ")
    return f"{ANEW}\nCONFIG = dict({config})\nasync def SCENES():\n{played}\nasyncio.run(main())"


LOST = "the data network is lost, no chunks go to or from other nodes:"


def said_by(space: str, script: str) -> list[str]:
    with inside(space, script) as ran:
        said = ran.communicate(timeout=120)[0].splitlines()
    assert ran.returncode == 0, said
    return said


def test_an_interface_that_was_made_anew_is_bound_to_again(networks: tuple[str, str, str]) -> None:
    script = scenes(
        """
        await change("link delete data9")
        await change(*made())
        await change("address flush dev data9", "address add 192.168.82.1/24 dev data9")
        """
    )
    assert said_by(networks[0], script) == [
        "192.168.82.1:4790 sent from 192.168.82.1, 1 memberships",
        (f"{LOST} there is no interface data9; set data.interface to one of lo, data0, mgmt0 | not sent"),
        "data9 was made anew: sockets are bound to it again | sent from 192.168.82.1, 1 memberships",
        "data9 has 192.168.82.1 again: sockets are bound to it again | sent from 192.168.82.1, 1 memberships",
    ]


def test_an_address_that_changes_is_bound_to_and_told(networks: tuple[str, str, str]) -> None:
    """One that comes before ours changes nothing; ours stays as long as it is there."""
    script = scenes(
        """
        ip("address flush dev data9", "address add 192.168.84.1/24 dev data9", "address add 192.168.82.1/24 dev data9")
        await change("link set data9 address 02:00:00:00:00:09")
        await change("address delete 192.168.82.1/24 dev data9")
        print(facts[-1].address == 0xC0A85401, facts[-1].mac.hex())
        """
    )
    first, _, *said = said_by(networks[0], script)
    assert first == "192.168.82.1:4790 sent from 192.168.82.1, 1 memberships"
    assert said == [
        (
            "the data address is 192.168.84.1 on data9, no longer 192.168.82.1: bound to it"
            " | sent from 192.168.84.1, 1 memberships | 192.168.84.1:4790"
        ),
        "True 020000000009",
    ]


def test_an_address_that_moves_to_another_interface_is_followed(networks: tuple[str, str, str]) -> None:
    """Into a bond, a bridge or a sub-interface, as an operator changes the network of a machine; and back."""
    script = scenes(
        """
        await change("address delete 192.168.82.1/24 dev data9", "link add bond9 type bridge",
                     "link set bond9 up address 02:00:00:00:00:01", "address add 192.168.82.1/24 dev bond9",
                     name="bond9")
        await change("link add link data9 name data9.7 type macvlan mode private",
                     "link set data9.7 up", "link delete bond9", "address add 192.168.82.1/24 dev data9.7",
                     name="data9.7")
        await change("link delete data9")
        """,
        "address='192.168.82.1'",
    ).replace('interface="data9", ', "")
    first, bond, sub, lost = said_by(networks[0], script)
    assert first.endswith("sent from 192.168.82.1, 1 memberships")
    assert (bond, sub) == (
        (
            "192.168.82.1 is on bond9 now, no longer on data9: sockets are bound to it again"
            " | sent from 192.168.82.1, 1 memberships"
        ),
        (
            "192.168.82.1 is on data9.7 now, no longer on bond9: sockets are bound to it again"
            " | sent from 192.168.82.1, 1 memberships | 192.168.82.1:4790"
        ),
    )
    assert lost.startswith(f"{LOST} no interface of this machine")
