"""Runs inside a guest (see test_transport.py): RDMA casts beside packets and programs of others."""

from __future__ import annotations

import contextlib
import socket

import numpy as np

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
