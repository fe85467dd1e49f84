"""What engines do in a soak: put prefixes, fetch those of others, compare every byte. Which prefix when is arithmetic
that every host and every attacker can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bmv2_testbed.content import Prefix

EPOCH_S: Final = 4.0
"""Each host puts one prefix in each."""
WINDOW_EPOCHS: Final = 3
"""Prefixes of this epoch and the ones before it are fetched."""
CHUNK_BYTES: Final = 256 * 1024
PREFIX_BYTES: Final = 4 * CHUNK_BYTES
SEGMENT_BYTES: Final = 4096
DEADLINE_S: Final = 10.0
LATE_S: Final = 5.0
"""What a busy machine may take from a deadline to the answer; what hangs takes for ever."""
HUNG_S: Final = 30.0
"""So long after its deadline nobody waits for an answer any more."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Since when (monotonic), with which seed, among how many hosts that put."""

    began_s: float
    seed: int
    hosts: int

    def epoch(self, now_s: float) -> int:
        """Of this moment."""
        return max(0, int((now_s - self.began_s) / EPOCH_S))

    def prefix(self, epoch: int, host: int) -> Prefix:
        """What a host puts in an epoch."""
        return Prefix((self.seed << 24) + epoch * self.hosts + host, PREFIX_BYTES, CHUNK_BYTES)

    def window(self, now_s: float) -> list[Prefix]:
        """What may be fetched now."""
        last = self.epoch(now_s)
        epochs = range(max(0, last - WINDOW_EPOCHS + 1), last + 1)
        return [self.prefix(epoch, host) for epoch in epochs for host in range(self.hosts)]
