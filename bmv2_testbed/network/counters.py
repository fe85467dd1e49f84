"""Interface counters of any network namespace, read through one of its processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bmv2_testbed.errors import TestbedError


@dataclass(frozen=True, slots=True)
class InterfaceCounters:
    """Totals since the interface exists, in bytes and frames."""

    rx_bytes: int
    rx_packets: int
    tx_bytes: int
    tx_packets: int

    def since(self, earlier: InterfaceCounters) -> InterfaceCounters:
        """The increase since `earlier`."""
        return InterfaceCounters(
            self.rx_bytes - earlier.rx_bytes,
            self.rx_packets - earlier.rx_packets,
            self.tx_bytes - earlier.tx_bytes,
            self.tx_packets - earlier.tx_packets,
        )


def sum_of(counters: Iterable[InterfaceCounters]) -> InterfaceCounters:
    """Of several interfaces together."""
    return InterfaceCounters(
        *map(sum, zip(*((one.rx_bytes, one.rx_packets, one.tx_bytes, one.tx_packets) for one in counters), strict=True))
    )


def passes_nothing(hosts: Mapping[str, InterfaceCounters]) -> bool:
    """Whether hosts have sent into the switch between them, and nothing has come out to any of them."""
    sent = any(one.tx_packets for one in hosts.values())
    return sent and not any(one.rx_packets for one in hosts.values())


def parse_net_dev(text: str, interface: str) -> InterfaceCounters:
    """Counters of one interface out of the text of /proc/PID/net/dev. Raises KeyError if it is not there."""
    for line in text.splitlines()[2:]:
        name, _, rest = line.partition(":")
        if name.strip() == interface:
            columns = [int(word) for word in rest.split()]
            return InterfaceCounters(columns[0], columns[1], columns[8], columns[9])
    raise KeyError(interface)


def read_interface_counters(pid: int, interface: str) -> InterfaceCounters:
    """Counters of an interface in the network namespace of process `pid`."""
    try:
        return parse_net_dev(Path(f"/proc/{pid}/net/dev").read_text(), interface)
    except (KeyError, OSError) as error:
        raise TestbedError(f"no interface {interface} in the namespace of process {pid}") from error
