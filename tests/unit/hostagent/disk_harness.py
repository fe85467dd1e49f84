"""A disk tier and a small pool beside it, on an event loop of a test's own."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from hostagent.core.events import LoadOutcome
from hostagent.disk.disk_options import DiskConfig
from hostagent.disk.files import INDEX_NAME, SLAB_NAME
from hostagent.disk.store import DiskStore
from hostagent.memory.pool_memory import PoolMemory
from hostagent.pool.chunks import Chunk, ChunkPool
from hostagent.tree import hashed
from kvchunk.ids import ChunkKey
from kvproto.integrity import Integrity

T = TypeVar("T")
PAGE = 4096
DEADLINE_S = 20.0


def key(number: int) -> ChunkKey:
    return ChunkKey(number.to_bytes(16, "big"))


def content(number: int, size_bytes: int) -> bytes:
    """Bytes that belong to one chunk only."""
    return hashlib.shake_128(number.to_bytes(8, "big")).digest(size_bytes)


def make_pool(size_bytes: int) -> ChunkPool:
    return ChunkPool(size_bytes, PAGE, time.monotonic_ns)


class Bench:
    """One life of a store. Made inside a running loop."""

    def __init__(self, folder: Path, *, disk_pages: int = 64, pool_pages: int = 64, direct: bool = True) -> None:
        self.folder = folder
        self.memory = PoolMemory(pool_pages * PAGE, prefault=False)
        self.dram = make_pool(pool_pages * PAGE)
        config = DiskConfig(str(folder), disk_pages * PAGE, direct=direct, read_threads=2, sync_s=0)
        self.store = DiskStore(config, self.memory, asyncio.get_running_loop(), make_pool(config.size_bytes))

    def put(self, number: int, size_bytes: int = PAGE, parent: int | None = None, namespace: str = "") -> Chunk:
        """A chunk in DRAM."""
        chunk = self.dram.reserve(key(number), None if parent is None else key(parent), size_bytes, namespace=namespace)
        assert isinstance(chunk, Chunk)
        text = content(number, size_bytes)
        self.memory.view(chunk.offset, size_bytes)[:] = text

        self.dram.commit(chunk, hashed(memoryview(text), Integrity.BLAKE3))
        return chunk

    async def save(self, number: int, size_bytes: int = PAGE, **options: object) -> bool:
        """Put a chunk, store it, take it out of DRAM again."""
        chunk = self.put(number, size_bytes, **options)  # type: ignore[arg-type]
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        accepted = self.store.save(chunk, done.set_result)
        stored = accepted and await done
        self.dram.drop(key(number))
        return stored

    async def load(self, number: int, size_bytes: int = PAGE) -> tuple[LoadOutcome, bytes]:
        """What the store brings into DRAM."""
        into = self.dram.reserve(key(number), None, size_bytes)
        assert isinstance(into, Chunk)
        self.memory.view(into.offset, size_bytes)[:] = bytes(size_bytes)
        done: asyncio.Future[LoadOutcome] = asyncio.get_running_loop().create_future()
        self.store.load(key(number), into, lambda outcome, _: done.set_result(outcome))
        outcome = await done
        found = bytes(self.memory.view(into.offset, size_bytes))
        self.dram.abort(into)
        return outcome, found

    async def close(self) -> None:
        await self.store.close()
        assert self.dram.pins_count == 0
        assert self.store.pool.pins_count == 0
        self.memory.close()

    def patch(self, name: str, offset: int, change: Callable[[bytes], bytes], count: int = 1) -> None:
        """Change bytes of a file behind the store's back."""
        path = self.folder / name
        with path.open("r+b") as file:
            file.seek(offset)
            before = file.read(count)
            file.seek(offset)
            file.write(change(before))


def flip(before: bytes) -> bytes:
    return bytes(byte ^ 0x10 for byte in before)


def play(scenario: Callable[[], Awaitable[T]]) -> T:
    """Run a scenario to its end."""

    async def main() -> T:
        async with asyncio.timeout(DEADLINE_S):
            return await scenario()

    return asyncio.run(main())


__all__ = ["INDEX_NAME", "PAGE", "SLAB_NAME", "Bench", "content", "flip", "key", "make_pool", "play"]
