"""What happens now, for everybody who watches: one look for all of them, by gRPC and as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Mapping

from google.protobuf.json_format import MessageToDict

from controlplane.core.live import Increments, Tables
from kvproto.rpc import control_pb2 as rpc

LOOK_S = 0.5


class LiveFeed:
    """Looks while somebody watches. Those who are slower than the looks get snapshots; nothing waits for them."""

    def __init__(self, look: Callable[[], tuple[Tables, rpc.StatusReply]], controller: int) -> None:
        """`look()`: how things are at this moment. `controller`: its incarnation."""
        self._look_at_things = look
        self._increments = Increments(controller)
        self._watching = 0
        self._looked = asyncio.Event()
        self._encoded: dict[bool, tuple[int, bytes]] = {}
        """The last snapshot and the last change as events, with their sequence."""

    async def run(self) -> None:
        """Look again and again; ends by cancellation only."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self._watching:
                self._look()

    async def follow(self) -> AsyncGenerator[rpc.LiveIncrement, None]:
        """A snapshot, then what changes, for as long as it is read."""
        self._watching += 1
        try:
            if self._watching == 1:
                self._look()
            increment = self._increments.snapshot()
            while True:
                yield increment
                while self._increments.sequence == increment.sequence:
                    await self._looked.wait()
                increment = self._increments.after(increment.sequence)
        finally:
            self._watching -= 1

    async def events(self, _query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        """The same as server-sent events, with the messages as JSON."""
        yield b"retry: 1000\n\n"
        async with contextlib.aclosing(self.follow()) as increments:
            async for increment in increments:
                yield self._event(increment)

    def _look(self) -> None:
        self._increments.look(*self._look_at_things())
        self._looked.set()
        self._looked = asyncio.Event()

    def _event(self, increment: rpc.LiveIncrement) -> bytes:
        sequence, event = self._encoded.get(increment.snapshot, (0, b""))
        if sequence != increment.sequence:
            facts = MessageToDict(increment, preserving_proto_field_name=True)
            event = b"data: " + json.dumps(facts, separators=(",", ":")).encode() + b"\n\n"
            self._encoded[increment.snapshot] = increment.sequence, event
        return event
