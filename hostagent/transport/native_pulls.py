"""Reliable reads that a thread in C asks for and takes in, straight into the pool."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hostagent import limits
from hostagent.native.pull_thread import MAGIC_BYTES, Pull, Pulled, PullerConfig, Pulls, What
from hostagent.transport.base import ReadOutcome
from hostagent.transport.peer_connection import PeerConnection, Read, Reading
from hostagent.transport.read_protocol import MAGIC, VERSION, load_of
from hostagent.tree import leaves_bytes

_NS: Final = 1_000_000_000
_TOLD_AT_ONCE: Final = 64


class NativePulls:
    """The thread, and the connections lent to it."""

    def __init__(self, library: ctypes.CDLL, loop: asyncio.AbstractEventLoop) -> None:
        """Raises MemoryError, or OSError when the system has no more threads or descriptors."""
        self._library = library
        self._connections: dict[int, PulledConnection] = {}
        self._number = 0
        self._told = (Pulled * _TOLD_AT_ONCE)()
        with contextlib.ExitStack() as undo:
            self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            undo.callback(os.close, self._wake)
            config = PullerConfig(
                wake=self._wake,
                window=limits.READS_PER_PEER_MAX,
                low_water_bytes=limits.READ_RECEIVE_LOW_WATER_BYTES,
                turn_bytes=limits.READ_TURN_BYTES,
                tell_bytes=limits.READ_PROGRESS_BYTES,
                tell_ns=int(limits.READ_PROGRESS_S * _NS),
                version=VERSION,
                provers=limits.READ_PROVERS,
            )
            config.magic[:] = MAGIC.to_bytes(MAGIC_BYTES, "big")
            self._puller = library.dp_puller_new(ctypes.byref(config))
            if not self._puller:
                raise MemoryError("no memory for the thread that reads")
            undo.callback(library.dp_puller_free, self._puller)
            if error := library.dp_puller_start(self._puller):
                raise OSError(error, os.strerror(error))
            loop.add_reader(self._wake, self._drain)
            undo.callback(loop.remove_reader, self._wake)
            self._closing = undo.pop_all()

    def close(self) -> None:
        """End the thread. The connections are closed before. Idempotent."""
        assert not self._connections
        self._closing.close()
        self._puller = None

    def lend(self, connection: PulledConnection, fd: int) -> int:
        """Have the thread carry a connection's reads; its number there. Raises MemoryError."""
        self._number += 1
        if self._library.dp_puller_lend(self._puller, fd, self._number):
            raise MemoryError("no memory for a connection")
        self._connections[self._number] = connection
        return self._number

    def ask(self, connection: int, pulls: Sequence[Pull]) -> None:
        """Send requests, and put what answers them where they say. Raises MemoryError."""
        asked = (Pull * len(pulls))(*pulls)
        if self._library.dp_puller_ask(self._puller, connection, asked, len(pulls)):
            raise MemoryError("no memory for reads")

    def cancel(self, connection: int, number: int) -> None:
        """Nothing of a read is written or told any more."""
        self._library.dp_puller_cancel(self._puller, connection, number)

    def look(self, connection: int) -> Pulls:
        """How a connection stands."""
        pulls = Pulls()
        self._library.dp_puller_look(self._puller, connection, ctypes.byref(pulls))
        return pulls

    def end(self, connection: int) -> None:
        """The socket is its owner's again."""
        self._library.dp_puller_end(self._puller, connection)
        del self._connections[connection]

    def _drain(self) -> None:
        """Tell what came. Each reaction may queue, cancel or close: one batch, and the rest on the loop's next turn."""
        count = self._library.dp_puller_drain(self._puller, self._told, _TOLD_AT_ONCE)
        for pulled in self._told[:count]:
            connection = self._connections.get(pulled.connection)
            if connection is not None:
                connection.heard(pulled)


@dataclass(slots=True)
class _Carried:
    read: Read
    have_bytes: int = 0
    """As far as the thread has told."""
    leaves: bytearray | None = None
    """Where the thread puts those of its pieces, if they are wanted."""
    is_load_told: bool = False


class PulledConnection(PeerConnection):
    """See `PeerConnection`."""

    def __init__(self, endpoint: str, reading: Reading, pulls: NativePulls) -> None:
        self._pulls = pulls
        self._carried: dict[int, _Carried] = {}
        """By number: reads that the thread has and somebody wants."""
        self._id = 0
        self._carries_soon = False
        self._gave_up = False
        """Whether it had reads that nobody wants any more."""
        super().__init__(endpoint, reading)

    def _begin(self) -> None:
        self._id = self._pulls.lend(self, self._sock.fileno())

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

    def _pull(self, read: Read) -> Pull:
        carried = self._carried[read.number] = _Carried(read)
        request, packed = read.request, self._packed(read)
        if request.leaves is None:
            into = self._reading.memory.address + request.pool_offset
        else:
            into = _address_of(request.leaves)
        leaves = None
        if request.proof is not None:
            carried.leaves = bytearray(leaves_bytes(request.size_bytes))
            leaves = _address_of(carried.leaves)
        return Pull(read.number, into, request.size_bytes, leaves, packed, len(packed))

    def _give_up(self, read: Read) -> None:
        # The thread writes to what is carried until then.
        self._pulls.cancel(self._id, read.number)
        self._gave_up = True
        del self._carried[read.number]

    def _stop(self) -> list[Read]:
        self._pulls.end(self._id)
        carried = [carried.read for carried in self._carried.values()]
        self._carried.clear()
        return carried

    def _progress_s(self) -> float:
        return float(self._pulls.look(self._id).progress_ns) / _NS

    def _has_unanswered(self) -> bool:
        return bool(self._carried) or self._pulls.look(self._id).unanswered > 0

    def _has_wanted(self) -> bool:
        return bool(self._carried)

    def _unwanted_bytes(self) -> int:
        return int(self._pulls.look(self._id).unwanted_bytes) if self._gave_up else 0

    def heard(self, pulled: Pulled) -> None:
        """The thread tells of a read, or of the connection."""
        self._since_s = self._loop.time()
        what = What(pulled.what)
        if what is What.ENDED:
            self.close()
        elif what is What.VERSION:
            self._skewed(pulled.status)
        elif what is What.MALFORMED:
            self._malformed()
        elif (carried := self._carried.get(pulled.number)) is not None:
            self._heard_of(carried, what, pulled)

    def _heard_of(self, carried: _Carried, what: What, pulled: Pulled) -> None:
        read, request = carried.read, carried.read.request
        if what is What.REFUSED:
            del self._carried[read.number]
            self._ended(read, pulled.status)
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
        self._close_if_left()
        read.tell(ReadOutcome.DONE)


def _address_of(buffer: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
