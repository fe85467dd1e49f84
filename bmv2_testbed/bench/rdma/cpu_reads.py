"""What asking for a piece of a one-sided read costs this process: everything but the NIC and its library.

A queue pair that takes work requests and does nothing; its completions are made up as soon as they are posted. The
control connection and the answering server are the real ones, on loopback, and take part at the beginning only.
"""

from __future__ import annotations

import asyncio
import time

from hostagent import limits
from hostagent.pool.memory import PoolMemory
from hostagent.transport.base import Extent, ReadHandle, ReadOutcome, ReadRequest, TransportCounters
from hostagent.transport.read_protocol import QueuePairEnd, RemoteExtent
from hostagent.transport.read_server import ReadServer
from hostagent.transport.verbs import abi
from hostagent.transport.verbs.peer_reads import PeerReads, hand_out
from kvproto.ids import ChunkKey
from kvproto.session.read_window import ReadWindow

_KEY = ChunkKey(b"benchmark chunk!")
_POOL_BYTES = 1 << 20
_CHUNK_BYTES = 64 << 20
"""Only said: nothing touches its bytes."""
_SECONDS = 1.0
_END = QueuePairEnd(1, 1, 4096, limits.VERBS_READ_PIECES_MAX, bytes(16))


class _IdleQueuePair:
    """Stands for `ReadQueuePair` and its queue pair."""

    end = _END

    @property
    def queue_pair(self) -> _IdleQueuePair:
        return self

    def ask(self, _peer: QueuePairEnd) -> None: ...
    def post_send(self, _first: int) -> None: ...
    def destroy(self) -> None: ...


class _Target:
    local_key, address = 7, 4096


class _Holder:
    """Sink and remote access of a server with one chunk."""

    def casts_queued_bytes(self) -> int:
        return 0

    def open_extent(self, _key: ChunkKey) -> Extent | None:
        return Extent(0, _CHUNK_BYTES, None)

    def namespace_of(self, _key: ChunkKey) -> str | None:
        return None

    def leaves(self, key: ChunkKey) -> bytes | None:
        """There is no tree: all bytes are right."""
        return None

    def close_extent(self, _extent: Extent) -> None: ...
    def prepare(self, _key: ChunkKey, _then: object) -> bool:
        return False

    def connect(self, _peer: QueuePairEnd) -> QueuePairEnd:
        return _END

    def where(self, _number: int, extent: Extent) -> RemoteExtent:
        return RemoteExtent(4096, extent.size_bytes, 3)

    def forget(self, _number: int) -> None: ...

    def close(self) -> None: ...


class _Host:
    """What peers share; see `PeerHost`."""

    def __init__(self, window_bytes: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.address = "127.0.0.1"
        self.target = _Target()
        self.counters = TransportCounters()
        self.tokens = None
        self.idle_s = self.stall_timeout_s = 60.0
        self._window_bytes = window_bytes
        self._working: dict[int, PeerReads] = {}
        self._asked = self._answered = 0

    def make_queue_pair(self) -> _IdleQueuePair:
        return _IdleQueuePair()

    def make_window(self) -> ReadWindow:
        return ReadWindow(self._window_bytes, self._window_bytes)

    def next_work_id(self, peer: PeerReads) -> int:
        self._asked += 1
        self._working[self._asked] = peer
        return self._asked

    def forget_work(self, work_id: int) -> None:
        self._working.pop(work_id, None)

    def complete(self, batch: int) -> int:
        """Complete everything posted, `batch` completions per poll of a completion queue, as `VerbsReads` hands them
        on; returns the number of pieces."""
        ended, answered = self._asked, self._answered
        while self._answered < ended:
            first, self._answered = self._answered + 1, min(self._answered + batch, ended)
            works = [(work_id, abi.WC_SUCCESS) for work_id in range(first, self._answered + 1)]
            hand_out(works, self._working, int(self.loop.time() * 1e9))
        return ended - answered

    def read_instead(self, _request: ReadRequest) -> ReadHandle:
        raise AssertionError("the holder has RDMA")

    def peer_refused(self, _peer: PeerReads) -> None: ...
    def peer_closed(self, _peer: PeerReads) -> None: ...


async def _measure(window_bytes: int, batch: int) -> float:
    memory = PoolMemory(_POOL_BYTES, prefault=False)
    holder, host = _Holder(), _Host(window_bytes)
    server = ReadServer(memory, holder, TransportCounters(), lambda: holder)  # type: ignore[arg-type]
    address, port = server.listen("127.0.0.1", 0)
    peer = PeerReads(f"{address}:{port}", host)  # type: ignore[arg-type]
    ended: list[ReadOutcome] = []
    request = ReadRequest(peer.endpoint, _KEY, 0, _CHUNK_BYTES, 0, ended.append)
    pieces, spent_s = 0, 0.0
    while spent_s < _SECONDS:
        peer.add(request)
        while not host.complete(batch):
            await asyncio.sleep(0)  # The first waits for the connection, each for a turn of the loop.
        start_s = time.process_time()
        while not ended:
            pieces += host.complete(batch)
        spent_s += time.process_time() - start_s
        assert ended.pop() is ReadOutcome.DONE
    peer.close()
    server.close()
    await asyncio.sleep(0)
    return spent_s / pieces * 1e9


def read_piece_ns(window_bytes: int, batch: int) -> float:
    """CPU time per piece of a read with a window of `window_bytes` (a piece is a quarter of it, 256 KiB at most) when
    one poll returns `batch` completions."""
    return asyncio.run(_measure(window_bytes, batch))
