"""Pieces of reads posted by a thread in C, which takes completions and posts what comes next without the event loop.

The window stays the rule of `ReadWindow`: the thread keeps as much in flight as it was last allowed, and tells twice a
round trip, or at the end of a read, what came and how long each piece took.

One read of a peer's chunk by RDMA, and the chunk as the peer has opened it.
"""

from __future__ import annotations

import asyncio
import ctypes
import enum
from collections.abc import Callable, Iterable
from ctypes import byref
from dataclasses import dataclass, field
from typing import Final, Protocol

from hostagent.native.library import NativeThread, structure
from hostagent.transport.base import ReadHandle, ReadRequest
from hostagent.transport.read_protocol import RemoteExtent
from hostagent.transport.verbs import abi
from hostagent.transport.verbs.device import MemoryRegion, RdmaPort, VerbsError
from hostagent.transport.verbs.queues import QueuePair
from kvchunk.ids import ChunkKey
from kvproto.session.read_window import ReadWindow


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


_CAME = 64
"""Most pieces of news fetched by one call."""
_Config: Final = structure("asker_config")
_Allowance: Final = structure("allowance")
_Range: Final = structure("range")
_Came: Final = structure("came")
_Asked: Final = structure("asked")


class What(enum.IntEnum):
    """enum dp_came_what"""

    BYTES = 0
    PIECE = 1
    BROKEN = 2


class Asker:
    """The thread, for all peers of a transport; they share its completion queue."""

    def __init__(
        self,
        library: ctypes.CDLL,
        port: RdmaPort,
        completions: ctypes.Structure,
        target: MemoryRegion,
        loop: asyncio.AbstractEventLoop,
        broken: Callable[[VerbsError], None],
        *,
        began: Callable[[], None],
    ) -> None:
        """`completions`: of the queue that is told of what was asked for; `target`: where reads go.
        `broken` gets the reason why nothing is told any more; `began` is called when something is in flight, or may be.

        Raises MemoryError, or OSError when the system has no more threads or descriptors.
        """
        self.library, self.loop, self.target_address = library, loop, target.address
        self._target = target
        self.began = began
        self._broken: Callable[[VerbsError], None] | None = broken
        self._peers: dict[int, NativePieces] = {}
        self._last_range = 0
        self._came = (_Came * _CAME)()
        post = ctypes.cast(port.post_send, ctypes.c_void_p)
        self._thread = NativeThread(
            library,
            "asker",
            loop,
            lambda wake: (
                byref(
                    _Config(
                        completions=completions,
                        post=post,
                        wake=wake,
                        local_keys=ctypes.cast(target.local_keys, ctypes.c_void_p),
                        into=target.address,
                        step_bytes=target.step_bytes,
                    )
                ),
            ),
            self._drain,
        )
        self.pointer = self._thread.pointer

    def begin(self, pieces: NativePieces, queue_pair: QueuePair, allowance: ctypes.Structure) -> int:
        """Number of a fresh peer. Raises MemoryError."""
        number: int = self.library.dp_asker_begin(self.pointer, queue_pair.address, queue_pair.number, byref(allowance))
        if not number:
            raise MemoryError("no memory for a peer of the data path's asker")
        self._peers[number] = pieces
        return number

    def end(self, number: int) -> None:
        """Nothing more for this peer."""
        self.library.dp_asker_end(self.pointer, number)
        del self._peers[number]

    def next_range(self) -> int:
        """A number for a range."""
        self._last_range += 1
        return self._last_range

    def in_flight(self) -> bool:
        """Whether any peer has something to bring."""
        return any(pieces.has_work for pieces in self._peers.values())

    def look(self) -> None:
        """Take what has completed, whether there was an event or not."""
        self.library.dp_asker_take(self.pointer)
        self._drain()

    def close(self) -> None:
        """After all peers have ended, and before the completion queue is closed."""
        self._thread.close()

    def _drain(self) -> None:
        broken = ctypes.c_uint32()
        while taken := self.library.dp_asker_drain(self.pointer, self._came, _CAME, byref(broken)):
            news: dict[int, list[ctypes.Structure]] = {}
            for came in (_Came * taken).from_buffer_copy(self._came):
                news.setdefault(came.peer, []).append(came)
            for number, its in news.items():
                pieces = self._peers.get(number)
                if pieces is not None:
                    pieces.take(its)
        if broken.value and self._broken is not None:
            tell, self._broken = self._broken, None
            tell(VerbsError("the completion queue of reads is broken"))


class NativePieces:
    """Cuts reads from one peer into pieces and has the NIC bring them, in order, as many as its window says."""

    def __init__(self, owner: ReadOwner, asker: Asker, window: ReadWindow) -> None:
        self._owner = owner
        self._asker = asker
        self._window = window
        self._peer = 0
        """The thread's number for the queue pair; 0: there is none."""
        self._reads: dict[int, RdmaRead] = {}
        """Those that are not whole, by the number of their range, in the order in which they came."""

    @property
    def has_work(self) -> bool:
        """Whether something is to be brought."""
        return bool(self._reads)

    def begin(self, queue_pair: QueuePair) -> None:
        """Post to this one from now on."""
        self._window.begin(self._now_ns())
        self._peer = self._asker.begin(self, queue_pair, self._allowance())
        for number, read in self._reads.items():
            self._ask(number, read)

    def end(self) -> None:
        """Post nothing more; call it before the queue pair is destroyed. What it has not brought is asked for again
        once there is another one."""
        if self._peer:
            self._asker.end(self._peer)
            self._peer = 0
        self._window.dropped()

    def add(self, read: RdmaRead) -> None:
        """Bring this read; its chunk is open."""
        if self._peer and not self._reads:
            self._catch_up()
            self._window.begin(self._now_ns())
            self._allow()
        number = self._asker.next_range()
        self._reads[number] = read
        if self._peer:
            self._ask(number, read)

    def withdraw(self, read: RdmaRead) -> bool:
        """Bring it no more. Returns whether the NIC works on it: then only the end of the queue pair ends that."""
        number = next((number for number, known in self._reads.items() if known is read), 0)
        if not number:
            return False
        del self._reads[number]
        library, asker = self._asker.library, self._asker.pointer
        return bool(self._peer and library.dp_asker_withdraw(asker, self._peer, number))

    def clear(self) -> None:
        """Forget all reads; call it after `end`."""
        self._reads.clear()

    def packets_lost(self, since_ns: int, now_ns: int) -> None:
        """The NIC has asked again for something between the two times."""
        self._catch_up()
        self._window.lost(since_ns, now_ns)
        self._allow()

    def waiting_since_ns(self) -> int | None:
        """Since when the NIC has done nothing, though it has something to do; None: it has not."""
        asked = self._look()
        return max(asked.oldest_ns, asked.done_ns) if asked.oldest_ns else None

    def take(self, news: list[ctypes.Structure]) -> None:
        """What the thread tells of this peer. It gets its next allowance before anybody hears of what came."""
        touched: dict[RdmaRead, None] = {}
        broken: ctypes.Structure | None = None
        for one in news:
            if one.what == What.BROKEN:
                broken = one
            elif one.what == What.PIECE:
                self._window.came(one.in_flight_bytes, one.bytes, one.posted_ns, one.done_ns)
            elif (read := self._reads.get(one.id)) is not None:
                read.have_bytes += one.bytes
                touched[read] = None
                if read.have_bytes == read.request.size_bytes:
                    del self._reads[one.id]
        self._allow()
        self._owner.pieces_came(touched, self._now_ns())
        if broken is not None and self._peer:
            status = broken.status
            self._owner.pieces_failed(abi.status_name(status) if status else "post", by_nic=bool(status))

    # ------------------------------------------------------------------ inside

    def _now_ns(self) -> int:
        return int(self._asker.loop.time() * 1e9)

    def _allowance(self) -> ctypes.Structure:
        window = self._window
        return _Allowance(window_bytes=window.bytes, piece_bytes=window.piece_bytes, quick_ns=window.quick_ns)

    def _allow(self) -> None:
        if self._peer:
            self._asker.library.dp_asker_allow(self._asker.pointer, self._peer, byref(self._allowance()))

    def _look(self) -> ctypes.Structure:
        asked = _Asked()
        if self._peer:
            self._asker.library.dp_asker_look(self._asker.pointer, self._peer, byref(asked))
        return asked

    def _catch_up(self) -> None:
        """With what was not worth telling."""
        asked = self._look()
        self._window.heard(asked.in_flight_bytes, asked.done_ns)

    def _ask(self, number: int, read: RdmaRead) -> None:
        """The part of a read that is not here. Raises MemoryError."""
        request, where, have_bytes = read.request, read.opened.where, read.have_bytes
        assert where is not None
        wanted = _Range(
            id=number,
            into=self._asker.target_address + request.pool_offset + have_bytes,
            from_=where.address + request.offset + have_bytes,
            size_bytes=request.size_bytes - have_bytes,
            remote_key=where.rkey,
        )
        if self._asker.library.dp_asker_add(self._asker.pointer, self._peer, byref(wanted)):
            raise MemoryError("no memory for a range of the data path's asker")
        self._asker.began()
