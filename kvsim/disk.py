"""A simulated disk: the index that the agent's core works with, contents by their place in the slab, and time.

Reads and writes take their turns, each at the device's rate. It survives a restart of the agent's process.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hostagent.core.disk_index import DiskState
from hostagent.core.events import LoadOutcome, SaveOutcome
from hostagent.pool.chunks import Chunk, ChunkPool
from hostagent.pool.records import Record
from hostagent.tree import Hashed
from kvchunk.ids import ChunkKey
from kvproto.limits import MS
from kvsim.chance import Chance

LATENCY_NS = MS // 2


@dataclass(frozen=True, slots=True)
class DiskFaults:
    """Probabilities of each load or save."""

    damage: float = 0.0
    read_failure: float = 0.0
    write_failure: float = 0.0


class SimulatedDisk:
    """See `hostagent.core.sources.DiskIndex`. Contents are one number for each segment, as in DRAM."""

    def __init__(
        self, pool: ChunkPool, segment_bytes: int, rate_bytes_per_s: float, faults: DiskFaults, chance: Chance
    ) -> None:
        self.pool = pool
        self.state = DiskState.ON
        self._segment_bytes = segment_bytes
        self._rate = rate_bytes_per_s
        self._faults = faults
        self._chance = chance
        self._contents: dict[ChunkKey, npt.NDArray[np.int64]] = {}
        self._free_ns = 0
        """When the device has done all that was asked of it."""

    def find(self, key: ChunkKey) -> Chunk | None:
        return self.pool.find(key) if self.state is not DiskState.OFF else None

    def stored_chunks(self) -> list[Chunk]:
        return self.pool.ready_chunks()

    def take_changes(self) -> tuple[list[Chunk], list[ChunkKey]]:
        return self.pool.take_changes()

    def drop(self, key: ChunkKey) -> None:
        """As DiskStore."""
        self.pool.drop(key, force=True)

    def moved_into(self, pool: ChunkPool) -> "SimulatedDisk":
        """What the next process finds on this disk; `pool`: its index."""
        after = SimulatedDisk(pool, self._segment_bytes, self._rate, self._faults, self._chance)
        for chunk in self.pool.ready_chunks():
            facts = chunk.key, chunk.parent, chunk.position, chunk.namespace
            if pool.restore(Record(*facts, chunk.offset, chunk.size_bytes, chunk.digest, sequence=0)) is not None:
                after._contents[chunk.key] = self._contents[chunk.key]
        return after

    def _done_ns(self, size_bytes: int, now_ns: int) -> int:
        self._free_ns = max(self._free_ns, now_ns) + int(size_bytes / self._rate * 1e9)
        return self._free_ns + LATENCY_NS

    # --- saving ------------------------------------------------------------------------------------------------------

    def begin_save(self, chunk: Chunk, now_ns: int) -> tuple[Chunk | None, int]:
        """(place, when it will be written), or None for the place when there is none."""
        place = self.pool.reserve(chunk.key, chunk.parent, chunk.size_bytes, chunk.position, chunk.namespace)
        if not isinstance(place, Chunk):
            return None, now_ns
        return place, self._done_ns(chunk.size_bytes, now_ns)

    def end_save(self, place: Chunk, chunk: Chunk, contents: npt.NDArray[np.int64]) -> SaveOutcome:
        """The bytes are written, or not."""
        if self._chance.fraction() < self._faults.write_failure:
            self.pool.abort(place)
            return SaveOutcome.FAILED
        self._contents[chunk.key] = contents.copy()
        self.pool.commit(place, Hashed(chunk.digest, chunk.leaves))
        return SaveOutcome.STORED

    # --- loading -----------------------------------------------------------------------------------------------------

    def begin_load(self, key: ChunkKey, now_ns: int) -> tuple[Chunk | None, int]:
        """(stored chunk, when it will be read), or None for the chunk when it is not here."""
        stored = self.find(key)
        if stored is None:
            return None, now_ns
        self.pool.pin(stored)
        return stored, self._done_ns(stored.size_bytes, now_ns)

    def end_load(self, stored: Chunk) -> tuple[LoadOutcome, npt.NDArray[np.int64]]:
        """What the device gives; a damaged copy is dropped."""
        contents = self._contents[stored.key]
        self.pool.unpin(stored)
        if self._chance.fraction() < self._faults.read_failure:
            return LoadOutcome.FAILED, contents
        if self._chance.fraction() < self._faults.damage:
            if self.pool.find(stored.key) is stored:
                self.drop(stored.key)
            return LoadOutcome.DAMAGED, contents + 2
        return LoadOutcome.DONE, contents

    def store(self, key: ChunkKey, contents: npt.NDArray[np.int64], hashed: Hashed, position: int) -> None:
        """A chunk lies here from an earlier life."""
        place = self.pool.reserve(key, None, len(contents) * self._segment_bytes, position)
        if isinstance(place, Chunk):
            self._contents[key] = contents
            self.pool.commit(place, hashed)
