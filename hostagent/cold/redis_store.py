"""A cold store in one Redis, by a client of our own: what is read goes from the socket into the given buffers.

Objects have the names that opendal gives them, so agents with either client read what the other one wrote.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from hostagent.cold.cold_options import ColdConfig
from hostagent.cold.credentials import one_line
from hostagent.cold.resp import ReplyKind, ReplyReader, RespError, packed_head
from hostagent.cold.stores import ColdStoreError

PORT: Final = 6379
IDLE_MAX: Final = 16
"""Connections that are kept for the next operation."""
_ENDPOINT: Final = re.compile(r"tcp://(?P<host>[^/:@\[\]]+|\[[0-9a-fA-F:.]+\])(?::(?P<port>[0-9]{1,5}))?/?")
_OPTIONS: Final = frozenset({"endpoint", "root", "db", "username"})
_SECRETS: Final = frozenset({"password"})


@dataclass(frozen=True, slots=True)
class RedisPlace:
    """One server, a database of it, and what stands before each name. Its `repr` has no password."""

    host: str = "127.0.0.1"
    port: int = PORT
    db: int = 0
    prefix: str = ""
    username: str = ""
    password: str = field(default="", repr=False)


def redis_place(config: ColdConfig, secrets: Mapping[str, str]) -> RedisPlace | None:
    """Where a configuration leads, `secrets` being the values of its credentials.

    None: it asks for more than one server, a password and a database, which is opendal's business.
    """
    options = config.options
    endpoint = _ENDPOINT.fullmatch(options.get("endpoint", f"tcp://127.0.0.1:{PORT}"))
    if config.scheme != "redis" or not set(options) <= _OPTIONS or not set(secrets) <= _SECRETS or endpoint is None:
        return None
    port, db = int(endpoint["port"] or PORT), options.get("db", "0")
    if not 0 < port < 1 << 16 or not (db.isascii() and db.isdigit()) or ("username" in options and not secrets):
        return None
    folders = [part for part in options.get("root", "").split("/") if part]
    prefix = "".join(f"{part}/" for part in folders)
    host = endpoint["host"].strip("[]")
    return RedisPlace(host, port, int(db), prefix, options.get("username", ""), secrets.get("password", ""))


class RedisStore:
    """See `ColdStore`. One operation at a time on each connection; what was cancelled takes its connection along."""

    def __init__(self, place: RedisPlace) -> None:
        """Nothing is asked of the server yet."""
        self._place = place
        self._idle: list[socket.socket] = []

    def __repr__(self) -> str:
        return f"RedisStore({self._place.host}:{self._place.port})"

    async def put(self, name: str, content: bytes) -> None:
        """See `ColdStore`."""
        head = packed_head(b"SET", self._key(name), body_bytes=len(content))
        await self._ask((head, content, b"\r\n"), ReplyKind.TEXT)

    async def get_into(self, name: str, buffers: Sequence[memoryview]) -> bool | None:
        """See `ColdStore`."""
        size_bytes = sum(map(len, buffers))
        # A range ends with its last byte; of a key that is not there it is empty.
        last = b"%d" % max(0, size_bytes - 1)
        reply = await self._ask((packed_head(b"GETRANGE", self._key(name), b"0", last),), ReplyKind.BODY, buffers)
        if reply.number == size_bytes:
            return True
        return False if reply.number > 0 or await self.exists(name) else None

    async def exists(self, name: str) -> bool:
        """See `ColdStore`."""
        reply = await self._ask((packed_head(b"EXISTS", self._key(name)),), ReplyKind.NUMBER)
        return reply.number > 0

    async def delete(self, name: str) -> None:
        """See `ColdStore`."""
        await self._ask((packed_head(b"UNLINK", self._key(name)),), ReplyKind.NUMBER)

    async def close(self) -> None:
        """See `ColdStore`."""
        while self._idle:
            self._idle.pop().close()

    # ------------------------------------------------------------------ connections

    def _key(self, name: str) -> bytes:
        return f"{self._place.prefix}{name}".encode()

    async def _ask(
        self, parts: Sequence[bytes], expected: ReplyKind, buffers: Sequence[memoryview] = ()
    ) -> ReplyReader:
        """One request and its reply. Raises ColdStoreError."""
        while True:
            kept = bool(self._idle)
            try:
                connection = self._idle.pop() if kept else await self._connected()
                return await self._ask_on(connection, parts, expected, buffers)
            except OSError as error:
                # The server may have ended a connection that nobody used for a while; the others are no better.
                await self.close()
                if not kept:
                    raise ColdStoreError(self._line(error.strerror or str(error))) from None
            except RespError as error:
                raise ColdStoreError(self._line(f"not an answer of Redis: {error}")) from None

    async def _ask_on(
        self, connection: socket.socket, parts: Sequence[bytes], expected: ReplyKind, buffers: Sequence[memoryview]
    ) -> ReplyReader:
        """The connection is kept when the reply was whole, and closed however else this ends."""
        done = False
        try:
            reply = await _exchange(connection, parts, buffers)
            done = True
        finally:
            if done and len(self._idle) < IDLE_MAX:
                self._idle.append(connection)
            else:
                connection.close()
        if reply.kind is ReplyKind.ERROR:
            raise ColdStoreError(self._line(reply.text))
        if reply.kind is not expected:
            raise RespError(f"{expected.name.lower()} was to come, {reply.kind and reply.kind.name.lower()} came")
        return reply

    async def _connected(self) -> socket.socket:
        """A new connection, logged in. Raises OSError, RespError, ColdStoreError."""
        place, loop = self._place, asyncio.get_running_loop()
        (family, kind, protocol, _, address), *_ = await loop.getaddrinfo(
            place.host, place.port, type=socket.SOCK_STREAM
        )
        connection = socket.socket(family, kind, protocol)
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(connection, address)
            for words in self._greeting():
                reply = await _exchange(connection, (packed_head(*words),), ())
                if reply.kind is not ReplyKind.TEXT:
                    raise ColdStoreError(self._line(reply.text or "not an answer of Redis"))
        except BaseException:
            connection.close()
            raise
        return connection

    def _greeting(self) -> list[list[bytes]]:
        place = self._place
        greeting = []
        if place.password:
            names = [place.username.encode()] if place.username else []
            greeting.append([b"AUTH", *names, place.password.encode()])
        if place.db:
            greeting.append([b"SELECT", b"%d" % place.db])
        return greeting

    def _line(self, text: str) -> str:
        return one_line(text, (self._place.password,))


async def _exchange(connection: socket.socket, parts: Sequence[bytes], buffers: Sequence[memoryview]) -> ReplyReader:
    """Raises OSError (ConnectionError at the end of the stream), RespError."""
    loop = asyncio.get_running_loop()
    for part in parts:
        await loop.sock_sendall(connection, part)
    reply = ReplyReader(buffers)
    while True:
        count = await loop.sock_recv_into(connection, reply.room())
        if not count:
            raise ConnectionResetError("the server ended the connection")
        if reply.came(count):
            return reply
