"""Answers reliable reads: ranges with sendfile straight from the pool's memory file, and RDMA where there is any.

The format is in `read_protocol`. The server never touches the bytes. What peers read one-sided is pinned here and
read without us; their queue pairs live and die with their connections.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import errno
import fcntl
import os
import socket
import struct
import termios
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Protocol

from hostagent import limits
from hostagent.listener import Listener
from hostagent.pool.memory import PoolMemory
from hostagent.transport.base import Extent, TransportCounters, TransportError, TransportSink
from hostagent.transport.read_protocol import (
    HEAD,
    KIND_CLOSE,
    KIND_CONNECT,
    KIND_OPEN,
    KIND_READ,
    MAGIC,
    RANGE,
    REQUEST_BYTES,
    STATUS_ABSENT,
    STATUS_NO_RDMA,
    STATUS_OK,
    STATUS_RANGE,
    VERSION,
    QueuePairEnd,
    RemoteExtent,
    pack_answer,
    watch_peer,
)
from kvproto.ids import ChunkKey

LINGER_CHECK_S = 0.02
"""How often a sender looks whether the peer has acknowledged all of a chunk that it still pins."""

_NOTHING_NOW = (errno.EAGAIN, errno.EINTR)
_SEND_BYTES_MAX = 1 << 20
"""What one call copies out of huge pages, which sendfile cannot read."""
_NO_KEY = ChunkKey(bytes(16))


class RemoteAccess(Protocol):
    """RDMA for one connection: a queue pair that the peer reads through."""

    def connect(self, peer: QueuePairEnd) -> QueuePairEnd | None:
        """Our end of a fresh reliable connection, instead of the last one; None: it cannot be had."""
        ...

    def where(self, extent: Extent) -> RemoteExtent:
        """Where the peer finds these bytes of the pool."""
        ...

    def close(self) -> None:
        """When it returns, the peer reads nothing any more. Idempotent."""
        ...


class ReadServer:
    """Listens for requests and answers them from the pool."""

    def __init__(
        self,
        memory: PoolMemory,
        sink: TransportSink,
        counters: TransportCounters,
        remote_access: Callable[[], RemoteAccess | None] = lambda: None,
    ) -> None:
        """`remote_access`: makes one for a connection, or None where there is no RDMA."""
        self._remote_access = remote_access
        self._memory = memory
        self._sink = sink
        self._counters = counters
        self._connections: set[_ServedConnection] = set()
        self._listener: Listener | None = None
        self._loop = asyncio.get_running_loop()

    def listen(self, address: str, port: int) -> tuple[str, int]:
        """Start; returns the bound address. Raises TransportError when the port is taken."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
            listener.listen(limits.READ_CONNECTIONS_MAX)
        except OSError as error:
            listener.close()
            raise TransportError(
                f"cannot listen for reads on TCP {address}:{port}: {error.strerror}; set data.read_port to a free port"
            ) from error
        self._listener = Listener(
            listener, self._loop, self._accept, lambda: self._counters.drop("read_accept_no_descriptors")
        )
        bound: tuple[str, int] = listener.getsockname()
        return bound

    def close(self) -> None:
        """Stop listening, drop all connections and their pins."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for connection in list(self._connections):
            connection.close()

    def _accept(self, sock: socket.socket) -> None:
        if len(self._connections) >= limits.READ_CONNECTIONS_MAX:
            self._counters.drop("read_connections_full")
            sock.close()
            return
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        watch_peer(sock)
        self._connections.add(
            _ServedConnection(
                sock,
                self._loop,
                self._memory,
                self._sink,
                self._counters,
                self._remote_access(),
                self._connections.discard,
            )
        )


@dataclass(slots=True, eq=False)
class _Answer:
    """Requests are answered in order: behind one whose chunk comes from disk the others wait."""

    request: int
    key: ChunkKey = _NO_KEY
    offset: int = 0
    left_bytes: int = 0
    one_sided: bool = False
    """The peer only wants to know where the chunk lies."""
    header: memoryview | None = None
    """None: not known yet."""
    extent: Extent | None = None

    def tell(self, status: int, body: bytes = b"") -> None:
        """What to answer, but for bytes of the pool."""
        self.header = memoryview(pack_answer(status, self.request, len(body) + self.left_bytes) + body)


class _ServedConnection:
    """One peer's requests. Pins a chunk from the request until the peer has acknowledged its last byte: the pages
    in the socket's queue are the pool's own."""

    def __init__(
        self,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        memory: PoolMemory,
        sink: TransportSink,
        counters: TransportCounters,
        remote: RemoteAccess | None,
        closed: Callable[[_ServedConnection], None],
    ) -> None:
        self._sock = sock
        self._remote = remote
        self._opened: dict[int, Extent] = {}
        """What the peer reads one-sided, by the number of its OPEN."""
        self._fd = sock.fileno()
        self._loop = loop
        self._memory = memory
        self._sink = sink
        self._counters = counters
        self._closed = closed
        self._partial = b""
        self._answers: deque[_Answer] = deque()
        self._lingering: deque[tuple[int, Extent]] = deque()
        """Extents that are wholly in the socket, each with the bytes that had gone in when its last one had."""
        self._sent_bytes = 0
        self._linger_timer: asyncio.TimerHandle | None = None
        self._writing = False
        self._open = True
        loop.add_reader(self._fd, self._readable)

    def close(self) -> None:
        """End the connection and give every pin back. Idempotent."""
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._fd)
        if self._writing:
            self._loop.remove_writer(self._fd)
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        # Reset instead of sending on: pages that are still queued may be reused once their pins are gone.
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()
        if self._remote is not None:
            # Before the pins: what is unpinned may be overwritten, and must not be read then.
            self._remote.close()
        for answer in self._answers:
            if answer.extent is not None:
                self._sink.close_extent(answer.extent)
        for extent in (*(extent for _, extent in self._lingering), *self._opened.values()):
            self._sink.close_extent(extent)
        self._answers.clear()
        self._lingering.clear()
        self._opened.clear()
        self._closed(self)

    def _readable(self) -> None:
        try:
            received = self._sock.recv(64 * REQUEST_BYTES)
        except OSError as error:
            if error.errno not in _NOTHING_NOW:
                self.close()
            return
        if not received:
            self.close()
            return
        stream = self._partial + received
        whole = len(stream) // REQUEST_BYTES * REQUEST_BYTES
        for start in range(0, whole, REQUEST_BYTES):
            if not self._take_request(stream[start : start + REQUEST_BYTES]):
                self.close()
                return
        self._partial = stream[whole:]
        if not self._writing:
            self._write()

    def _take_request(self, packed: bytes) -> bool:
        """False: this is no peer of ours."""
        magic, version, kind, zero, request = HEAD.unpack_from(packed)
        take = self._TAKERS.get(kind)
        if magic != MAGIC or version != VERSION or zero or take is None:
            self._counters.drop("read_request_malformed")
            return False
        if len(self._answers) + len(self._opened) >= limits.READ_REQUESTS_QUEUED_MAX:
            self._counters.drop("read_requests_too_many")
            return False
        try:
            take(self, request, packed[HEAD.size :])
        except ValueError:
            self._counters.drop("read_request_malformed")
            return False
        return True

    def _take_read(self, request: int, body: bytes) -> None:
        offset, size_bytes, key = RANGE.unpack(body)
        if not size_bytes:
            raise ValueError("a read of nothing")
        answer = _Answer(request, ChunkKey(key), offset, size_bytes)
        self._answers.append(answer)
        self._resolve(answer, again=False)

    def _take_open(self, request: int, body: bytes) -> None:
        _, _, key = RANGE.unpack(body)
        if request in self._opened or any(answer.request == request for answer in self._answers):
            raise ValueError("opened twice")
        answer = _Answer(request, ChunkKey(key), one_sided=True)
        self._answers.append(answer)
        if self._remote is None:
            answer.tell(STATUS_NO_RDMA)
        else:
            self._resolve(answer, again=False)

    def _take_connect(self, request: int, body: bytes) -> None:
        peer = QueuePairEnd.unpack(body)
        end = None if self._remote is None else self._remote.connect(peer)
        answer = _Answer(request)
        if end is None:
            answer.tell(STATUS_NO_RDMA)
        else:
            answer.tell(STATUS_OK, end.pack())
        self._answers.append(answer)

    def _take_close(self, request: int, body: bytes) -> None:
        read_bytes, _, _ = RANGE.unpack(body)
        extent = self._opened.pop(request, None)
        if extent is None:
            raise ValueError("closed what was not open")
        self._counters.read_bytes_sent += read_bytes
        self._sink.close_extent(extent)

    _TAKERS: ClassVar[Mapping[int, Callable[[_ServedConnection, int, bytes], None]]] = {
        KIND_READ: _take_read,
        KIND_CONNECT: _take_connect,
        KIND_OPEN: _take_open,
        KIND_CLOSE: _take_close,
    }

    def _resolve(self, answer: _Answer, *, again: bool) -> None:
        """Find the bytes to answer with; while they are on their way from disk, the answer stays open."""
        extent = self._sink.open_extent(answer.key)
        if extent is None and not again and self._sink.prepare(answer.key, partial(self._prepared, answer)):
            return
        status = STATUS_ABSENT if extent is None else STATUS_OK
        if extent is not None and answer.offset + answer.left_bytes > extent.size_bytes:
            self._sink.close_extent(extent)
            extent, status = None, STATUS_RANGE
        if extent is None:
            answer.left_bytes = 0
            answer.tell(status)
        elif answer.one_sided:
            assert self._remote is not None
            self._opened[answer.request] = extent
            answer.tell(status, self._remote.where(extent).pack())
        else:
            answer.offset += extent.offset
            answer.extent = extent
            answer.tell(status)

    def _prepared(self, answer: _Answer) -> None:
        """The disk has delivered, or has not."""
        if self._open:
            self._resolve(answer, again=True)
            if not self._writing:
                self._write()

    def _write(self) -> None:
        try:
            while self._answers and self._answers[0].header is not None:
                if not self._write_answer(self._answers[0]):
                    self._want_write(True)
                    return
                finished = self._answers.popleft()
                if finished.extent is not None:
                    self._watch_lingering()
                    self._lingering.append((self._sent_bytes, finished.extent))
        except OSError:
            self.close()
            return
        self._want_write(False)

    def _watch_lingering(self) -> None:
        if self._linger_timer is None:
            self._linger_timer = self._loop.call_later(LINGER_CHECK_S, self._check_lingering)

    def _write_answer(self, answer: _Answer) -> bool:
        """True when the answer is wholly in the socket."""
        assert answer.header is not None
        try:
            while answer.header:
                more = socket.MSG_MORE if answer.left_bytes else 0
                sent = self._sock.send(answer.header, more)
                answer.header = answer.header[sent:]
                self._sent_bytes += sent
            while answer.left_bytes:
                sent = self._send_bytes(answer)
                if not sent:
                    raise ConnectionError("the pool's memory file ended")
                answer.offset += sent
                answer.left_bytes -= sent
                self._sent_bytes += sent
                self._counters.read_bytes_sent += sent
        except OSError as error:
            if error.errno in _NOTHING_NOW:
                return False
            raise
        return True

    def _send_bytes(self, answer: _Answer) -> int:
        if not self._memory.huge_pages:
            return os.sendfile(self._fd, self._memory.fd, answer.offset, answer.left_bytes)
        return self._sock.send(self._memory.view(answer.offset, min(answer.left_bytes, _SEND_BYTES_MAX)))

    def _want_write(self, wanted: bool) -> None:
        if wanted and not self._writing:
            self._loop.add_writer(self._fd, self._write)
        elif not wanted and self._writing:
            self._loop.remove_writer(self._fd)
        self._writing = wanted

    def _check_lingering(self) -> None:
        self._linger_timer = None
        unacknowledged = array.array("i", [0])
        fcntl.ioctl(self._fd, termios.TIOCOUTQ, unacknowledged)
        acknowledged_bytes = self._sent_bytes - unacknowledged[0]
        while self._lingering and self._lingering[0][0] <= acknowledged_bytes:
            self._sink.close_extent(self._lingering.popleft()[1])
        if self._lingering:
            self._watch_lingering()
