"""Runs inside a guest (see test_transport.py): which RDMA port and memory a transport takes, and why it takes none."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from hostagent.config import DataConfig
from hostagent.memory.pool_memory import HUGE_PAGE_BYTES, HugePages, PoolMemory
from hostagent.transport import make_transport
from hostagent.transport.base import ReadOutcome, TransportError
from hostagent.transport.verbs.transport import VerbsTransport
from kvproto.wire.data import Fabric
from tests.contracts.transport import harness
from tests.roce.rdma_pair import (
    ADDRESSES,
    KEY,
    SEGMENT,
    content,
)


def test_memory_that_may_not_be_locked_is_a_clear_error() -> None:
    code = """
import asyncio, sys
from hostagent.config import DataConfig
from hostagent.memory.pool_memory import PoolMemory
from hostagent.transport.base import TransportError
from hostagent.transport.verbs import abi
from hostagent.transport.verbs.device import RdmaPort, VerbsError
from hostagent.transport.verbs.connections import PoolAccess
from hostagent.transport.verbs.queues import CompletionQueue, Completions, QueuePair
from hostagent.transport.verbs.transport import VerbsTransport
from kvproto.wire.data import Fabric
memory = PoolMemory(8 << 20, prefault=False)
transport = VerbsTransport(DataConfig(transport="verbs", address=sys.argv[1], read_port=0), memory)
try:
    asyncio.run(transport.start(None, Fabric(segment_bytes=1024)))
except TransportError as error:
    print(error)
"""
    argv = [
        "setpriv",
        "--bounding-set",
        "-ipc_lock",
        "--inh-caps",
        "-ipc_lock",
        sys.executable,
        "-c",
        code,
        ADDRESSES[0],
    ]
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 20, 1 << 20)),
    )
    assert "the pool (pool.size)" in done.stdout, done.stderr
    assert "raise the limit of locked memory" in done.stdout


def test_verbs_where_there_is_no_such_device_says_so() -> None:
    async def main() -> None:
        transport = VerbsTransport(
            DataConfig(transport="verbs", address=ADDRESSES[0], rdma_device="mlx5_9", read_port=0),
            PoolMemory(1 << 20, prefault=False),
        )
        with pytest.raises(TransportError, match="no RDMA device mlx5_9"):
            await transport.start(harness.RecordingSink(), Fabric(segment_bytes=SEGMENT))

    asyncio.run(main())


def test_auto_takes_the_rdma_that_is_there() -> None:
    async def main() -> None:
        config = DataConfig(transport="auto", address=ADDRESSES[0], read_port=0)
        transport = make_transport(config, PoolMemory(1 << 20, prefault=False))
        facts = await transport.start(harness.RecordingSink(), Fabric(segment_bytes=SEGMENT))
        assert facts.rdma_mtu_bytes == 4096
        await transport.close()

    asyncio.run(main())


def test_a_pool_of_huge_pages_is_read_by_everybody() -> None:
    Path("/proc/sys/vm/nr_hugepages").write_text("8")
    memory = PoolMemory(2 * HUGE_PAGE_BYTES, prefault=True, huge_pages=HugePages.IF_FREE)
    if not memory.huge_pages:
        pytest.skip("this kernel has no huge page to spare")

    async def main() -> None:
        sinks = [harness.RecordingSink(), harness.RecordingSink()]
        memories = [memory, PoolMemory(2 << 20, prefault=False)]
        nodes = []
        for address, each, sink in zip(ADDRESSES, memories, sinks, strict=True):
            transport = VerbsTransport(DataConfig(transport="verbs", address=address, read_port=0), each)
            facts = await transport.start(sink, Fabric(segment_bytes=SEGMENT))
            nodes.append(harness.Node(transport, each, sink, facts))
        chunk = content(50_000)
        place = nodes[0].hold(KEY, chunk)
        assert await nodes[1].read(nodes[0], KEY, 0, 50_000, 0) is ReadOutcome.DONE
        assert bytes(memories[1].view(0, 50_000)) == chunk
        nodes[1].expect(KEY, len(chunk), SEGMENT)
        nodes[0].transport.casts.cast(place, 0, 4)
        await sinks[1].until(lambda: len(sinks[1].casts.get(KEY, {})) == 4)
        for node in nodes:
            await node.transport.close()

    try:
        asyncio.run(main())
    finally:
        memory.close()
        Path("/proc/sys/vm/nr_hugepages").write_text("0")
