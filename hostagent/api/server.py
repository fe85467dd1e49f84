"""The agent's end of the local API: connections, what each of them holds, and the dispatch of its requests.

Owns the engines' leases, reservations and pins: all of a connection's are given back when it ends, however it ends.
Knows nothing of how chunks are found and moved: that is the `Backend`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import stat
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from hostagent import limits
from hostagent.api import messages
from hostagent.api.messages import ChunkSource, FetchedChunk, Frame, Hint, Kind, MalformedFrameError, Status, Where
from hostagent.listener import Listener
from hostagent.pool.chunks import Chunk, ChunkState, DropOutcome, Refusal
from kvproto.ids import ChunkKey

log = logging.getLogger(__name__)

_REFUSALS = {
    Refusal.EXISTS: Status.EXISTS,
    Refusal.FILLING: Status.FILLING,
    Refusal.FULL: Status.POOL_FULL,
    Refusal.TOO_LARGE: Status.TOO_LARGE,
}


class ApiError(Exception):
    """The API cannot be offered; one line that names the remedy."""


@dataclass(frozen=True, slots=True)
class FetchResult:
    """Leading chunks, each pinned once for whoever asked, and why it stopped there."""

    status: Status
    chunks: tuple[tuple[Chunk, ChunkSource], ...]


class Cancellable(Protocol):
    def cancel(self) -> None: ...


class Backend(Protocol):
    """What the agent does for engines. Callbacks come on the event loop, at once or later, exactly once."""

    def reserve(
        self, key: ChunkKey, parent: ChunkKey | None, size_bytes: int, position: int | None, namespace: str
    ) -> Chunk | Refusal: ...
    def commit(self, chunk: Chunk, done: Callable[[int], None]) -> None: ...
    def abort(self, chunk: Chunk) -> None: ...
    def fetch(
        self,
        keys: Sequence[ChunkKey],
        deadline_s: float,
        recompute_s: float | None,
        done: Callable[[FetchResult], None],
    ) -> Cancellable | None:
        """None when `done` was called already. After `cancel()` it is not called."""
        ...

    def where(self, key: ChunkKey) -> Where: ...
    def find(self, key: ChunkKey) -> Chunk | None: ...
    def unpin(self, chunk: Chunk) -> None: ...
    def hold(self, chunk: Chunk) -> None: ...
    def unhold(self, chunk: Chunk) -> None: ...
    def drop(self, key: ChunkKey) -> DropOutcome: ...
    def hint(self, keys: Sequence[ChunkKey], hint: Hint, within_ms: int) -> None: ...
    def stats(self) -> dict[str, float]: ...


class ApiServer:
    """Listens on a UNIX socket and serves engines."""

    def __init__(self, backend: Backend, pool_fd: int, pool_bytes: int, incarnation: int) -> None:
        self._backend = backend
        self._pool_fd = pool_fd
        self._welcome = messages.pack(Kind.WELCOME, 0, messages.WELCOME.pack(messages.VERSION, pool_bytes, incarnation))
        self._loop = asyncio.get_running_loop()
        self._listener: Listener | None = None
        self._path = ""
        self._connections: set[_Connection] = set()
        self._greeting: set[asyncio.Task[None]] = set()

    @property
    def connections_count(self) -> int:
        return len(self._connections)

    def listen(self, path: str) -> None:
        """Start. Raises ApiError when another agent is alive at the path or it cannot be made."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            _clear_stale(path)
            listener.bind(path)
            os.chmod(path, 0o660)
            listener.listen(limits.API_CONNECTIONS_MAX)
        except OSError as error:
            listener.close()
            raise ApiError(
                f"cannot listen at {path}: {error.strerror or error}; set api.socket to another path"
            ) from error
        except ApiError:
            listener.close()
            raise
        self._path = path
        self._listener = Listener(
            listener, self._loop, self._accept, lambda: log.warning("no descriptors left for another engine")
        )

    def close(self) -> None:
        """Stop listening and end all connections."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
        for connection in list(self._connections):
            connection.end()

    def _accept(self, sock: socket.socket) -> None:
        if len(self._connections) >= limits.API_CONNECTIONS_MAX:
            with contextlib.suppress(OSError):
                sock.send(messages.pack(Kind.STATS, 0, status=Status.BUSY), socket.MSG_DONTWAIT)
            sock.close()
            return
        try:
            # A fresh socket's buffer is empty: the greeting goes in whole.
            socket.send_fds(sock, [self._welcome], [self._pool_fd])
        except OSError:
            sock.close()
            return
        connection = _Connection(self._backend, self._connections.discard)
        self._connections.add(connection)
        task = self._loop.create_task(self._adopt(sock, connection))
        self._greeting.add(task)
        task.add_done_callback(self._greeting.discard)

    async def _adopt(self, sock: socket.socket, connection: _Connection) -> None:
        await self._loop.connect_accepted_socket(lambda: connection, sock)


def _clear_stale(path: str) -> None:
    """Remove the socket of an agent that is no more; refuse to take over that of a living one or another file."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ApiError(f"{path} exists and is no socket; set api.socket to another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            return
        except OSError as error:
            raise ApiError(f"{path} is in use: {error.strerror}; set api.socket to another path") from error
    raise ApiError(f"another agent is listening at {path}; stop it or set api.socket to another path")


class _Connection(asyncio.Protocol):
    """One engine: its open requests and all that it holds."""

    def __init__(self, backend: Backend, gone: Callable[[_Connection], None]) -> None:
        self._backend = backend
        self._gone = gone
        self._transport: asyncio.Transport | None = None
        self._frames = messages.FrameReader()
        self._lease = 0
        self._leases: dict[int, list[Chunk]] = {}
        self._reservations: dict[int, Chunk] = {}
        self._fetches: dict[int, Cancellable] = {}
        self._holds: dict[ChunkKey, list[Chunk]] = {}
        self._open = True

    # ------------------------------------------------------------------ connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._frames.feed(data):
                self._dispatch(frame)
        except (MalformedFrameError, struct.error) as error:
            log.warning("an engine's connection is closed: %s", error)
            self.end()

    def connection_lost(self, _exc: Exception | None) -> None:
        self._give_everything_back()

    def end(self) -> None:
        """Close; what the engine held is given back at once."""
        self._give_everything_back()
        if self._transport is not None:
            self._transport.abort()

    def _give_everything_back(self) -> None:
        if not self._open:
            return
        self._open = False
        for fetch in self._fetches.values():
            fetch.cancel()
        for chunks in self._leases.values():
            for chunk in chunks:
                self._backend.unpin(chunk)
        for chunk in self._reservations.values():
            self._backend.abort(chunk)
        for held in self._holds.values():
            for chunk in held:
                self._backend.unhold(chunk)
        self._fetches.clear()
        self._leases.clear()
        self._reservations.clear()
        self._holds.clear()
        self._gone(self)

    def _answer(self, frame: Frame, status: Status, body: bytes = b"", count: int = 0) -> None:
        if self._open and self._transport is not None:
            self._transport.write(messages.pack(Kind(frame.kind), frame.request, body, status=status, count=count))

    # ------------------------------------------------------------------ requests

    def _dispatch(self, frame: Frame) -> None:
        handler = _HANDLERS.get(frame.kind)
        if handler is None:
            raise MalformedFrameError(f"unknown kind {frame.kind}")
        if frame.count > limits.API_KEYS_MAX:
            if frame.kind not in messages.ONE_WAY:
                self._answer(frame, Status.TOO_MANY_KEYS)
            return
        handler(self, frame)

    def _next_lease(self) -> int:
        self._lease += 1
        return self._lease

    def _on_reserve(self, frame: Frame) -> None:
        key, parent, size_bytes, position = messages.RESERVE.unpack_from(frame.body)
        label = frame.body[messages.RESERVE.size :]
        if not 0 < size_bytes <= limits.CHUNK_BYTES_MAX or len(label) > limits.API_NAMESPACE_BYTES_MAX:
            self._answer(frame, Status.MALFORMED)
            return
        if len(self._reservations) >= limits.API_REQUESTS_IN_FLIGHT_MAX:
            self._answer(frame, Status.BUSY)
            return
        try:
            namespace = label.decode()
        except UnicodeDecodeError as error:
            raise MalformedFrameError("a namespace label is not UTF-8") from error
        made = self._backend.reserve(
            ChunkKey(key),
            ChunkKey(parent) if parent != messages.NO_KEY else None,
            size_bytes,
            position if position != messages.NO_POSITION else None,
            namespace,
        )
        if isinstance(made, Refusal):
            self._answer(frame, _REFUSALS[made])
            return
        lease = self._next_lease()
        self._reservations[lease] = made
        self._answer(frame, Status.OK, messages.RESERVED.pack(lease, made.offset))

    def _on_commit(self, frame: Frame) -> None:
        chunk = self._reservations.pop(messages.LEASE.unpack(frame.body)[0], None)
        if chunk is None:
            self._answer(frame, Status.UNKNOWN_LEASE)
            return
        self._backend.commit(chunk, lambda checksum: self._answer(frame, Status.OK, messages.LEASE.pack(checksum)))

    def _on_abort(self, frame: Frame) -> None:
        chunk = self._reservations.pop(messages.LEASE.unpack(frame.body)[0], None)
        if chunk is not None:
            self._backend.abort(chunk)

    def _on_fetch(self, frame: Frame) -> None:
        deadline_us, recompute_us = messages.FETCH.unpack_from(frame.body)
        keys = [ChunkKey(key) for key in messages.unpack_keys(frame.body, frame.count, messages.FETCH.size)]
        if len(self._fetches) >= limits.API_REQUESTS_IN_FLIGHT_MAX:
            self._answer(frame, Status.BUSY, messages.pack_fetched(0, []))
            return
        if not keys or len(set(keys)) != len(keys) or frame.request in self._fetches:
            self._answer(frame, Status.MALFORMED)
            return
        fetch = self._backend.fetch(
            keys,
            min(deadline_us / 1e6, limits.API_DEADLINE_S_MAX),
            None if recompute_us == messages.NO_RECOMPUTE else recompute_us / 1e6,
            partial(self._fetched, frame),
        )
        if fetch is not None:
            self._fetches[frame.request] = fetch

    def _fetched(self, frame: Frame, result: FetchResult) -> None:
        self._fetches.pop(frame.request, None)
        lease = 0
        if result.chunks:
            lease = self._next_lease()
            self._leases[lease] = [chunk for chunk, _ in result.chunks]
        body = messages.pack_fetched(
            lease, [FetchedChunk(chunk.offset, chunk.size_bytes, source) for chunk, source in result.chunks]
        )
        self._answer(frame, result.status, body, count=len(result.chunks))

    def _on_release(self, frame: Frame) -> None:
        for chunk in self._leases.pop(messages.LEASE.unpack(frame.body)[0], ()):
            self._backend.unpin(chunk)

    def _on_contains(self, frame: Frame) -> None:
        keys = messages.unpack_keys(frame.body, frame.count)
        self._answer(frame, Status.OK, bytes(self._backend.where(ChunkKey(key)) for key in keys), count=len(keys))

    def _on_pin(self, frame: Frame) -> None:
        done = bytearray()
        for key in messages.unpack_keys(frame.body, frame.count):
            chunk = self._backend.find(ChunkKey(key))
            if chunk is not None:
                self._backend.hold(chunk)
                self._holds.setdefault(chunk.key, []).append(chunk)
            done.append(chunk is not None)
        self._answer(frame, Status.OK, bytes(done), count=len(done))

    def _on_unpin(self, frame: Frame) -> None:
        done = bytearray()
        for key in messages.unpack_keys(frame.body, frame.count):
            held = self._holds.get(ChunkKey(key))
            if held:
                chunk = held.pop()
                if chunk.state is ChunkState.READY:
                    self._backend.unhold(chunk)
                if not held:
                    del self._holds[ChunkKey(key)]
            done.append(held is not None)
        self._answer(frame, Status.OK, bytes(done), count=len(done))

    def _on_drop(self, frame: Frame) -> None:
        keys = messages.unpack_keys(frame.body, frame.count)
        dropped = bytes(self._backend.drop(ChunkKey(key)) in (DropOutcome.DROPPED, DropOutcome.WAITING) for key in keys)
        self._answer(frame, Status.OK, dropped, count=len(keys))

    def _on_stats(self, frame: Frame) -> None:
        self._answer(frame, Status.OK, json.dumps(self._backend.stats(), separators=(",", ":")).encode())

    def _on_hint(self, frame: Frame) -> None:
        hint, within_ms = messages.HINT.unpack_from(frame.body)
        keys = [ChunkKey(key) for key in messages.unpack_keys(frame.body, frame.count, messages.HINT.size)]
        if hint not in (Hint.SESSION_ENDED, Hint.EXPECTED):
            raise MalformedFrameError(f"unknown hint {hint}")
        self._backend.hint(keys, Hint(hint), within_ms)

    def _on_cancel(self, frame: Frame) -> None:
        request = messages.CANCEL.unpack(frame.body)[0]
        fetch = self._fetches.pop(request, None)
        if fetch is not None:
            fetch.cancel()
            cancelled = Frame(Kind.FETCH, 0, 0, request, b"")
            self._answer(cancelled, Status.CANCELLED, messages.pack_fetched(0, []))


_HANDLERS: dict[int, Callable[[_Connection, Frame], None]] = {
    Kind.RESERVE: _Connection._on_reserve,
    Kind.COMMIT: _Connection._on_commit,
    Kind.ABORT: _Connection._on_abort,
    Kind.FETCH: _Connection._on_fetch,
    Kind.RELEASE: _Connection._on_release,
    Kind.CONTAINS: _Connection._on_contains,
    Kind.PIN: _Connection._on_pin,
    Kind.UNPIN: _Connection._on_unpin,
    Kind.DROP: _Connection._on_drop,
    Kind.STATS: _Connection._on_stats,
    Kind.HINT: _Connection._on_hint,
    Kind.CANCEL: _Connection._on_cancel,
}
