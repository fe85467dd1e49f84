"""One read of a peer's chunk by RDMA, and the chunk as the peer has opened it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from hostagent.transport.base import ReadHandle, ReadRequest
from hostagent.transport.read_protocol import RemoteExtent
from kvchunk.ids import ChunkKey


class ReadOwner(Protocol):
    """Whose reads these are: a peer."""

    def forget(self, read: RdmaRead) -> None:
        """A cancelled read: when this returns, its memory is left alone."""

    def pieces_came(self, reads: Iterable[RdmaRead], now_ns: int) -> None:
        """More of these reads is here."""

    def pieces_failed(self, why: str, *, by_nic: bool) -> None:
        """The queue pair brings nothing more; `by_nic`: the NIC tried and gave up."""


@dataclass(slots=True, eq=False)
class RdmaRead:
    """One read; `cancel` is the caller's."""

    peer: ReadOwner
    request: ReadRequest
    opened: OpenedChunk
    """The chunk, at the peer."""
    have_bytes: int = 0
    told_bytes: int = 0
    """How many of these have been reported to the caller."""
    over: bool = False
    instead: ReadHandle | None = None
    """The same read over TCP, from a peer without RDMA."""

    def cancel(self) -> None:
        """See `ReadHandle.cancel`."""
        if self.over:
            return
        self.over = True
        if self.instead is not None:
            self.instead.cancel()
        self.peer.forget(self)


@dataclass(slots=True, eq=False)
class OpenedChunk:
    """A chunk of the peer's, pinned there for us; or about to be."""

    key: ChunkKey
    request: int = 0
    where: RemoteExtent | None = None
    reads: dict[RdmaRead, None] = field(default_factory=dict)
    """In the order in which they were asked for."""
    read_bytes: int = 0
    linger: asyncio.TimerHandle | None = None
