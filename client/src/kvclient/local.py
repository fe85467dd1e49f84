"""Chunks of this node's pool without asking the agent: found in its catalog, leased in this connection's own table.

The agent is not asked and does not wake up. It hears of hits when it looks at the table (`kvclient.catalog`). What an
engine may lease so is bounded in bytes; beyond that, and for whatever is not here, it asks the agent. Thread-safe;
standard library only.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Sequence

from kvclient import barrier, catalog, forks
from kvclient.attach import LeaseLostError


class LocalReads:
    """Of one connection."""

    def __init__(
        self, catalog_map: mmap.mmap, table_map: mmap.mmap, header: catalog.Header, is_up: Callable[[], bool]
    ) -> None:
        """Use `opened`."""
        self._maps = catalog_map, table_map
        self._is_up = is_up
        self._words = memoryview(catalog_map).cast("Q")
        self._table = memoryview(table_map).cast("Q")
        self._reader = catalog.CatalogReader(self._words, header, self._table)
        self._free = list(range(catalog.HITS_AT - 1, catalog.LEASES_AT - 1, -1))
        self._left_bytes = self._table[1]
        self._lock = threading.Lock()
        self._closed = False
        forks.watch(self)

    def process_forked(self) -> None:
        """See `kvclient.forks`: the table is the parent's, and what is leased in it."""
        self._closed = True
        self._lock = threading.Lock()

    @staticmethod
    def opened(catalog_fd: int, table_fd: int, is_up: Callable[[], bool]) -> LocalReads | None:
        """Maps what the agent gave; the descriptors stay the caller's. `is_up()`: whether the agent is there.

        None: this process cannot use it, and asks the agent for everything.
        """
        if not barrier.register():
            return None
        table_map = mmap.mmap(table_fd, catalog.TABLE_BYTES)
        catalog_map = mmap.mmap(catalog_fd, os.fstat(catalog_fd).st_size, prot=mmap.PROT_READ)
        with memoryview(catalog_map) as bytes_, bytes_.cast("Q") as words, memoryview(table_map) as table:
            header = catalog.Header.read(words)
            known = table.cast("Q")[0] == catalog.MAGIC
        if header is None or not known:
            return None
        return LocalReads(catalog_map, table_map, header, is_up)

    def lease(self, keys: Sequence[bytes]) -> LocalLease | None:
        """All of these chunks, or None: one of them is not here, or they are more than may be leased so."""
        with self._lock:
            free = self._free
            if self._closed or not 0 < len(keys) <= len(free):
                return None
            found: list[tuple[int, int]] = []
            places = free[-len(keys) :]
            left_bytes = self._left_bytes
            for key, place in zip(keys, places, strict=True):
                one = self._reader.lease(key, place, left_bytes)
                if one is None:
                    self._undo(places[: len(found)])
                    return None
                left_bytes -= one[1]
                found.append(one)
            # Only after the leases: an agent that is here now honours them, and the next one waits (hostagent.limits).
            if not self._is_up():
                self._undo(places)
                return None
            del free[-len(keys) :]
            self._reader.count_hits(places)
            taken_bytes, self._left_bytes = self._left_bytes - left_bytes, left_bytes
        return LocalLease(self, places, taken_bytes, found)

    def holds(self, keys: Sequence[bytes]) -> bool:
        """Whether all of these chunks are here at this moment: a hint, nothing is leased."""
        with self._lock:
            return not self._closed and all(self._reader.holds(key) for key in keys) and self._is_up()

    def _undo(self, places: Sequence[int]) -> None:
        for place in places:
            self._table[place] = 0

    def give_back(self, places: Sequence[int], size_bytes: int) -> None:
        """Leases end: the chunks may go. Raises LeaseLostError when they had ended before."""
        with self._lock:
            held = self.holds_leases()
            if not self._closed:
                for place in places:
                    self._table[place] = 0
                self._free.extend(places)
                self._left_bytes += size_bytes
        if not held:
            raise LeaseLostError

    def holds_leases(self) -> bool:
        """Whether the agent has honoured all leases up to this moment."""
        return not self._closed and self._is_up()

    def close(self) -> None:
        """Unmap. The agent gives up the leases with the connection."""
        with self._lock:
            self._closed = True
            self._reader.release()
            self._words.release()
            self._table.release()
            for mapped in self._maps:
                mapped.close()


class LocalLease:
    """Chunks that stay in the pool until `release`, or until the agent ends: whoever copies from them copies first,
    and then checks."""

    __slots__ = ("_places", "_reads", "_size_bytes", "found")

    def __init__(self, reads: LocalReads, places: list[int], size_bytes: int, found: list[tuple[int, int]]) -> None:
        self._reads = reads
        self._places = places
        self._size_bytes = size_bytes
        self.found = found
        """(offset, bytes) of each chunk, as they were asked for."""

    def check(self) -> None:
        """What was copied up to now is the chunks'. Raises LeaseLostError when it may not be."""
        if not self._reads.holds_leases():
            raise LeaseLostError

    def release(self) -> None:
        """The chunks may go; once. Raises LeaseLostError as `check`."""
        self._reads.give_back(self._places, self._size_bytes)
