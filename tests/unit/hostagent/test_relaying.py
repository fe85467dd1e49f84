"""Relay links over real sockets, with a core that only listens: by which rail they go."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import cast

from hostagent.core import events
from hostagent.memory.pool_memory import PoolMemory
from hostagent.relaying import Relaying
from hostagent.transport.base import TransportCounters, Way
from hostagent.transport.host import HostTransport
from hostagent.transport.read_tokens import TokenBook
from kvproto.session.relay.relay_commands import TellParent
from kvproto.wire.relay_messages import Drop
from tests.unit.hostagent.agent_harness import MIB


class TwoRails:
    """To one peer; the first one is used as long as it is not left."""

    def __init__(self, *ways: Way) -> None:
        self.ways = list(ways)
        self.counters = TransportCounters()

    def way_to(self, endpoint: str) -> Way:
        assert endpoint == "peer"
        return self.ways[0]


def test_a_link_by_a_rail_that_is_left_ends_and_the_next_one_goes_by_another() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as stack:
            made = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
            ways = [Way(f"127.0.0.1:{one.getsockname()[1]}", "127.0.0.1") for one in made]
            rails, heard = TwoRails(*ways), list[events.Event]()
            memory = PoolMemory(MIB, prefault=False)
            stack.callback(memory.close)
            relaying = Relaying(
                loop,
                heard.append,
                cast("HostTransport", rails),
                memory,
                TokenBook(demands=False),
                lambda *_: None,
            )
            stack.callback(relaying.close)
            tell = TellParent("peer", Drop(1))
            carry = relaying.carriers()[TellParent]
            for one in made:
                one.setblocking(False)
            carry(tell)
            first, _ = await loop.sock_accept(made[0])
            stack.callback(first.close)
            relaying.way_left("peer", ways[1])
            relaying.way_left("another", ways[0])
            await asyncio.sleep(0)
            assert heard == [], "no link goes there"
            del rails.ways[0]
            relaying.way_left("peer", ways[0])
            await asyncio.sleep(0)  # what happens in one turn is told together
            assert heard == [events.RelaysHappened((events.RelayHeard("peer", lost=True),))]
            carry(tell)
            second, _ = await loop.sock_accept(made[1])
            stack.callback(second.close)
            assert await loop.sock_recv(second, 64)

    asyncio.run(asyncio.wait_for(work(), 20))
