"""Recirculation ports of TNA programs: which they are, how fast, and how much may wait there. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from p4switch.errors import SwitchError
from p4switch.ports import PORT_NUMBER_MAX, parse_rate, parse_size

PORTS_MAX = 4
PORT_DEFAULT = 68
"""The first pipe's on a Tofino."""

RATE_BITS_DEFAULT = 4_000_000_000
"""Short orbits (1 MiB of 4 KiB segments: 2.2 ms) for a tenth of a core, their cost while nobody asks for a segment."""

QUEUE_BYTES_DEFAULT = 16 << 20


@dataclass(frozen=True, slots=True)
class Recirculation:
    """Ports that lead from egress back to ingress.

    `rate_bits`: per port and second, with FCS, preamble and gap as on a wire; 0: as fast as the switch can.
    `queue_bytes`: bytes that may wait at each port; more is lost and counted.
    """

    ports: tuple[int, ...] = (PORT_DEFAULT,)
    rate_bits: int = RATE_BITS_DEFAULT
    queue_bytes: int = QUEUE_BYTES_DEFAULT

    def __post_init__(self) -> None:
        if len(self.ports) > PORTS_MAX:
            raise SwitchError(f"{len(self.ports)} recirculation ports: {PORTS_MAX} at most")
        for port in self.ports:
            if not 0 <= port <= PORT_NUMBER_MAX:
                raise SwitchError(f"recirculation port {port}: numbers go from 0 to {PORT_NUMBER_MAX}")
        if len(set(self.ports)) != len(self.ports):
            raise SwitchError("a recirculation port is named twice")


def parse_recirculation(ports: list[int] | None, rate: str | None, queue: str | None) -> Recirculation:
    """From the command line's flags; None: the default. Raises SwitchError."""
    return Recirculation(
        ports=(PORT_DEFAULT,) if ports is None else tuple(ports),
        rate_bits=RATE_BITS_DEFAULT if rate is None else parse_rate("--recirculation-rate", rate),
        queue_bytes=QUEUE_BYTES_DEFAULT if queue is None else parse_size("--recirculation-queue", queue),
    )
