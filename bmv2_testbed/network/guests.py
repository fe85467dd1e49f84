"""The network of guests: every host is a virtual machine whose network card hangs on a datagram port of the switch.

Needs no privileges. Rates are shaped and bytes counted by the switch's
ports, reliable reads included: they go through the guests' kernels, or their soft-RoCE, and through the switch like
everything else.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from bmv2_testbed.configs import AGENT_HTTP_PORT, DATA_INTERFACE, Endpoints
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.guests import image
from bmv2_testbed.guests.machine import MANAGEMENT_GUEST, Guest, GuestPort, GuestSpec
from bmv2_testbed.limits import GUEST_BOOT_DEADLINE_S
from bmv2_testbed.network.counters import InterfaceCounters
from bmv2_testbed.processes import Process
from bmv2_testbed.spec import (
    DATA_PREFIX_BITS,
    TestbedSpec,
    data_ip,
    data_mac,
    host_name,
    switch_port,
)

RDMA_DEVICE = "rxe0"


class GuestNetwork:
    """Guests `h0` and on; counters are the switch's."""

    def __init__(
        self,
        spec: TestbedSpec,
        directory: Path,
        endpoints: Endpoints,
        port_statistics: Callable[[], Mapping[str, Mapping[str, Any]]],
    ) -> None:
        """Starts all guests; they boot while other things start. Raises TestbedError where there can be none."""
        self._spec = spec
        self._port_statistics = port_statistics
        self._starter = ThreadPoolExecutor(max_workers=1)
        missing = image.why_not_ready()
        found = image.find()
        if missing or found is None:
            raise TestbedError(missing)
        self._specs = [
            GuestSpec(
                name=host_name(host),
                image=found,
                directory=directory,
                ports=(GuestPort(data_mac(host), endpoints.agent_datagram[host], endpoints.switch_datagram[host]),),
                forwards={endpoints.agent_http[host]: AGENT_HTTP_PORT},
                memory_mib=_guest_memory_mib(spec),
            )
            for host in range(spec.hosts)
        ]
        self._guests = [self._boot(guest_spec) for guest_spec in self._specs]
        self._configured: set[int] = set()

    def launch(
        self,
        place: str,
        argv: Sequence[str],
        environment: Mapping[str, str],
        out: IO[bytes],
        err: IO[bytes],
        descriptors: Sequence[int],
    ) -> Process:
        """Start a process in a guest (by its host's name) or next to the switch (`switch`)."""
        if descriptors:
            raise TestbedError("no files of this machine reach the programs of a guest")
        if place != "switch":
            return self.guest(self._host_of(place)).start(argv, environment, out, err)

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *argv],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

        # The kernel kills a child when the *thread* that started it ends: one thread that lives as long as we do.
        return self._starter.submit(start).result()

    def counters(self) -> dict[str, InterfaceCounters]:
        """What each host has sent into and received from its switch port."""
        statistics = self._port_statistics()
        return {
            host_name(host): InterfaceCounters(
                rx_bytes=port["tx_bytes"],
                rx_packets=port["tx_packets"],
                tx_bytes=port["rx_bytes"],
                tx_packets=port["rx_packets"],
            )
            for host in range(self._spec.hosts)
            for port in (statistics[str(switch_port(host))],)
        }

    def guest(self, host: int) -> Guest:
        """The guest, booted and on the network."""
        guest = self._guests[host]
        if host not in self._configured:
            guest.await_boot(time.monotonic() + GUEST_BOOT_DEADLINE_S)
            guest.shell(host_script(self._spec, host))
            self._configured.add(host)
        return guest

    def reboot(self, place: str) -> None:
        """Pull the plug of a guest and start it again, without the processes that ran in it."""
        host = self._host_of(place)
        self._guests[host].stop()
        self._configured.discard(host)
        self._guests[host] = self._boot(self._specs[host])

    def set_link(self, place: str, up: bool) -> None:
        """Cut or mend a host's data link."""
        self.guest(self._host_of(place)).shell(f"ip link set dev {DATA_INTERFACE} {'up' if up else 'down'}")

    def set_rail(self, host: int, rail: int, up: bool) -> None:
        """Guests have one rail."""
        raise TestbedError(f"no rail {rail} of h{host}: guests have one data network")

    def stop(self) -> None:
        """End all guests, then the thread that starts processes; with it go those that still run."""
        for guest in self._guests:
            guest.stop()
        self._starter.shutdown()

    def _boot(self, spec: GuestSpec) -> Guest:
        # As with every process here: it dies with the thread that started it, so that has to be the one that stays.
        return self._starter.submit(Guest, spec).result()

    def _host_of(self, place: str) -> int:
        for host in range(self._spec.hosts):
            if place == host_name(host):
                return host
        raise TestbedError(f"no host {place}: there are h0 to h{self._spec.hosts - 1}")


def _guest_memory_mib(spec: TestbedSpec) -> int:
    """The pool, and what a kernel and an agent take in software emulation."""
    return 512 + (spec.pool_bytes >> 20)


def host_script(spec: TestbedSpec, host: int) -> str:
    """What a guest's shell does to be a host of the network."""
    lines = [
        "sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0",
        f"ip link set dev eth0 name {DATA_INTERFACE}",
        # Neighbour discovery would be counted as traffic.
        f"sysctl -qw net.ipv6.conf.{DATA_INTERFACE}.disable_ipv6=1 net.ipv6.conf.eth1.disable_ipv6=1",
        # A node may get back from the switch what it filled in itself: packets with its own address as source.
        f"sysctl -qw net.ipv4.conf.{DATA_INTERFACE}.accept_local=1 net.ipv4.conf.{DATA_INTERFACE}.rp_filter=0",
        f"ip link set dev {DATA_INTERFACE} mtu {spec.mtu_bytes} up",
        f"ip addr add {data_ip(host)}/{DATA_PREFIX_BITS} dev {DATA_INTERFACE}",
        f"ip route add 224.0.0.0/4 dev {DATA_INTERFACE}",
        f"ip addr add {MANAGEMENT_GUEST}/24 dev eth1",
        "ip link set dev eth1 up",
    ]
    if host in spec.socket_hosts:
        # Soft-RoCE keeps UDP 4791 for itself from the moment it is loaded.
        lines.append("busybox rmmod rdma_rxe")
    else:
        lines.append(f"rdma link add {RDMA_DEVICE} type rxe netdev {DATA_INTERFACE}")
    return "\n".join(lines)


def guest_endpoints(spec: TestbedSpec) -> Endpoints:
    """Free loopback ports for everybody. All are held open together while they are chosen, so none comes twice."""
    with contextlib.ExitStack() as held:
        tcp = functools.partial(_free_address, held, socket.SOCK_STREAM)
        udp = functools.partial(_free_address, held, socket.SOCK_DGRAM)
        hosts = range(spec.hosts)
        return Endpoints(
            controller=tcp(),
            controller_metrics=tcp(),
            p4runtime=tcp(),
            agent_http={host: tcp() for host in hosts},
            switch_datagram={host: udp() for host in hosts},
            agent_datagram={host: udp() for host in hosts},
        )


def _free_address(held: contextlib.ExitStack, kind: socket.SocketKind) -> str:
    bound = held.enter_context(socket.socket(socket.AF_INET, kind))
    bound.bind(("127.0.0.1", 0))
    return f"127.0.0.1:{bound.getsockname()[1]}"
