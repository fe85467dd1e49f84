"""Reliable reads that the event loop carries. The reader copies bytes once (recv_into the pool), in pieces as large as
the socket holds (SO_RCVLOWAT)."""

from __future__ import annotations

import errno
import socket
from collections import deque
from typing import Final

from hostagent import limits
from hostagent.transport.base import ReadOutcome
from hostagent.transport.peer_connection import PeerConnection, Read, Reading
from hostagent.transport.read_protocol import ANSWER, MAGIC, STATUS_OK, VERSION, load_of

_NOTHING_NOW: Final = (errno.EAGAIN, errno.EINTR)


class LoopedConnection(PeerConnection):
    """See `PeerConnection`."""

    def __init__(self, endpoint: str, reading: Reading) -> None:
        self._asked: deque[Read] = deque()
        self._header = bytearray(ANSWER.size)
        self._header_have = 0
        self._body_left = 0
        self._received_bytes = 0
        self._target = memoryview(b"")
        self._scratch: memoryview | None = None
        self._low_water = 1
        self._unsent = b""
        self._writing = False
        self._moved_s = 0.0
        super().__init__(endpoint, reading)

    # ------------------------------------------------------------------ asking

    def _begin(self) -> None:
        self._loop.add_reader(self._sock.fileno(), self._readable)

    def _carry(self) -> None:
        """Put as many requests on the wire as are allowed there."""
        while self._waiting and len(self._asked) < limits.READS_PER_PEER_MAX:
            read = self._waiting.popleft()
            if not self._asked:
                self._moved_s = self._loop.time()
            self._asked.append(read)
            self._unsent += self._packed(read)
        try:
            if self._unsent:
                self._unsent = self._unsent[self._sock.send(self._unsent) :]
                self._acknowledge_at_once()
        except OSError as error:
            if error.errno not in _NOTHING_NOW:
                self.close()
                return
        if self._unsent and not self._writing:
            self._loop.add_writer(self._sock.fileno(), self._carry)
        elif self._writing and not self._unsent:
            self._loop.remove_writer(self._sock.fileno())
        self._writing = bool(self._unsent)

    def _give_up(self, read: Read) -> None:
        if self._asked[0] is read and self._body_left:
            self._target = self._scratch_view(self._body_left)

    def _stop(self) -> list[Read]:
        fd = self._sock.fileno()
        self._loop.remove_reader(fd)
        self._loop.remove_writer(fd)
        carried = list(self._asked)
        self._asked.clear()
        return carried

    def _progress_s(self) -> float:
        return self._moved_s

    def _has_unanswered(self) -> bool:
        return bool(self._asked)

    def _has_wanted(self) -> bool:
        return any(not read.cancelled for read in self._asked)

    def _unwanted_bytes(self) -> int:
        first_bytes = self._asked[0].request.size_bytes if self._body_left else 0
        return sum(read.request.size_bytes for read in self._asked) - first_bytes + self._body_left

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
        self._moved_s = self._loop.time()
        magic, version, status, load, number, size_bytes = ANSWER.unpack(self._header)
        read = self._asked[0] if self._asked else None
        if magic == MAGIC and version != VERSION:
            self._skewed(version)
            return False
        if magic != MAGIC or read is None or number != read.number:
            self._malformed()
            return False
        if status == STATUS_OK:
            if size_bytes != read.request.size_bytes:
                self._malformed()
                return False
            self._body_left = size_bytes
            if read.request.holder_told is not None and not read.cancelled:
                read.request.holder_told(load_of(load))
            if read.cancelled:
                self._target = self._scratch_view(size_bytes)
            elif read.request.leaves is not None:
                self._target = memoryview(read.request.leaves)
            else:
                self._target = self._reading.memory.view(read.request.pool_offset, size_bytes)
            self._set_low_water()
            return True
        self._asked.popleft()
        self._carry()
        self._ended(read, status)
        return bool(self._asked)

    def _receive_body(self) -> bool:
        received = self._sock.recv_into(self._target)
        if not received:
            self.close()
            return False
        self._body_left -= received
        self._received_bytes += received
        self._moved_s = self._loop.time()
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
        read = self._asked.popleft()
        read.owner = None
        self._carry()
        self._close_if_left()
        # Last of all: the reader's reaction may queue, cancel or close here.
        read.tell(ReadOutcome.DONE)
        return bool(self._asked)

    def _tell_progress(self) -> None:
        read = self._asked[0]
        request = read.request
        if request.progressed is not None and not read.cancelled:
            request.progressed(request.size_bytes - self._body_left)

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
