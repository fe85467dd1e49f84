"""Answers reliable reads: accepts connections, and ends idle ones where there are too many.

The format is in `read_protocol`; `served` has what becomes of one connection.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from hostagent import limits
from hostagent.event_loop import Listener
from hostagent.memory.pool_memory import PoolMemory
from hostagent.transport.base import TransportCounters, TransportError, TransportSink
from hostagent.transport.endpoints import endpoint_of, family_of
from hostagent.transport.native_reads import NativeReads
from hostagent.transport.read_protocol import watch_peer
from hostagent.transport.read_tokens import TokenBook
from hostagent.transport.served import RemoteAccess, ServedConnection, Serving
from kvchunk.ids import ChunkKey


class ReadServer:
    """Listens for requests and answers them from the pool."""

    def __init__(
        self,
        memory: PoolMemory,
        sink: TransportSink,
        counters: TransportCounters,
        remote_access: Callable[[], RemoteAccess | None] = lambda: None,
        *,
        stall_timeout_s: float = limits.READ_STALL_TIMEOUT_S,
        tokens: TokenBook | None = None,
        native: NativeReads | None = None,
    ) -> None:
        """`remote_access`: makes one for a connection, or None where there is no RDMA. A peer that takes in nothing of
        what it asked for, for `stall_timeout_s`, is cut off: it holds pins. `tokens`: checks who reads; None: everybody
        may. `native`: gets the connections of readers that may have everything; it ends after this."""
        self._loop = asyncio.get_running_loop()
        self._serving = Serving(self._loop, memory, sink, counters, stall_timeout_s, tokens, native)
        self._remote_access = remote_access
        self._counters = counters
        self._connections: set[ServedConnection] = set()
        self._listener: Listener | None = None

    def listen(self, address: str, port: int) -> tuple[str, int]:
        """Start; returns the bound address. Raises TransportError when the port is taken."""
        listener = socket.socket(family_of(address), socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
            listener.listen(limits.READ_CONNECTIONS_MAX)
        except OSError as error:
            listener.close()
            raise TransportError(
                f"cannot listen for reads on TCP {endpoint_of(address, port)}: {error.strerror};"
                " set data.read_port to a free port"
            ) from error
        self._listener = Listener(
            listener, self._loop, self._accept, lambda: self._counters.drop("read_accept_no_descriptors")
        )
        bound: tuple[str, int] = listener.getsockname()[:2]
        return bound

    def hide(self, key: ChunkKey) -> None:
        """See `ReadPart.hide`: of connections that are answered here."""
        for connection in list(self._connections):
            connection.hide(key)

    def close(self) -> None:
        """Stop listening, drop all connections and their pins."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for connection in list(self._connections):
            connection.close()

    def _accept(self, sock: socket.socket) -> None:
        try:
            peer: str = sock.getpeername()[0]
        except OSError:
            sock.close()
            return
        if not self._make_room(peer):
            self._counters.drop("read_connections_full")
            sock.close()
            return
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        watch_peer(sock)
        self._connections.add(
            ServedConnection(self._serving, sock, peer, self._remote_access(), self._connections.discard)
        )

    def _make_room(self, peer: str) -> bool:
        """Room for one more connection from this address: the one idle for longest ends where there are too many, of
        this address's or of all, one without a token before all others. A peer whose idle connection ends makes another
        when it reads next."""
        own = [one for one in self._connections if one.peer == peer]
        if len(own) < limits.READ_CONNECTIONS_PER_PEER_MAX:
            if len(self._connections) < limits.READ_CONNECTIONS_MAX:
                return True
            own = list(self._connections)
        idle = [one for one in own if one.is_idle]
        if not idle:
            return False
        min(idle, key=lambda one: (one.is_admitted, one.used_s)).close()
        self._counters.drop("read_idle_ended")
        return True
