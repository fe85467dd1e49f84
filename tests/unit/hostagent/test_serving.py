"""The serving side across a change of the segment size: what is still in the transport keeps its pin, no more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from hostagent.pool.chunks import Chunk, ChunkPool
from hostagent.pool.memory import PoolMemory
from hostagent.serving import Serving
from hostagent.transport.base import ControlArrival, Extent
from hostagent.transport.fake import FakeNetwork, FakeTransport
from kvproto.ids import Address, ChunkKey, Member
from kvproto.wire.control import Control, Op
from kvproto.wire.data import Fabric

PAGE = 4096
KEY = ChunkKey(b"k" * 16)
READER = Address(7)


class Node:
    """A holder with one chunk of 16 pages on a transport whose reports the test makes."""

    def __init__(self, memory: PoolMemory) -> None:
        self.pool = ChunkPool(memory.size_bytes, PAGE, time.monotonic_ns)
        self.transport = FakeTransport(FakeNetwork(), Address(1), memory)
        self.sent: list[int] = []
        """Segments reported by the transport and not passed on yet."""
        self.serving = Serving(self.pool, self.transport, asyncio.get_running_loop(), PAGE, lambda _key, _then: False)
        chunk = self.pool.reserve(KEY, None, 16 * PAGE)
        assert isinstance(chunk, Chunk)
        self.pool.commit(chunk, 0)

    def get(self, segments: int, count: int) -> None:
        message = Control(Op.GET, KEY, segments, segment=0, count=count, member=Member(3))
        self.serving.control_received(message, READER)

    # The transport's sink

    def segments_sent(self, key: ChunkKey, count: int) -> None:
        self.sent.append(count)

    def segments_failed(self, key: ChunkKey, count: int) -> None: ...
    def fill_sent(self, key: ChunkKey, count: int) -> None: ...
    def controls_received(self, arrivals: list[ControlArrival]) -> None: ...
    def casts_received(self, group: object, payload: np.ndarray) -> None: ...
    def open_extent(self, key: ChunkKey) -> Extent | None: ...
    def close_extent(self, extent: Extent) -> None: ...


@pytest.fixture
def play() -> Callable[[Callable[[Node], Awaitable[None]]], None]:
    def run(scenario: Callable[[Node], Awaitable[None]]) -> None:
        async def main() -> None:
            memory = PoolMemory(1 << 20, prefault=False)
            node = Node(memory)
            await node.transport.start(node, Fabric(segment_bytes=PAGE))
            await scenario(node)
            node.serving.close()
            assert node.pool.pins_count == 0
            await node.transport.close()
            memory.close()

        asyncio.run(main())

    return run


async def passed(node: Node) -> int:
    """Let the transport send what it has; how much it reports."""
    await asyncio.sleep(0)
    count, node.sent = sum(node.sent), []
    return count


def test_reports_for_the_old_holder_end_its_pin_only(play: Callable[..., None]) -> None:
    async def scenario(node: Node) -> None:
        node.get(16, 10)
        assert await passed(node) == 10
        node.serving.segments_sent(KEY, 4)
        node.serving.use_segment_bytes(2 * PAGE)
        assert node.pool.pins_count == 1, "six segments of the old size are still on their way"
        node.get(8, 8)
        assert node.pool.pins_count == 2
        node.serving.segments_sent(KEY, 7)
        assert node.pool.pins_count == 1, "six were the old ones, one is new"
        node.serving.segments_sent(KEY, 7)
        assert node.pool.pins_count == 0

    play(scenario)


def test_everything_is_given_back_at_the_end(play: Callable[..., None]) -> None:
    async def scenario(node: Node) -> None:
        node.get(16, 10)
        node.serving.use_segment_bytes(2 * PAGE)
        node.serving.use_segment_bytes(PAGE)
        node.get(16, 3)
        assert node.pool.pins_count == 2

    play(scenario)


def test_what_was_asked_is_counted(play: Callable[..., None]) -> None:
    async def scenario(node: Node) -> None:
        node.get(16, 10)
        node.get(16, 10)
        node.get(15, 1)
        counts = node.serving.counts
        assert counts.segments_queued + counts.answered_already == 20
        assert counts.naks == 1, "of another size"

    play(scenario)
