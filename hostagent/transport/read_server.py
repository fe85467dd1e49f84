"""Answers reliable reads: ranges with sendfile straight from the pool's memory file, and RDMA where there is any.

The format is in `read_protocol`. The server never touches the bytes. It pins the chunks that peers
read one-sided, without us; their queue pairs live and die with their connections.
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
    KIND_LEAVES,
    KIND_OPEN,
    KIND_READ,
    KIND_TOKEN,
    MAGIC,
    RANGE,
    REQUEST_BYTES,
    STATUS_ABSENT,
    STATUS_NO_RDMA,
    STATUS_OK,
    STATUS_RANGE,
    TELLS_LOAD,
    VERSION,
    QueuePairEnd,
    RemoteExtent,
    pack_answer,
    padded_bytes,
    set_load,
    skew,
    wanted_of,
    watch_peer,
)
from hostagent.transport.read_tokens import TokenBook
from hostagent.transport.reader import Reader
from kvpolicy.tiers.holder_load import HolderLoad
from kvproto.ids import ChunkKey
from kvproto.rpc.read_tokens import SHOWN_BYTES_MAX

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

    def where(self, number: int, extent: Extent) -> RemoteExtent | None:
        """Let the peer read these bytes of the pool, and nothing else, until `forget`; None: it cannot be had."""
        ...

    def forget(self, number: int) -> None:
        """The peer reads what `where` gave under this number no more."""
        ...

    def close(self) -> None:
        """Once it returns, the peer can read nothing any more. Idempotent."""
        ...


class ReadServer:
    """Listens for requests and answers them from the pool."""

    def __init__(
        self,
        memory: PoolMemory,
        sink: TransportSink,
        counters: TransportCounters,
        remote_access: Callable[[], RemoteAccess | None] = lambda: None,
        *,
        stall_timeout_s: float = limits.READ_STALL_TIMEOUT_S,
        tokens: TokenBook | None = None,
    ) -> None:
        """`remote_access`: makes one for a connection, or None where there is no RDMA. A peer that takes in nothing of
        what it asked for, for `stall_timeout_s`, is cut off: it holds pins. `tokens`: checks who reads; None: everybody
        may."""
        self._tokens = tokens
        self._remote_access = remote_access
        self._stall_timeout_s = stall_timeout_s
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
        try:
            peer: str = sock.getpeername()[0]
        except OSError:
            sock.close()
            return
        if not self._make_room(peer):
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
                peer,
                self._stall_timeout_s,
                self._tokens,
            )
        )

    def _make_room(self, peer: str) -> bool:
        """Room for one more connection from this address: the one idle for longest ends where there are too many, of
        this address's or of all, one without a token before all others. A peer whose idle connection ends makes another
        when it reads next."""
        own = [one for one in self._connections if one.peer == peer]
        if len(own) < limits.READ_CONNECTIONS_PER_PEER_MAX:
            if len(self._connections) < limits.READ_CONNECTIONS_MAX:
                return True
            own = list(self._connections)
        idle = [one for one in own if one.is_idle]
        if not idle:
            return False
        min(idle, key=lambda one: (one.is_admitted, one.used_s)).close()
        self._counters.drop("read_idle_ended")
        return True


@dataclass(slots=True, eq=False)
class _Answer:
    """Requests are answered in order: one whose chunk comes from disk makes those behind it wait."""

    request: int
    key: ChunkKey = _NO_KEY
    offset: int = 0
    left_bytes: int = 0
    one_sided: bool = False
    """The peer only wants to know where the chunk lies."""
    header: memoryview | None = None
    """None: not known yet."""
    begun: bool = False
    extent: Extent | None = None

    def tell(self, status: int, body: bytes = b"") -> None:
        """Set what to answer, except bytes of the pool."""
        self.header = memoryview(bytearray(pack_answer(status, self.request, len(body) + self.left_bytes) + body))


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
        peer: str,
        stall_timeout_s: float,
        tokens: TokenBook | None,
    ) -> None:
        self.peer = peer
        """Address of the reader."""
        self._reader = Reader(tokens, peer, loop, counters, self.close)
        self._tokens_awaited = 0
        """Bytes of a TOKEN request that are still to come, padding included."""
        self._tokens_bytes = 0
        self._tokens_come = b""
        self.used_s = loop.time()
        """When it last asked, or acknowledged bytes."""
        self._stall_timeout_s = stall_timeout_s
        self._acknowledged_bytes = 0
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
        """Extents that are wholly in the socket, each with the count of bytes sent when its last byte went in."""
        self._sent_bytes = 0
        self._asked_bytes = 0
        """Of answers, and of chunks that the peer reads one-sided."""
        self._queued_bytes = 0
        """What the peer waits for: more than it has asked for, where it says so."""
        self._linger_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._writing = False
        self._open = True
        loop.add_reader(self._fd, self._readable)

    @property
    def is_admitted(self) -> bool:
        """The peer may read."""
        return self._reader.refusal is None

    @property
    def is_idle(self) -> bool:
        """The peer waits for nothing and reads nothing."""
        return not (self._answers or self._lingering or self._opened)

    def close(self) -> None:
        """End the connection and give every pin back. Idempotent."""
        if not self._open:
            return
        self._open = False
        self._reader.close()
        self._loop.remove_reader(self._fd)
        if self._writing:
            self._loop.remove_writer(self._fd)
        for timer in (self._linger_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        # Reset instead of sending on: pages that are still queued may be reused once their pins are gone.
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()
        if self._remote is not None:
            # Before the pins: unpinned chunks may be overwritten, and peers must not read them then.
            self._remote.close()
        for answer in self._answers:
            if answer.extent is not None:
                self._sink.close_extent(answer.extent)
        self._sent(self._asked_bytes)
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
        self.used_s = self._loop.time()
        stream = self._partial + received
        whole = len(stream) // REQUEST_BYTES * REQUEST_BYTES
        for start in range(0, whole, REQUEST_BYTES):
            if self._tokens_awaited:
                self._take_tokens(stream[start : start + REQUEST_BYTES])
            elif not self._take_request(stream[start : start + REQUEST_BYTES]):
                self.close()
                return
        self._partial = stream[whole:]
        if not self._writing:
            self._write()

    def _take_request(self, packed: bytes) -> bool:
        """False: this is no peer of ours."""
        magic, version, kind, zero, request = HEAD.unpack_from(packed)
        take = self._TAKERS.get(kind)
        if magic == MAGIC and version != VERSION:
            with contextlib.suppress(OSError):  # It is gone already, and with it the need to say anything.
                self._counters.refuse_version(self._sock.getpeername()[0], skew(version))
            return False
        if magic != MAGIC or version != VERSION or zero or take is None:
            self._counters.drop("read_request_malformed")
            return False
        if len(self._answers) + len(self._opened) >= limits.READ_REQUESTS_QUEUED_MAX:
            self._counters.drop("read_requests_too_many")
            return False
        refusal = None if kind == KIND_TOKEN else self._reader.refusal
        try:
            if refusal is None:
                take(self, request, packed[HEAD.size :])
            else:
                self._reader.count_refused()
                answer = _Answer(request)
                answer.tell(refusal)
                self._answers.append(answer)
        except ValueError:
            self._counters.drop("read_request_malformed")
            return False
        return True

    def _take_token(self, _request: int, body: bytes) -> None:
        size_bytes, _, _ = RANGE.unpack(body)
        if not 0 < size_bytes <= SHOWN_BYTES_MAX:
            raise ValueError("tokens of no size")
        self._tokens_bytes, self._tokens_awaited, self._tokens_come = size_bytes, padded_bytes(size_bytes), b""

    def _take_tokens(self, block: bytes) -> None:
        self._tokens_come += block
        self._tokens_awaited -= len(block)
        if not self._tokens_awaited:
            self._reader.shows(self._tokens_come[: self._tokens_bytes])

    def _may_have(self, key: ChunkKey) -> bool:
        """Whether the reader's token allows the chunk, should it be here."""
        grant = self._reader.grant
        if grant.is_everything:
            return True
        label = self._sink.namespace_of(key)
        if label is None or self._reader.allows(label):
            return True
        self._counters.drop("read_foreign_namespace")
        return False

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

    def _take_leaves(self, request: int, body: bytes) -> None:
        _, size_bytes, key = RANGE.unpack(body)
        leaves = self._sink.leaves(ChunkKey(key)) if self._may_have(ChunkKey(key)) else None
        answer = _Answer(request)
        if leaves is None or len(leaves) != size_bytes:
            answer.tell(STATUS_ABSENT)
        else:
            answer.tell(STATUS_OK, leaves)
        self._answers.append(answer)

    def _take_close(self, request: int, body: bytes) -> None:
        read_bytes, _, _ = RANGE.unpack(body)
        extent = self._opened.pop(request, None)
        if extent is None:
            raise ValueError("closed what was not open")
        self._counters.read_bytes_sent += read_bytes
        self._sent(extent.size_bytes)
        if self._remote is not None:
            # Before the pin: the chunk's place may be another's then.
            self._remote.forget(request)
        self._sink.close_extent(extent)

    _TAKERS: ClassVar[Mapping[int, Callable[[_ServedConnection, int, bytes], None]]] = {
        KIND_READ: _take_read,
        KIND_CONNECT: _take_connect,
        KIND_OPEN: _take_open,
        KIND_CLOSE: _take_close,
        KIND_LEAVES: _take_leaves,
        KIND_TOKEN: _take_token,
    }

    def _resolve(self, answer: _Answer, *, again: bool) -> None:
        """Find the bytes to answer with; while they are on their way from disk, the answer stays open."""
        allowed = self._may_have(answer.key)
        extent = self._sink.open_extent(answer.key) if allowed else None
        if extent is None and allowed and not again and self._sink.prepare(answer.key, partial(self._prepared, answer)):
            return
        status = STATUS_ABSENT if extent is None else STATUS_OK
        if extent is not None and answer.offset + answer.left_bytes > extent.size_bytes:
            self._sink.close_extent(extent)
            extent, status = None, STATUS_RANGE
        if extent is None:
            answer.left_bytes = 0
            answer.tell(status)
        elif answer.one_sided:
            self._open_one_sided(answer, extent)
        else:
            answer.offset += extent.offset
            answer.extent = extent
            self._asked(answer.left_bytes, answer.request)
            answer.tell(status)

    def _open_one_sided(self, answer: _Answer, extent: Extent) -> None:
        assert self._remote is not None
        where = self._remote.where(answer.request, extent)
        if where is None:
            self._sink.close_extent(extent)
            answer.tell(STATUS_NO_RDMA)
            return
        self._opened[answer.request] = extent
        self._asked(extent.size_bytes, answer.request)
        answer.tell(STATUS_OK, where.pack())

    def _prepared(self, answer: _Answer) -> None:
        """The disk has delivered, or has not."""
        if self._open:
            self._resolve(answer, again=True)
            if not self._writing:
                self._write()

    def _asked(self, size_bytes: int, request: int) -> None:
        self._asked_bytes += size_bytes
        self._waits_for(max(self._asked_bytes, wanted_of(request)))

    def _sent(self, size_bytes: int) -> None:
        """A peer that asks for nothing more for the moment may have given up what it wanted."""
        self._asked_bytes -= size_bytes
        self._waits_for(max(self._asked_bytes, self._queued_bytes - size_bytes) if self._asked_bytes else 0)

    def _waits_for(self, size_bytes: int) -> None:
        counters = self._counters
        counters.reads_queued_bytes += size_bytes - self._queued_bytes
        counters.readers_served += (size_bytes > 0) - (self._queued_bytes > 0)
        self._queued_bytes = size_bytes

    def _others_load(self) -> HolderLoad:
        """What is queued for other peers than this one."""
        counters, casts_bytes = self._counters, self._sink.casts_queued_bytes()
        others = counters.readers_served - (self._queued_bytes > 0)
        return HolderLoad(counters.reads_queued_bytes - self._queued_bytes + casts_bytes, others + (casts_bytes > 0))

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
        self._watch_for_stall()

    def _watch_for_stall(self) -> None:
        if self._stall_timer is None:
            self._stall_timer = self._loop.call_later(self._stall_timeout_s, self._check_stall)

    def _write_answer(self, answer: _Answer) -> bool:
        """True when the answer is wholly in the socket."""
        assert answer.header is not None
        if answer.request & TELLS_LOAD and not answer.begun:
            set_load(answer.header, self._others_load())
        answer.begun = True
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
                self._sent(sent)
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
            self._watch_for_stall()
        elif not wanted and self._writing:
            self._loop.remove_writer(self._fd)
        self._writing = wanted

    def _check_lingering(self) -> None:
        self._linger_timer = None
        self._look_at_acknowledged()
        while self._lingering and self._lingering[0][0] <= self._acknowledged_bytes:
            self._sink.close_extent(self._lingering.popleft()[1])
        if self._lingering:
            self._watch_lingering()

    def _look_at_acknowledged(self) -> None:
        unacknowledged = array.array("i", [0])
        fcntl.ioctl(self._fd, termios.TIOCOUTQ, unacknowledged)
        acknowledged_bytes = self._sent_bytes - unacknowledged[0]
        if acknowledged_bytes != self._acknowledged_bytes:
            self._acknowledged_bytes, self.used_s = acknowledged_bytes, self._loop.time()

    def _check_stall(self) -> None:
        """End a peer that does not take in what it asked for."""
        self._stall_timer = None
        if not self._writing and not self._lingering:
            return
        self._look_at_acknowledged()
        left_s = self.used_s + self._stall_timeout_s - self._loop.time()
        if left_s <= 0:
            self._counters.drop("read_peer_stalled")
            self.close()
        else:
            self._stall_timer = self._loop.call_later(left_s, self._check_stall)
