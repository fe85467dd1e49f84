"""What a node sent itself is not listened to; what it filled into the switch and the switch sends back is."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from hostagent.transport.base import ControlArrival, TransportCounters
from hostagent.transport.casts import CastIntake
from kvchunk.ids import ChunkKey
from kvproto.ids import parse_address
from kvproto.wire.data import ChunkFraming, Fabric, SegmentGroup

OWN = "127.90.0.1"
DSCP = 0x15
FABRIC = Fabric(segment_bytes=256, from_switch_dscp=DSCP)
BODY = bytes(range(256)) * 2


class Sink:
    """Counts segments."""

    def __init__(self) -> None:
        self.segments: list[int] = []

    def controls_received(self, arrivals: Sequence[ControlArrival]) -> None:
        raise AssertionError("no control was sent")

    def casts_received(self, group: SegmentGroup, payload: npt.NDArray[np.uint8]) -> None:
        self.segments += group.segments.tolist()

    def cast_patience_s(self) -> float:
        return 0.0

    def segments_sent(self, key: ChunkKey, count: int) -> None: ...
    def segments_failed(self, key: ChunkKey, count: int) -> None: ...
    def fill_sent(self, key: ChunkKey, count: int) -> None: ...
    def casts_queued_bytes(self) -> int:
        return 0

    def open_extent(self, key: ChunkKey) -> None: ...
    def close_extent(self, extent: object) -> None: ...


@pytest.mark.parametrize(("dscp", "taken"), [(DSCP, [0, 1]), (0, [])], ids=["from the switch", "its own"])
def test_own_address(dscp: int, taken: list[int]) -> None:
    async def scenario() -> None:
        sink, counters = Sink(), TransportCounters()
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        ):
            sender.bind((OWN, 0))
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
            receiver.bind(("127.90.0.2", 0))
            receiver.setblocking(False)
            receiver.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
            own = parse_address(OWN)
            intake = CastIntake(receiver, asyncio.get_running_loop(), sink, counters, FABRIC, own)
            framing = ChunkFraming(ChunkKey(b"k" * 16), memoryview(BODY), FABRIC, own, sender.getsockname()[1])
            for segment in range(framing.segments):
                sender.sendto(framing.datagram(segment), receiver.getsockname())
            async with asyncio.timeout(10):
                while len(sink.segments) + counters.dropped.get("own_cast", 0) < framing.segments:
                    await asyncio.sleep(0)
            intake.close()
        assert sink.segments == taken
        assert counters.dropped == ({} if taken else {"own_cast": 2})

    asyncio.run(scenario())
