"""Control datagrams from a socket to a sink: together, in order, not too many at once, and without what is wrong."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

from hostagent import limits
from hostagent.transport.base import ControlArrival, TransportCounters
from hostagent.transport.control_intake import ControlIntake
from kvchunk.ids import ChunkKey
from kvproto.ids import parse_address
from kvproto.wire.control import Control, Op

OWN, OTHER = "127.90.0.1", "127.90.0.2"


class Sink:
    """Keeps what came together."""

    def __init__(self) -> None:
        self.batches: list[list[ControlArrival]] = []

    def controls_received(self, arrivals: Sequence[ControlArrival]) -> None:
        self.batches.append(list(arrivals))


def message(number: int) -> Control:
    return Control(Op.JOIN, ChunkKey(number.to_bytes(16, "big")), 1)


def test_what_came_is_told_in_order_and_the_rest_after_a_turn() -> None:
    async def main() -> None:
        sink, counters, count = Sink(), TransportCounters(), limits.CONTROL_BATCH_DATAGRAMS + 5
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other,
        ):
            own.bind((OWN, 0))
            own.setblocking(False)
            other.bind((OTHER, 0))
            own.sendto(message(0).encode(), own.getsockname())
            other.sendto(b"no message", own.getsockname())
            other.sendto(message(0).encode() + b"and more", own.getsockname())
            for number in range(count):
                other.sendto(message(number).encode(), own.getsockname())
            intake = ControlIntake(own, asyncio.get_running_loop(), sink, counters, parse_address(OWN))  # type: ignore[arg-type]
            async with asyncio.timeout(10):
                while counters.control_received < count:
                    await asyncio.sleep(0)
            intake.close()
            other.sendto(message(0).encode(), own.getsockname())
            await asyncio.sleep(0)
        arrived = [arrival for batch in sink.batches for arrival in batch]
        assert [arrival.message for arrival in arrived] == [message(number) for number in range(count)]
        assert {arrival.source for arrival in arrived} == {parse_address(OTHER)}
        assert len(sink.batches) == 2
        assert counters.dropped.pop("own_control") == 1
        assert sum(counters.dropped.values()) == 2, counters.dropped

    asyncio.run(main())
