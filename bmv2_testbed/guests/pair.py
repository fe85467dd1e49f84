"""One guest with two network cards on one cable, each with soft-RoCE: two nodes in one kernel that talk over a wire.

For whatever needs both ends in one process: contract tests, benchmarks of the transport. Packets between two addresses
of one kernel would stay inside; rules for routing by interface and source send them out.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from bmv2_testbed.guests import image
from bmv2_testbed.guests.machine import Guest, GuestPort, GuestSpec
from bmv2_testbed.limits import GUEST_BOOT_DEADLINE_S, LINK_MTU_BYTES
from bmv2_testbed.spec import data_ip, data_mac

ADDRESSES = (data_ip(0), data_ip(1))
_MEMORY_MIB = 768


@contextlib.contextmanager
def running(directory: Path) -> Iterator[Guest]:
    """The guest, for the time of a `with` block. Raises TestbedError."""
    ends = [str(directory / f"cable{index}") for index in range(2)]
    ports = tuple(GuestPort(data_mac(index), ends[index], ends[1 - index]) for index in range(2))
    guest = Guest(GuestSpec("pair", image.build(), directory, ports, {}, _MEMORY_MIB))
    try:
        guest.await_boot(time.monotonic() + GUEST_BOOT_DEADLINE_S)
        guest.shell(network_script())
        yield guest
    finally:
        guest.stop()


def network_script(mtu_bytes: int = LINK_MTU_BYTES) -> str:
    """What the guest's shell does to have both nodes."""
    lines = [
        "sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 net.ipv4.conf.all.accept_local=1",
        "sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2",
        # What a node says to itself stays inside, what comes in on a card is for us; what goes out by a card, or from
        # its address, leaves through it.
        "ip rule del pref 0",
        "ip rule add pref 50 lookup local",
    ]
    for index, address in enumerate(ADDRESSES):
        card, table = f"eth{index}", 100 + index
        lines += [
            f"sysctl -qw net.ipv4.conf.{card}.rp_filter=0 net.ipv4.conf.{card}.accept_local=1",
            f"sysctl -qw net.ipv6.conf.{card}.disable_ipv6=1",
            f"ip link set {card} mtu {mtu_bytes} up",
            f"ip addr add {address}/24 dev {card}",
            f"ip rule add pref 4 from {address} to {address} lookup local",
            f"ip rule add pref 5 iif {card} lookup local",
            f"ip rule add pref 6 oif {card} lookup {table}",
            f"ip rule add pref 7 from {address} iif lo lookup {table}",
            f"ip route replace {address.rpartition('.')[0]}.0/24 dev {card} src {address} table {table}",
            f"ip route replace 224.0.0.0/4 dev {card} src {address} table {table}",
            f"rdma link add rxe{index} type rxe netdev {card}",
        ]
    return "\n".join(lines)
