"""A connection to one peer for reliable reads: made, shown tokens, given up when it stands still.

Who carries requests and answers is the subclass's: the event loop (`looped_connection`), or a thread in C
(`native_pulls`).
"""

from __future__ import annotations

import asyncio
import errno
import socket
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from hostagent import limits
from hostagent.pool.memory import PoolMemory
from hostagent.transport.base import ReadOutcome, ReadRequest, TransportCounters
from hostagent.transport.read_protocol import (
    KIND_LEAVES,
    KIND_READ,
    RANGE,
    STATUS_ABSENT,
    STATUS_RANGE,
    number_with,
    pack_request,
    pack_tokens,
    skew,
    watch_peer,
)
from hostagent.transport.read_tokens import REFUSALS, Refusal, TokenBook, refused_words

_IP_BIND_ADDRESS_NO_PORT: Final = 24
"""ip(7): the port is chosen when the connection is made, so that ports last."""


@dataclass(slots=True, eq=False)
class Read:
    """One read of a connection; a `ReadHandle`."""

    number: int
    """The request's number on its connection."""
    request: ReadRequest
    owner: PeerConnection | None
    """None: it is over."""
    cancelled: bool = False

    def cancel(self) -> None:
        """See `ReadHandle.cancel`."""
        if not self.cancelled:
            self.cancelled = True
            if self.owner is not None:
                self.owner.forget(self)

    def tell(self, outcome: ReadOutcome) -> None:
        """It is over. The reaction may queue, cancel or close."""
        if not self.cancelled:
            self.cancelled = True
            self.request.done(outcome)


@dataclass(frozen=True, slots=True)
class Reading:
    """What the connections of one node share."""

    loop: asyncio.AbstractEventLoop
    memory: PoolMemory
    counters: TransportCounters
    stall_timeout_s: float
    tokens: TokenBook | None
    """What is shown to holders."""
    own_address: str
    """Where connections come from; empty: any of this host."""
    closed: Callable[[PeerConnection], None]


def begin_connecting(endpoint: str, own_address: str) -> tuple[socket.socket, int]:
    """(a non-blocking socket, an errno). `endpoint`: host:port; `own_address`: see `Reading`. 0 and EINPROGRESS: it is
    being connected, and writable when that is over."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    watch_peer(sock)
    host, _, port = endpoint.rpartition(":")
    try:
        if own_address:
            sock.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
            sock.bind((own_address, 0))
        return sock, sock.connect_ex((host, int(port)))
    except (OSError, ValueError, OverflowError):
        return sock, errno.EINVAL


class PeerConnection(ABC):
    """Up to READS_PER_PEER_MAX requests on the wire, the others wait in order."""

    def __init__(self, endpoint: str, reading: Reading) -> None:
        self.endpoint = endpoint
        self._reading = reading
        self._loop = reading.loop
        self._counters = reading.counters
        self._shown = b""
        """Tokens that the peer has seen here."""
        self._waiting: deque[Read] = deque()
        """Not yet with whoever carries them."""
        self._last_number = 0
        self._connected = False
        self._open = True
        self._retired = False
        self._since_s = reading.loop.time()
        """When something last happened, as far as it is known without asking the carrier."""
        self._stall_timer: asyncio.TimerHandle | None = None
        self._sock, code = begin_connecting(endpoint, reading.own_address)
        if code in (0, errno.EINPROGRESS):
            self._loop.add_writer(self._sock.fileno(), self._connect_over)
        else:
            # The caller gets to queue its read first; it then fails like any other.
            self._loop.call_soon(self.close)

    # ------------------------------------------------------------------ the carrier's part

    @abstractmethod
    def _begin(self) -> None:
        """The socket is connected."""

    @abstractmethod
    def _carry(self) -> None:
        """Take reads from `_waiting` and ask for them."""

    @abstractmethod
    def _give_up(self, read: Read) -> None:
        """Write nothing any more of a read that is carried."""

    @abstractmethod
    def _stop(self) -> list[Read]:
        """Touch neither socket nor memory any more; returns the reads that were carried and are not over."""

    @abstractmethod
    def _progress_s(self) -> float:
        """When something was last received, or asked for after a pause."""

    @abstractmethod
    def _has_unanswered(self) -> bool:
        """Whether a request is with the carrier, wanted or not."""

    @abstractmethod
    def _has_wanted(self) -> bool:
        """Whether it carries any that somebody wants."""

    @abstractmethod
    def _unwanted_bytes(self) -> int:
        """How many bytes are to come, where nobody wants any of them."""

    # ------------------------------------------------------------------ reads

    def add(self, request: ReadRequest) -> Read:
        """Queue a read."""
        self._last_number += 1
        read = Read(number_with(self._last_number, request.wanted_bytes), request, self)
        if not self._open:
            read.owner = None
            self._loop.call_soon(read.tell, ReadOutcome.FAILED)
            return read
        self._waiting.append(read)
        if self._connected:
            self._carry()
        self._arm_stall_timer()
        return read

    def forget(self, read: Read) -> None:
        """A cancelled read: not asked for if it is not yet, its bytes thrown away if they are coming. A holder whose
        connection ends sends no more: it does when nothing but such bytes is to come, and many of them."""
        if read in self._waiting:
            self._waiting.remove(read)
        else:
            self._give_up(read)
        self._close_if_left()

    @property
    def is_stalled(self) -> bool:
        """Whether nothing has moved for READ_RENEW_S, though somebody waits or the peer has not even answered."""
        if self._loop.time() - self._since_s < limits.READ_RENEW_S:
            return False
        busy = not self._connected or self._has_unanswered()
        return bool(busy) and self._quiet_s() >= limits.READ_RENEW_S

    def retire(self) -> None:
        """Nothing more is asked here: the connection ends with the last of its reads."""
        self._retired = True
        self._close_if_left()

    def _close_if_left(self) -> None:
        if self._waiting or self._has_wanted():
            return
        if self._retired or self._unwanted_bytes() > limits.READ_UNWANTED_BYTES_MAX:
            self.close()

    def close(self) -> None:
        """End the connection; every read that is not finished fails. Idempotent."""
        if not self._open:
            return
        self._open = False
        if self._connected:
            carried = self._stop()
        else:
            carried = []
            self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        self._reading.closed(self)
        for read in (*carried, *self._waiting):
            read.owner = None
            if not read.cancelled:
                self._counters.reads_failed += 1
                self._loop.call_soon(read.tell, ReadOutcome.FAILED)
        self._waiting.clear()

    def _ended(self, read: Read, status: int) -> None:
        """The peer refused a read that has left the carrier."""
        if status in REFUSALS:
            # The peer does not serve this node. The next read asks again, on a connection of its own.
            refusal = Refusal(status)
            host = self.endpoint.rpartition(":")[0]
            self._counters.refuse(f"read_refused_{refusal.name.lower()}", host, refused_words(refusal))
            self._waiting.appendleft(read)
            self.close()
            return
        read.owner = None
        self._close_if_left()
        read.tell(ReadOutcome.ABSENT if status in (STATUS_ABSENT, STATUS_RANGE) else ReadOutcome.FAILED)

    def _skewed(self, version: int) -> None:
        """The peer's protocol is another one."""
        self._counters.refuse_version(self.endpoint.rpartition(":")[0], skew(version))
        self.close()

    def _malformed(self) -> None:
        self._counters.drop("read_answer_malformed")
        self.close()

    def _packed(self, read: Read) -> bytes:
        """A request as it is sent, with tokens before it if the peer has not seen them."""
        request = read.request
        kind = KIND_READ if request.leaves is None else KIND_LEAVES
        packed = pack_request(kind, read.number, RANGE.pack(request.offset, request.size_bytes, request.key))
        tokens = self._reading.tokens
        if tokens is None or tokens.shown == self._shown:
            return packed
        self._shown = tokens.shown
        return pack_tokens(self._shown) + packed

    # ------------------------------------------------------------------ connection

    def _connect_over(self) -> None:
        if self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.close()
            return
        self._loop.remove_writer(self._sock.fileno())
        self._since_s = self._loop.time()
        self._begin()
        self._connected = True
        self._carry()

    # ------------------------------------------------------------------ stalls

    def _quiet_s(self) -> float:
        last_s = max(self._since_s, self._progress_s()) if self._connected else self._since_s
        return self._loop.time() - last_s

    def _arm_stall_timer(self) -> None:
        if self._stall_timer is None:
            self._stall_timer = self._loop.call_later(self._patience_s, self._check_stall)

    @property
    def _patience_s(self) -> float:
        """How long a request may bring nothing."""
        return self._reading.stall_timeout_s if self._connected else limits.READ_CONNECT_TIMEOUT_S

    def _check_stall(self) -> None:
        self._stall_timer = None
        if not self._waiting and not (self._connected and self._has_unanswered()):
            return
        quiet_s = self._quiet_s()
        if quiet_s >= self._patience_s:
            self._counters.drop("read_stalled" if self._connected else "read_unreachable")
            self.close()
        else:
            self._stall_timer = self._loop.call_later(self._patience_s - quiet_s, self._check_stall)
