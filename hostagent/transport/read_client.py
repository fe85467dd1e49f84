"""Reliable reads over TCP: range requests on persistent connections. The format is in `read_protocol`.

A peer has one connection for large reads and one for small ones, which wait for no large ones so. A read is small when
it is, and all that is wanted of the peer with it. Two connections for large reads are slower than one (16 MiB in 14.4
instead of 13.0 ms), because each side has one thread for all.
"""

from __future__ import annotations

import asyncio

from hostagent import limits
from hostagent.memory.pool_memory import PoolMemory
from hostagent.transport.base import ReadRequest, TransportCounters
from hostagent.transport.native_pulls import NativePulls
from hostagent.transport.peer_connection import PeerConnection, Read, Reading
from hostagent.transport.read_tokens import TokenBook


class ReadClient:
    """Reliable reads from any number of peers. A connection that stands still keeps its reads; those that come later go
    over a new one."""

    def __init__(
        self,
        memory: PoolMemory,
        counters: TransportCounters,
        pulls: NativePulls,
        *,
        stall_timeout_s: float,
        tokens: TokenBook | None = None,
        own_address: str = "",
    ) -> None:
        """`pulls`: carries the reads, and ends with this; `tokens`: what is shown to holders; `own_address`: where
        connections come from, empty: any of this host."""
        self._reading = Reading(
            asyncio.get_running_loop(), memory, counters, pulls, stall_timeout_s, tokens, own_address, self._peer_closed
        )
        self._newest: dict[tuple[str, bool], PeerConnection] = {}
        """By endpoint, and whether it is for small reads."""
        self._stalled: list[PeerConnection] = []

    def read(self, request: ReadRequest) -> Read:
        """See `ReadPart.read`."""
        lane = request.endpoint, max(request.size_bytes, request.wanted_bytes) <= limits.READ_SMALL_BYTES_MAX
        peer = self._newest.get(lane)
        if peer is None or (peer.is_stalled and self._retire(peer)):
            peer = self._newest[lane] = PeerConnection(request.endpoint, self._reading)
        return peer.add(request)

    def close(self) -> None:
        """End all connections; reads under way get FAILED on the next turn of the loop. Idempotent."""
        for peer in (*self._newest.values(), *self._stalled):
            peer.close()
        self._reading.pulls.close()

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
