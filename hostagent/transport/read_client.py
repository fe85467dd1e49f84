"""Reliable reads over TCP: range requests on one persistent connection per peer.

The format is in `read_protocol`. A lone reader's speed is decided here: the holder never touches the bytes (sendfile
on pages of the pool), the reader copies them once (recv_into the pool), in pieces as large as the socket holds
(SO_RCVLOWAT).
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from hostagent import limits
from hostagent.pool.memory import PoolMemory
from hostagent.transport.base import ReadOutcome, ReadRequest, TransportCounters
from hostagent.transport.read_protocol import (
    ANSWER,
    KIND_LEAVES,
    KIND_READ,
    MAGIC,
    RANGE,
    STATUS_ABSENT,
    STATUS_OK,
    STATUS_RANGE,
    VERSION,
    load_of,
    number_with,
    pack_request,
    pack_tokens,
    skew,
    watch_peer,
)
from hostagent.transport.read_tokens import REFUSALS, Refusal, TokenBook, refused_words

_NOTHING_NOW = (errno.EAGAIN, errno.EINTR)
_IP_BIND_ADDRESS_NO_PORT = 24
"""ip(7): the port is chosen when the connection is made, so that ports last."""


@dataclass(slots=True, eq=False)
class _Read:
    number: int
    """The request's number on its connection."""
    request: ReadRequest
    client: _PeerConnection | None
    cancelled: bool = False

    def cancel(self) -> None:
        if not self.cancelled:
            self.cancelled = True
            if self.client is not None:
                self.client.forget(self)


class ReadClient:
    """Reliable reads from any number of peers over one persistent connection each. A connection that stands still keeps
    its reads; those that come later go over a new one."""

    def __init__(
        self,
        memory: PoolMemory,
        counters: TransportCounters,
        *,
        stall_timeout_s: float,
        tokens: TokenBook | None = None,
        own_address: str = "",
    ) -> None:
        """`tokens`: what is shown to holders; `own_address`: where connections come from, empty: any of this host."""
        self._memory = memory
        self._counters = counters
        self._tokens = tokens
        self._own_address = own_address
        self._stall_timeout_s = stall_timeout_s
        self._peers: dict[str, _PeerConnection] = {}
        self._stalled: list[_PeerConnection] = []
        self._loop = asyncio.get_running_loop()

    def read(self, request: ReadRequest) -> _Read:
        """See `Transport.read`."""
        peer = self._peers.get(request.endpoint)
        if peer is None or (peer.is_stalled and self._retire(peer)):
            peer = _PeerConnection(
                request.endpoint,
                self._loop,
                self._memory,
                self._counters,
                self._stall_timeout_s,
                self._peer_closed,
                self._tokens,
                self._own_address,
            )
            self._peers[request.endpoint] = peer
        return peer.add(request)

    def close(self) -> None:
        """End all connections; reads under way get FAILED on the next turn of the loop."""
        for peer in (*self._peers.values(), *self._stalled):
            peer.close()

    def _retire(self, peer: _PeerConnection) -> bool:
        """Leave a connection to the reads that it has, if not too many of its peer's are left already."""
        if sum(one.endpoint == peer.endpoint for one in self._stalled) == limits.READ_STALLED_CONNECTIONS_MAX:
            return False
        self._stalled.append(peer)
        peer.retire()
        return True

    def _peer_closed(self, peer: _PeerConnection) -> None:
        if self._peers.get(peer.endpoint) is peer:
            del self._peers[peer.endpoint]
        elif peer in self._stalled:
            self._stalled.remove(peer)


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
        tokens: TokenBook | None,
        own_address: str,
    ) -> None:
        self.endpoint = endpoint
        self._tokens = tokens
        self._own_address = own_address
        self._shown = b""
        """Tokens that the peer has seen here."""
        self._loop = loop
        self._memory = memory
        self._counters = counters
        self._stall_timeout_s = stall_timeout_s
        self._closed = closed
        self._waiting: deque[_Read] = deque()
        self._asked: deque[_Read] = deque()
        self._last_number = 0
        self._header = bytearray(ANSWER.size)
        self._header_have = 0
        self._body_left = 0
        self._received_bytes = 0
        self._target = memoryview(b"")
        self._scratch: memoryview | None = None
        self._low_water = 1
        self._unsent = b""
        self._writing = False
        self._connected = False
        self._open = True
        self._retired = False
        self._progress_s = loop.time()
        self._stall_timer: asyncio.TimerHandle | None = None
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        watch_peer(self._sock)
        self._connect()

    # ------------------------------------------------------------------ reads

    def add(self, request: ReadRequest) -> _Read:
        """Queue a read."""
        self._last_number += 1
        read = _Read(number_with(self._last_number, request.wanted_bytes), request, self)
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
        """A cancelled read: not asked for if it is not yet, its bytes thrown away if they are coming. A holder whose
        connection ends sends no more: it does when nothing but such bytes is to come, and many of them."""
        if read in self._waiting:
            self._waiting.remove(read)
        elif self._asked and self._asked[0] is read and self._body_left:
            self._target = self._scratch_view(self._body_left)
        self._close_if_left()

    @property
    def is_stalled(self) -> bool:
        """Whether nothing has moved for READ_RENEW_S, though somebody waits or the peer has not even answered."""
        busy = not self._connected or self._asked
        return bool(busy) and self._loop.time() - self._progress_s >= limits.READ_RENEW_S

    def retire(self) -> None:
        """Nothing more is asked here: the connection ends with the last of its reads."""
        self._retired = True
        self._close_if_left()

    def _close_if_left(self) -> None:
        if all(read.cancelled for read in (*self._asked, *self._waiting)) and (
            self._retired or self._to_come_bytes > limits.READ_UNWANTED_BYTES_MAX
        ):
            self.close()

    @property
    def _to_come_bytes(self) -> int:
        """Of the reads that are asked for."""
        first_bytes = self._asked[0].request.size_bytes if self._asked and self._body_left else 0
        return sum(read.request.size_bytes for read in self._asked) - first_bytes + self._body_left

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
            if self._own_address:
                self._sock.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
                self._sock.bind((self._own_address, 0))
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
        """Put as many requests on the wire as are allowed there."""
        if self._waiting and self._tokens is not None and self._tokens.shown != self._shown:
            self._shown = self._tokens.shown
            self._unsent += pack_tokens(self._shown)
        while self._waiting and len(self._asked) < limits.READS_PER_PEER_MAX:
            read = self._waiting.popleft()
            if not self._asked:
                self._progress_s = self._loop.time()
            self._asked.append(read)
            request = read.request
            body = RANGE.pack(request.offset, request.size_bytes, request.key)
            kind = KIND_READ if request.leaves is None else KIND_LEAVES
            self._unsent += pack_request(kind, read.number, body)
        try:
            if self._unsent:
                self._unsent = self._unsent[self._sock.send(self._unsent) :]
                self._acknowledge_at_once()
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
            self._acknowledge_at_once()
            until_bytes = self._received_bytes + limits.READ_TURN_BYTES
            while self._open and self._received_bytes < until_bytes:
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
        magic, version, status, load, number, size_bytes = ANSWER.unpack(self._header)
        read = self._asked[0] if self._asked else None
        if magic == MAGIC and version != VERSION:
            self._counters.refuse_version(self.endpoint.rpartition(":")[0], skew(version))
            self.close()
            return False
        if magic != MAGIC or version != VERSION or read is None or number != read.number:
            self._counters.drop("read_answer_malformed")
            self.close()
            return False
        if status == STATUS_OK:
            if size_bytes != read.request.size_bytes:
                self._counters.drop("read_answer_malformed")
                self.close()
                return False
            self._body_left = size_bytes
            if read.request.holder_told is not None and not read.cancelled:
                read.request.holder_told(load_of(load))
            if read.cancelled:
                self._target = self._scratch_view(size_bytes)
            elif read.request.leaves is not None:
                self._target = memoryview(read.request.leaves)
            else:
                self._target = self._memory.view(read.request.pool_offset, size_bytes)
            self._set_low_water()
            return True
        if status in REFUSALS:
            self._refused(Refusal(status))
            return False
        self._finish(ReadOutcome.ABSENT if status in (STATUS_ABSENT, STATUS_RANGE) else ReadOutcome.FAILED)
        return bool(self._asked)

    def _refused(self, refusal: Refusal) -> None:
        """The peer does not serve this node. The next read asks again, on a connection of its own."""
        host = self.endpoint.rpartition(":")[0]
        self._counters.refuse(f"read_refused_{refusal.name.lower()}", host, refused_words(refusal))
        self.close()

    def _receive_body(self) -> bool:
        received = self._sock.recv_into(self._target)
        if not received:
            self.close()
            return False
        self._body_left -= received
        self._received_bytes += received
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
        request = read.request
        if request.progressed is not None and not read.cancelled:
            request.progressed(request.size_bytes - self._body_left)

    def _finish(self, outcome: ReadOutcome) -> None:
        read = self._asked.popleft()
        read.client = None
        self._ask()
        self._close_if_left()
        # Last of all: the reader's reaction may queue, cancel or close here.
        _tell(read, outcome)

    def _acknowledge_at_once(self) -> None:
        """A connection that asks and is answered counts as interactive: the kernel keeps ACKs back for 40 ms, again and
        again. After a pause the holder's TCP sends little until it has one, and a read of 10 ms would last 50."""
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

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
        """How long a request may bring nothing."""
        return self._stall_timeout_s if self._connected else limits.READ_CONNECT_TIMEOUT_S

    def _check_stall(self) -> None:
        self._stall_timer = None
        if not self._asked and not self._waiting:
            return
        quiet_s = self._loop.time() - self._progress_s
        if quiet_s >= self._patience_s:
            self._counters.drop("read_stalled" if self._connected else "read_unreachable")
            self.close()
        else:
            self._stall_timer = self._loop.call_later(self._patience_s - quiet_s, self._check_stall)


def _tell(read: _Read, outcome: ReadOutcome) -> None:
    if not read.cancelled:
        read.cancelled = True
        read.request.done(outcome)
