"""Links: rate, delay, bounded queue, and what goes wrong on them."""

from collections.abc import Callable
from dataclasses import dataclass

from kvproto.ids import Address
from kvsim.chance import Chance


@dataclass(frozen=True, slots=True)
class Packet:
    """What travels. `body` belongs to source and destination; the switch model looks at kvcast's own only."""

    source: Address
    destination: Address | None
    """None: the fabric's group."""
    size_bytes: int
    """On the wire, Ethernet header included."""
    body: object


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong on a link, each with a probability per packet."""

    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    reordering_delay_ns: int = 3_000_000
    corruption: float = 0.0
    """A corrupted packet is one that arrives and fails its check: it takes room on the link and is then dropped."""
    loses: Callable[[Packet], bool] = lambda _: False
    """Packets that are lost besides."""


CLEAN = Faults()


class Link:
    """One direction of a cable with the shaped queue before it."""

    __slots__ = (
        "_chance",
        "_free_at_ns",
        "_ns_per_byte",
        "_queue_ns",
        "delay_ns",
        "down",
        "dropped",
        "faults",
        "sent_bytes",
    )

    def __init__(
        self, rate_bytes_per_s: float, delay_ns: int, queue_ns: int, chance: Chance, faults: Faults = CLEAN
    ) -> None:
        self._ns_per_byte = 1e9 / rate_bytes_per_s
        self._queue_ns = queue_ns
        self._chance = chance
        self._free_at_ns = 0.0
        self.delay_ns = delay_ns
        self.faults = faults
        self.down = False
        self.sent_bytes = 0
        """Bytes that left the queue: what an interface counter shows."""
        self.dropped = 0

    def takes_ns(self, size_bytes: int) -> float:
        """How long it sends this."""
        return size_bytes * self._ns_per_byte

    def backlog_ns(self, now_ns: int) -> float:
        """How long the queued bytes will take."""
        return max(0.0, self._free_at_ns - now_ns)

    def send(self, packet: Packet, now_ns: int) -> list[int]:
        """Times at which the packet arrives at the far end: none, one, or two."""
        start = self._free_at_ns
        if start < now_ns:
            start = float(now_ns)
        if self.down or start - now_ns > self._queue_ns:
            self.dropped += 1
            return []
        self._free_at_ns = start + packet.size_bytes * self._ns_per_byte
        self.sent_bytes += packet.size_bytes
        at = int(self._free_at_ns) + self.delay_ns
        faults = self.faults
        if faults is CLEAN:
            return [at]
        chance = self._chance
        if (faults.loss and chance.fraction() < faults.loss) or faults.loses(packet):
            self.dropped += 1
            return []
        if faults.corruption and chance.fraction() < faults.corruption:
            return []
        if faults.reordering and chance.fraction() < faults.reordering:
            at += int(chance.fraction() * faults.reordering_delay_ns)
        if faults.duplication and chance.fraction() < faults.duplication:
            return [at, at + int(chance.fraction() * faults.reordering_delay_ns)]
        return [at]
