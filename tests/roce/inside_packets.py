"""Runs inside a guest (see test_transport.py): RDMA casts beside packets and programs of others."""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import sys

import numpy as np
import pytest

from kvproto.ids import format_address
from kvproto.wire.data import ChunkFraming, Fabric
from tests.reference_datagrams import decode_batch
from tests.roce.rdma_pair import (
    KEY,
    ROCE_PORT,
    SEGMENT,
    content,
    frame_of,
    play,
    wire,
)


def test_packets_of_a_sockets_holder_arrive_and_bad_ones_do_not() -> None:
    fabric = Fabric(segment_bytes=SEGMENT)

    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        chunk = content(5 * SEGMENT)
        framing = ChunkFraming(KEY, memoryview(chunk), fabric, one.facts.address, 40_000)
        foreign = Fabric(segment_bytes=SEGMENT, qkey=0x2222)
        other_key = ChunkFraming(KEY, memoryview(chunk), foreign, one.facts.address, 40_000)
        own = ChunkFraming(KEY, memoryview(chunk), fabric, two.facts.address, 40_000)
        corrupt = bytearray(framing.datagram(1))
        corrupt[-1] ^= 0x40
        damaged = bytearray(framing.datagram(2))
        damaged[100] ^= 1
        two.expect(KEY, len(chunk), SEGMENT)
        with wire("eth0") as cable:
            cable.send(frame_of(bytes(own.datagram(3)), two.facts.address, 40_000, fabric))
            for datagram in (framing.datagram(0), corrupt, damaged, other_key.datagram(3), framing.datagram(4)):
                cable.send(frame_of(bytes(datagram), one.facts.address, 40_000, fabric))
        await two.sink.until(lambda: 4 in two.sink.casts.get(KEY, {}))
        assert sorted(two.sink.casts[KEY]) == [0, 4]
        assert two.sink.casts[KEY][4] == chunk[4 * SEGMENT :]
        two.read_counters()
        assert two.transport.counters.dropped == {"cast_qkey": 1, "own_cast": 1}

    play(scenario)


def test_what_a_nic_sends_a_sockets_reader_decodes() -> None:
    fabric = Fabric(segment_bytes=SEGMENT)

    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        chunk = content(7 * SEGMENT - 9)
        place = one.hold(KEY, chunk)
        two.expect(KEY, len(chunk), SEGMENT)
        frames: list[bytes] = []
        with wire("eth1") as cable:
            one.transport.casts.cast(place, 0, 7)
            await two.sink.until(lambda: len(two.sink.casts.get(KEY, {})) == 7)
            with contextlib.suppress(BlockingIOError):
                while True:
                    frame, address = cable.recvfrom(65536)
                    if frame[36:38] == ROCE_PORT.to_bytes(2, "big") and address[2] != socket.PACKET_OUTGOING:
                        frames.append(frame)
        assert len(frames) == 7
        rows = np.frombuffer(b"".join(frame[42:] for frame in frames), np.uint8).reshape(7, -1).copy()
        lengths = np.full(7, rows.shape[1])
        sources = np.full(7, one.facts.address, np.uint32)
        ports = np.array([int.from_bytes(frame[34:36], "big") for frame in frames])
        batch = decode_batch(rows.copy(), lengths, sources, ports, fabric)
        assert not batch.dropped
        (group,) = batch.groups
        assert sorted(group.segments.tolist()) == list(range(7))
        rows[3, 200] ^= 1
        assert sum(decode_batch(rows, lengths, sources, ports, fabric).dropped.values()) == 1

    play(scenario)


def test_a_message_of_somebody_elses_program() -> None:
    """pyverbs stands for any other user of verbs: its UD send to the group is a segment like ours."""
    pytest.importorskip("numpy")
    sys.path.append("/usr/lib/python3/dist-packages")
    try:
        if importlib.util.find_spec("pyverbs") is None:
            pytest.skip("needs Debian's python3-pyverbs")
        from pyverbs import enums as e
        from pyverbs.addr import AH, GID, AHAttr, GlobalRoute
        from pyverbs.cq import CQ
        from pyverbs.device import Context
        from pyverbs.mr import MR
        from pyverbs.pd import PD
        from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
        from pyverbs.wr import SGE, SendWR
    except ImportError as error:
        pytest.skip(f"pyverbs does not load in this interpreter: {error}")
    finally:
        sys.path.remove("/usr/lib/python3/dist-packages")
    fabric = Fabric(segment_bytes=SEGMENT)

    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        chunk = content(SEGMENT)
        message = ChunkFraming(KEY, memoryview(chunk), fabric, one.facts.address, 1).datagram(0)[20:-4]
        context = Context(name="rxe0")
        domain = PD(context)
        queue = CQ(context, 4)
        attributes = QPAttr(qp_state=e.IBV_QPS_INIT, port_num=1)
        attributes.qkey = fabric.qkey
        init = QPInitAttr(qp_type=e.IBV_QPT_UD, scq=queue, rcq=queue, cap=QPCap(max_send_wr=4, max_recv_wr=1))
        pair = QP(domain, init, attributes)
        region = MR(domain, len(message), e.IBV_ACCESS_LOCAL_WRITE)
        region.write(message, len(message))
        octets = socket.inet_aton(format_address(fabric.group))
        gid = GID(f"0000:0000:0000:0000:0000:ffff:{octets[:2].hex()}:{octets[2:].hex()}")
        index = next(i for i in range(8) if "ffff" in str(context.query_gid(1, i)))
        route = GlobalRoute(dgid=gid, sgid_index=index, hop_limit=1)
        handle = AH(domain, attr=AHAttr(port_num=1, is_global=1, gr=route))
        request = SendWR(num_sge=1, sg=[SGE(region.buf, len(message), region.lkey)])
        request.set_wr_ud(handle, 0xFFFFFF, fabric.qkey)
        two.expect(KEY, len(chunk), SEGMENT)
        pair.post_send(request)
        await two.sink.until(lambda: 0 in two.sink.casts.get(KEY, {}))
        assert two.sink.casts[KEY][0] == chunk
        for thing in (handle, pair, queue, region, domain, context):
            thing.close()

    play(scenario)
