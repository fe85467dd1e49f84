"""Whether the NIC reads into a device's memory, and how fast: the transport's own reads, from a registered pool through
a connection of the port with itself."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np

from bmv2_testbed.bench.idle_sink import IdleSink
from bmv2_testbed.bench.rdma.cuda import CudaMemory, load
from bmv2_testbed.bench.rdma.device_memory import DeviceMemory, DeviceMemoryError, HostMemory, UdmabufMemory
from bmv2_testbed.errors import TestbedError
from hostagent.config import DataConfig
from hostagent.memory.pool_memory import PoolMemory
from hostagent.native.library import datapath
from hostagent.transport.base import (
    Extent,
    ReadOutcome,
    ReadRequest,
    TransportCounters,
    TransportError,
)
from hostagent.transport.host import Host
from hostagent.transport.interfaces import interface_address
from hostagent.transport.verbs import abi
from hostagent.transport.verbs.device import MemoryRegion, RdmaPort, VerbsError
from hostagent.transport.verbs.reads import VerbsReads
from kvchunk.ids import ChunkKey
from kvproto.ids import parse_address

UDMABUF: Final = "udmabuf"
_KEY = ChunkKey(b"kvcast benchmark")
_SIZE_BYTES: Final = 16 << 20
_SECONDS: Final = 0.5
"""Reads are repeated for this time; each one runs to its end."""
_DEADLINE_S: Final = 60.0
TOPOLOGY: Final = (
    "put NIC and GPU behind one PCIe switch (nvidia-smi topo -m: PIX or PXB), without ACS on the bridges between them"
)
"""What helps where reads into a GPU's memory are much slower than into DRAM."""


@dataclass(frozen=True, slots=True)
class DeviceReads:
    """Rates of reads into a device's memory and, for comparison, into DRAM. Every byte was right."""

    memory: str
    bytes_per_s: float
    dram_bytes_per_s: float

    @property
    def ratio(self) -> float:
        return self.bytes_per_s / self.dram_bytes_per_s


def run_device_reads(data: DataConfig, gpu: str) -> DeviceReads:
    """`gpu`: its number, or `udmabuf`. Raises TestbedError, also for wrong bytes; its line names the remedy."""
    try:
        with _memory(gpu, _SIZE_BYTES) as memory:
            return device_reads(data, memory)
    except DeviceMemoryError as error:
        raise TestbedError(f"{error}: {error.remedy}") from error


@contextmanager
def _memory(gpu: str, size_bytes: int) -> Iterator[DeviceMemory]:
    memory = UdmabufMemory(size_bytes) if gpu == UDMABUF else CudaMemory(load(), int(gpu), size_bytes)
    try:
        yield memory
    finally:
        memory.close()


def device_reads(data: DataConfig, memory: DeviceMemory) -> DeviceReads:
    """Read into this memory and into DRAM. Raises TestbedError."""
    dram = HostMemory(memory.size_bytes)
    try:
        port = RdmaPort.open(interface_address(data), data.rdma_device)
        try:
            there, here = (bytes_per_s(data, port, each) for each in (memory, dram))
        finally:
            port.close()
    except (VerbsError, TransportError) as error:
        raise TestbedError(f"no reads into {memory.name}: {error}") from error
    finally:
        dram.close()
    return DeviceReads(memory.name, there, here)


def bytes_per_s(data: DataConfig, port: RdmaPort, memory: DeviceMemory) -> float:
    """Rate of reads into this memory, the connection's beginning left out. Raises VerbsError, also for wrong bytes."""
    size_bytes = memory.size_bytes
    with ExitStack() as undo:
        pool = PoolMemory(size_bytes, prefault=True)
        undo.callback(pool.close)
        pool.bytes_[:] = np.random.default_rng().integers(0, 256, size_bytes, np.uint8)
        access = abi.ACCESS_LOCAL_WRITE | abi.ACCESS_REMOTE_READ
        region = port.register(pool.bytes_.ctypes.data, size_bytes, access, "the pattern")
        undo.callback(region.close)
        target = memory.register(port)
        undo.callback(target.close)
        memory.clear()
        rate = asyncio.run(_read(data, port, pool, region, target))
        wrong = int(np.count_nonzero(memory.content() != pool.bytes_))
    if wrong:
        raise VerbsError(f"{wrong} of {size_bytes} bytes in {memory.name} are wrong after reads that reported success")
    return rate


async def _read(
    data: DataConfig, port: RdmaPort, pool: PoolMemory, region: MemoryRegion, target: MemoryRegion
) -> float:
    address, loop, counters = interface_address(data), asyncio.get_running_loop(), TransportCounters()
    # An agent may be running on this machine: set the connection up on any free port.
    config = dataclasses.replace(data, read_port=0)
    sink = IdleSink(Extent(0, pool.size_bytes, None))
    host = Host(config, pool, loop, sink, counters, address, parse_address(address), datapath())
    reads = VerbsReads(host, port, region, idle_s=_DEADLINE_S, target=target)
    try:
        endpoint = reads.listen()
        times_s = [loop.time()]
        async with asyncio.timeout(_DEADLINE_S):
            # The first one sets the connection up, the second finds what may be in flight.
            while len(times_s) < 4 or times_s[-1] - times_s[2] < _SECONDS:
                done: asyncio.Future[ReadOutcome] = loop.create_future()
                reads.read(ReadRequest(endpoint, _KEY, 0, pool.size_bytes, 0, done.set_result))
                if await done is not ReadOutcome.DONE:
                    why = ", ".join(sorted(counters.dropped)).replace("_", " ") or "the connection was not made"
                    raise VerbsError(f"a read failed: {why}")
                times_s.append(loop.time())
    except TimeoutError as error:
        raise VerbsError(f"reads were not done after {_DEADLINE_S:.0f} s") from error
    finally:
        reads.close()
        await asyncio.sleep(0)
    return (len(times_s) - 3) * pool.size_bytes / (times_s[-1] - times_s[2])
