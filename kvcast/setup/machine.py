"""What a machine has that configuration files name: interfaces with rates and MTUs, memory. Reads, changes nothing."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hostagent.memory.available import available_bytes
from hostagent.transport.interfaces import addresses, usable_addresses

_INTERFACES: Final = Path("/sys/class/net")
_ROUTES: Final = Path("/proc/net/route")


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface, without loopback."""

    name: str
    up: bool
    mtu_bytes: int
    rate_bit_s: int | None
    """None: the driver does not say."""
    addresses: tuple[str, ...]
    """IPv4, its first one first."""
    default_route: bool
    """Whether the machine reaches the rest of the world through it."""

    @property
    def address(self) -> str | None:
        """The one that an agent takes unless its configuration names another."""
        return self.addresses[0] if self.addresses else None


@dataclass(frozen=True, slots=True)
class Machine:
    """This machine, as it is now."""

    name: str
    interfaces: tuple[Interface, ...]
    memory_bytes: int
    """What a process may still have: the kernel's estimate, or less where a cgroup says so."""

    @property
    def addresses(self) -> set[str]:
        """Of all interfaces."""
        return {address for one in self.interfaces for address in one.addresses}


def look(interfaces: Path = _INTERFACES) -> Machine:
    """Look at this machine."""
    routed = _default_interfaces(_ROUTES.read_text())
    found = [_interface(path, routed) for path in sorted(interfaces.iterdir()) if path.name != "lo" and path.is_dir()]
    name = socket.gethostname().partition(".")[0]
    return Machine(name, tuple(found), available_bytes() or 0)


def _interface(path: Path, routed: set[str]) -> Interface:
    rate_mbit_s = _number(path / "speed")
    return Interface(
        name=path.name,
        up=(path / "operstate").read_text().strip() in ("up", "unknown"),
        mtu_bytes=int((path / "mtu").read_text()),
        rate_bit_s=rate_mbit_s * 1_000_000 if rate_mbit_s and rate_mbit_s > 0 else None,
        addresses=tuple(usable_addresses([one for one in addresses() if one.interface == path.name])),
        default_route=path.name in routed,
    )


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # drivers without a rate answer EINVAL
        return None


def _default_interfaces(routes: str) -> set[str]:
    """Of /proc/net/route: rows of interface, destination, gateway, ..., with destination 0 for the default."""
    rows = [line.split() for line in routes.splitlines()[1:]]
    return {row[0] for row in rows if row[1] == "00000000"}


def data_interface(machine: Machine) -> Interface | None:
    """The likeliest for data: up and with an address, away from the default route if possible, the fastest."""
    usable = [one for one in machine.interfaces if one.up and one.address is not None]
    return max(usable, key=lambda one: (not one.default_route, one.rate_bit_s or 0, one.mtu_bytes), default=None)
