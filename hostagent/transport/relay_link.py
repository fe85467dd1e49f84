"""One end of a relay link: messages (`kvproto.wire.relay_messages`) over a TCP connection.

A link begins as a connection for reads, whose first request is RELAY; what follows goes both ways.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable
from typing import Final

from hostagent.transport.base import Way
from hostagent.transport.peer_connection import begin_connecting
from hostagent.transport.read_protocol import KIND_RELAY, pack_request, pack_tokens
from kvproto.errors import WireError
from kvproto.wire.relay_messages import Decoder, Message, encode

UNSENT_BYTES_MAX: Final = 8 << 20
"""Of a link whose other end takes in nothing; beyond it the link ends."""
_RECEIVED_BYTES: Final = 1 << 16
_NOTHING_NOW: Final = (errno.EAGAIN, errno.EINTR)


class RelayLink:
    """Owns the connection's events, and its end."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        told: Callable[[tuple[Message, ...]], None],
        lost: Callable[[str], None],
        *,
        connects: bool = False,
    ) -> None:
        """`told(messages)`: they came; `lost(why)`: the link has ended by itself, not by `close`; `connects`: it is
        still being made."""
        self._loop = loop
        self._sock = sock
        self._told = told
        self._lost = lost
        self._decoder = Decoder()
        self._unsent = bytearray()
        self._flushes = False
        self._writing = connects
        self._open = True
        if connects:
            loop.add_writer(sock.fileno(), self._connected)
        else:
            loop.add_reader(sock.fileno(), self._readable)

    def send(self, message: Message) -> None:
        """In order, soon."""
        self.send_bytes(encode(message))

    def send_bytes(self, packed: bytes) -> None:
        """The same of what is encoded already."""
        if not self._open:
            return
        self._unsent += packed
        if not self._flushes and not self._writing:
            self._flushes = True
            self._loop.call_soon(self._flush)

    def received(self, stream: bytes) -> None:
        """Bytes that came before the link had the connection, or by it."""
        try:
            messages = self._decoder.feed(stream)
        except WireError:
            self._end("relay_message_malformed")
            return
        if messages:
            self._told(tuple(messages))

    def close(self) -> None:
        """Nothing is told any more. Idempotent."""
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()

    def _end(self, why: str = "") -> None:
        if self._open:
            self.close()
            self._lost(why)

    def _connected(self) -> None:
        self._loop.remove_writer(self._sock.fileno())
        if self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._end()
            return
        self._writing = False
        self._loop.add_reader(self._sock.fileno(), self._readable)
        self._flush()

    def _readable(self) -> None:
        try:
            stream = self._sock.recv(_RECEIVED_BYTES)
        except OSError as error:
            if error.errno not in _NOTHING_NOW:
                self._end()
            return
        if stream:
            self.received(stream)
        else:
            self._end()

    def _flush(self) -> None:
        self._flushes = False
        if not self._open:
            return
        try:
            while self._unsent:
                del self._unsent[: self._sock.send(self._unsent)]
        except OSError as error:
            if error.errno not in _NOTHING_NOW:
                self._end()
                return
        if len(self._unsent) > UNSENT_BYTES_MAX:
            self._end("relay_link_stalled")
        elif bool(self._unsent) != self._writing:
            self._writing = bool(self._unsent)
            if self._writing:
                self._loop.add_writer(self._sock.fileno(), self._flush)
            else:
                self._loop.remove_writer(self._sock.fileno())


def connect(
    loop: asyncio.AbstractEventLoop,
    way: Way,
    shown: bytes,
    told: Callable[[tuple[Message, ...]], None],
    lost: Callable[[str], None],
) -> RelayLink | None:
    """A link to a peer, which `shown` tokens admit; None: it cannot be made."""
    sock, code = begin_connecting(way.endpoint, way.own_address)
    if code not in (0, errno.EINPROGRESS):
        with contextlib.suppress(OSError):
            sock.close()
        return None
    link = RelayLink(loop, sock, told, lost, connects=True)
    if shown:
        link.send_bytes(pack_tokens(shown))
    link.send_bytes(pack_request(KIND_RELAY, 0, bytes(32)))
    return link
