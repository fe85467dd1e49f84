"""Lone gets: one small chunk that one other node has, without a turn of the agent's event loop.

With the connection come a socket (SOCK_SEQPACKET) to a thread of the agent, and the *landing*: memory of this
connection that the agent writes and the engine reads, SLOTS slots of SLOT_BYTES. Integers are in the machine's own
order. A request names a chunk and a slot that is free; the client alone knows which slots are:

| request | answer |
|---|---|
| number u64 | number u64 |
| recompute u64: ns to compute the chunk, 2^64-1: none | bytes of the chunk u32; 0: declined |
| slot u32, zero u32 | zero u32 |
| key, 16 bytes | |

The thread answers when the chunk lies in the slot, compared with its digest, or at once that it declines: then the
client asks the agent as always. Its own copy for the pool the agent takes afterwards. Thread-safe; standard library
only.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import struct
import threading
from typing import Final

from kvclient import forks

SLOT_BYTES: Final = 64 * 1024
"""The largest chunk: its digest has one leaf (`hostagent.tree`)."""
SLOTS: Final = 16
LANDING_BYTES: Final = SLOTS * SLOT_BYTES
REQUEST: Final = struct.Struct("=QQII16s")
ANSWER: Final = struct.Struct("=QII")
NO_RECOMPUTE: Final = (1 << 64) - 1
_RECOMPUTE_S_MAX: Final = 1e9
WAIT_S: Final = 0.02
"""The thread leaves a peer after half of this (`hostagent.limits`). What comes later is not used."""
DEADLINE_S_MIN: Final = 2 * WAIT_S
"""Of fetches that may spend that on a lone get which comes to nothing."""


class LoneGets:
    """Of one connection."""

    __slots__ = ("__weakref__", "_free", "_landing", "_late", "_lock", "_map", "_number", "_open", "_sock")

    def __init__(self, sock: socket.socket, landing: mmap.mmap) -> None:
        """Use `opened`."""
        self._sock = sock
        self._sock.setblocking(True)
        # A wait that ends by itself: one system call instead of two.
        wait = struct.pack("ll", int(WAIT_S), int(WAIT_S % 1 * 1e6))
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
        self._map = landing
        self._landing = memoryview(landing)
        self._lock = threading.Lock()
        self._free = list(range(SLOTS))
        self._number = 0
        self._late: int | None = None
        """The slot of a request that was not waited for: the thread may still write to it."""
        self._open = True
        forks.watch(self)

    def process_forked(self) -> None:
        """See `kvclient.forks`."""
        self._open = False
        self._lock = threading.Lock()
        self._sock.close()

    @staticmethod
    def opened(socket_fd: int, landing_fd: int) -> LoneGets:
        """The descriptors stay the caller's. Raises OSError or ValueError."""
        landing = mmap.mmap(landing_fd, LANDING_BYTES, prot=mmap.PROT_READ)
        return LoneGets(socket.socket(fileno=os.dup(socket_fd)), landing)

    def get(self, key: bytes, recompute_s: float | None) -> tuple[memoryview, SlotLease] | None:
        """The chunk, and the lease of its slot; None: the agent is to be asked for it.

        Never waits longer than WAIT_S, nor for another thread.
        """
        # In one piece: this is code that is in no cache, and each function more is a microsecond.
        if not self._lock.acquire(blocking=False):
            return None
        try:
            if not self._open or not self._free or (self._late is not None and self._is_late()):
                return None
            slot = self._free.pop()
            self._number += 1
            recompute_ns = NO_RECOMPUTE if recompute_s is None else _nanoseconds(recompute_s)
            try:
                self._sock.send(REQUEST.pack(self._number, recompute_ns, slot, 0, key), socket.MSG_DONTWAIT)
            except OSError:
                self._open = False
                return None
            size_bytes = self._answer(0)
            if size_bytes:
                at = slot * SLOT_BYTES
                return self._landing[at : at + size_bytes], SlotLease(self._free, slot)
            if size_bytes is None:
                self._late = slot
            else:
                self._free.append(slot)
            return None
        finally:
            self._lock.release()

    def _is_late(self) -> bool:
        """Whether the thread still owes the answer to a request that was not waited for."""
        if self._late is not None and self._answer(socket.MSG_DONTWAIT) is not None:
            self._free.append(self._late)
            self._late = None
        return self._late is not None

    def _answer(self, flags: int) -> int | None:
        """To the last request; None: it has not come, within WAIT_S or (MSG_DONTWAIT) yet. When the agent has ended
        this or is gone, the connection for requests knows what to say of it."""
        try:
            answer = self._sock.recv(ANSWER.size + 1, flags)
        except BlockingIOError:
            return None
        except OSError:
            answer = b""
        if len(answer) == ANSWER.size:
            number, size_bytes, _ = ANSWER.unpack(answer)
            if number == self._number and size_bytes <= SLOT_BYTES:
                return int(size_bytes)
        self._open = False
        return 0

    def close(self) -> None:
        """The agent gives everything up; views handed out stay mapped."""
        with self._lock:
            self._open = False
            self._sock.close()
            self._landing.release()
            with contextlib.suppress(BufferError):
                self._map.close()


class SlotLease:
    """A slot of the landing, which is this client's own: nobody else gives it to anybody."""

    __slots__ = ("_free", "_slot")

    def __init__(self, free: list[int], slot: int) -> None:
        self._free = free
        self._slot = slot

    def check(self) -> None:
        """The bytes are the chunk's for as long as the slot is not given back."""

    def release(self) -> None:
        """Give the slot back; once."""
        self._free.append(self._slot)


def _nanoseconds(recompute_s: float) -> int:
    return int(min(max(recompute_s, 0.0), _RECOMPUTE_S_MAX) * 1e9)


def pair() -> tuple[socket.socket, socket.socket]:
    """(the agent's end, the engine's end). Raises OSError."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)


def landing_file() -> int:
    """A memory file for a landing, of its size and of zeros. Raises OSError."""
    fd = os.memfd_create("kvcast-landing", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, LANDING_BYTES)
    except BaseException:
        os.close(fd)
        raise
    return fd
