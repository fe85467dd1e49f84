"""Cold stores for tests: a real redis-server on a port of its own, one that never answers, a tier on a test's loop."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hostagent.cold.cold_opening import open_store
from hostagent.cold.cold_options import ColdConfig
from hostagent.cold.stores import ColdStore, ColdStoreError
from hostagent.cold.tier import ColdTier
from hostagent.core import effects, events
from hostagent.core.events import ColdState, LoadOutcome, SaveOutcome
from hostagent.memory.pool_memory import PoolMemory
from hostagent.pool.chunks import Chunk, ChunkPool
from hostagent.tree import hashed
from kvchunk.ids import ChunkKey
from kvproto.integrity import Integrity
from tests.ports import free_port

PAGE = 4096
SIZE = 70_000
DEADLINE_S = 20.0


def key(number: int) -> ChunkKey:
    return ChunkKey(number.to_bytes(16, "big"))


def content(number: int, size_bytes: int = SIZE) -> bytes:
    return hashlib.shake_128(number.to_bytes(8, "big")).digest(size_bytes)


class Bench:
    """A tier with a pool of its own. Made inside a running loop."""

    def __init__(self, config: ColdConfig, store: ColdStore | None = None) -> None:
        self.memory = PoolMemory(256 * PAGE, prefault=False)
        self.pool = ChunkPool(256 * PAGE, PAGE, time.monotonic_ns)
        self.events: list[events.Event] = []
        self.news = asyncio.Event()
        made = store or open_store(config)
        self.tier = ColdTier(config, made, self.memory, asyncio.get_running_loop(), self._heard, "n0")
        self.tier.open()

    def _heard(self, event: events.Event) -> None:
        self.events.append(event)
        self.news.set()

    async def hear(self, kind: type[events.Event]) -> events.Event:
        """The next event of a kind."""
        while True:
            for event in self.events:
                if isinstance(event, kind):
                    self.events.remove(event)
                    return event
            self.news.clear()
            await self.news.wait()

    async def tried(self) -> None:
        """Until the tier has tried the store once."""
        while self.tier.reason == "not tried yet":
            await asyncio.sleep(0.001)

    async def until(self, state: ColdState) -> None:
        """Until the tier says that the store is in this state."""
        while True:
            event = await self.hear(events.ColdStateGiven)
            assert isinstance(event, events.ColdStateGiven)
            if event.state is state:
                return

    def put(self, number: int, size_bytes: int = SIZE) -> Chunk:
        chunk = self.pool.reserve(key(number), None, size_bytes, number)
        assert isinstance(chunk, Chunk)
        self.memory.view(chunk.offset, size_bytes)[:] = content(number, size_bytes)
        self.pool.commit(chunk, hashed(memoryview(content(number, size_bytes)), Integrity.BLAKE3))
        return chunk

    async def save(self, number: int, size_bytes: int = SIZE) -> SaveOutcome:
        """Put a chunk, store it, take it out of the pool."""
        self.tier.save(effects.SaveCold(self.put(number, size_bytes)))
        event = await self.hear(events.ColdSaveEnded)
        assert isinstance(event, events.ColdSaveEnded)
        self.pool.drop(key(number))
        return event.outcome

    async def load(self, number: int, size_bytes: int = SIZE) -> LoadOutcome:
        """What the store brings; DONE only with the right bytes in the pool."""
        into = self.pool.reserve(key(number), None, size_bytes)
        assert isinstance(into, Chunk)
        expected = hashed(memoryview(content(number, size_bytes)), Integrity.BLAKE3).digest
        self.tier.load(effects.LoadCold(into, expected))
        event = await self.hear(events.ColdLoadEnded)
        assert isinstance(event, events.ColdLoadEnded)
        if event.outcome is LoadOutcome.DONE:
            assert bytes(self.memory.view(into.offset, size_bytes)) == content(number, size_bytes)
        self.pool.abort(into)
        return event.outcome

    async def look(self, *numbers: int) -> tuple[list[int], list[int], list[int]]:
        """(found, absent, damaged)."""
        self.tier.look_up(effects.LookUpCold(1, tuple(map(key, numbers))))
        event = await self.hear(events.ColdLookedUp)
        assert isinstance(event, events.ColdLookedUp)
        found = [one.key for one in event.found]
        return tuple([int.from_bytes(one, "big") for one in keys] for keys in (found, event.absent, event.damaged))

    async def close(self) -> None:
        await self.tier.close()
        self.memory.close()


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the tier warned of."""
    records = [record for record in caplog.records if record.name == "hostagent.cold.tier"]
    return [record.message for record in records if record.levelno == logging.WARNING]


@contextlib.asynccontextmanager
async def bench(config: ColdConfig, store: ColdStore | None = None):
    """A tier that is closed in the end, all within DEADLINE_S."""
    async with asyncio.timeout(DEADLINE_S):
        made = Bench(config, store)
        try:
            yield made
        finally:
            await made.close()


async def round_trip(made: Bench) -> None:
    """What every store must do."""
    await made.until(ColdState.ON)
    assert [await made.save(number) for number in (1, 2)] == [SaveOutcome.STORED] * 2
    assert await made.look(1, 2, 3) == ([1, 2], [3], [])
    assert [await made.load(number) for number in (1, 2, 3)] == [LoadOutcome.DONE] * 2 + [LoadOutcome.ABSENT]
    assert await made.save(1) is SaveOutcome.STORED, "again, in place of what is there"
    made.tier.forget(effects.ForgetCold(key(1)))
    while await made.look(1) != ([], [1], []):
        pass
    assert made.tier.counters.read_bytes == 2 * SIZE
    assert made.tier.counters.written_bytes == 3 * SIZE


class BrokenStore:
    """A store that fails, or hangs, or gives garbage, as the test says; else it keeps objects in a dictionary."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.fails_reads = False
        self.fails_writes = False
        self.hangs = False
        self.calls = 0
        self.closed = False

    async def _pass(self, fails: bool, name: str) -> None:
        self.calls += 1
        if self.hangs:
            await asyncio.Event().wait()
        if fails:
            raise ColdStoreError(f"broken at {name}")

    async def put(self, name: str, content: bytes) -> None:
        await self._pass(self.fails_reads or self.fails_writes, name)
        self.objects[name] = content

    async def get_into(self, name: str, buffers: Sequence[memoryview]) -> bool | None:
        await self._pass(self.fails_reads, name)
        if name not in self.objects:
            return None
        rest = memoryview(self.objects[name])
        if len(rest) < sum(map(len, buffers)):
            return False
        for buffer in buffers:
            buffer[:], rest = rest[: len(buffer)], rest[len(buffer) :]
        return True

    async def exists(self, name: str) -> bool:
        await self._pass(self.fails_reads, name)
        return name in self.objects

    async def delete(self, name: str) -> None:
        await self._pass(self.fails_reads, name)
        self.objects.pop(name, None)

    async def close(self) -> None:
        self.closed = True


@contextlib.contextmanager
def hung(process: int) -> Iterator[None]:
    """A process that is there and does nothing, for the time of a block."""
    os.kill(process, signal.SIGSTOP)
    while not is_stopped(process):
        pass  # the signal is on its way: threads on other processors run on for a moment
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def is_stopped(process: int) -> bool:
    """Whether none of the process's threads runs any more (/proc/PID/task/TID/stat, its third field)."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    return all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)


@contextlib.contextmanager
def impatient(made: Bench) -> Iterator[None]:
    """Operations that begin in the block have 0.3 s."""
    patient = made.tier.config
    made.tier.config = replace(patient, timeout_s=0.3)
    try:
        yield
    finally:
        made.tier.config = patient


class RedisServer:
    """A real redis-server of Debian on a port of its own, without files."""

    def __init__(self, folder: Path, password: str = "") -> None:
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip("no redis-server here: apt install redis-server")
        self.port = free_port()
        self._arguments = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
        if password:
            self._arguments += ["--requirepass", password]
        self._password = password
        self.start()

    def start(self, *more: str) -> None:
        self.process = subprocess.Popen([*self._arguments, *more], stdout=subprocess.DEVNULL)
        deadline_s = time.monotonic() + DEADLINE_S
        while not self.ask("PING").startswith(b"+PONG"):
            assert time.monotonic() < deadline_s, "redis-server does not begin"

    def ask(self, *words: str) -> bytes:
        """Send one command by hand; the beginning of the answer."""
        command = ["AUTH", self._password] if self._password else []
        try:
            with socket.create_connection(("127.0.0.1", self.port), DEADLINE_S) as connection:
                for asked in (command, list(words)):
                    if asked:
                        parts = "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in asked)
                        connection.sendall(f"*{len(asked)}\r\n{parts}".encode())
                        answer = connection.recv(1 << 16)
            return answer
        except ConnectionError:
            return b""

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def redis_server(folder: Path, password: str = "") -> Iterator[RedisServer]:
    server = RedisServer(folder, password)
    try:
        yield server
    finally:
        server.kill()


@contextlib.contextmanager
def silent_server() -> Iterator[int]:
    """The port of a server that accepts connections (the kernel does that for it) and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        yield listening.getsockname()[1]


@contextlib.contextmanager
def babbling_server(answer: bytes) -> Iterator[int]:
    """The port of a server that says the same to whatever it is told, to one connection after another."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)

        def babble() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    with connection, contextlib.suppress(OSError):
                        while connection.recv(1 << 16):
                            connection.sendall(answer)

        thread = threading.Thread(target=babble, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(DEADLINE_S)


def redis_config(port: int, **values: Any) -> ColdConfig:
    options = {"endpoint": f"tcp://127.0.0.1:{port}", "root": "/pool", **values.pop("options", {})}
    return ColdConfig("redis", options, **values)
