"""What asking for a piece of a one-sided read costs this process: everything but the NIC, its
library, and waiting for events.

A queue pair that takes work requests and does nothing; it has completed them as soon as they are posted. The control
connection and the answering server are the real ones, on loopback, and take part at the beginning only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from types import SimpleNamespace

from bmv2_testbed.bench.rdma.idle_port import IDLE_NUMBER, IdlePort
from hostagent import limits
from hostagent.native.ask_thread import Came, What
from hostagent.native.library import datapath
from hostagent.pool.memory import PoolMemory
from hostagent.transport.base import Extent, ReadHandle, ReadOutcome, ReadRequest, TransportCounters
from hostagent.transport.read_protocol import QueuePairEnd, RemoteExtent
from hostagent.transport.read_server import ReadServer
from hostagent.transport.verbs.device import VerbsError
from hostagent.transport.verbs.native_cast_receiver import completion_queue_parts
from hostagent.transport.verbs.native_pieces import Asker, NativePieces
from hostagent.transport.verbs.peer_reads import PeerReads
from hostagent.transport.verbs.queues import CompletionChannel, CompletionQueue
from hostagent.transport.verbs.rdma_read import RdmaRead, ReadOwner
from kvchunk.ids import ChunkKey
from kvproto.session.read_window import READ_PIECE_BYTES_MAX, ReadWindow

_KEY = ChunkKey(b"benchmark chunk!")
_POOL_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 30
"""Only said: nothing touches its bytes."""
_SECONDS = 1.0
_END = QueuePairEnd(1, 1, 4096, limits.VERBS_READ_PIECES_MAX, bytes(16))


class _IdleQueuePair:
    """Stands for `ReadQueuePair` and its queue pair."""

    end, address, number = _END, 4096, IDLE_NUMBER

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

    def peers_read(self, _keys: Sequence[ChunkKey]) -> None:
        """Nobody learns from it here."""

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

    asker: Asker

    def __init__(self, window_bytes: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.address = "127.0.0.1"
        self.target = _Target()
        self.counters = TransportCounters()
        self.tokens = None
        self.idle_s = self.stall_timeout_s = self.silence_s = 60.0
        self._window_bytes = window_bytes

    def make_queue_pair(self) -> _IdleQueuePair:
        return _IdleQueuePair()

    def make_pieces(self, owner: ReadOwner) -> NativePieces:
        return NativePieces(owner, self.asker, ReadWindow(self._window_bytes, self._window_bytes))

    def read_instead(self, _request: ReadRequest) -> ReadHandle:
        raise AssertionError("the holder has RDMA")

    def look_for_completions(self) -> None: ...
    def nic_worked(self, _peer: PeerReads) -> None: ...
    def nic_failed(self, _peer: PeerReads) -> None: ...
    def nic_silent(self, _peer: PeerReads) -> None: ...
    def peer_refused(self, _peer: PeerReads) -> None: ...
    def peer_closed(self, _peer: PeerReads) -> None: ...


async def _measure(window_bytes: int, batch: int) -> float:
    memory, port, loop = PoolMemory(_POOL_BYTES, prefault=False), IdlePort(batch), asyncio.get_running_loop()
    holder, host = _Holder(), _Host(window_bytes)
    channel = CompletionChannel(port)
    completions = CompletionQueue(port, channel, limits.VERBS_READ_PIECES_MAX, limits.VERBS_READ_PIECES_MAX)
    host.asker = Asker(
        datapath(),
        port,
        completion_queue_parts(port, completions, channel),
        host.target,  # type: ignore[arg-type]
        loop,
        _broke,
        began=lambda: None,
    )
    server = ReadServer(memory, holder, TransportCounters(), lambda: holder)  # type: ignore[arg-type]
    address, port_number = server.listen("127.0.0.1", 0)
    peer = PeerReads(f"{address}:{port_number}", host)  # type: ignore[arg-type]
    pieces, spent_s = 0, 0.0
    while spent_s < _SECONDS:
        done: asyncio.Future[ReadOutcome] = loop.create_future()
        start_s = time.process_time()
        peer.add(ReadRequest(peer.endpoint, _KEY, 0, _CHUNK_BYTES, 0, done.set_result))
        assert await done is ReadOutcome.DONE
        spent_s += time.process_time() - start_s
        pieces += _CHUNK_BYTES // min(window_bytes // 4, READ_PIECE_BYTES_MAX)
    peer.close()
    host.asker.close()
    completions.close()
    channel.close()
    server.close()
    port.close()
    await asyncio.sleep(0)
    return spent_s / pieces * 1e9


def _broke(error: VerbsError) -> None:
    raise error


class _Owner:
    """Hears of pieces."""

    def forget(self, _read: RdmaRead) -> None: ...
    def pieces_came(self, _reads: object, _now_ns: int) -> None: ...
    def pieces_failed(self, _why: str, *, by_nic: bool) -> None: ...


async def _measure_lessons(together: int) -> float:
    asker = SimpleNamespace(loop=asyncio.get_running_loop())
    pieces = NativePieces(_Owner(), asker, ReadWindow(_POOL_BYTES))  # type: ignore[arg-type]
    news = [Came(what=What.PIECE, bytes=_POOL_BYTES // 4, done_ns=1, in_flight_bytes=_POOL_BYTES)] * together
    told, start_s = 0, time.process_time()
    while time.process_time() - start_s < _SECONDS:
        for _ in range(1000):
            pieces.take(news)
        told += 1000 * together
    return (time.process_time() - start_s) / told * 1e9


def lesson_ns(together: int) -> float:
    """CPU time for each piece that the thread in C tells a window of, `together` at once."""
    return asyncio.run(_measure_lessons(together))


def read_piece_ns(window_bytes: int, batch: int) -> float:
    """CPU time per piece of a read with a window of `window_bytes` (a piece is a quarter of it, 256 KiB at most) when
    one poll returns `batch` completions. The window, at its limit, learns nothing from quick pieces."""
    return asyncio.run(_measure(window_bytes, batch))
