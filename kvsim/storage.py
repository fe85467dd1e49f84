"""The memory and the disk of a simulated host, and how long work on them takes.

A chunk's contents are one number for each segment; 0 where nothing was written.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hostagent.core import effects, events
from hostagent.core.core import Knowledge
from hostagent.pool.chunks import Chunk
from kvproto.ids import ChunkKey
from kvproto.limits import MS
from kvsim.bodies import content_of
from kvsim.chance import Chance
from kvsim.cold import SimulatedColdStore
from kvsim.disk import DiskFaults, SimulatedDisk
from kvsim.engine import Engine


@dataclass(frozen=True, slots=True)
class Equipment:
    """What a host has besides its link."""

    pool_bytes: int
    disk_bytes: int = 0
    """0: no disk tier."""
    disk_rate_bytes_per_s: float = 200e6
    disk_faults: DiskFaults = field(default_factory=DiskFaults)
    cold: SimulatedColdStore | None = None
    """Shared with other hosts; None: there is none."""
    read_ns: int = 2 * MS
    """How long an engine reads what a fetch gave it."""


class Host(Protocol):
    """Whose storage it is."""

    def handle(self, event: events.Event) -> None: ...
    def after(self, delay_ns: int, action: Callable[[], None]) -> None: ...


def right_contents(key: ChunkKey, segments: int) -> npt.NDArray[np.int64]:
    """What a chunk must hold: one number for each segment."""
    return np.array([content_of(key, segment) for segment in range(segments)], np.int64)


def checksum_of(contents: npt.NDArray[np.int64]) -> int:
    """Stands for xxh3-64."""
    return zlib.crc32(contents.tobytes())


class Storage:
    """One host's. The disk outlives the agent's process, the pool does not."""

    def __init__(
        self, host: Host, engine: Engine, equipment: Equipment, segment_bytes: int, checksum_ns: int, chance: Chance
    ) -> None:
        """`checksum_ns`: how long a checksum takes."""
        self._host = host
        self._engine = engine
        self._equipment = equipment
        self._segment_bytes = segment_bytes
        self._checksum_ns = checksum_ns
        self._chance = chance
        self._contents = np.zeros(equipment.pool_bytes // segment_bytes, np.int64)
        self.disk: SimulatedDisk | None = None

    def begin(self, knowledge: Knowledge) -> None:
        """A process begins: with an empty pool, and with what lies on the disk."""
        self._contents[:] = 0
        equipment = self._equipment
        if not equipment.disk_bytes:
            return
        index = knowledge.disk_pool(equipment.disk_bytes)
        if self.disk is None:
            self.disk = SimulatedDisk(
                index,
                self._segment_bytes,
                equipment.disk_rate_bytes_per_s,
                equipment.disk_faults,
                self._chance.fork("disk"),
            )
        else:
            self.disk = self.disk.moved_into(index)

    def view(self, chunk: Chunk) -> npt.NDArray[np.int64]:
        """A chunk's memory."""
        return self.view_at(chunk.offset, -(-chunk.size_bytes // self._segment_bytes))

    def view_at(self, offset: int, segments: int) -> npt.NDArray[np.int64]:
        """`segments` segments of the pool's memory from `offset` bytes on."""
        first = offset // self._segment_bytes
        return self._contents[first : first + segments]

    # --- effects -----------------------------------------------------------------------------------------------------

    def compute_checksum(self, effect: effects.ComputeChecksum) -> None:
        """Of a chunk as it is now."""
        chunk = effect.chunk
        checksum = checksum_of(self.view(chunk))
        self._host.after(self._checksum_ns, lambda: self._host.handle(events.ChecksumComputed(chunk, checksum)))

    def load(self, effect: effects.LoadChunk) -> None:
        """From the disk into the pool."""
        into, disk, now = effect.into, self.disk, self._engine.now_ns
        stored, done_ns = disk.begin_load(into.key, now) if disk is not None else (None, now)

        def end() -> None:
            if disk is None or stored is None:
                self._host.handle(events.LoadEnded(into, events.LoadOutcome.ABSENT, 0))
                return
            outcome, contents = disk.end_load(stored)
            self.view(into)[:] = contents
            self._host.handle(events.LoadEnded(into, outcome, stored.checksum))

        self._host.after(done_ns - now, end)

    def save(self, effect: effects.SaveChunk) -> None:
        """From the pool to the disk."""
        chunk, disk, now = effect.chunk, self.disk, self._engine.now_ns
        place, done_ns = disk.begin_save(chunk, now) if disk is not None else (None, now)

        def end() -> None:
            outcome = events.SaveOutcome.REFUSED
            if disk is not None and place is not None:
                outcome = disk.end_save(place, chunk, self.view(chunk))
            self._host.handle(events.SaveEnded(chunk, outcome))

        self._host.after(done_ns - now, end)

    def forget_stored(self, effect: effects.ForgetStored) -> None:
        """The disk's copy."""
        if self.disk is not None:
            self.disk.drop(effect.key)
