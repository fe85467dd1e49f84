"""The memory and the disk of a simulated host, and how long work on them takes.

A chunk's contents are one number for each segment; 0 where nothing was written.
"""

import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hostagent.core import effects, events
from hostagent.core.node import Knowledge
from hostagent.pool.chunks import Chunk
from hostagent.pool.index import Found, PoolIndex, index_bytes
from hostagent.pool.records import STORE_ID_BYTES
from hostagent.tree import LEAF_BYTES, NOT_HASHED, PIECE_BYTES, Hashed, root_of
from kvchunk.ids import ChunkKey
from kvproto.limits import MS
from kvsim.bodies import content_of
from kvsim.chance import Chance
from kvsim.cold import SimulatedColdStore
from kvsim.disk import DiskFaults, SimulatedDisk
from kvsim.engine import Engine
from kvsim.twins import TwinTraits


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
    twins: TwinTraits | None = None
    """None: it has no codec."""
    read_ns: int = 2 * MS
    """How long an engine reads what a fetch gave it."""
    relay_share: float = 1.0
    """See `CoreOptions.relay_share`."""
    chooses_way: bool = True
    """See `CoreOptions.chooses_way`."""
    rack: str = ""
    """See `CoreOptions.rack`."""
    keeps_pool: bool = False
    """The pool outlives the agent's process."""
    chunk_bytes: int = 0
    """Of every chunk in a pool that is kept."""
    replica_bytes: int = 0
    """See `CoreOptions.replica_bytes`."""
    namespaces: Mapping[str, str] = field(default_factory=dict)
    """See `CoreOptions.tenant_namespaces`."""
    proves: bool = True
    """Reads are hashed on their way, as threads in C do it; otherwise chunks are when they are whole."""


class Host(Protocol):
    """Whose storage it is."""

    def handle(self, event: events.Event) -> None: ...
    def after(self, delay_ns: int, action: Callable[[], None]) -> None: ...


@functools.lru_cache(maxsize=4096)
def right_contents(key: ChunkKey, segments: int) -> npt.NDArray[np.int64]:
    """What a chunk must hold: one number for each segment. Read-only: every host compares with the same array."""
    contents = np.array([content_of(key, segment) for segment in range(segments)], np.int64)
    contents.setflags(write=False)
    return contents


def hashed_of(contents: npt.NDArray[np.int64], segment_bytes: int) -> Hashed:
    """The tree over contents that stand for bytes: each piece is the numbers of the segments that have part of it."""
    pieces = range(-(-len(contents) * segment_bytes // PIECE_BYTES))
    return _rooted((_leaf_of(contents, segment_bytes, piece) for piece in pieces), len(contents) * segment_bytes)


def _leaf_of(contents: npt.NDArray[np.int64], segment_bytes: int, piece: int) -> bytes:
    at = piece * PIECE_BYTES
    part = contents[at // segment_bytes : -(-(at + PIECE_BYTES) // segment_bytes)]
    return hashlib.blake2b(part.tobytes(), digest_size=LEAF_BYTES).digest()


def _rooted(each: Iterable[bytes], size_bytes: int) -> Hashed:
    leaves = b"".join(each)
    return Hashed(root_of(leaves, size_bytes), leaves)


class Storage:
    """The pool and disk of one host. The disk outlives the agent's process; the pool does where it is kept."""

    def __init__(
        self, host: Host, engine: Engine, equipment: Equipment, segment_bytes: int, hash_ns: int, chance: Chance
    ) -> None:
        """`hash_ns`: how long hashing a chunk takes."""
        self._host = host
        self._engine = engine
        self._equipment = equipment
        self._segment_bytes = segment_bytes
        self._hash_ns = hash_ns
        self._chance = chance
        self._contents = np.zeros(equipment.pool_bytes // segment_bytes, np.int64)
        self._leaves: dict[int, dict[int, bytes]] = {}
        """Of pieces hashed early, by their chunk's place."""
        self.disk: SimulatedDisk | None = None
        slots_count = equipment.pool_bytes // equipment.chunk_bytes if equipment.keeps_pool else 0
        self._slots_count = slots_count
        self._index_memory = bytearray(index_bytes(slots_count))

    def pool_index(self) -> tuple[PoolIndex | None, tuple[Found, ...]]:
        """For a process that begins: the index of the pool that is kept, and what the process before had given out."""
        if not self._slots_count:
            return None, ()
        index = PoolIndex(self._index_memory, self._slots_count, bytes(STORE_ID_BYTES))
        found = index.find(self._equipment.pool_bytes)
        if found is None:
            index.begin(self._equipment.pool_bytes)
        return index, tuple(found or ())

    def begin(self, knowledge: Knowledge) -> None:
        """A process begins: with an empty pool, unless that is kept, and with what lies on the disk."""
        if not self._slots_count:
            self._contents[:] = 0
        self._leaves.clear()
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

    def compute_digest(self, effect: effects.ComputeDigest) -> None:
        """Of a chunk as it is now, but for the pieces that were hashed before: as they were then."""
        chunk, view = effect.chunk, self.view(effect.chunk)
        early = self._leaves.pop(chunk.offset, {})
        if early:
            pieces = range(-(-chunk.size_bytes // PIECE_BYTES))
            leaves = (early.get(piece) or _leaf_of(view, self._segment_bytes, piece) for piece in pieces)
            hashed = _rooted(leaves, len(view) * self._segment_bytes)
        else:
            hashed = hashed_of(view, self._segment_bytes)
        self._host.after(self._hash_ns, lambda: self._host.handle(events.DigestComputed(chunk, hashed, effect.use)))

    def leaves_of(self, chunk: Chunk, offset: int, size_bytes: int) -> bytes:
        """Of the pieces of a part that begins with a piece, as they are now."""
        pieces = range(offset // PIECE_BYTES, -(-(offset + size_bytes) // PIECE_BYTES))
        return b"".join(_leaf_of(self.view(chunk), self._segment_bytes, piece) for piece in pieces)

    def hash_pieces(self, effect: effects.HashPieces) -> None:
        """Of a chunk that is on its way, as they are now."""
        view = self.view(effect.chunk)
        leaves = {piece: _leaf_of(view, self._segment_bytes, piece) for piece in effect.pieces}
        self._leaves.setdefault(effect.chunk.offset, {}).update(leaves)

    def forget_pieces(self, effect: effects.ForgetPieces) -> None:
        """The chunk does not become whole."""
        self._leaves.pop(effect.chunk.offset, None)

    def load(self, effect: effects.LoadChunk) -> None:
        """From the disk into the pool."""
        into, disk, now = effect.into, self.disk, self._engine.now_ns
        stored, done_ns = disk.begin_load(into.key, now) if disk is not None else (None, now)

        def end() -> None:
            if disk is None or stored is None:
                self._host.handle(events.LoadEnded(into, events.LoadOutcome.ABSENT, NOT_HASHED))
                return
            outcome, contents = disk.end_load(stored)
            self.view(into)[:] = contents
            self._host.handle(events.LoadEnded(into, outcome, Hashed(stored.digest, stored.leaves)))

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
