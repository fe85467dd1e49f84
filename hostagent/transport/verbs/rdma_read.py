"""One read of a peer's chunk by RDMA, the chunk as the peer has opened it, and what brings the pieces of such reads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from hostagent.transport.base import ReadHandle, ReadRequest
from hostagent.transport.read_protocol import RemoteExtent
from hostagent.transport.verbs.queues import QueuePair
from kvchunk.ids import ChunkKey


class ReadOwner(Protocol):
    """Whose reads these are: a peer."""

    def forget(self, read: RdmaRead) -> None:
        """A cancelled read: when this returns, its memory is left alone."""
        ...

    def pieces_came(self, reads: Iterable[RdmaRead], now_ns: int) -> None:
        """More of these reads is here."""
        ...

    def pieces_failed(self, why: str, *, by_nic: bool) -> None:
        """The queue pair brings nothing more; `by_nic`: the NIC tried and gave up."""
        ...


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


class ReadPieces(Protocol):
    """Cuts reads from one peer into pieces and has the NIC bring them, in order, as many as its window says."""

    def begin(self, queue_pair: QueuePair) -> None:
        """Post to this one from now on."""
        ...

    def end(self) -> None:
        """Post nothing more; call it before the queue pair is destroyed. What it has not brought is asked for again
        once there is another one."""
        ...

    def add(self, read: RdmaRead) -> None:
        """Bring this read; its chunk is open."""
        ...

    def withdraw(self, read: RdmaRead) -> bool:
        """Bring it no more. Returns whether the NIC works on it: then only the end of the queue pair ends that."""
        ...

    def clear(self) -> None:
        """Forget all reads; call it after `end`."""
        ...

    def lost(self, since_ns: int, now_ns: int) -> None:
        """The NIC has asked again for something between the two times."""
        ...

    def waiting_since_ns(self) -> int | None:
        """Since when the NIC has done nothing, though it has something to do; None: it has not."""
        ...
