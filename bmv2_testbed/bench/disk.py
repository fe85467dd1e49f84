"""The disk tier compared with plain reads and writes of one file: same device, same sizes, same memory, taken in turns.

Plain is what a careful program does: `pwrite` and `preadv` past the page cache into the same shared memory, one thread
to write, as many threads to read. The tier adds records, checksums of every byte and hops between threads.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from bmv2_testbed.content import chained_key
from bmv2_testbed.errors import TestbedError
from hostagent.core.disk_index import DiskState
from hostagent.core.events import LoadOutcome
from hostagent.disk.disk_options import DiskConfig
from hostagent.disk.store import DiskStore
from hostagent.limits import EXTENT_ALIGN_BYTES
from hostagent.memory.pool_memory import PoolMemory
from hostagent.pool.chunks import Chunk, ChunkPool
from hostagent.tree import hashed
from kvchunk.ids import ChunkKey
from kvproto.integrity import Integrity
from kvproto.units import format_bytes

READ_THREADS = 4
WRITES_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class DiskPlan:
    """`chunks` chunks of `chunk_bytes` (whole pages), written and read `rounds` times, somewhere below `folder`."""

    folder: Path
    chunk_bytes: int
    chunks: int
    rounds: int
    seed: int


@dataclass(frozen=True, slots=True)
class DiskFigures:
    """Medians over the rounds: rates in bytes per second, times in seconds."""

    chunk_bytes: int
    write_rate: float
    plain_write_rate: float
    read_rate: float
    plain_read_rate: float
    load_p50_s: float
    load_p99_s: float
    busy_load_p50_s: float
    """The same while writes go on all the time."""
    busy_load_p99_s: float
    busy_write_rate: float
    direct: bool
    """The file system lets reads and writes past its page cache."""

    @property
    def write_ratio(self) -> float:
        return self.write_rate / self.plain_write_rate

    @property
    def read_ratio(self) -> float:
        return self.read_rate / self.plain_read_rate

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"write_ratio": self.write_ratio, "read_ratio": self.read_ratio}


class _Bench:
    """One store with a pool that holds every chunk twice: as it was put, and as it is loaded."""

    def __init__(self, plan: DiskPlan, folder: str) -> None:
        self.plan = plan
        self.total_bytes = plan.chunks * plan.chunk_bytes
        self.memory = PoolMemory(2 * self.total_bytes, prefault=True)
        self.dram = _pool(2 * self.total_bytes)
        self.chunks: list[Chunk] = []
        random = np.random.Generator(np.random.Philox(plan.seed))
        for number in range(plan.chunks):
            chunk = self._reserve(_key(number))
            self.memory.array(chunk.offset, chunk.size_bytes)[:] = random.integers(0, 256, chunk.size_bytes, np.uint8)
            self.dram.commit(chunk, hashed(self.memory.view(chunk.offset, chunk.size_bytes), Integrity.BLAKE3))
            self.chunks.append(chunk)
        config = DiskConfig(folder, 2 * self.total_bytes, read_threads=READ_THREADS, sync_s=0)
        self.store = DiskStore(config, self.memory, asyncio.get_running_loop(), _pool(config.size_bytes))

    def _reserve(self, key: ChunkKey) -> Chunk:
        chunk = self.dram.reserve(key, None, self.plan.chunk_bytes)
        if not isinstance(chunk, Chunk):
            raise TestbedError(f"the benchmark's own pool has no room: {chunk.value}")
        return chunk

    async def save_all(self, moved: Callable[[], None] = lambda: None) -> float:
        """Seconds to store every chunk."""
        slots = asyncio.Semaphore(WRITES_AT_ONCE)
        started_s = time.perf_counter()

        def saved(done: asyncio.Future[bool], stored: bool) -> None:
            slots.release()
            moved()
            done.set_result(stored)

        results = []
        for chunk in self.chunks:
            await slots.acquire()
            done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            if not self.store.save(chunk, partial(saved, done)):
                raise TestbedError(f"the store refused a chunk: {self.store.reason or 'no room'}")
            results.append(done)
        if not all(await asyncio.gather(*results)):
            raise TestbedError(f"a write failed: {self.store.reason}")
        return time.perf_counter() - started_s

    def drop_all(self) -> None:
        """Take every chunk out of the store."""
        for chunk in self.chunks:
            self.store.drop(chunk.key)

    async def load(self, number: int) -> float:
        """Seconds to load one chunk into the pool, compared with its checksum by the store."""
        stored = self.chunks[number]
        into = self._reserve(_key(number, "copy"))
        done: asyncio.Future[LoadOutcome] = asyncio.get_running_loop().create_future()
        started_s = time.perf_counter()
        self.store.load(stored.key, into, lambda outcome, _: done.set_result(outcome))
        outcome = await done
        seconds = time.perf_counter() - started_s
        self.dram.abort(into)
        if outcome is not LoadOutcome.DONE:
            raise TestbedError(f"a chunk came back {outcome.value}")
        return seconds

    async def load_all(self) -> float:
        """Seconds to load every chunk, READ_THREADS at a time."""
        slots = asyncio.Semaphore(READ_THREADS)

        async def one(number: int) -> None:
            async with slots:
                await self.load(number)

        started_s = time.perf_counter()
        await asyncio.gather(*(one(number) for number in range(self.plan.chunks)))
        return time.perf_counter() - started_s

    async def load_one_by_one(self) -> list[float]:
        """Seconds of each load, one after the other."""
        return [await self.load(number) for number in range(self.plan.chunks)]

    async def close(self) -> None:
        await self.store.close()
        self.memory.close()


class _Plain:
    """One file, read and written with nothing around it."""

    def __init__(self, bench: _Bench, path: Path, direct: bool) -> None:
        self._bench = bench
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | (os.O_DIRECT if direct else 0), 0o600)
        os.posix_fallocate(self._fd, 0, bench.total_bytes)
        self._threads = ThreadPoolExecutor(READ_THREADS)

    def write_all(self) -> float:
        started_s = time.perf_counter()
        for number, chunk in enumerate(self._bench.chunks):
            view = self._bench.memory.view(chunk.offset, chunk.size_bytes)
            at = number * chunk.size_bytes
            while view:
                count = os.pwrite(self._fd, view, at)
                view, at = view[count:], at + count
        return time.perf_counter() - started_s

    def read_all(self) -> float:
        started_s = time.perf_counter()
        list(self._threads.map(self._read, range(self._bench.plan.chunks)))
        return time.perf_counter() - started_s

    def _read(self, number: int) -> None:
        size = self._bench.plan.chunk_bytes
        view = self._bench.memory.view(self._bench.total_bytes + number * size, size)
        at = number * size
        while view:
            count = os.preadv(self._fd, [view], at)
            view, at = view[count:], at + count

    def close(self) -> None:
        self._threads.shutdown()
        os.close(self._fd)


def run_disk(plan: DiskPlan, say: Callable[[str], None], moved: Callable[[float], None]) -> DiskFigures:
    """Measure; raises TestbedError where the disk cannot be used."""
    if plan.chunk_bytes % EXTENT_ALIGN_BYTES or plan.chunks < 4 or plan.rounds < 1:
        raise TestbedError(f"chunks must be whole pages of {EXTENT_ALIGN_BYTES} bytes, at least 4 of them, and a round")
    plan.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kvcast-bench-", dir=plan.folder) as folder:
        return asyncio.run(_measure(plan, Path(folder), say, moved))


async def _measure(
    plan: DiskPlan, folder: Path, say: Callable[[str], None], moved: Callable[[float], None]
) -> DiskFigures:
    bench = _Bench(plan, str(folder / "store"))
    await bench.store.open()
    if bench.store.state is not DiskState.ON:
        raise TestbedError(bench.store.reason)
    direct = bench.store.direct
    plain = _Plain(bench, folder / "plain", direct)
    writes, plain_writes, reads, plain_reads = [], [], [], []
    loads: list[float] = []
    busy_loads: list[float] = []
    busy_rates: list[float] = []
    try:
        for index in range(plan.rounds):
            say(f"round {index + 1}")
            plain_writes.append(plain.write_all())
            bench.drop_all()
            writes.append(await bench.save_all())
            plain_reads.append(plain.read_all())
            reads.append(await bench.load_all())
            loads += await bench.load_one_by_one()
            times, rate = await _while_writing(bench)
            busy_loads += times
            busy_rates.append(rate)
            moved((index + 1) / plan.rounds)
    finally:
        plain.close()
        await bench.close()
    total = bench.total_bytes
    return DiskFigures(
        chunk_bytes=plan.chunk_bytes,
        write_rate=total / statistics.median(writes),
        plain_write_rate=total / statistics.median(plain_writes),
        read_rate=total / statistics.median(reads),
        plain_read_rate=total / statistics.median(plain_reads),
        load_p50_s=_quantile(loads, 0.5),
        load_p99_s=_quantile(loads, 0.99),
        busy_load_p50_s=_quantile(busy_loads, 0.5),
        busy_load_p99_s=_quantile(busy_loads, 0.99),
        busy_write_rate=statistics.median(busy_rates),
        direct=direct,
    )


async def _while_writing(bench: _Bench) -> tuple[list[float], float]:
    """(times of loads one after the other, rate of the writes that went on meanwhile)."""
    half = len(bench.chunks) // 2
    kept, again = bench.chunks[:half], bench.chunks[half:]
    written = 0

    def count() -> None:
        nonlocal written
        written += 1

    async def write_on() -> None:
        while True:
            bench.chunks = again
            bench.drop_all()
            await bench.save_all(count)

    writer = asyncio.ensure_future(write_on())
    everything = [*kept, *again]
    started_s = time.perf_counter()
    times = []
    for number in range(half):
        bench.chunks = everything
        times.append(await bench.load(number))
    seconds = time.perf_counter() - started_s
    rate = written * bench.plan.chunk_bytes / seconds
    writer.cancel()
    await asyncio.gather(writer, return_exceptions=True)
    bench.chunks = everything
    while bench.store.counters.writing:
        await asyncio.sleep(0.001)
    return times, rate


def disk_table(figures: DiskFigures) -> Table:
    """For a terminal."""
    past = "past the page cache" if figures.direct else "through the page cache"
    table = Table(title=f"disk tier, chunks of {format_bytes(figures.chunk_bytes)}, {past}", box=box.SIMPLE)
    for column in ("", "kvcast", "plain file", "ratio"):
        table.add_column(column, justify="left" if not column else "right")
    for name, ours, plain, ratio in (
        ("write, MB/s", figures.write_rate, figures.plain_write_rate, figures.write_ratio),
        (f"read, {READ_THREADS} at once, MB/s", figures.read_rate, figures.plain_read_rate, figures.read_ratio),
    ):
        table.add_row(name, f"{ours / 1e6:,.0f}", f"{plain / 1e6:,.0f}", f"{ratio:.2f}")
    table.add_row("load p50 / p99, ms", f"{figures.load_p50_s * 1e3:.2f} / {figures.load_p99_s * 1e3:.2f}", "", "")
    busy = f"{figures.busy_load_p50_s * 1e3:.2f} / {figures.busy_load_p99_s * 1e3:.2f}"
    table.add_row("the same while writes go on", busy, "", f"{figures.busy_load_p50_s / figures.load_p50_s:.2f}")
    table.add_row("those writes, MB/s", f"{figures.busy_write_rate / 1e6:,.0f}", "", "")
    return table


def _pool(size_bytes: int) -> ChunkPool:
    return ChunkPool(size_bytes, EXTENT_ALIGN_BYTES, time.monotonic_ns)


def _key(number: int, label: str = "") -> ChunkKey:
    return ChunkKey(chained_key(b"", f"{label}{number}".encode()))


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
