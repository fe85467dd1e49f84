"""A chain relay: what a person would build instead of a cast. Readers pass on to the next what they receive.

The first reader reads from the holder; each later one (in the order of starts) from the reader that started before it,
which sends what it has and goes on while the rest comes. It keeps the holder's uplink at one prefix and costs every
reader's uplink one.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from bmv2_testbed.bench.sources import TCP_PEER_PORT, receive_into
from bmv2_testbed.content import Prefix
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.limits import START_DEADLINE_S

RELAY_PORT = 5503
_PIECE_BYTES = 64 * 1024
_RETRY_S = 0.02


def chain(offsets_s: Sequence[float]) -> Mapping[int, int | None]:
    """Whom each reader reads from: the reader that starts last before it; None is the holder. Pure."""
    order = sorted(range(len(offsets_s)), key=lambda reader: (offsets_s[reader], reader))
    return {reader: order[place - 1] if place else None for place, reader in enumerate(order)}


class RelaySource:
    """One reader's place in the chain."""

    def __init__(self, address: str) -> None:
        """`address`: `tcp:HOST` to read from the holder's server, `relay:HOST` to read from another reader."""
        kind, host = address.split(":", 1)
        self._listener = socket.create_server(("", RELAY_PORT))
        self._prefix_bytes = bytearray()
        self._filled = 0
        self._grown = threading.Condition()
        self._fetched = 0
        self._next: threading.Thread = threading.Thread(target=self._serve, daemon=True)
        self._has_next = threading.Event()
        self._next.start()
        self._connection = _connect(host, RELAY_PORT if kind == "relay" else TCP_PEER_PORT)

    def fetch(self, prefix: Prefix) -> Iterator[tuple[int, memoryview]]:
        """As `Source.fetch`."""
        with self._grown:
            self._prefix_bytes = bytearray(prefix.size_bytes)
        view = memoryview(self._prefix_bytes)
        self._connection.sendall(f"0 {prefix.size_bytes}\n".encode())
        for index in range(prefix.chunks):
            start = index * prefix.chunk_bytes
            end = start + prefix.chunk_size_bytes(index)
            for at in range(start, end, _PIECE_BYTES):
                receive_into(self._connection, view[at : min(at + _PIECE_BYTES, end)])
                with self._grown:
                    self._filled = min(at + _PIECE_BYTES, end)
                    self._grown.notify_all()
            self._fetched += 1
            yield index, view[start:end]

    def origins(self) -> dict[str, int]:
        return {"chain": self._fetched}

    def close(self) -> None:
        """Return when the next reader, if there is one, has everything."""
        if self._has_next.is_set():
            self._next.join()
        self._listener.close()
        self._connection.close()

    def _serve(self) -> None:
        """Answer the one `offset length` line of the next reader."""
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # Closed: this reader is the last.
        self._has_next.set()
        with connection, connection.makefile("rb") as requests:
            line = requests.readline()
            if not line:
                return
            at, length = (int(word) for word in line.split())
            end = at + length
            while at < end:
                with self._grown:
                    self._grown.wait_for(lambda at=at: self._filled > at)  # type: ignore[misc]
                    filled = self._filled
                try:
                    connection.sendall(memoryview(self._prefix_bytes)[at:filled])
                except (BrokenPipeError, ConnectionResetError):
                    return
                at = filled


def _connect(host: str, port: int) -> socket.socket:
    """Connect to a server that may still be starting."""
    deadline_s = time.monotonic() + START_DEADLINE_S / 2
    while True:
        try:
            connection = socket.create_connection((host, port))
        except OSError as error:
            if time.monotonic() > deadline_s:
                raise TestbedError(f"no reader relays at {host}:{port}: {error.strerror}") from error
            time.sleep(_RETRY_S)
            continue
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection
