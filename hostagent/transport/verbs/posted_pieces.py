"""Pieces of reads posted from Python: each completion is looked at by the event loop, which posts the next piece."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hostagent import limits
from hostagent.transport.verbs import abi
from hostagent.transport.verbs.device import MemoryRegion, VerbsError
from hostagent.transport.verbs.queues import QueuePair
from hostagent.transport.verbs.rdma_read import RdmaRead, ReadOwner
from kvproto.session.read_window import ReadWindow

_WORDS = abi.SEND_WR.itemsize // 8
_WORK_ID, _NEXT, _REMOTE_ADDRESS, _REMOTE_KEY = (
    abi.word_of(abi.SEND_WR, name) for name in ("wr_id", "next", "rdma_address", "rdma_rkey")
)
"""Places of fields in a work request, in words of 64 bits; after the key comes padding."""


@dataclass(slots=True)
class _Piece:
    """A part of a read: one RDMA READ, or a range still to be cut into READs."""

    read: RdmaRead
    offset: int
    """From the beginning of the read."""
    size_bytes: int
    posted_ns: int = 0


class PieceHost(Protocol):
    """What the pieces of all peers share."""

    loop: asyncio.AbstractEventLoop
    target: MemoryRegion
    """Where reads go: the pool, as a rule."""

    def make_window(self) -> ReadWindow:
        """A window: how much may be in flight from one peer."""
        ...

    def next_work_id(self, pieces: PostedPieces) -> int:
        """A number for a piece; its completion comes back to these."""
        ...

    def forget_work(self, work_id: int) -> None:
        """A work request will not be waited for any more."""
        ...


class PostedPieces:
    """See the module's docstring, and `ReadPieces`."""

    def __init__(self, owner: ReadOwner, host: PieceHost) -> None:
        self._owner = owner
        self._host = host
        self._window = host.make_window()
        self._queue_pair: QueuePair | None = None
        self._queue: deque[_Piece] = deque()
        self._posted: dict[int, _Piece] = {}
        """Pieces that the NIC works on, by work id, in the order in which they were posted."""
        self._completed_ns = 0
        """When the NIC last did something."""
        self._requests = np.zeros(limits.VERBS_READ_PIECES_MAX, abi.SEND_WR)
        self._sge = np.zeros(limits.VERBS_READ_PIECES_MAX, abi.SGE)
        index = np.arange(limits.VERBS_READ_PIECES_MAX, dtype=np.uint64)
        self._requests_address = self._requests.ctypes.data
        self._requests["sg_list"] = self._sge.ctypes.data + index * abi.SGE.itemsize
        self._requests["next"] = self._requests.ctypes.data + (index + 1) * abi.SEND_WR.itemsize
        self._requests["num_sge"] = 1
        self._requests["opcode"] = abi.WR_RDMA_READ
        self._requests["send_flags"] = abi.SEND_SIGNALED
        self._sge["lkey"] = host.target.local_key
        # Single fields of records are written ten times faster through flat views.
        self._request_words = self._requests.view(np.uint64).data
        self._sge_words = self._sge.view(np.uint64).data
        self._key_word = host.target.local_key << 32
        self._target_address = host.target.address

    def begin(self, queue_pair: QueuePair) -> None:
        """See `ReadPieces`."""
        self._queue_pair = queue_pair
        self._pump(self._now_ns())

    def end(self) -> None:
        """See `ReadPieces`."""
        self._queue_pair = None
        self._window.dropped()
        for work_id in self._posted:
            self._host.forget_work(work_id)
        self._queue.extendleft(piece for piece in reversed(self._posted.values()) if not piece.read.over)
        self._posted.clear()

    def add(self, read: RdmaRead) -> None:
        """See `ReadPieces`."""
        self._queue.append(_Piece(read, 0, read.request.size_bytes))
        self._pump(self._now_ns())

    def withdraw(self, read: RdmaRead) -> bool:
        """See `ReadPieces`."""
        self._queue = deque(piece for piece in self._queue if piece.read is not read)
        return any(piece.read is read for piece in self._posted.values())

    def clear(self) -> None:
        """See `ReadPieces`."""
        self._queue.clear()

    def lost(self, since_ns: int, now_ns: int) -> None:
        """See `ReadPieces`."""
        self._window.lost(since_ns, now_ns)

    def waiting_since_ns(self) -> int | None:
        """See `ReadPieces`."""
        oldest = next(iter(self._posted.values()), None)
        return None if oldest is None else max(oldest.posted_ns, self._completed_ns)

    def completed(self, completions: Iterable[tuple[int, int]], now_ns: int) -> None:
        """Work ids with their status, as they completed: pieces are there, or the connection is broken.

        The NIC gets its next pieces before these are reported to anybody.
        """
        touched: dict[RdmaRead, None] = {}
        broken = ""
        for work_id, status in completions:
            piece = self._posted.pop(work_id, None)
            if piece is None:
                continue
            if status != abi.WC_SUCCESS:
                broken = abi.status_name(status)
                break
            size_bytes, read = piece.size_bytes, piece.read
            self._window.completed(size_bytes, piece.posted_ns, now_ns)
            read.have_bytes += size_bytes
            touched[read] = None
        if not broken:
            self._pump(now_ns)
        self._completed_ns = now_ns
        self._owner.pieces_came(touched, now_ns)
        if broken:
            self._owner.pieces_failed(broken, by_nic=True)

    # ------------------------------------------------------------------ inside

    def _now_ns(self) -> int:
        return int(self._host.loop.time() * 1e9)

    def _pump(self, now_ns: int) -> None:
        """Post as many pieces as may be in flight, in one call."""
        queue, posted = self._queue, self._posted
        if not queue or self._queue_pair is None:
            return
        post, first = self._window.post, len(posted)
        while queue and len(posted) < limits.VERBS_READ_PIECES_MAX:
            rest = queue[0]
            size_bytes = post(rest.size_bytes, now_ns)
            if not size_bytes:
                break
            self._describe(len(posted) - first, _Piece(rest.read, rest.offset, size_bytes, now_ns))
            rest.offset += size_bytes
            rest.size_bytes -= size_bytes
            if not rest.size_bytes:
                queue.popleft()
        if len(posted) > first:
            self._post(self._queue_pair, len(posted) - first)

    def _describe(self, place: int, piece: _Piece) -> None:
        """Write one work request."""
        read = piece.read
        request, where = read.request, read.opened.where
        assert where is not None
        work_id = self._host.next_work_id(self)
        self._posted[work_id] = piece
        self._sge_words[2 * place] = self._target_address + request.pool_offset + piece.offset
        self._sge_words[2 * place + 1] = self._key_word | piece.size_bytes
        words, first = self._request_words, _WORDS * place
        words[first + _WORK_ID] = work_id
        words[first + _REMOTE_ADDRESS] = where.address + request.offset + piece.offset
        words[first + _REMOTE_KEY] = where.rkey

    def _post(self, queue_pair: QueuePair, count: int) -> None:
        """Hand the first `count` work requests to the NIC."""
        words, last = self._request_words, _WORDS * (count - 1) + _NEXT
        following, words[last] = words[last], 0
        try:
            queue_pair.post_send(self._requests_address)
        except VerbsError:
            self._owner.pieces_failed("post", by_nic=False)
        finally:
            words[last] = following


def hand_out(works: Iterable[tuple[int, int]], working: dict[int, PostedPieces], now_ns: int) -> None:
    """Give completed work (id, status) to its owners in `working`, each peer all of its work at once."""
    by_peer: dict[PostedPieces, list[tuple[int, int]]] = {}
    for work in works:
        pieces = working.pop(work[0], None)
        if pieces is not None:
            by_peer.setdefault(pieces, []).append(work)
    for pieces, its in by_peer.items():
        pieces.completed(its, now_ns)
