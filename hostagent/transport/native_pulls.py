"""Reliable reads that a thread in C asks for and takes in, straight into the pool."""

from __future__ import annotations

import asyncio
import ctypes
import enum
from collections.abc import Sequence
from typing import Final, Protocol

from hostagent import limits
from hostagent.native.library import NativeThread, structure
from hostagent.transport.read_protocol import MAGIC, VERSION

_NS: Final = 1_000_000_000
_TOLD_AT_ONCE: Final = 64
Pull: Final = structure("pull")
_Pulled: Final = structure("pulled")
_Pulls: Final = structure("pulls")


class What(enum.IntEnum):
    """enum dp_pulled_what"""

    PART = 0
    ALL = 1
    REFUSED = 2
    MALFORMED = 3
    """From here on: of the connection."""
    VERSION = 4
    ENDED = 5


class Puller(Protocol):
    """A connection whose reads the thread carries."""

    def pull_progressed(self, pulled: ctypes.Structure, /) -> None:
        """The thread tells of a read, or of the connection."""


class NativePulls:
    """The thread, and the connections lent to it."""

    def __init__(self, library: ctypes.CDLL, loop: asyncio.AbstractEventLoop) -> None:
        """Raises MemoryError, or OSError when the system has no more threads or descriptors."""
        self._library = library
        self._connections: dict[int, Puller] = {}
        self._number = 0
        self._told = (_Pulled * _TOLD_AT_ONCE)()
        self._thread = NativeThread(library, "puller", loop, lambda wake: (ctypes.byref(_config(wake)),), self._drain)
        self._puller = self._thread.pointer

    def close(self) -> None:
        """End the thread. The connections are closed before. Idempotent."""
        assert not self._connections
        self._thread.close()
        self._puller = None

    def lend(self, connection: Puller, fd: int) -> int:
        """Have the thread carry a connection's reads; its number there. Raises MemoryError."""
        self._number += 1
        if self._library.dp_puller_lend(self._puller, fd, self._number):
            raise MemoryError("no memory for a connection")
        self._connections[self._number] = connection
        return self._number

    def ask(self, connection: int, pulls: Sequence[ctypes.Structure]) -> None:
        """Send requests, and put what answers them where they say. Raises MemoryError."""
        asked = (Pull * len(pulls))(*pulls)
        if self._library.dp_puller_ask(self._puller, connection, asked, len(pulls)):
            raise MemoryError("no memory for reads")

    def cancel(self, connection: int, number: int) -> None:
        """Nothing of a read is written or told any more."""
        self._library.dp_puller_cancel(self._puller, connection, number)

    def look(self, connection: int) -> ctypes.Structure:
        """How a connection stands."""
        pulls = _Pulls()
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
                connection.pull_progressed(pulled)


def _config(wake: int) -> ctypes.Structure:
    config = structure("puller_config")(
        wake=wake,
        window=limits.READS_PER_PEER_MAX,
        low_water_bytes=limits.READ_RECEIVE_LOW_WATER_BYTES,
        turn_bytes=limits.READ_TURN_BYTES,
        tell_bytes=limits.READ_PROGRESS_BYTES,
        tell_ns=int(limits.READ_PROGRESS_S * _NS),
        version=VERSION,
        provers=limits.READ_PROVERS,
    )
    config.magic[:] = MAGIC.to_bytes(len(config.magic), "big")
    return config
