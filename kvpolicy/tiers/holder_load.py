"""What holders have queued for their readers, as a node last heard. Pure.

A holder's uplink serves its readers side by side, so a reader that wants few bytes waits for as many of each of the
others, and never for more than is queued:

    delay = min(queued bytes, others * own bytes) / rate of the link

A figure comes with the directory, and with each answer to a read. The last one heard counts; from then on the queue
shrinks at the rate of the link, since nobody says what has come since.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HolderLoad:
    """Bytes that a node has yet to send."""

    queued_bytes: int
    readers: int = 1
    """How many readers they are for; a cast to many counts as one."""

    def __post_init__(self) -> None:
        if self.queued_bytes < 0 or self.readers < 0:
            raise ValueError(f"no such load: {self}")

    def delay_s(self, size_bytes: int, rate_bytes_per_s: float) -> float:
        """How much later `size_bytes` more are sent because of these."""
        return min(self.queued_bytes, max(1, self.readers) * size_bytes) / rate_bytes_per_s

    def without(self, size_bytes: int) -> HolderLoad:
        """The rest, for others than the one reader that waits for `size_bytes` of it."""
        left_bytes = max(0, self.queued_bytes - size_bytes)
        return HolderLoad(left_bytes, max(1, self.readers - 1)) if left_bytes else IDLE

    def differs(self, known: HolderLoad) -> bool:
        """Whether a reader that knows the other figure should get this one: it has doubled, halved or gone."""
        low, high = sorted((self.queued_bytes, known.queued_bytes))
        return low * 2 <= high and high > 0


IDLE = HolderLoad(0, 0)


class HolderLoads:
    """Owns what the other nodes have last said that they have queued, by name; what they have sent since counts off."""

    def __init__(self, rate_bytes_per_s: Callable[[], float]) -> None:
        """`rate_bytes_per_s()`: of a link, as the node knows it now."""
        self._rate_bytes_per_s = rate_bytes_per_s
        self.by_name: dict[str, tuple[HolderLoad, int]] = {}
        """What nodes said that have something queued, and when; they have not said otherwise."""

    def load_reported(self, node: str, load: HolderLoad, now_ns: int) -> None:
        """A node says what it has queued."""
        if load.queued_bytes:
            self.by_name[node] = (load, now_ns)
        else:
            self.by_name.pop(node, None)

    def forget(self, node: str) -> None:
        """The node is gone."""
        self.by_name.pop(node, None)

    def of(self, node: str, now_ns: int) -> HolderLoad:
        """What is left by now of what a node had queued."""
        told = self.by_name.get(node)
        if told is None:
            return IDLE
        load, at_ns = told
        left_bytes = load.queued_bytes - int((now_ns - at_ns) / 1e9 * self._rate_bytes_per_s())
        if left_bytes <= 0:
            del self.by_name[node]
            return IDLE
        return HolderLoad(left_bytes, load.readers)
