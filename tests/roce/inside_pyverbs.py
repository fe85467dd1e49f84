"""Runs inside a guest (see test_transport.py): pyverbs, rdma-core's own Python, is the second implementation. What our
calls of verbs say of a port and let be read, it finds the same; what it casts, we take. It cannot attach to a group, so
what we cast is compared on the wire (`inside_packets`)."""

from __future__ import annotations

import numpy as np

from bmv2_testbed.bench.rdma.minimal import PyverbsPort, load_pyverbs
from hostagent.transport.base import Extent, TransportCounters
from hostagent.transport.read_protocol import QueuePairEnd
from hostagent.transport.verbs.connections import PoolAccess
from hostagent.transport.verbs.device import RdmaPort
from hostagent.transport.verbs.queues import CompletionChannel, CompletionQueue
from kvproto.ids import format_address
from kvproto.wire.data import ChunkFraming, Fabric
from tests.roce.rdma_pair import ADDRESSES, KEY, SEGMENT, content, play

FABRIC = Fabric(segment_bytes=SEGMENT)


def messages(chunk: bytes, address: int, source_port: int) -> list[bytes]:
    """A chunk's casts as verbs carries them: no BTH and DETH before, no ICRC behind."""
    framing = ChunkFraming(KEY, memoryview(chunk), FABRIC, address, source_port)
    return [bytes(framing.datagram(number)[20:-4]) for number in range(-(-len(chunk) // SEGMENT))]


def test_a_port_is_what_pyverbs_finds() -> None:
    theirs = PyverbsPort(load_pyverbs(), "rxe0")
    device, port = theirs.context.query_device(), theirs.context.query_port(1)
    ours = RdmaPort.open(ADDRESSES[0])
    try:
        facts = ours.facts
        assert (facts.device, facts.port, facts.gid_index) == ("rxe0", 1, theirs.index)
        assert facts.gid.hex() == str(theirs.context.query_gid(1, theirs.index).gid).replace(":", "")
        assert facts.mtu_bytes == 128 << port.active_mtu
        assert facts.reads_in_flight == min(device.max_qp_rd_atom, device.max_qp_init_rd_atom)
        assert (facts.queue_entries_max, facts.completions_max) == (device.max_qp_wr, device.max_cqe)
        assert facts.multicast == (device.max_mcast_grp > 0)
    finally:
        ours.close()


def test_a_message_of_pyverbs_is_a_segment_like_ours() -> None:
    modules = load_pyverbs()

    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        chunk = content(SEGMENT)
        (message,) = messages(chunk, one.facts.address, 1)
        port = PyverbsPort(modules, "rxe0")
        pair, queue = port.datagrams(4, FABRIC.qkey)
        region, wr = port.memory(len(message)), modules["wr"]
        region.write(message, len(message))
        handle = modules["addr"].AH(port.domain, attr=port.route(format_address(FABRIC.group)))
        request = wr.SendWR(num_sge=1, sg=[wr.SGE(region.buf, len(message), region.lkey)])
        request.set_wr_ud(handle, 0xFFFFFF, FABRIC.qkey)
        two.expect(KEY, len(chunk), SEGMENT)
        pair.post_send(request)
        await two.sink.until(lambda: 0 in two.sink.casts.get(KEY, {}))
        assert two.sink.casts[KEY][0] == chunk
        for thing in (handle, pair, queue, region, port.domain, port.context):
            thing.close()

    play(scenario)


def test_pyverbs_reads_what_our_pool_lets_it_read() -> None:
    modules = load_pyverbs()
    pool = np.frombuffer(bytearray(content(64 * 1024)), np.uint8)
    holder = RdmaPort.open(ADDRESSES[0])
    channel = CompletionChannel(holder)
    completions = CompletionQueue(holder, channel, 16, 16)
    access = PoolAccess(holder, completions, pool.ctypes.data, TransportCounters())
    reader = PyverbsPort(modules, "rxe1")
    pair, queue = reader.reliable()
    end = access.connect(QueuePairEnd(pair.qp_num, 0, holder.facts.mtu_bytes, 16, reader_gid(reader)))
    extent = access.where(1, Extent(4096, 32 * 1024, None))
    assert end is not None and extent is not None
    reader.connect(pair, ADDRESSES[0], end.number)
    memory, wr, enums = reader.memory(extent.size_bytes), modules["wr"], modules["enums"]

    def read(offset: int) -> int:
        element = wr.SGE(memory.buf, extent.size_bytes, memory.lkey)
        request = wr.SendWR(opcode=enums.IBV_WR_RDMA_READ, num_sge=1, sg=[element])
        request.set_wr_rdma(extent.rkey, extent.address + offset)
        pair.post_send(request)
        while True:
            _, done = queue.poll(1)
            if done:
                return int(done[0].status)

    try:
        assert read(0) == enums.IBV_WC_SUCCESS
        assert memory.read(extent.size_bytes, 0) == pool[4096 : 4096 + 32 * 1024].tobytes()
        assert read(4096) == enums.IBV_WC_REM_ACCESS_ERR, "beyond the chunk"
    finally:
        for thing in (pair, queue, memory, reader.domain, reader.context):
            thing.close()
        access.close()
        completions.close()
        channel.close()
        holder.close()


def reader_gid(port: PyverbsPort) -> bytes:
    """As ours."""
    return bytes.fromhex(str(port.context.query_gid(1, port.index).gid).replace(":", ""))
