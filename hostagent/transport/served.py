"""One peer that reads from us: its requests, answered in order, and the pins that they take.

Ranges leave with sendfile straight from the pool's memory file, whose bytes nobody touches here. A peer with RDMA reads
what it has opened one-sided, without us; its queue pair lives and dies with its connection. A thread in C has the
connection (`native_reads`) while it brings nothing but requests that the thread can answer.
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
from hostagent.memory.pool_memory import PoolMemory
from hostagent.transport.base import Extent, TransportCounters, TransportSink
from hostagent.transport.endpoints import host_port_of
from hostagent.transport.native_reads import NativeReads, Why
from hostagent.transport.read_protocol import (
    HEAD,
    KIND_CLOSE,
    KIND_CONNECT,
    KIND_LEAVES,
    KIND_OPEN,
    KIND_READ,
    KIND_RELAY,
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
)
from hostagent.transport.read_tokens import TokenBook
from hostagent.transport.reader import Reader
from hostagent.transport.relay_link import RelayLink
from kvchunk.ids import ChunkKey
from kvpolicy.tiers.holder_load import HolderLoad
from kvproto.rpc.read_tokens import SHOWN_BYTES_MAX
from kvproto.wire.relay_messages import Gone, Hello, Message, Want

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

    def where(self, number: int, extent: Extent) -> RemoteExtent | None:
        """Let the peer read these bytes of the pool, and nothing else, until `forget`; None: it cannot be had."""

    def forget(self, number: int) -> None:
        """The peer reads what `where` gave under this number no more."""

    def close(self) -> None:
        """Once it returns, the peer can read nothing any more. Idempotent."""


class _Resolve(Protocol):
    """Finds what to answer with."""

    def __call__(self, *, again: bool) -> None:
        """`again`: whatever could be brought from disk has been."""


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


@dataclass(frozen=True, slots=True)
class Serving:
    """What all connections of a server work with."""

    loop: asyncio.AbstractEventLoop
    memory: PoolMemory
    sink: TransportSink
    counters: TransportCounters
    stall_timeout_s: float
    tokens: TokenBook | None
    """Checks who reads; None: everybody may."""
    native: NativeReads | None
    """Answers readers that may have everything."""


class ServedConnection:
    """One peer's requests. Pins a chunk from the request until the peer has acknowledged its last byte: the pages
    in the socket's queue are the pool's own."""

    def __init__(
        self,
        serving: Serving,
        sock: socket.socket,
        peer: str,
        remote: RemoteAccess | None,
        closed: Callable[[ServedConnection], None],
    ) -> None:
        """`peer`: address of the reader; `closed` is told of the end."""
        loop = serving.loop
        self._native = serving.native
        self._lent: int | None = None
        """Its number while the thread in C has it."""
        self.peer = peer
        self._reader = Reader(serving.tokens, peer, loop, serving.counters, self.close, self._look_again)
        self._tokens_awaited = 0
        """Bytes of a TOKEN request that are still to come, padding included."""
        self._tokens_bytes = 0
        self._tokens_come = b""
        self._sink = serving.sink
        self._link: RelayLink | None = None
        """Once the peer has made this a relay link,"""
        self._link_number = 0
        """which has this number."""
        self._used_s = loop.time()
        self._stall_timeout_s = serving.stall_timeout_s
        self._acknowledged_bytes = 0
        self._sock = sock
        self._remote = remote
        self._opened: dict[int, Extent] = {}
        """What the peer reads one-sided, by the number of its OPEN."""
        self._fd = sock.fileno()
        self._loop = loop
        self._memory = serving.memory
        self._counters = serving.counters
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
        self._lend_if_quiet()

    @property
    def used_s(self) -> float:
        """When it last asked, or acknowledged bytes, as far as is known."""
        lent_s = self._native.idle_since_s(self._lent) if self._native is not None and self._lent is not None else None
        return self._used_s if lent_s is None else lent_s

    @property
    def is_admitted(self) -> bool:
        """The peer may read."""
        return self._reader.refusal is None

    @property
    def is_idle(self) -> bool:
        """The peer waits for nothing and reads nothing."""
        if self._native is not None and self._lent is not None:
            return self._native.idle_since_s(self._lent) is not None
        return self._link is None and not (self._answers or self._lingering or self._opened)

    def _look_again(self) -> None:
        """Who may read has changed."""
        if self._native is not None and self._lent is not None and not self._may_be_lent:
            self._native.recall(self._lent)

    @property
    def _may_be_lent(self) -> bool:
        """Whether nothing has to be asked here about each request."""
        return self._remote is None and self.is_admitted and self._reader.grant.is_everything

    def _lend_if_quiet(self) -> None:
        """The thread in C answers from the next request on, if there is one, and nothing is half done here."""
        if self._native is None or not self._open or self._lent is not None or not self._may_be_lent:
            return
        if self._answers or self._lingering or self._opened or self._partial or self._tokens_awaited or self._writing:
            return
        if self._link is not None:
            return
        self._lent = self._native.lend(self._sock, self._thread_returned)
        if self._lent is not None:
            self._loop.remove_reader(self._fd)

    def _thread_returned(self, why: Why, unanswered: bytes) -> None:
        """The thread in C cannot go on."""
        self._lent = None
        self._used_s = self._loop.time()
        self._loop.add_reader(self._fd, self._readable)
        if why is Why.UNKNOWN:
            self._take(unanswered)
            return
        if why is Why.STALLED:
            self._counters.drop("read_peer_stalled")
        self.close()

    def close(self) -> None:
        """End the connection and give every pin back. Idempotent."""
        if not self._open:
            return
        self._open = False
        self._reader.close()
        if self._link is not None and (relays := self._sink.relays()) is not None:
            self._link.close()
            relays.link_lost(self._link_number)
        if self._native is not None and self._lent is not None:
            self._native.end(self._lent)
            self._lent = None
        else:
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
        self._queue_shrank(self._asked_bytes)
        for extent in (*(extent for _, extent in self._lingering), *self._opened.values()):
            self._sink.close_extent(extent)
        self._answers.clear()
        self._lingering.clear()
        self._opened.clear()
        self._closed(self)

    def hide(self, key: ChunkKey) -> None:
        """A chunk of which the peer may be reading parts arrives no more: nothing of it leaves unless it is here."""
        under_way = [*(one.extent for one in self._answers), *(extent for _, extent in self._lingering)]
        if not any(extent is not None and extent.arriving == key for extent in under_way):
            return
        whole = self._sink.open_extent(key)
        if whole is not None:
            self._sink.close_extent(whole)
        else:
            self.close()

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
        self._used_s = self._loop.time()
        self._take(received)

    def _take(self, received: bytes) -> None:
        """More of what the peer asks."""
        stream = self._partial + received
        whole = len(stream) // REQUEST_BYTES * REQUEST_BYTES
        for start in range(0, whole, REQUEST_BYTES):
            if self._tokens_awaited:
                self._take_tokens(stream[start : start + REQUEST_BYTES])
            elif not self._take_request(stream[start : start + REQUEST_BYTES]):
                self.close()
                return
            if self._link is not None:
                self._link.received(stream[start + REQUEST_BYTES :])
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
                self._counters.refuse("read_version_other", self._sock.getpeername()[0], skew(version))
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
        namespace = self._sink.namespace_of(key)
        if namespace is None or self._reader.allows(namespace):
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
        answer = _Answer(request, ChunkKey(key))
        self._answers.append(answer)
        self._resolve_leaves(answer, size_bytes, again=False)

    def _take_relay(self, _request: int, _body: bytes) -> None:
        """From here on the connection is a relay link."""
        if self._answers or self._lingering or self._opened:
            raise ValueError("a link amid reads")
        relays = self._sink.relays()
        if relays is None:
            raise ValueError("there are no relays here")
        self._loop.remove_reader(self._fd)
        self._link_number = relays.link_made(self)
        self._link = RelayLink(self._loop, self._sock, self._link_told, self._link_lost)

    def tell(self, message: Message) -> None:
        """See `ChildLink`."""
        if self._link is not None:
            self._link.send(message)

    def _link_told(self, messages: tuple[Message, ...]) -> None:
        """What the peer's token does not allow is not here; and nobody but itself reads where it answers."""
        allowed: list[Message] = []
        for message in messages:
            if isinstance(message, Want) and not self._may_have(message.key):
                self.tell(Gone(message.number))
            elif isinstance(message, Hello) and host_port_of(message.endpoint)[0] != self.peer:
                self._link_lost("relay_endpoint_foreign")
                return
            else:
                allowed.append(message)
        if allowed and (relays := self._sink.relays()) is not None:  # nothing at all is the end of a link
            relays.link_told(self._link_number, tuple(allowed))

    def _link_lost(self, why: str) -> None:
        if why:
            self._counters.drop(why)
        self.close()

    def _take_close(self, request: int, body: bytes) -> None:
        read_bytes, _, _ = RANGE.unpack(body)
        extent = self._opened.pop(request, None)
        if extent is None:
            raise ValueError("closed what was not open")
        self._counters.read_bytes_sent += read_bytes
        self._queue_shrank(extent.size_bytes)
        if self._remote is not None:
            # Before the pin: the chunk's place may be another's then.
            self._remote.forget(request)
        self._sink.close_extent(extent)

    _TAKERS: ClassVar[Mapping[int, Callable[[ServedConnection, int, bytes], None]]] = {
        KIND_READ: _take_read,
        KIND_CONNECT: _take_connect,
        KIND_OPEN: _take_open,
        KIND_CLOSE: _take_close,
        KIND_LEAVES: _take_leaves,
        KIND_TOKEN: _take_token,
        KIND_RELAY: _take_relay,
    }

    def _resolve(self, answer: _Answer, *, again: bool) -> None:
        """Find the bytes to answer with; while they are on their way from disk, the answer stays open."""
        allowed = self._may_have(answer.key)
        extent = self._sink.open_extent(answer.key) if allowed else None
        if extent is None and allowed and answer.left_bytes and (relays := self._sink.relays()) is not None:
            extent = relays.open_part(answer.key, answer.offset, answer.left_bytes)
        if extent is None and allowed and not again and self._prepare(answer.key, partial(self._resolve, answer)):
            return
        status = STATUS_ABSENT if extent is None else STATUS_OK
        if extent is not None and answer.offset + answer.left_bytes > extent.size_bytes:
            self._sink.close_extent(extent)
            extent, status = None, STATUS_RANGE
        if extent is None:
            answer.left_bytes = 0
            answer.tell(status)
            return
        if not answer.offset:
            self._loop.call_soon(self._sink.peers_read, (answer.key,))  # the peer gets its answer first
        if answer.one_sided:
            self._open_one_sided(answer, extent)
        else:
            answer.offset += extent.offset
            answer.extent = extent
            self._queue_grew(answer.left_bytes, answer.request)
            answer.tell(status)

    def _resolve_leaves(self, answer: _Answer, size_bytes: int, *, again: bool) -> None:
        """Find the leaves of a chunk's tree; a chunk that is on disk has them only when it is here."""
        allowed = self._may_have(answer.key)
        leaves = self._sink.leaves(answer.key) if allowed else None
        resolve = partial(self._resolve_leaves, answer, size_bytes)
        if leaves is None and allowed and not again and self._prepare(answer.key, resolve):
            return
        if leaves is None or len(leaves) != size_bytes:
            answer.tell(STATUS_ABSENT)
        else:
            answer.tell(STATUS_OK, leaves)

    def _open_one_sided(self, answer: _Answer, extent: Extent) -> None:
        assert self._remote is not None
        where = self._remote.where(answer.request, extent)
        if where is None:
            self._sink.close_extent(extent)
            answer.tell(STATUS_NO_RDMA)
            return
        self._opened[answer.request] = extent
        self._queue_grew(extent.size_bytes, answer.request)
        answer.tell(STATUS_OK, where.pack())

    def _prepare(self, key: ChunkKey, resolve: _Resolve) -> bool:
        """Bring a chunk from disk, then resolve again; False: it is not there."""

        def prepared() -> None:
            if self._open:
                resolve(again=True)
                if not self._writing:
                    self._write()

        return self._sink.prepare(key, prepared)

    def _queue_grew(self, size_bytes: int, request: int) -> None:
        self._asked_bytes += size_bytes
        self._waits_for(max(self._asked_bytes, wanted_of(request)))

    def _queue_shrank(self, size_bytes: int) -> None:
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
        self._lend_if_quiet()

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
                self._queue_shrank(sent)
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
        else:
            self._lend_if_quiet()

    def _look_at_acknowledged(self) -> None:
        unacknowledged = array.array("i", [0])
        fcntl.ioctl(self._fd, termios.TIOCOUTQ, unacknowledged)
        acknowledged_bytes = self._sent_bytes - unacknowledged[0]
        if acknowledged_bytes != self._acknowledged_bytes:
            self._acknowledged_bytes, self._used_s = acknowledged_bytes, self._loop.time()

    def _check_stall(self) -> None:
        """End a peer that does not take in what it asked for."""
        self._stall_timer = None
        if not self._writing and not self._lingering:
            return
        self._look_at_acknowledged()
        left_s = self._used_s + self._stall_timeout_s - self._loop.time()
        if left_s <= 0:
            self._counters.drop("read_peer_stalled")
            self.close()
        else:
            self._stall_timer = self._loop.call_later(left_s, self._check_stall)
