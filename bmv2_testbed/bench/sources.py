"""Where a reader gets the prefix from: the pool through its agent, or a peer. All speak the same small protocol."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from bmv2_testbed.content import Prefix
from bmv2_testbed.errors import TestbedError
from kvchunk.sources import ChunkSource
from kvclient.client import AgentClient, AgentError, AgentUnavailableError, FetchStream, Where

TCP_PEER_PORT = 5501
REDIS_PORT = 5502
_STREAM_LIMIT_BYTES = 1 << 20
_POLL_S = 0.01


class Source(Protocol):
    """One connection of one reader, made before the clock starts."""

    def fetch(self, prefix: Prefix) -> Iterator[tuple[int, memoryview]]:
        """Fetch the whole prefix; yields (chunk index, content) as chunks get whole. Views last until it goes on
        after the last one."""

    def origins(self) -> dict[str, int]:
        """Chunks by where they came from."""

    def close(self) -> None: ...


class _StreamSource:
    """A connection to a peer, and room for the prefix that is made once."""

    def __init__(self, host: str, port: int) -> None:
        self._connection = socket.create_connection((host, port))
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._fetched = 0
        self._buffer = bytearray()

    def _chunks(self, prefix: Prefix) -> list[memoryview]:
        """Where each chunk goes."""
        if len(self._buffer) < prefix.size_bytes:
            self._buffer = bytearray(prefix.size_bytes)
        view, size = memoryview(self._buffer), prefix.chunk_bytes
        return [view[index * size : index * size + prefix.chunk_size_bytes(index)] for index in range(prefix.chunks)]

    def close(self) -> None:
        self._connection.close()


class TcpSource(_StreamSource):
    """A plain TCP stream from a server that calls sendfile."""

    def __init__(self, host: str) -> None:
        super().__init__(host, TCP_PEER_PORT)

    def fetch(self, prefix: Prefix) -> Iterator[tuple[int, memoryview]]:
        chunks = self._chunks(prefix)
        self._connection.sendall(f"0 {prefix.size_bytes}\n".encode())
        for index, chunk in enumerate(chunks):
            receive_into(self._connection, chunk)
            self._fetched += 1
            yield index, chunk

    def origins(self) -> dict[str, int]:
        return {"tcp": self._fetched}


class RedisSource(_StreamSource):
    """GETs, pipelined, over one connection (RESP2: https://redis.io/docs/latest/develop/reference/protocol-spec/)."""

    def __init__(self, host: str) -> None:
        super().__init__(host, REDIS_PORT)

    def fetch(self, prefix: Prefix) -> Iterator[tuple[int, memoryview]]:
        chunks = self._chunks(prefix)
        self._connection.sendall(b"".join(redis_command(b"GET", key.hex().encode()) for key in prefix.chunk_keys()))
        for index, chunk in enumerate(chunks):
            size = self._bulk_size()
            if size != len(chunk):
                raise TestbedError(f"redis answered chunk {index} with {size} bytes")
            receive_into(self._connection, chunk)
            self._line()
            self._fetched += 1
            yield index, chunk

    def store(self, prefix: Prefix) -> None:
        """SET every chunk."""
        for key, content in zip(prefix.chunk_keys(), prefix.contents(), strict=True):
            self._connection.sendall(redis_command(b"SET", key.hex().encode(), content))
            if self._line() != b"+OK":
                raise TestbedError("redis refused a SET")

    def _bulk_size(self) -> int:
        line = self._line()
        if not line.startswith(b"$"):
            raise TestbedError(f"redis answered {line[:80]!r}")
        return int(line[1:])

    def _line(self) -> bytes:
        line = b""
        while not line.endswith(b"\r\n"):
            byte = self._connection.recv(1)
            if not byte:
                raise TestbedError("redis closed the connection")
            line += byte
        return line[:-2]

    def origins(self) -> dict[str, int]:
        return {"redis": self._fetched}


def redis_command(*words: bytes) -> bytes:
    """A command as an array of bulk strings."""
    parts = [f"*{len(words)}\r\n".encode()]
    for word in words:
        parts += [f"${len(word)}\r\n".encode(), word, b"\r\n"]
    return b"".join(parts)


def receive_into(connection: socket.socket, view: memoryview) -> None:
    """Fill `view` from a stream. Raises TestbedError if it ends before."""
    filled = 0
    while filled < len(view):
        count = connection.recv_into(view[filled : filled + _STREAM_LIMIT_BYTES])
        if count == 0:
            raise TestbedError("the stream ended early")
        filled += count


class PoolSource:
    """The pool, through the agent of this reader's own node."""

    def __init__(self, agent_socket: str, deadline_s: float, *, streams: bool = False, lone_gets: bool = True) -> None:
        """`streams`: take each chunk as soon as it is whole, as the peers' sources do; else all of them together.
        `lone_gets`: see `AgentClient`."""
        self._agent = AgentClient(agent_socket, lone_gets=lone_gets)
        self._deadline_s = deadline_s
        self._begin = self._agent.fetch_stream if streams else self._agent.fetch
        self._origins: Counter[ChunkSource] = Counter()

    def fetch(self, prefix: Prefix) -> Iterator[tuple[int, memoryview]]:
        keys = prefix.chunk_keys()
        try:
            with self._begin(keys, deadline_s=self._deadline_s) as got:
                yield from enumerate(got if isinstance(got, FetchStream) else got.views)
                self._origins.update(got.sources)
                if got.count != len(keys):
                    outcome = "none" if got.outcome is None else got.outcome.name.lower()
                    raise TestbedError(f"miss ({outcome}): {got.count} of {len(keys)} chunks arrived")
        except (AgentError, AgentUnavailableError) as error:
            raise TestbedError(f"the agent: {error}") from error

    def await_known(self, prefix: Prefix, timeout_s: float) -> None:
        """Wait until this node's replica of the directory has the whole prefix: agents announce in batches."""
        keys = prefix.awaited_keys()
        deadline_s = time.monotonic() + timeout_s
        while any(where is Where.NOWHERE for where in self._agent.contains(keys)):
            if time.monotonic() > deadline_s:
                raise TestbedError("the directory does not have the whole prefix")
            time.sleep(_POLL_S)

    def origins(self) -> dict[str, int]:
        return {source.name.lower(): count for source, count in self._origins.items()}

    def close(self) -> None:
        self._agent.close()
