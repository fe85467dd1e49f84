"""The TCP connection to a peer's read endpoint, for what sets one-sided reads up: requests out, whole answers in."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Protocol

from hostagent import limits
from hostagent.transport.read_protocol import ANSWER, MAGIC, STATUS_OK, VERSION, pack_request, watch_peer

ANSWER_BODY_BYTES_MAX = 64

Answered = Callable[[int, bytes], None]
"""Hears status and body of an answer. Raises ValueError for one that makes no sense."""


class ControlOwner(Protocol):
    """Who hears of a connection."""

    def connected(self) -> None: ...
    def disconnected(self) -> None:
        """It could not be made, ended, or made no sense. Told once, never inside a call, not after `close`."""
        ...

    def control_malformed(self) -> None:
        """The peer answered nonsense; `disconnected` follows."""
        ...


class ControlConnection(asyncio.Protocol):
    """Requests are answered in order; each has a continuation."""

    def __init__(self, endpoint: str, own_address: str, loop: asyncio.AbstractEventLoop, owner: ControlOwner) -> None:
        """`own_address`: on the data network; what goes along with the data takes the data's way."""
        self._endpoint = endpoint
        self._own_address = own_address
        self._loop = loop
        self._owner: ControlOwner | None = owner
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[tuple[int, Answered]] = deque()
        self._received = bytearray()
        self._request = 0
        self._connecting = loop.create_task(self._connect())

    def ask(self, kind: int, body: bytes, answered: Answered) -> int:
        """Send a request; returns its number. Only once connected."""
        request = self.tell(kind, body)
        self._waiting.append((request, answered))
        return request

    def tell(self, kind: int, body: bytes, request: int | None = None) -> int:
        """Send a request that is not answered (or whose answer `ask` waits for)."""
        if self._transport is None:
            raise RuntimeError("not connected")
        if request is None:
            self._request += 1
            request = self._request
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
            self._lost()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if self._owner is None:
            transport.abort()
            return
        self._transport = transport
        sock: socket.socket = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        watch_peer(sock)
        self._owner.connected()

    def data_received(self, data: bytes) -> None:
        self._received += data
        try:
            while self._owner is not None and self._take_answer():
                pass
        except ValueError:
            if self._owner is not None:
                self._owner.control_malformed()
            self._lost()

    def connection_lost(self, _error: Exception | None) -> None:
        self._lost()

    def _take_answer(self) -> bool:
        if len(self._received) < ANSWER.size:
            return False
        magic, version, status, zero, request, body_bytes = ANSWER.unpack_from(self._received)
        if magic != MAGIC or version != VERSION or zero or body_bytes > ANSWER_BODY_BYTES_MAX:
            raise ValueError("not an answer")
        if not self._waiting or self._waiting[0][0] != request or (status != STATUS_OK and body_bytes):
            raise ValueError("an answer to nothing")
        end = ANSWER.size + body_bytes
        if len(self._received) < end:
            return False
        body = bytes(self._received[ANSWER.size : end])
        del self._received[:end]
        self._waiting.popleft()[1](status, body)
        return True

    def _lost(self) -> None:
        owner, self._owner = self._owner, None
        if self._transport is not None:
            self._transport.abort()
        if owner is not None:
            owner.disconnected()
