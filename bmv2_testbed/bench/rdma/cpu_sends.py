"""What sending a segment of a cast by RDMA costs: everything but the NIC and its library."""

from __future__ import annotations

import asyncio
import time

from bmv2_testbed.bench.rdma.idle_port import ADDRESS, IdlePort
from hostagent import limits
from hostagent.config import DataConfig
from hostagent.native.library import datapath
from hostagent.pool.memory import PoolMemory
from hostagent.transport.base import ChunkPlace, TransportCounters
from hostagent.transport.host import Host
from hostagent.transport.verbs import abi
from hostagent.transport.verbs.device import VerbsError
from hostagent.transport.verbs.native_cast_sender import NativeCastQueue
from kvchunk.ids import ChunkKey
from kvproto.ids import parse_address
from kvproto.wire.data import Fabric

_KEY = ChunkKey(b"benchmark chunk!")
_SEGMENTS = 16 * limits.VERBS_CAST_QUEUE_SEGMENTS
_SECONDS = 1.0


class _Sink:
    """Waits until all has left."""

    def __init__(self) -> None:
        self.left = 0
        self.over = asyncio.Event()

    def segments_sent(self, _key: ChunkKey, count: int) -> None:
        self.left -= count
        if not self.left:
            self.over.set()

    def segments_failed(self, _key: ChunkKey, _count: int) -> None:
        raise AssertionError("this NIC sends everything")


def _broke(error: VerbsError) -> None:
    raise error


async def _measure(segment_bytes: int) -> float:
    fabric, port, sink = Fabric(segment_bytes=segment_bytes), IdlePort(limits.CAST_BATCH_PACKETS), _Sink()
    memory = PoolMemory(_SEGMENTS * segment_bytes, prefault=False)
    pool = port.register(memory.bytes_.ctypes.data, memory.size_bytes, abi.ACCESS_LOCAL_WRITE, "the pool")
    host = Host(
        config=DataConfig(address=ADDRESS),
        memory=memory,
        loop=asyncio.get_running_loop(),
        sink=sink,  # type: ignore[arg-type]
        counters=TransportCounters(),
        address=ADDRESS,
        own=parse_address(ADDRESS),
        native=datapath(),
    )
    queue = NativeCastQueue(port, pool, host, host.native, _broke)
    queue.use_fabric(fabric)
    place = ChunkPlace(_KEY, 0, _SEGMENTS * segment_bytes)
    sent, spent_s = 0, 0.0
    while spent_s < _SECONDS:
        sink.left = _SEGMENTS
        sink.over.clear()
        if not sent:
            queue.add(place, 0, 1)  # Prepares the chunk, which is not counted here.
            sink.left += 1
        start_s = time.process_time()
        queue.add(place, 0, _SEGMENTS)
        await sink.over.wait()
        spent_s += time.process_time() - start_s
        sent += _SEGMENTS
    queue.close()
    pool.close()
    port.close()
    memory.close()
    return spent_s / sent * 1e9


def send_ns(segment_bytes: int) -> float:
    """CPU time for each segment of a prepared chunk, posting, completions and the share of telling included."""
    return asyncio.run(_measure(segment_bytes))
