"""One agent's stream, seen from the loop: messages wait in an outbox until gRPC takes them."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from controlplane.core.limits import OUTBOX_MESSAGES_MAX
from controlplane.rpc.peers import Peer
from kvproto.rpc import control_pb2 as rpc


@dataclass(frozen=True, slots=True)
class Closing:
    """The stream ends with this gRPC status name."""

    code: str
    reason: str


class AgentStream:
    """Outbox of one session. An agent that does not read is cut off rather than remembered for."""

    def __init__(self, session: int, peer: Peer) -> None:
        self.session = session
        self.peer = peer
        self.ready = False
        """Hello was taken: it gets what everybody gets."""
        self._outbox: deque[rpc.ToAgent] = deque()
        self._closing: Closing | None = None
        self._wake = asyncio.Event()

    def send(self, message: rpc.ToAgent) -> None:
        """Queue a message; the stream is closed when too many wait."""
        if self._closing is not None:
            return
        if len(self._outbox) >= OUTBOX_MESSAGES_MAX:
            self._outbox.clear()
            self.close(Closing("RESOURCE_EXHAUSTED", f"{OUTBOX_MESSAGES_MAX} messages wait: read faster, attach again"))
            return
        self._outbox.append(message)
        self._wake.set()

    def close(self, closing: Closing) -> None:
        """What waits is still sent first."""
        self.ready = False
        self._closing = self._closing or closing
        self._wake.set()

    async def next(self) -> rpc.ToAgent | Closing:
        """The next message to send, or the end of the stream."""
        while not self._outbox:
            if self._closing is not None:
                return self._closing
            self._wake.clear()
            await self._wake.wait()
        return self._outbox.popleft()
