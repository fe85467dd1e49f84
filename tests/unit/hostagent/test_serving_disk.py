"""A holder that is asked for what lies on its disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from disk_harness import PAGE, content, key, make_pool, play

from hostagent.pool.chunks import Chunk, ChunkPool
from hostagent.pool.memory import PoolMemory
from hostagent.serving import HELD_CONTROLS_MAX, Serving
from hostagent.transport.fake import FakeNetwork, FakeTransport
from kvproto.ids import Address, ChunkKey
from kvproto.wire.control import Control, Op


class Recorder(FakeTransport):
    """Keeps what is said."""

    said: list[tuple[Op, Address]]

    def send_control(self, message: Control, destination: Address) -> None:
        self.said.append((message.op, destination))


class Holder:
    """A serving side whose pool is filled when the test says that the disk has delivered."""

    def __init__(self) -> None:
        self.memory = PoolMemory(64 * PAGE, prefault=False)
        self.pool: ChunkPool = make_pool(64 * PAGE)
        self.transport = Recorder(FakeNetwork(), Address(1), self.memory)
        self.transport.said = []
        self.on_disk = {key(1)}
        self.waiting: list[Callable[[], None]] = []
        self.serving = Serving(self.pool, self.transport, asyncio.get_running_loop(), PAGE, self.prepare)

    def prepare(self, wanted: ChunkKey, then: Callable[[], None]) -> bool:
        if wanted in self.on_disk:
            self.waiting.append(then)
        return wanted in self.on_disk

    def ask(self, wanted: ChunkKey, *sources: int, op: Op = Op.JOIN) -> None:
        for source in sources:
            self.serving.control_received(Control(op, wanted, segments=2, count=2), Address(source))

    def deliver(self) -> None:
        chunk = self.pool.reserve(key(1), None, 2 * PAGE)
        assert isinstance(chunk, Chunk)
        self.memory.view(chunk.offset, 2 * PAGE)[:] = content(1, 2 * PAGE)
        self.pool.commit(chunk, 0)

    def close(self) -> None:
        self.serving.close()
        self.memory.close()


def test_questions_wait_for_the_disk_and_are_answered_then() -> None:
    async def scenario() -> None:
        holder = Holder()
        holder.ask(key(1), 5, 6, 5)
        holder.ask(key(2), 7)
        assert holder.transport.said == [(Op.NAK, Address(7))], "what is nowhere is refused at once"
        assert len(holder.waiting) == 1, "asked of the disk once"
        holder.deliver()
        holder.waiting[0]()
        assert holder.transport.said[1:] == [(Op.NOTICE, Address(5)), (Op.NOTICE, Address(6))]
        holder.close()

    play(scenario)


def test_questions_are_refused_when_the_disk_did_not_deliver() -> None:
    async def scenario() -> None:
        holder = Holder()
        holder.ask(key(1), 5, op=Op.GET)
        holder.on_disk.clear()
        holder.waiting[0]()
        assert holder.transport.said == [(Op.NAK, Address(5))]
        holder.close()

    play(scenario)


def test_questions_that_wait_are_bounded() -> None:
    async def scenario() -> None:
        holder = Holder()
        for source in range(HELD_CONTROLS_MAX + 10):
            holder.ask(key(1), source + 1)
        assert holder.transport.counters.dropped["control_held_too_many"] == 10
        holder.close()

    play(scenario)
