"""Reliable reads over TCP: range requests on persistent connections. The format is in `read_protocol`.

A peer has one connection for large reads, which a thread in C carries where there is one, and one for small reads,
which the event loop carries: a way to the thread and back takes longer than they do, and they wait for no large ones.
A read is small when it is, and all that is wanted of the peer with it.
"""

from __future__ import annotations

import asyncio

from hostagent import limits
from hostagent.pool.memory import PoolMemory
from hostagent.transport.base import ReadRequest, TransportCounters
from hostagent.transport.looped_connection import LoopedConnection
from hostagent.transport.native_pulls import NativePulls, PulledConnection
from hostagent.transport.peer_connection import PeerConnection, Read, Reading
from hostagent.transport.read_tokens import TokenBook


class ReadClient:
    """Reliable reads from any number of peers. A connection that stands still keeps its reads; those that come later go
    over a new one."""

    def __init__(
        self,
        memory: PoolMemory,
        counters: TransportCounters,
        *,
        stall_timeout_s: float,
        tokens: TokenBook | None = None,
        own_address: str = "",
        pulls: NativePulls | None = None,
        small_bytes_max: int = limits.READ_SMALL_BYTES_MAX,
    ) -> None:
        """`tokens`: what is shown to holders; `own_address`: where connections come from, empty: any of this host;
        `pulls`: carries reads of more than `small_bytes_max`, and ends with this; None: the event loop carries all."""
        self._pulls = pulls
        self._small_bytes_max = small_bytes_max
        self._reading = Reading(
            asyncio.get_running_loop(), memory, counters, stall_timeout_s, tokens, own_address, self._peer_closed
        )
        self._newest: dict[tuple[str, bool], PeerConnection] = {}
        """By endpoint, and whether it is for small reads."""
        self._stalled: list[PeerConnection] = []

    def read(self, request: ReadRequest) -> Read:
        """See `ReadPart.read`."""
        is_small = max(request.size_bytes, request.wanted_bytes) <= self._small_bytes_max
        lane = request.endpoint, self._pulls is not None and is_small
        peer = self._newest.get(lane)
        if peer is None or (peer.is_stalled and self._retire(peer)):
            peer = self._newest[lane] = self._connection(*lane)
        return peer.add(request)

    def _connection(self, endpoint: str, for_small: bool) -> PeerConnection:
        if self._pulls is None or for_small:
            return LoopedConnection(endpoint, self._reading)
        return PulledConnection(endpoint, self._reading, self._pulls)

    def close(self) -> None:
        """End all connections; reads under way get FAILED on the next turn of the loop. Idempotent."""
        for peer in (*self._newest.values(), *self._stalled):
            peer.close()
        if self._pulls is not None:
            self._pulls.close()

    def _retire(self, peer: PeerConnection) -> bool:
        """Leave a connection to the reads that it has, if not too many of its peer's are left already."""
        if sum(one.endpoint == peer.endpoint for one in self._stalled) == limits.READ_STALLED_CONNECTIONS_MAX:
            return False
        self._stalled.append(peer)
        peer.retire()
        return True

    def _peer_closed(self, peer: PeerConnection) -> None:
        if peer in self._stalled:
            self._stalled.remove(peer)
        for lane in [lane for lane, newest in self._newest.items() if newest is peer]:
            del self._newest[lane]
