"""A connection to one peer for reliable reads: made, shown tokens, given up when it stands still.

A thread in C sends the requests, and takes what answers them straight into the pool (`native_pulls`).
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from hostagent import limits
from hostagent.memory.pool_memory import PoolMemory
from hostagent.transport.base import ReadOutcome, ReadRequest, TransportCounters
from hostagent.transport.endpoints import family_of, host_port_of, is_address
from hostagent.transport.native_pulls import NativePulls, Pull, What
from hostagent.transport.read_protocol import (
    KIND_LEAVES,
    KIND_READ,
    RANGE,
    STATUS_ABSENT,
    STATUS_RANGE,
    load_of,
    number_with,
    pack_request,
    pack_tokens,
    skew,
    watch_peer,
)
from hostagent.transport.read_tokens import REFUSALS, Refusal, TokenBook, refused_words
from hostagent.tree import leaves_bytes

_IP_BIND_ADDRESS_NO_PORT: Final = 24
"""ip(7): the port is chosen when the connection is made, so that ports last."""
_NS: Final = 1_000_000_000


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
    pulls: NativePulls
    stall_timeout_s: float
    tokens: TokenBook | None
    """What is shown to holders."""
    own_address: str
    """Where connections come from; empty: any of this host."""
    closed: Callable[[PeerConnection], None]


def begin_connecting(endpoint: str, own_address: str) -> tuple[socket.socket, int]:
    """(a non-blocking socket, an errno). `endpoint`: host:port; `own_address`: see `Reading`. 0 and EINPROGRESS: it is
    being connected, and writable when that is over. Raises OSError where there are no sockets of its kind."""
    host, port = host_port_of(endpoint)
    if not is_address(host):
        # Never a name, which would be looked up while the event loop waits.
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC), errno.EINVAL
    sock = socket.socket(family_of(host), socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        watch_peer(sock)
        if own_address:
            sock.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
            sock.bind((own_address, 0))
        return sock, sock.connect_ex((host, port))
    except (OSError, ValueError, OverflowError):
        return sock, errno.EINVAL


@dataclass(slots=True)
class _Carried:
    read: Read
    have_bytes: int = 0
    """As far as the thread has told."""
    leaves: bytearray | None = None
    """Where the thread puts those of its pieces, if they are wanted."""
    is_load_told: bool = False


class PeerConnection:
    """Up to READS_PER_PEER_MAX requests on the wire, the others wait in order."""

    def __init__(self, endpoint: str, reading: Reading) -> None:
        self.endpoint = endpoint
        self._reading = reading
        self._loop = reading.loop
        self._counters = reading.counters
        self._shown = b""
        """Tokens that the peer has seen here."""
        self._waiting: deque[Read] = deque()
        """Not yet with the thread."""
        self._carried: dict[int, _Carried] = {}
        """By number: reads that the thread has and somebody wants."""
        self._pulls = reading.pulls
        self._id = 0
        """Of the connection, for the thread."""
        self._carries_soon = False
        self._gave_up = False
        """Whether the thread had reads that nobody wants any more."""
        self._last_number = 0
        self._connected = False
        self._open = True
        self._retired = False
        self._since_s = reading.loop.time()
        """When something last happened, as far as it is known without asking the thread."""
        self._stall_timer: asyncio.TimerHandle | None = None
        self._sock, code = begin_connecting(endpoint, reading.own_address)
        if code in (0, errno.EINPROGRESS):
            self._loop.add_writer(self._sock.fileno(), self._connect_over)
        else:
            # The caller gets to queue its read first; it then fails like any other.
            self._loop.call_soon(self.close)

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
        if self._stall_timer is None:
            self._stall_timer = self._loop.call_later(self._patience_s, self._check_stall)
        return read

    def forget(self, read: Read) -> None:
        """A cancelled read: not asked for if it is not yet, its bytes thrown away if they are coming. A holder whose
        connection ends sends no more: it does when nothing but such bytes is to come, and many of them."""
        if read in self._waiting:
            self._waiting.remove(read)
        else:
            self._pulls.cancel(self._id, read.number)  # the thread writes to what is carried until then
            self._gave_up = True
            del self._carried[read.number]
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
        if self._waiting or self._carried:
            return
        unwanted_bytes = self._pulls.look(self._id).unwanted_bytes if self._gave_up else 0
        if self._retired or unwanted_bytes > limits.READ_UNWANTED_BYTES_MAX:
            self.close()

    def close(self) -> None:
        """End the connection; every read that is not finished fails. Idempotent."""
        if not self._open:
            return
        self._open = False
        if self._connected:
            self._pulls.end(self._id)
        else:
            self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        self._reading.closed(self)
        reads = [*(carried.read for carried in self._carried.values()), *self._waiting]
        self._carried.clear()
        self._waiting.clear()
        for read in reads:
            read.owner = None
            if not read.cancelled:
                self._counters.reads_failed += 1
                self._loop.call_soon(read.tell, ReadOutcome.FAILED)

    def _read_refused(self, read: Read, status: int) -> None:
        """The peer refused a read, which the thread has no more."""
        if status in REFUSALS:
            # The peer does not serve this node. The next read asks again, on a connection of its own.
            refusal = Refusal(status)
            host = host_port_of(self.endpoint)[0]
            self._counters.refuse(f"read_refused_{refusal.name.lower()}", host, refused_words(refusal))
            self._waiting.appendleft(read)
            self.close()
            return
        read.owner = None
        self._close_if_left()
        read.tell(ReadOutcome.ABSENT if status in (STATUS_ABSENT, STATUS_RANGE) else ReadOutcome.FAILED)

    def _skewed(self, version: int) -> None:
        """The peer's protocol is another one."""
        self._counters.refuse("read_version_other", host_port_of(self.endpoint)[0], skew(version))
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

    # ------------------------------------------------------------------ the thread

    def _carry(self) -> None:
        """The first at once; those that follow on this turn of the loop together."""
        if self._waiting and not self._carried:
            self._since_s = self._loop.time()
            self._pulls.ask(self._id, [self._pull(self._waiting.popleft())])
        if self._waiting and not self._carries_soon:
            self._carries_soon = True
            self._loop.call_soon(self._carry_rest)

    def _carry_rest(self) -> None:
        self._carries_soon = False
        if self._open and self._waiting:
            self._pulls.ask(self._id, [self._pull(read) for read in self._waiting])
            self._waiting.clear()

    def _pull(self, read: Read) -> ctypes.Structure:
        carried = self._carried[read.number] = _Carried(read)
        request, packed = read.request, self._packed(read)
        if request.leaves is None:
            into = self._reading.memory.address + request.pool_offset
        else:
            into = _address_of(request.leaves)
        leaves = None
        # Waking the threads that hash takes longer than hashing a small read where it is used.
        if request.proof is not None and request.size_bytes > limits.READ_SMALL_BYTES_MAX:
            carried.leaves = bytearray(leaves_bytes(request.size_bytes))
            leaves = _address_of(carried.leaves)
        return Pull(read.number, into, request.size_bytes, leaves, packed, len(packed))

    def pull_progressed(self, pulled: ctypes.Structure) -> None:
        """The thread tells of a read, or of the connection."""
        self._since_s = self._loop.time()
        what = What(pulled.what)
        if what is What.ENDED:
            self.close()
        elif what is What.VERSION:
            self._skewed(pulled.status)
        elif what is What.MALFORMED:
            self._malformed()
        carried = self._carried.get(pulled.number)
        if carried is None:
            return  # of the connection, or of a read that nobody wants any more
        read, request = carried.read, carried.read.request
        if what is What.REFUSED:
            del self._carried[read.number]
            self._read_refused(read, pulled.status)
            return
        if not carried.is_load_told and request.holder_told is not None:
            request.holder_told(load_of(pulled.load))
        carried.is_load_told = True
        self._counters.read_bytes_received += pulled.have_bytes - carried.have_bytes
        carried.have_bytes = pulled.have_bytes
        if what is What.PART:
            if request.progressed is not None and pulled.have_bytes:
                request.progressed(pulled.have_bytes)
            return
        del self._carried[read.number]
        read.owner = None
        if pulled.is_proven and request.proof is not None and carried.leaves is not None:
            request.proof.leaves = bytes(carried.leaves)
        if self._retired or self._gave_up:
            self._close_if_left()
        read.tell(ReadOutcome.DONE)

    # ------------------------------------------------------------------ connection

    def _connect_over(self) -> None:
        if self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.close()
            return
        self._loop.remove_writer(self._sock.fileno())
        self._since_s = self._loop.time()
        self._id = self._pulls.lend(self, self._sock.fileno())
        self._connected = True
        self._carry()

    # ------------------------------------------------------------------ stalls

    def _quiet_s(self) -> float:
        last_s = self._since_s
        if self._connected:
            last_s = max(last_s, self._pulls.look(self._id).progress_ns / _NS)
        return self._loop.time() - last_s

    def _has_unanswered(self) -> bool:
        """Whether the thread waits for an answer, wanted or not."""
        return bool(self._carried) or self._pulls.look(self._id).unanswered > 0

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


def _address_of(buffer: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
