"""The rate of the link that carries this node's data: what the gate assumes until it has measured fetches.

The kernel says it: for an RDMA port `rate` in sysfs-class-infiniband, for an interface `speed` in sysfs-class-net
(Linux, Documentation/ABI/testing). A shaper in front of the link does not show there; `gate.link_rate` names its rate.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from hostagent.config import DataConfig
from hostagent.transport.interfaces import interface_with
from kvproto.units import parse_rate_bit_s

UNKNOWN_BIT_S: Final = 10_000_000_000
"""Where the kernel does not say: loopback, ports of the embedded switch, some virtual NICs."""
_SYS: Final = Path("/sys/class")


def link_rate_bit_s(data: DataConfig, sys: Path = _SYS) -> int:
    """Bits per second: as configured, or as the kernel says; UNKNOWN_BIT_S where nobody does."""
    return data.link_rate_bit_s or known_link_rate_bit_s(data, sys) or UNKNOWN_BIT_S


def known_link_rate_bit_s(data: DataConfig, sys: Path = _SYS) -> int | None:
    """Bits per second, of the RDMA port if the data goes that way, else of the interface; None: nobody says."""
    interface = data.interface or interface_with(data.address)
    if interface is None:
        return None
    rdma = _rdma_bit_s(interface, sys) if data.transport in ("auto", "verbs") else None
    return rdma or _ethernet_bit_s(interface, sys)


def _ethernet_bit_s(interface: str, sys: Path) -> int | None:
    try:
        speed_mbit_s = int((sys / "net" / interface / "speed").read_text())
    except (OSError, ValueError):
        return None  # interfaces that are down, or have no speed, refuse the read
    return speed_mbit_s * 1_000_000 if speed_mbit_s > 0 else None


def _rdma_bit_s(interface: str, sys: Path) -> int | None:
    """The fastest port of the RDMA devices behind an interface: `100 Gb/sec (4X EDR)`."""
    rates = []
    for file in sorted((sys / "net" / interface / "device" / "infiniband").glob("*/ports/*/rate")):
        try:
            words = file.read_text().split()
            rates.append(parse_rate_bit_s(f"{words[0]}{words[1][0].lower()}bit"))
        except (OSError, ValueError, IndexError):
            continue
    return max(rates, default=None)
