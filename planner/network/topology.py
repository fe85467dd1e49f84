"""Links by number: every node's way up and down, and each rack's to the others. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvproto.limits import MEMBERS_MAX

SWITCH = -1
"""Holder of what the switch serves itself."""
_SWITCH_RATE = 1e13
"""Bytes per second into a switch's memory: no limit besides its ports."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Nodes 0 .. nodes-1 in racks of up to MEMBERS_MAX, each rack with a switch of its own; rates in bytes per second.

    The core between racks is non-blocking unless `core_rate` says what each rack's way to it carries.
    """

    nodes: int
    link_rate: float
    slow: Mapping[int, float] = field(default_factory=dict)
    """Nodes whose link differs."""
    core_rate: float | None = None

    def capacity(self) -> list[float]:
        """Of all links: up and down of each node, then up and down of each rack, then into the switch itself."""
        rates = [self.slow.get(node, self.link_rate) for node in range(self.nodes) for _ in ("up", "down")]
        core = self.core_rate or self.link_rate * MEMBERS_MAX
        return rates + [core] * (2 * self.racks) + [_SWITCH_RATE]

    def sink(self, holder: int) -> int:
        """Stands for the switch where it is what a holder sends a chunk to."""
        return self.nodes + holder

    def is_sink(self, reader: int) -> bool:
        return reader >= self.nodes

    @property
    def racks(self) -> int:
        return -(-self.nodes // MEMBERS_MAX)

    def rack(self, node: int) -> int:
        return node // MEMBERS_MAX

    def up(self, node: int) -> int:
        return 2 * node

    def down(self, node: int) -> int:
        return 2 * node + 1

    def core_up(self, rack: int) -> int:
        return 2 * (self.nodes + rack)

    def core_down(self, rack: int) -> int:
        return 2 * (self.nodes + rack) + 1

    def rate(self, node: int) -> float:
        return self.slow.get(node, self.link_rate)

    def castable(self, holder: int, reader: int) -> bool:
        """Whether a cast reaches the reader: it does not leave the holder's rack."""
        return holder == SWITCH or self.is_sink(reader) or self.rack(holder) == self.rack(reader)

    def shared(self, holder: int) -> tuple[int, ...]:
        """Links that every byte from a holder crosses once."""
        return () if holder == SWITCH else (self.up(holder),)

    def own(self, holder: int, reader: int) -> tuple[int, ...]:
        """Links that only this reader's bytes cross."""
        if self.is_sink(reader):
            return (2 * (self.nodes + self.racks),)
        if self.castable(holder, reader):
            return (self.down(reader),)
        return (self.core_up(self.rack(holder)), self.core_down(self.rack(reader)), self.down(reader))
