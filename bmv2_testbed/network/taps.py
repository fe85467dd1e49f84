"""Taps for guests' network cards, in the network namespace of the run: they go with it."""

from __future__ import annotations

import subprocess

from bmv2_testbed.errors import TestbedError
from bmv2_testbed.limits import LINK_MTU_BYTES
from bmv2_testbed.spec import TestbedSpec, switch_interface


def make_taps(spec: TestbedSpec) -> None:
    """One for each host, and the loopback of the namespace. Raises TestbedError."""
    commands = [["ip", "link", "set", "lo", "up"]]
    for host in range(spec.hosts):
        name = switch_interface(host)
        commands += [
            ["ip", "tuntap", "add", "dev", name, "mode", "tap"],
            # Neighbour discovery would be counted as traffic.
            ["sysctl", "-qw", f"net.ipv6.conf.{name}.disable_ipv6=1"],
            ["ip", "link", "set", name, "mtu", str(LINK_MTU_BYTES), "up"],
        ]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise TestbedError(f"{' '.join(command)}: {done.stderr.strip()} (taps need root and /dev/net/tun)")
