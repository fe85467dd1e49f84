"""The network without root: every host's frames go through loopback datagrams to a port of the switch process.

Rates are shaped and bytes counted by the switch's ports; reliable reads bypass them over plain loopback TCP.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

from bmv2_testbed.configs import Endpoints
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.network.counters import InterfaceCounters
from bmv2_testbed.processes import Process
from bmv2_testbed.spec import TestbedSpec, host_name, switch_port


class DatagramNetwork:
    """No interfaces, no privileges: places are all the same, and the counters are the switch's."""

    def __init__(self, spec: TestbedSpec, port_statistics: Callable[[], Mapping[str, Mapping[str, Any]]]) -> None:
        self._spec = spec
        self._port_statistics = port_statistics
        self._starter = ThreadPoolExecutor(max_workers=1)

    def launch(
        self, _place: str, argv: Sequence[str], environment: Mapping[str, str], out: IO[bytes], err: IO[bytes]
    ) -> Process:
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

    def set_link(self, place: str, up: bool) -> None:
        raise TestbedError(f"cannot take the link of {place} {'up' if up else 'down'}: that needs namespaces")

    def stop(self) -> None:
        """End the thread that starts processes; with it go those that still run."""
        self._starter.shutdown()


def datagram_endpoints(spec: TestbedSpec) -> Endpoints:
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
