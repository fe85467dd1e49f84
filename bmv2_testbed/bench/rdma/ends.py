"""Two transports of kvcast in one process, one port each, that read from and cast to each other. Runs in the guest."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from bmv2_testbed.bench.idle_sink import IdleSink
from bmv2_testbed.bench.rdma.minimal import SETTLE_S, WINDOW_MESSAGES
from bmv2_testbed.bench.rdma.slices import Slice
from bmv2_testbed.guests.pair import ADDRESSES
from hostagent.config import DataConfig
from hostagent.memory.pool_memory import PoolMemory
from hostagent.transport.base import ChunkPlace, Extent, ReadOutcome, ReadRequest
from hostagent.transport.verbs.transport import VerbsTransport
from kvchunk.ids import ChunkKey
from kvproto.events import SegmentsReceived
from kvproto.wire.data import Fabric

KEYS = ChunkKey(b"benchmark chunk!"), ChunkKey(b"its other name !")
"""Of one chunk, by turns: a segment of a chunk that is here already would not be placed again."""
SEGMENTS = 1024
PATIENCE_S = 0.001
assert SEGMENTS % (WINDOW_MESSAGES // 2) == 0


class BenchSink(IdleSink):
    """Serves one chunk, and counts what arrives."""

    def __init__(self, place: ChunkPlace) -> None:
        super().__init__(Extent(place.offset, place.size_bytes, None))
        self.arrived = 0
        self.last_s = 0.0
        """When the last of them did."""
        self.on_event: Callable[[], None] = lambda: None
        """Called after each change."""

    def casts_placed(self, arrivals: Sequence[SegmentsReceived]) -> None:
        self._count(sum(len(one.segments) for one in arrivals))

    def cast_patience_s(self) -> float:
        return PATIENCE_S

    def cast_patience_segments(self) -> int:
        return WINDOW_MESSAGES // 2

    def _count(self, more: int) -> None:
        self.arrived += more
        self.last_s = time.monotonic()
        self.on_event()


class KvcastEnds:
    """A holder of one chunk and a reader. Raises RuntimeError where a byte of it arrives wrong."""

    def __init__(self, segment_bytes: int) -> None:
        """One can be in use at a time."""
        self._fabric = Fabric(segment_bytes=segment_bytes)
        self._segment_bytes = segment_bytes
        self._chunk_bytes = SEGMENTS * segment_bytes
        self._places = tuple(ChunkPlace(key, 0, self._chunk_bytes) for key in KEYS)
        self._pools = [PoolMemory(2 * self._chunk_bytes, prefault=True) for _ in ADDRESSES]
        self._content = self._pools[0].array(0, self._chunk_bytes)
        self._content[:] = np.random.default_rng(1).integers(0, 256, self._chunk_bytes, np.uint8)
        self._arriving = self._pools[1].array(self._chunk_bytes, self._chunk_bytes)
        self._transports = [
            VerbsTransport(DataConfig(transport="verbs", address=address, read_port=0), pool)
            for address, pool in zip(ADDRESSES, self._pools, strict=True)
        ]
        self._sinks = [BenchSink(self._places[0]) for _ in self._pools]
        self._endpoint = ""

    async def start(self) -> None:
        """Both transports, and the connection between them."""
        facts = [
            await transport.start(sink, self._fabric)
            for transport, sink in zip(self._transports, self._sinks, strict=True)
        ]
        self._endpoint = facts[0].read_endpoint
        # The first read sets the connection up.
        await self._read_once()

    async def close(self) -> None:
        """Nothing of them is left."""
        for transport in self._transports:
            await transport.close()
        del self._content, self._arriving
        self._sinks.clear()
        for pool in self._pools:
            pool.close()

    async def read(self, seconds: float) -> Slice:
        """Read the chunk again and again, by READs. The first is not counted: after a rest a window starts over."""
        self._arriving[:] = 0
        await self._read_once()
        count, start_s, cpu_s = 0, time.monotonic(), time.process_time()
        while time.monotonic() - start_s < seconds:
            await self._read_once()
            count += 1
        taken = Slice(count * self._chunk_bytes, time.monotonic() - start_s, time.process_time() - cpu_s)
        self._compare("READ")
        return taken

    async def _read_once(self) -> None:
        done: asyncio.Future[ReadOutcome] = asyncio.get_running_loop().create_future()
        request = ReadRequest(self._endpoint, KEYS[0], 0, self._chunk_bytes, self._chunk_bytes, done.set_result)
        self._transports[1].reads.read(request)
        outcome = await done
        if outcome is not ReadOutcome.DONE:
            drops = ", ".join(f"{why} {count}" for why, count in self._transports[1].counters.dropped.items())
            raise RuntimeError(f"READ: {outcome.name} ({drops or 'nothing was dropped'})")

    async def cast(self, seconds: float) -> Slice:
        """The chunk again and again, by UD, half a window at a time. Ends when nothing is on its way."""
        self._arriving[:] = 0
        sink, half, asked, sink.arrived = self._sinks[1], WINDOW_MESSAGES // 2, 0, 0
        over = asyncio.Event()
        start_s, cpu_s = time.monotonic(), time.process_time()
        sink.last_s = start_s

        def go_on() -> None:
            nonlocal asked
            now_s = time.monotonic()
            if now_s - start_s >= seconds:
                if sink.arrived >= asked or now_s - sink.last_s >= SETTLE_S:
                    over.set()
            elif asked - sink.arrived <= half:
                self._cast_half(asked)
                asked += half

        async def look() -> None:
            """So that what is lost ends the slice, too."""
            while True:
                await asyncio.sleep(SETTLE_S)
                go_on()

        looking = asyncio.create_task(look())
        sink.on_event = go_on
        go_on()
        go_on()
        await over.wait()
        looking.cancel()
        sink.on_event = lambda: None
        taken = Slice(
            sink.arrived * self._segment_bytes, sink.last_s - start_s, time.process_time() - cpu_s, asked - sink.arrived
        )
        if not taken.lost and asked >= SEGMENTS:
            self._compare("UD")
        return taken

    def _cast_half(self, asked: int) -> None:
        """The next half window, by the name whose turn it is."""
        name, first = asked // SEGMENTS % len(KEYS), asked % SEGMENTS
        if first == 0:
            # Its last turn was a whole chunk ago, four windows.
            place = replace(self._places[name], offset=self._chunk_bytes)
            self._transports[1].casts.forget(place.key)
            self._transports[1].casts.expect(place, np.ones(SEGMENTS, np.bool_))
        self._transports[0].casts.cast(self._places[name], first, WINDOW_MESSAGES // 2)

    def _compare(self, way: str) -> None:
        if not np.array_equal(self._arriving, self._content):
            wrong = int(np.count_nonzero(self._arriving != self._content))
            raise RuntimeError(f"{way}: {wrong} of {self._chunk_bytes} bytes arrived wrong")
