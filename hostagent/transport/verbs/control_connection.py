"""The TCP connection to a peer's read endpoint, which sets up one-sided reads: requests out, whole answers in."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

from hostagent import limits
from hostagent.transport.base import TransportCounters
from hostagent.transport.read_protocol import (
    ANSWER,
    MAGIC,
    STATUS_OK,
    VERSION,
    load_of,
    number_with,
    pack_request,
    pack_tokens,
    watch_peer,
)
from hostagent.transport.read_tokens import REFUSALS, Refusal, TokenBook, refused_words
from kvpolicy.tiers.holder_load import HolderLoad

ANSWER_BODY_BYTES_MAX = 64

Answered = Callable[[int, bytes], None]
"""Called with status and body of an answer. Raises ValueError for one that makes no sense."""


class ControlOwner(Protocol):
    """The owner of a connection, called when its state changes."""

    def connected(self) -> None:
        """The peer accepted the connection."""

    def close(self) -> None:
        """It could not be made, ended, was refused, or made no sense. Called once, never inside a call."""

    def holder_told(self, load: HolderLoad) -> None:
        """The peer says, with an answer, what it has queued for others."""


class ControlConnection(asyncio.Protocol):
    """Requests are answered in order; each has a continuation."""

    def __init__(
        self,
        endpoint: str,
        own_address: str,
        loop: asyncio.AbstractEventLoop,
        owner: ControlOwner,
        counters: TransportCounters,
        tokens: TokenBook | None,
    ) -> None:
        """`own_address`: on the data network, so that control traffic takes the same way as the data; `tokens`: what is
        shown to the peer."""
        self._counters = counters
        self._tokens = tokens
        self._shown = b""
        self._endpoint = endpoint
        self._own_address = own_address
        self._loop = loop
        self._owner: ControlOwner | None = owner
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[tuple[int, Answered]] = deque()
        self._received = bytearray()
        self._request = 0
        self._connecting = loop.create_task(self._connect())

    def ask(self, kind: int, body: bytes, answered: Answered, wanted_bytes: int = 0) -> int:
        """Send a request; returns its number. Only once connected. `wanted_bytes`: see `ReadRequest`."""
        self._request += 1
        request = self.tell(kind, body, number_with(self._request, wanted_bytes))
        self._waiting.append((request, answered))
        return request

    def tell(self, kind: int, body: bytes, request: int) -> int:
        """Send a request that is not answered (or whose answer `ask` waits for)."""
        if self._transport is None:
            raise RuntimeError("not connected")
        if self._tokens is not None and self._tokens.shown != self._shown:
            self._shown = self._tokens.shown
            self._transport.write(pack_tokens(self._shown))
        self._transport.write(pack_request(kind, request, body))
        return request

    def close(self) -> None:
        """End it without a word to the owner. Idempotent."""
        self._owner = None
        self._connecting.cancel()
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------------ from asyncio

    async def _connect(self) -> None:
        host, _, port = self._endpoint.rpartition(":")
        try:
            async with asyncio.timeout(limits.READ_CONNECT_TIMEOUT_S):
                await self._loop.create_connection(lambda: self, host, int(port), local_addr=(self._own_address, 0))
        except (OSError, ValueError, OverflowError):
            # TimeoutError is an OSError.
            self._connection_ended()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        transport = cast("asyncio.Transport", transport)  # other loops' inherit from nothing
        if self._owner is None:
            transport.abort()
            return
        self._transport = transport
        sock: socket.socket = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        watch_peer(sock)
        self._owner.connected()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._received += data
        try:
            while self._owner is not None and self._take_answer():
                pass
        except ValueError:
            if self._owner is not None:
                self._counters.drop("read_answer_malformed")
            self._connection_ended()

    def connection_lost(self, _error: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._connection_ended()

    def _take_answer(self) -> bool:
        if len(self._received) < ANSWER.size:
            return False
        magic, version, status, load, request, body_bytes = ANSWER.unpack_from(self._received)
        if magic != MAGIC or version != VERSION or body_bytes > ANSWER_BODY_BYTES_MAX:
            raise ValueError("not an answer")
        if not self._waiting or self._waiting[0][0] != request or (status != STATUS_OK and body_bytes):
            raise ValueError("an answer to nothing")
        end = ANSWER.size + body_bytes
        if len(self._received) < end:
            return False
        body = bytes(self._received[ANSWER.size : end])
        del self._received[:end]
        if status in REFUSALS:
            refusal, host = Refusal(status), self._endpoint.rpartition(":")[0]
            self._counters.refuse(f"read_refused_{refusal.name.lower()}", host, refused_words(refusal))
            self._connection_ended()
            return False
        if self._owner is not None:
            self._owner.holder_told(load_of(load))
        self._waiting.popleft()[1](status, body)
        return True

    def _connection_ended(self) -> None:
        owner, self._owner = self._owner, None
        if self._transport is not None:
            self._transport.abort()
        if owner is not None:
            owner.close()
