"""Touches a whole pool in slices, so that the agent can be stopped meanwhile, and says how far it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from hostagent.memory.pool_memory import PoolMemory

SLICE_BYTES: Final = 64 << 20
"""Some 20 ms: for as long the event loop does nothing else. A multiple of any page."""
TELL_SHARE: Final = 0.1
TELL_S: Final = 10.0
QUIET_S: Final = 1.0
"""What takes less is not worth a line."""


@dataclass(slots=True)
class Progress:
    """When to say how far it is: every tenth of the pool or every ten seconds, whichever comes first."""

    size_bytes: int
    began_s: float
    told_s: float = 0.0
    told_bytes: int = 0

    def __post_init__(self) -> None:
        self.told_s = self.began_s

    def is_due(self, done_bytes: int, now_s: float) -> bool:
        """Whether to say it now; the caller does."""
        if now_s - self.began_s < QUIET_S or done_bytes >= self.size_bytes:
            return False
        if done_bytes - self.told_bytes < TELL_SHARE * self.size_bytes and now_s - self.told_s < TELL_S:
            return False
        self.told_s, self.told_bytes = now_s, done_bytes
        return True


async def prefault(memory: PoolMemory, clock_s: Callable[[], float], tell: Callable[[int], None]) -> None:
    """Touch every page of a pool. `tell(done_bytes)`: from time to time. Can be cancelled between two slices."""
    progress = Progress(memory.size_bytes, clock_s())
    for offset in range(0, memory.size_bytes, SLICE_BYTES):
        size_bytes = min(SLICE_BYTES, memory.size_bytes - offset)
        memory.populate(offset, size_bytes)
        if progress.is_due(offset + size_bytes, clock_s()):
            tell(offset + size_bytes)
        await asyncio.sleep(0)
