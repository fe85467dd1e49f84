"""The fetching side of one node, alone: what it says to the network."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
import pytest

from hostagent import fetching
from hostagent.api.server import FetchResult
from hostagent.directory import ChunkEntry, Delta, DirectoryReplica, NodeEntry
from hostagent.disk.tier import DiskTier
from hostagent.fetching import Fetching
from hostagent.hashing import Checksums
from hostagent.pool.chunks import ChunkPool
from hostagent.pool.memory import PoolMemory
from hostagent.transport.fake import FakeNetwork, FakeTransport
from kvproto.ids import Address, ChunkKey, Member
from kvproto.session.parameters import ReaderParameters
from kvproto.session.timing import LEAVE_AGAIN_NS
from kvproto.tiers.gate import Gate
from kvproto.value.costs import SourceCosts
from kvproto.wire.control import Control, Op
from kvproto.wire.data import Fabric, SegmentGroup

KEY = ChunkKey(b"k" * 16)
PAGE = 4096
HOLDER = Address(1)


class Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000

    def monotonic_ns(self) -> int:
        return self.now_ns


class Recorder(FakeTransport):
    """Keeps the control datagrams that it is given."""

    said: list[tuple[Op, Address]]

    def send_control(self, message: Control, destination: Address) -> None:
        self.said.append((message.op, destination))


class Observer:
    """Whatever is reported is fine."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


def test_a_cast_that_goes_on_after_leaving_is_answered_by_another_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first LEAVE was lost: the switch counts us in, and would until the cast is over."""
    clock = Clock()
    monkeypatch.setattr(fetching, "time", clock)

    async def scenario() -> None:
        memory = PoolMemory(1 << 20, prefault=False)
        pool, loop = ChunkPool(1 << 20, PAGE, time.monotonic_ns), asyncio.get_running_loop()
        transport = Recorder(FakeNetwork(), Address(2), memory)
        transport.said = []
        await transport.start(Observer(), Fabric())
        directory = DirectoryReplica()
        nodes = (NodeEntry(0, "h", HOLDER, "0.0.0.1:1", 0),)
        chunks = (ChunkEntry(KEY, None, 64 * PAGE, 0, 0, (0,)),)
        directory.apply(Delta(1, snapshot=True, snapshot_end=True, nodes=nodes, chunks=chunks))
        checksums = Checksums(pool, memory, loop)
        shell = Fetching(
            pool,
            memory,
            transport,
            directory,
            checksums,
            Gate(SourceCosts()),
            DiskTier(None, memory, pool, loop),
            loop,
            Observer(),
            ReaderParameters(Member(3)),
            "n",
        )
        results: list[FetchResult] = []
        fetch = shell.fetch([KEY], 10.0, None, results.append)
        assert fetch is not None
        assert transport.said == [(Op.JOIN, HOLDER)]
        fetch.cancel()
        assert transport.said[1:] == [(Op.LEAVE, HOLDER)]
        segments = np.arange(4, dtype=np.uint32)
        group = SegmentGroup(
            KEY, segments_in_chunk=64, segments=segments, rows=np.arange(4), source=HOLDER, from_switch=0
        )
        payload = np.zeros((4, PAGE), np.uint8)
        shell.casts_received(group, payload)
        assert len(transport.said) == 2, "what was under way is no evidence"
        clock.now_ns += LEAVE_AGAIN_NS
        shell.casts_received(group, payload)
        assert transport.said[2:] == [(Op.LEAVE, HOLDER)]
        assert transport.counters.dropped == {"cast_unwanted": 8}
        shell.close()
        checksums.close()
        await transport.close()
        memory.close()

    asyncio.run(scenario())
