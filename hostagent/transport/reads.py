"""Reliable reads over TCP: range requests, answered with sendfile straight from the pool's memory file.

Request, 48 bytes, big-endian: magic u32, version u8, kind u8 (1 READ), zero u16, request u64, offset u64, size u64,
key 16 bytes. Answer, 24 bytes: magic u32, version u8, status u8, zero u16, request u64, size u64, followed by `size`
bytes when the status is 0. Answers come in the order of the requests. Status 1: chunk not here; 2: range outside of
the chunk. Anything else ends the connection.

A lone reader's speed is decided here: the server never touches the bytes (sendfile on pages of the pool), the reader
copies them once (recv_into the pool), in pieces as large as the socket holds (SO_RCVLOWAT).
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
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from hostagent import limits
from hostagent.listener import Listener
from hostagent.pool.memory import PoolMemory
from hostagent.transport.base import Extent, ReadOutcome, TransportCounters, TransportError, TransportSink
from kvproto.ids import ChunkKey

MAGIC = 0x4B565244
VERSION = 1
KIND_READ = 1
STATUS_OK = 0
STATUS_ABSENT = 1
STATUS_RANGE = 2
REQUEST = struct.Struct("!IBBHQQQ16s")
ANSWER = struct.Struct("!IBBHQQ")
LINGER_CHECK_S = 0.02
"""How often a sender looks whether the peer has acknowledged all of a chunk that it still pins."""

_NOTHING_NOW = (errno.EAGAIN, errno.EINTR)


# ---------------------------------------------------------------------- serving


class ReadServer:
    """Listens for range requests and answers them from the pool."""

    def __init__(self, memory: PoolMemory, sink: TransportSink, counters: TransportCounters) -> None:
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
        _watch_peer(sock)
        self._connections.add(
            _ServedConnection(sock, self._loop, self._memory, self._sink, self._counters, self._connections.discard)
        )


@dataclass(slots=True, eq=False)
class _Answer:
    """Requests are answered in order: behind one whose chunk comes from disk the others wait."""

    request: int
    key: ChunkKey
    offset: int
    left_bytes: int
    header: memoryview | None = None
    """None: not known yet."""
    extent: Extent | None = None


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
        closed: Callable[[_ServedConnection], None],
    ) -> None:
        self._sock = sock
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
        for answer in self._answers:
            if answer.extent is not None:
                self._sink.close_extent(answer.extent)
        for _, extent in self._lingering:
            self._sink.close_extent(extent)
        self._answers.clear()
        self._lingering.clear()
        self._closed(self)

    def _readable(self) -> None:
        try:
            received = self._sock.recv(64 * REQUEST.size)
        except OSError as error:
            if error.errno not in _NOTHING_NOW:
                self.close()
            return
        if not received:
            self.close()
            return
        stream = self._partial + received
        whole = len(stream) // REQUEST.size * REQUEST.size
        for start in range(0, whole, REQUEST.size):
            if not self._take_request(stream[start : start + REQUEST.size]):
                self.close()
                return
        self._partial = stream[whole:]
        if not self._writing:
            self._write()

    def _take_request(self, packed: bytes) -> bool:
        magic, version, kind, zero, request, offset, size_bytes, key = REQUEST.unpack(packed)
        if magic != MAGIC or version != VERSION or kind != KIND_READ or zero or not size_bytes:
            self._counters.drop("read_request_malformed")
            return False
        if len(self._answers) >= limits.READ_REQUESTS_QUEUED_MAX:
            self._counters.drop("read_requests_too_many")
            return False
        answer = _Answer(request, ChunkKey(key), offset, size_bytes)
        self._answers.append(answer)
        self._resolve(answer, again=False)
        return True

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
        else:
            answer.offset += extent.offset
        answer.extent = extent
        answer.header = memoryview(ANSWER.pack(MAGIC, VERSION, status, 0, answer.request, answer.left_bytes))

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
                sent = os.sendfile(self._fd, self._memory.fd, answer.offset, answer.left_bytes)
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


# ---------------------------------------------------------------------- reading


@dataclass(slots=True, eq=False)
class _Read:
    request: int
    key: ChunkKey
    offset: int
    size_bytes: int
    pool_offset: int
    done: Callable[[ReadOutcome], None]
    progressed: Callable[[int], None] | None
    client: _PeerConnection | None
    cancelled: bool = False

    def cancel(self) -> None:
        if not self.cancelled:
            self.cancelled = True
            if self.client is not None:
                self.client.forget(self)


class ReadClient:
    """Reliable reads from any number of peers over one persistent connection each."""

    def __init__(self, memory: PoolMemory, counters: TransportCounters, *, stall_timeout_s: float) -> None:
        self._memory = memory
        self._counters = counters
        self._stall_timeout_s = stall_timeout_s
        self._peers: dict[str, _PeerConnection] = {}
        self._loop = asyncio.get_running_loop()

    def read(
        self,
        endpoint: str,
        key: ChunkKey,
        offset: int,
        size_bytes: int,
        pool_offset: int,
        done: Callable[[ReadOutcome], None],
        progressed: Callable[[int], None] | None = None,
    ) -> _Read:
        """See `Transport.read`."""
        peer = self._peers.get(endpoint)
        if peer is None:
            peer = _PeerConnection(
                endpoint, self._loop, self._memory, self._counters, self._stall_timeout_s, self._peer_closed
            )
            self._peers[endpoint] = peer
        return peer.add(key, offset, size_bytes, pool_offset, done, progressed)

    def close(self) -> None:
        """End all connections; reads under way get FAILED on the next turn of the loop."""
        for peer in list(self._peers.values()):
            peer.close()

    def _peer_closed(self, peer: _PeerConnection) -> None:
        if self._peers.get(peer.endpoint) is peer:
            del self._peers[peer.endpoint]


class _PeerConnection:
    """One connection: up to READS_PER_PEER_MAX requests on the wire, the others wait in order."""

    def __init__(
        self,
        endpoint: str,
        loop: asyncio.AbstractEventLoop,
        memory: PoolMemory,
        counters: TransportCounters,
        stall_timeout_s: float,
        closed: Callable[[_PeerConnection], None],
    ) -> None:
        self.endpoint = endpoint
        self._loop = loop
        self._memory = memory
        self._counters = counters
        self._stall_timeout_s = stall_timeout_s
        self._closed = closed
        self._waiting: deque[_Read] = deque()
        self._asked: deque[_Read] = deque()
        self._request = 0
        self._header = bytearray(ANSWER.size)
        self._header_have = 0
        self._body_left = 0
        self._target = memoryview(b"")
        self._scratch: memoryview | None = None
        self._low_water = 1
        self._unsent = b""
        self._writing = False
        self._connected = False
        self._open = True
        self._progress_s = loop.time()
        self._stall_timer: asyncio.TimerHandle | None = None
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _watch_peer(self._sock)
        self._connect()

    # ------------------------------------------------------------------ reads

    def add(
        self,
        key: ChunkKey,
        offset: int,
        size_bytes: int,
        pool_offset: int,
        done: Callable[[ReadOutcome], None],
        progressed: Callable[[int], None] | None = None,
    ) -> _Read:
        """Queue a read."""
        self._request += 1
        read = _Read(self._request, key, offset, size_bytes, pool_offset, done, progressed, self)
        if not self._open:
            read.client = None
            self._loop.call_soon(_tell, read, ReadOutcome.FAILED)
            return read
        self._waiting.append(read)
        if self._connected:
            self._ask()
        self._arm_stall_timer()
        return read

    def forget(self, read: _Read) -> None:
        """A cancelled read: not asked for if it is not yet, its bytes thrown away if they are coming."""
        if read in self._waiting:
            self._waiting.remove(read)
        elif self._asked and self._asked[0] is read and self._body_left:
            self._target = self._scratch_view(self._body_left)

    def close(self) -> None:
        """End the connection; every read that is not finished fails. Idempotent."""
        if not self._open:
            return
        self._open = False
        fd = self._sock.fileno()
        self._loop.remove_reader(fd)
        self._loop.remove_writer(fd)
        self._sock.close()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        self._closed(self)
        for read in (*self._asked, *self._waiting):
            read.client = None
            if not read.cancelled:
                self._counters.reads_failed += 1
                self._loop.call_soon(_tell, read, ReadOutcome.FAILED)
        self._asked.clear()
        self._waiting.clear()

    # ------------------------------------------------------------------ connection

    def _connect(self) -> None:
        host, _, port = self.endpoint.rpartition(":")
        try:
            code = self._sock.connect_ex((host, int(port)))
        except (OSError, ValueError, OverflowError):
            code = errno.EINVAL
        if code in (0, errno.EINPROGRESS):
            self._writing = True
            self._loop.add_writer(self._sock.fileno(), self._writable)
        else:
            # The caller gets to queue its read first; it then fails like any other.
            self._loop.call_soon(self.close)

    def _writable(self) -> None:
        if not self._connected:
            if self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self.close()
                return
            self._connected = True
            self._progress_s = self._loop.time()
            self._loop.add_reader(self._sock.fileno(), self._readable)
        self._ask()

    def _ask(self) -> None:
        """Put as many requests on the wire as may be there."""
        while self._waiting and len(self._asked) < limits.READS_PER_PEER_MAX:
            read = self._waiting.popleft()
            if not self._asked:
                self._progress_s = self._loop.time()
            self._asked.append(read)
            self._unsent += REQUEST.pack(
                MAGIC, VERSION, KIND_READ, 0, read.request, read.offset, read.size_bytes, read.key
            )
        try:
            if self._unsent:
                self._unsent = self._unsent[self._sock.send(self._unsent) :]
        except OSError as error:
            if error.errno not in _NOTHING_NOW:
                self.close()
                return
        if self._unsent and not self._writing:
            self._loop.add_writer(self._sock.fileno(), self._writable)
        elif self._writing and not self._unsent:
            self._loop.remove_writer(self._sock.fileno())
        self._writing = bool(self._unsent)

    # ------------------------------------------------------------------ answers

    def _readable(self) -> None:
        try:
            while self._open:
                if not (self._receive_body() if self._body_left else self._receive_header()):
                    return
        except OSError as error:
            if error.errno not in _NOTHING_NOW:
                self.close()

    def _receive_header(self) -> bool:
        received = self._sock.recv_into(memoryview(self._header)[self._header_have :])
        if not received:
            self.close()
            return False
        self._header_have += received
        if self._header_have < ANSWER.size:
            return True
        self._header_have = 0
        self._progress_s = self._loop.time()
        magic, version, status, zero, request, size_bytes = ANSWER.unpack(self._header)
        read = self._asked[0] if self._asked else None
        if magic != MAGIC or version != VERSION or zero or read is None or request != read.request:
            self._counters.drop("read_answer_malformed")
            self.close()
            return False
        if status == STATUS_OK:
            if size_bytes != read.size_bytes:
                self._counters.drop("read_answer_malformed")
                self.close()
                return False
            self._body_left = size_bytes
            self._target = (
                self._scratch_view(size_bytes) if read.cancelled else self._memory.view(read.pool_offset, size_bytes)
            )
            self._set_low_water()
            return True
        self._finish(ReadOutcome.ABSENT if status in (STATUS_ABSENT, STATUS_RANGE) else ReadOutcome.FAILED)
        return bool(self._asked)

    def _receive_body(self) -> bool:
        received = self._sock.recv_into(self._target)
        if not received:
            self.close()
            return False
        self._body_left -= received
        self._progress_s = self._loop.time()
        self._counters.read_bytes_received += received
        if self._body_left:
            if self._scratch is not None and self._target.obj is self._scratch.obj:
                self._target = self._scratch_view(self._body_left)
            else:
                self._target = self._target[received:]
            self._set_low_water()
            self._tell_progress()
            return True
        self._target = memoryview(b"")
        self._set_low_water()
        self._finish(ReadOutcome.DONE)
        return bool(self._asked)

    def _tell_progress(self) -> None:
        read = self._asked[0]
        if read.progressed is not None and not read.cancelled:
            read.progressed(read.size_bytes - self._body_left)

    def _finish(self, outcome: ReadOutcome) -> None:
        read = self._asked.popleft()
        read.client = None
        self._ask()
        # Last of all: what the reader makes of it may queue, cancel or close here.
        _tell(read, outcome)

    def _set_low_water(self) -> None:
        wanted = max(1, min(self._body_left, limits.READ_RECEIVE_LOW_WATER_BYTES))
        if wanted != self._low_water:
            self._low_water = wanted
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)

    def _scratch_view(self, size_bytes: int) -> memoryview:
        if self._scratch is None:
            self._scratch = memoryview(bytearray(64 * limits.KIB))
        return self._scratch[: min(size_bytes, len(self._scratch))]

    # ------------------------------------------------------------------ stalls

    def _arm_stall_timer(self) -> None:
        if self._stall_timer is None:
            self._stall_timer = self._loop.call_later(self._patience_s, self._check_stall)

    @property
    def _patience_s(self) -> float:
        """How long nothing may come of a request."""
        return self._stall_timeout_s if self._connected else limits.READ_CONNECT_TIMEOUT_S

    def _check_stall(self) -> None:
        self._stall_timer = None
        if not self._asked and not self._waiting:
            return
        quiet_s = self._loop.time() - self._progress_s
        if quiet_s >= self._patience_s:
            self.close()
        else:
            self._stall_timer = self._loop.call_later(self._patience_s - quiet_s, self._check_stall)


def _watch_peer(sock: socket.socket) -> None:
    """Have the kernel find out that the peer's host is gone; a peer that is merely slow answers its probes."""
    idle_s, interval_s, count = limits.READ_KEEPALIVE_S
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, count)


def _tell(read: _Read, outcome: ReadOutcome) -> None:
    if not read.cancelled:
        read.cancelled = True
        read.done(outcome)
