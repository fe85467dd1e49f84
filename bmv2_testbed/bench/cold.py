"""The cold store beside native clients: put and get of one chunk, by turns, on this machine.

The tier adds to its client a record, a digest of every byte, the copy into the pool, and two hops between threads.
Native is what a careful program does: redis-py's SET and GET; a file written, renamed and read by `os`; Mooncake's
client in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import mmap
import os
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.table import Table

from bmv2_testbed.bench.mooncake_servers import (
    ADDRESS,
    LENT_BYTES_MIN,
    mooncake_client,
    mooncake_installed,
    mooncake_servers,
)
from bmv2_testbed.content import chained_key
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.processes import await_listening
from hostagent.cold.cold_opening import open_store
from hostagent.cold.cold_options import ColdConfig
from hostagent.cold.opendal_store import OpendalStore
from hostagent.cold.stores import ColdStore, ColdStoreError
from hostagent.cold.tier import NOT_TRIED, ColdTier
from hostagent.core import effects, events
from hostagent.core.events import ColdState, LoadOutcome, SaveOutcome
from hostagent.limits import EXTENT_ALIGN_BYTES
from hostagent.memory.pool_memory import PoolMemory
from hostagent.pool.chunks import Chunk, ChunkPool
from hostagent.tree import hashed
from kvchunk.ids import ChunkKey
from kvdaemon.errors import CannotRunError
from kvproto.integrity import Integrity
from kvproto.units import format_bytes

KEYS: Final = 8
"""Objects written and read in turn."""
START_S: Final = 10.0
"""Between two looks whether the server listens."""
Operation = Callable[[int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ColdPlan:
    """`rounds` puts and gets of `chunk_bytes` by each way; files somewhere below `folder`."""

    folder: Path
    chunk_bytes: int
    rounds: int


@dataclass(frozen=True, slots=True)
class ColdFigures:
    """Medians of one way to one service, in seconds."""

    service: str
    way: str
    put_s: float
    get_s: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class TierWay:
    """Through the agent's tier: from the pool into the store, and back into the pool, compared."""

    def __init__(self, config: ColdConfig, plan: ColdPlan) -> None:
        """Inside a running loop."""
        room = 2 * KEYS * -(-plan.chunk_bytes // EXTENT_ALIGN_BYTES) * EXTENT_ALIGN_BYTES
        self._memory = PoolMemory(room, prefault=True)
        self._pool = ChunkPool(room, EXTENT_ALIGN_BYTES, time.monotonic_ns)
        self._chunks: list[Chunk] = []
        self._answer: asyncio.Future[events.Event] = asyncio.get_running_loop().create_future()
        for number in range(KEYS):
            chunk = self._reserve(_key(number), plan.chunk_bytes)
            view = self._memory.view(chunk.offset, chunk.size_bytes)
            view[:] = os.urandom(plan.chunk_bytes)
            self._pool.commit(chunk, hashed(view, Integrity.BLAKE3))
            self._chunks.append(chunk)
        loop = asyncio.get_running_loop()
        self._tier = ColdTier(config, open_store(config), self._memory, loop, self._tier_event, "bench")

    def _reserve(self, key: ChunkKey, size_bytes: int) -> Chunk:
        chunk = self._pool.reserve(key, None, size_bytes)
        if not isinstance(chunk, Chunk):
            raise TestbedError(f"the benchmark's own pool has no room: {chunk.value}")
        return chunk

    def _tier_event(self, event: events.Event) -> None:
        if not self._answer.done():
            self._answer.set_result(event)

    async def _ask(self, begin: Callable[[], None]) -> events.Event:
        self._answer = asyncio.get_running_loop().create_future()
        begin()
        return await self._answer

    async def open(self) -> None:
        """Until the store has been tried."""
        self._tier.open()
        while self._tier.reason == NOT_TRIED:
            await asyncio.sleep(0.001)
        if self._tier.state is not ColdState.ON:
            raise TestbedError(self._tier.reason)

    async def put(self, number: int) -> None:
        ended = await self._ask(lambda: self._tier.save(effects.SaveCold(self._chunks[number])))
        if not isinstance(ended, events.ColdSaveEnded) or ended.outcome is not SaveOutcome.STORED:
            raise TestbedError(f"a put failed: {self._tier.reason}")

    async def get(self, number: int) -> None:
        stored = self._chunks[number]
        # The same key lies in the pool as it was put: the copy is read into another place.
        self._pool.drop(stored.key)
        into = self._reserve(stored.key, stored.size_bytes)
        ended = await self._ask(lambda: self._tier.load(effects.LoadCold(into, stored.digest)))
        if not isinstance(ended, events.ColdLoadEnded) or ended.outcome is not LoadOutcome.DONE:
            raise TestbedError(f"a get failed: {self._tier.reason}")
        self._pool.commit(into, ended.hashed)
        self._chunks[number] = into

    async def close(self) -> None:
        await self._tier.close()
        self._memory.close()


def run_cold(plan: ColdPlan, say: Callable[[str], None], moved: Callable[[float], None]) -> list[ColdFigures]:
    """Measure a file system, Redis, and Mooncake Store where its wheel is installed. Raises TestbedError."""
    if plan.chunk_bytes < 1 or plan.rounds < 1:
        raise TestbedError("a chunk of a byte or more, and a round")
    plan.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kvcast-bench-", dir=plan.folder) as name:
        folder = Path(name)
        say("file system")
        files = ColdConfig("fs", {"root": str(folder / "store")})
        figures = _measured(plan, files, "os", _file_ways(plan, folder / "plain"))
        moved(0.5)
        with _redis_server(folder) as port:
            say("redis")
            redis = ColdConfig("redis", {"endpoint": f"tcp://127.0.0.1:{port}", "root": "/kvcast"})
            figures += _measured(plan, redis, "redis-py", _redis_ways(plan, port))
        moved(0.7)
        if mooncake_installed():
            say("mooncake")
            lent_bytes = max(LENT_BYTES_MIN, 8 * KEYS * plan.chunk_bytes)
            with mooncake_servers(_free_port(), _free_port(), lent_bytes) as servers:
                options = {"master": f"{ADDRESS}:{servers.port}", "buffer": str(lent_bytes)}
                mooncake = ColdConfig("mooncake", options)
                figures += _measured(plan, mooncake, "its client", _mooncake_ways(plan, servers.port))
        moved(1.0)
    return figures


def _measured(plan: ColdPlan, config: ColdConfig, name: str, native: tuple[Operation, Operation]) -> list[ColdFigures]:
    try:
        return asyncio.run(_by_turns(plan, config, name, native))
    except (CannotRunError, ColdStoreError) as error:
        raise TestbedError(str(error)) from error


async def _by_turns(
    plan: ColdPlan, config: ColdConfig, name: str, native: tuple[Operation, Operation]
) -> list[ColdFigures]:
    tier = TierWay(config, plan)
    ways: dict[str, tuple[Operation, Operation]] = {"kvcast": (tier.put, tier.get)}
    store = open_store(config)
    client = "opendal" if isinstance(store, OpendalStore) else "client"
    try:
        await tier.open()
        ways[client] = _store_ways(plan, client, store)
        ways[name] = native
        times: dict[str, tuple[list[float], list[float]]] = {way: ([], []) for way in ways}
        for index in range(plan.rounds):
            for way, operations in ways.items():
                for operation, taken in zip(operations, times[way], strict=True):
                    started_s = time.perf_counter()
                    await operation(index % KEYS)
                    taken.append(time.perf_counter() - started_s)
    finally:
        await tier.close()
        await store.close()
    return [
        ColdFigures(config.scheme, way, statistics.median(puts), statistics.median(gets))
        for way, (puts, gets) in times.items()
    ]


def _store_ways(plan: ColdPlan, client: str, store: ColdStore) -> tuple[Operation, Operation]:
    """A client alone, into memory of ours."""
    content, buffer = os.urandom(plan.chunk_bytes), bytearray(plan.chunk_bytes)

    async def put(number: int) -> None:
        await store.put(f"{client}/{number}", content)

    async def get(number: int) -> None:
        if not await store.get_into(f"{client}/{number}", (memoryview(buffer),)) or buffer != content:
            raise TestbedError(f"{client} gave back something else")

    return put, get


def _file_ways(plan: ColdPlan, folder: Path) -> tuple[Operation, Operation]:
    folder.mkdir()
    content, buffer = os.urandom(plan.chunk_bytes), bytearray(plan.chunk_bytes)

    async def put(number: int) -> None:
        partial = folder / f"{number}.partial"
        partial.write_bytes(content)
        partial.rename(folder / str(number))

    async def get(number: int) -> None:
        with open(folder / str(number), "rb", buffering=0) as file:
            file.readinto(buffer)
        if buffer != content:
            raise TestbedError("the file has something else")

    return put, get


def _redis_ways(plan: ColdPlan, port: int) -> tuple[Operation, Operation]:
    try:
        client = importlib.import_module("redis").Redis("127.0.0.1", port)
    except ImportError as error:
        raise TestbedError("redis-py is missing: pip install redis") from error
    content = os.urandom(plan.chunk_bytes)

    async def put(number: int) -> None:
        client.set(f"native/{number}", content)

    async def get(number: int) -> None:
        if client.get(f"native/{number}") != content:
            raise TestbedError("redis gave back something else")

    return put, get


def _mooncake_ways(plan: ColdPlan, port: int) -> tuple[Operation, Operation]:
    """From and into registered memory."""
    client = mooncake_client(port)
    memory = mmap.mmap(-1, 2 * plan.chunk_bytes)
    memory[: plan.chunk_bytes] = content = os.urandom(plan.chunk_bytes)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    into = base + plan.chunk_bytes
    if client.register_buffer(base, len(memory)) != 0:
        raise TestbedError("mooncake does not register memory")

    async def put(number: int) -> None:
        if (status := client.upsert_from(f"native/{number}", base, plan.chunk_bytes)) != 0:
            raise TestbedError(f"mooncake refused a put: status {status}")

    async def get(number: int) -> None:
        if client.get_into(f"native/{number}", into, plan.chunk_bytes) != plan.chunk_bytes:
            raise TestbedError("mooncake refused a get")
        if memory[plan.chunk_bytes :] != content:
            raise TestbedError("mooncake gave back something else")

    return put, get


@contextlib.contextmanager
def _redis_server(folder: Path) -> Iterator[int]:
    """The port of a server of this benchmark's own, without files."""
    program = shutil.which("redis-server")
    if program is None:
        raise TestbedError("redis-server is missing: apt install redis-server")
    port = _free_port()
    arguments = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    server = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
    try:
        await_listening(server, "redis-server", "127.0.0.1", port, START_S)
        yield port
    finally:
        server.kill()
        server.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((ADDRESS, 0))
        return int(probe.getsockname()[1])


def cold_table(plan: ColdPlan, figures: list[ColdFigures]) -> Table:
    """For a terminal."""
    table = Table(title=f"put and get of {format_bytes(plan.chunk_bytes)}, medians of {plan.rounds}", box=box.SIMPLE)
    for column in ("service", "way", "put, ms", "get, ms"):
        table.add_column(column, justify="left" if column in ("service", "way") else "right")
    for one in figures:
        table.add_row(one.service, one.way, f"{one.put_s * 1e3:.2f}", f"{one.get_s * 1e3:.2f}")
    return table


def _key(number: int) -> ChunkKey:
    return ChunkKey(chained_key(b"", f"cold {number}".encode()))
