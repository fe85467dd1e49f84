"""Reads that a thread in C answers: lends it connections, and takes back those that it can do nothing with."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import enum
import socket
import struct
from collections.abc import Callable
from typing import Final, TypeAlias

from hostagent import limits
from hostagent.memory.leases import LocalLeases
from hostagent.memory.pool_memory import PoolMemory
from hostagent.native.library import DECLARED, NativeThread, structure
from hostagent.transport.base import ChunkPlace, TransportCounters, TransportSink
from hostagent.transport.read_protocol import ANSWER_HEAD, LEVELS_BYTES, READ_HEAD
from kvchunk.ids import ChunkKey


class Why(enum.IntEnum):
    """enum dp_returned_why"""

    UNKNOWN = 0
    """The next request is the caller's."""
    ENDED = 1
    STALLED = 2


Back: TypeAlias = Callable[[Why, bytes], None]
"""Called when a connection comes back, with the bytes that came and are not answered."""
_NS: Final = 1_000_000_000
_KEY_BYTES: Final = DECLARED.constants["DP_KEY_BYTES"]
_Part: Final = structure("part")


class NativeReads:
    """Of one agent. Chunks are leased from the pool's catalog, as engines do; the pool learns of it by `drain`."""

    def __init__(
        self,
        library: ctypes.CDLL,
        memory: PoolMemory,
        leases: LocalLeases,
        loop: asyncio.AbstractEventLoop,
        sink: TransportSink,
        counters: TransportCounters,
        *,
        stall_timeout_s: float = limits.READ_STALL_TIMEOUT_S,
    ) -> None:
        """Raises MemoryError, or OSError when the system has no more threads or descriptors."""
        self._library, self._sink, self._counters = library, sink, counters
        self._lent: dict[int, Back] = {}
        self._number = 0
        self._reads, self._returned = structure("reads")(), structure("returned")()
        self._told = 0, 0, 0
        """Of the figures, those that are counted."""
        self._levels = (ctypes.c_uint64 * len(LEVELS_BYTES))(*LEVELS_BYTES)
        with contextlib.ExitStack() as undo:
            table, stall_ns = leases.own_table(), int(stall_timeout_s * _NS)
            undo.callback(leases.end_own_table, table)
            self._thread = NativeThread(
                library,
                "server",
                loop,
                lambda wake: (ctypes.byref(self._config(wake, memory, leases.address, table.address, stall_ns)),),
                self.drain,
            )
            undo.callback(self._thread.close)
            self._server = self._thread.pointer
            self._closing = undo.pop_all()

    def _config(self, wake: int, memory: PoolMemory, catalog: int, table: int, stall_ns: int) -> ctypes.Structure:
        config = structure("server_config")(
            pool=memory.address,
            pool_bytes=memory.size_bytes,
            catalog=catalog,
            table=table,
            levels=ctypes.addressof(self._levels),
            stall_ns=stall_ns,
            tell_ns=int(limits.READS_TOLD_S * _NS),
            pool_file=-1 if memory.huge_pages else memory.fd,
            wake=wake,
        )
        config.request_head[:], config.answer_head[:] = READ_HEAD, ANSWER_HEAD
        return config

    def close(self) -> None:
        """Nothing is answered any more; connections are their owners'. Idempotent."""
        if self._server:
            self.drain()
        self._lent.clear()
        self._closing.close()
        self._server = None

    def lend(self, sock: socket.socket, back: Back) -> int | None:
        """Have a connection's requests answered, from the next byte on; its number until it comes back. None: that
        cannot be, for want of memory."""
        self._number += 1
        if self._library.dp_server_lend(self._server, sock.fileno(), self._number):
            return None
        self._lent[self._number] = back
        return self._number

    def recall(self, number: int) -> None:
        """Have a connection come back soon."""
        self._library.dp_server_recall(self._server, number)

    def end(self, number: int) -> None:
        """Take a connection back now. What it waited for is not sent, and its chunks may go."""
        self._library.dp_server_end(self._server, number)
        del self._lent[number]
        self._count()

    def show(self, chunk: ChunkPlace, first: int, count: int) -> None:
        """Pieces of a chunk that is arriving are proven: peers may read them. Without memory they get them later."""
        part = _Part(offset=chunk.offset, size_bytes=chunk.size_bytes, first=first, count=count)
        part.key[:] = chunk.key
        self._library.dp_server_show(self._server, ctypes.byref(part))

    def hide(self, key: ChunkKey) -> None:
        """Nothing of a chunk is read any more because it is arriving."""
        self._library.dp_server_hide(self._server, key)

    def idle_since_s(self, number: int) -> float | None:
        """When a connection that waits for nothing was last used, by the event loop's clock; None: it waits."""
        used_ns = ctypes.c_int64()
        if not self._library.dp_server_is_idle(self._server, number, ctypes.byref(used_ns)):
            return None
        return used_ns.value / _NS

    def drain(self) -> None:
        """Learn what was read, and take back what came back."""
        self._count()
        while self._library.dp_server_take_returned(self._server, ctypes.byref(self._returned)):
            returned = self._returned
            back = self._lent.pop(returned.id)
            back(Why(returned.why), bytes(returned.bytes[: returned.size_bytes]))
            if not self._server:
                return  # closed meanwhile

    def _count(self) -> None:
        reads, counters = self._reads, self._counters
        self._library.dp_server_drain(self._server, ctypes.byref(reads))
        before, self._told = self._told, (reads.sent_bytes, reads.queued_bytes, reads.readers)
        counters.read_bytes_sent += reads.sent_bytes - before[0]
        counters.reads_queued_bytes += reads.queued_bytes - before[1]
        counters.readers_served += reads.readers - before[2]
        casts_bytes = self._sink.casts_queued_bytes()
        self._library.dp_server_set_other_load(
            self._server,
            counters.reads_queued_bytes - reads.queued_bytes + casts_bytes,
            counters.readers_served - reads.readers + (casts_bytes > 0),
        )
        if reads.keys_count:
            keys = ctypes.string_at(reads.keys, reads.keys_count * _KEY_BYTES)
            self._sink.peers_read(struct.unpack(f"{_KEY_BYTES}s" * reads.keys_count, keys))
