"""The serving side: runs the protocol's holder, casts from the pool, pins what is being sent."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from hostagent.pool.chunks import Chunk, ChunkPool
from hostagent.timers import MachineTimer
from hostagent.transport.base import ChunkPlace, Extent, Transport
from kvproto.commands import FillEnded, HolderCommand, PinChunk, SendControl, SendFill, SendSegments, UnpinChunk
from kvproto.events import ControlReceived, FillCancelled, FillRequested, HolderEvent, SegmentsSent, SendFailed
from kvproto.ids import Address, ChunkKey, FillId
from kvproto.session.holder import Holder, HolderCounts
from kvproto.session.parameters import HolderParameters
from kvproto.wire.control import Control, Op

HELD_CONTROLS_MAX = 4096
"""Questions about chunks that are on their way from disk; more are dropped, and asked again."""


class PoolInventory:
    """What the holder may serve: the READY chunks of the pool."""

    def __init__(self, pool: ChunkPool, segment_bytes: int) -> None:
        self._pool = pool
        self.segment_bytes = segment_bytes

    def segments_of(self, key: ChunkKey) -> int | None:
        """Segments of a chunk that is here."""
        chunk = self._pool.find(key)
        return None if chunk is None else -(-chunk.size_bytes // self.segment_bytes)


@dataclass(slots=True)
class _Void:
    """Segments in the transport for a holder that is no more: their chunk stays until they are reported."""

    chunk: Chunk
    left: int


class Serving:
    """The shell of the holder."""

    def __init__(
        self,
        pool: ChunkPool,
        transport: Transport,
        loop: asyncio.AbstractEventLoop,
        segment_bytes: int,
        prepare: Callable[[ChunkKey, Callable[[], None]], bool],
    ) -> None:
        """`prepare(key, then)`: see `TransportSink.prepare`."""
        self._pool = pool
        self._prepare = prepare
        self._held: dict[ChunkKey, dict[tuple[Control, Address], None]] = {}
        """What was asked about chunks that are being loaded from disk."""
        self._held_count = 0
        self._transport = transport
        self._segment_bytes = segment_bytes
        self._inventory = PoolInventory(pool, segment_bytes)
        self._holder = Holder(HolderParameters(segment_bytes=segment_bytes), self._inventory)
        self._timer = MachineTimer(loop, self._timer_fired)
        self._pinned: dict[ChunkKey, Chunk] = {}
        self._on_way: Counter[ChunkKey] = Counter()
        """Segments that the transport has not reported yet."""
        self._void: dict[ChunkKey, deque[_Void]] = {}
        self._filling: dict[ChunkKey, list[Chunk]] = {}
        """Chunks with FILLs in the transport, an entry and a pin a segment: those outlive a fill that is given up."""
        self._fills: dict[FillId, Callable[[FillEnded], None]] = {}
        self._fill_id = 0

    def use_segment_bytes(self, segment_bytes: int) -> None:
        """The fabric's segment size changed: what was being sent is void, a fresh holder starts."""
        if segment_bytes == self._segment_bytes:
            return
        self._segment_bytes = segment_bytes
        self._inventory.segment_bytes = segment_bytes
        for fill, ended in list(self._fills.items()):
            ended(FillEnded(fill, ChunkKey(b""), complete=False, acknowledged=0))
        self._fills.clear()
        for key, chunk in self._pinned.items():
            if self._on_way[key]:
                self._void.setdefault(key, deque()).append(_Void(chunk, self._on_way[key]))
            else:
                self._pool.unpin(chunk)
        self._pinned.clear()
        self._on_way.clear()
        self._holder = Holder(HolderParameters(segment_bytes=segment_bytes), self._inventory)

    @property
    def counts(self) -> HolderCounts:
        """What the holder counted; begins anew with another segment size."""
        return self._holder.counts

    # ------------------------------------------------------------------ events

    def control_received(self, message: Control, source: Address) -> None:
        """JOIN, GET or FILL_ACK. One about a chunk on this node's disk waits until that is in the pool, or is not."""
        key = message.key
        asks = message.op is not Op.FILL_ACK and self._pool.find(key) is None
        if asks and (key in self._held or self._prepare(key, partial(self._prepared, key))):
            self._hold(message, source)
            return
        self._handle(ControlReceived(message, source))

    def _hold(self, message: Control, source: Address) -> None:
        held = self._held.setdefault(message.key, {})
        if self._held_count >= HELD_CONTROLS_MAX:
            self._transport.counters.drop("control_held_too_many")
        elif (message, source) not in held:
            held[message, source] = None
            self._held_count += 1

    def _prepared(self, key: ChunkKey) -> None:
        held = self._held.pop(key, {})
        self._held_count -= len(held)
        for message, source in held:
            self._handle(ControlReceived(message, source))

    def segments_sent(self, key: ChunkKey, count: int) -> None:
        """The transport took segments."""
        count = self._without_void(key, count)
        if count and key in self._pinned:
            self._handle(SegmentsSent(key, count))

    def segments_failed(self, key: ChunkKey, count: int) -> None:
        """The transport could not send segments."""
        count = self._without_void(key, count)
        if count and key in self._pinned:
            self._handle(SendFailed(key, count))

    def _without_void(self, key: ChunkKey, count: int) -> int:
        """How many of the segments reported concern this holder: those of its predecessors come first."""
        voids = self._void.get(key, deque())
        while voids and count:
            taken = min(count, voids[0].left)
            voids[0].left -= taken
            count -= taken
            if not voids[0].left:
                self._pool.unpin(voids.popleft().chunk)
        if not voids:
            self._void.pop(key, None)
        self._on_way[key] -= count
        return count

    def fill_sent(self, key: ChunkKey, count: int) -> None:
        """The transport is done with segments of a fill."""
        waiting = self._filling[key]
        for _ in range(count):
            self._pool.unpin(waiting.pop(0))
        if not waiting:
            del self._filling[key]

    def fill(
        self, key: ChunkKey, pool_address: Address, timeout_s: float, ended: Callable[[FillEnded], None]
    ) -> FillId:
        """Put a chunk into the switch; `ended` comes once, unless cancelled."""
        self._fill_id += 1
        fill = FillId(self._fill_id)
        self._fills[fill] = ended
        deadline_ns = time.monotonic_ns() + int(timeout_s * 1e9)
        self._handle(FillRequested(fill, key, pool_address, deadline_ns))
        return fill

    def cancel_fill(self, fill: FillId) -> None:
        """The controller no longer wants it."""
        if self._fills.pop(fill, None) is not None:
            self._handle(FillCancelled(fill))

    def close(self) -> None:
        """Give every pin back."""
        self._timer.cancel()
        for chunk in self._pinned.values():
            self._pool.unpin(chunk)
        for chunks in self._filling.values():
            for chunk in chunks:
                self._pool.unpin(chunk)
        for voids in self._void.values():
            for void in voids:
                self._pool.unpin(void.chunk)
        self._pinned.clear()
        self._void.clear()
        self._filling.clear()

    # ------------------------------------------------------------------ reliable reads of peers

    def open_extent(self, key: ChunkKey) -> Extent | None:
        """A peer reads this chunk: pin it."""
        chunk = self._pool.find(key)
        if chunk is None:
            return None
        self._pool.pin(chunk)
        self._pool.touch(key)
        return Extent(chunk.offset, chunk.size_bytes, chunk)

    def close_extent(self, extent: Extent) -> None:
        """The peer has it."""
        if not isinstance(extent.token, Chunk):
            raise TypeError("an extent that was not opened here")
        self._pool.unpin(extent.token)

    # ------------------------------------------------------------------ the machine

    def _timer_fired(self) -> None:
        now_ns = time.monotonic_ns()
        self._carry_out(self._holder.handle_timer(now_ns), now_ns)

    def _handle(self, event: HolderEvent) -> None:
        now_ns = time.monotonic_ns()
        self._carry_out(self._holder.handle(event, now_ns), now_ns)

    def _carry_out(self, commands: list[HolderCommand], now_ns: int) -> None:
        for command in commands:
            match command:
                case SendControl(message, address):
                    self._transport.send_control(message, address)
                case SendSegments(key, first, count):
                    self._on_way[key] += count
                    self._transport.cast(self._place(key), first, count)
                case SendFill(key, first, count, pool_address):
                    filled = self._pinned[key]
                    for _ in range(count):
                        self._pool.pin(filled)
                    self._filling.setdefault(key, []).extend([filled] * count)
                    self._transport.fill(self._place(key), first, count, pool_address)
                case PinChunk(key):
                    chunk = self._pool.find(key)
                    if chunk is None:
                        raise LookupError(f"the holder pins {key.hex()}, which is not in its inventory")
                    self._pool.pin(chunk)
                    self._pool.touch(key)
                    self._pinned[key] = chunk
                case UnpinChunk(key):
                    self._pool.unpin(self._pinned.pop(key))
                    del self._on_way[key]
                case FillEnded(fill):
                    ended = self._fills.pop(fill, None)
                    if ended is not None:
                        ended(command)
                case _:
                    assert_never(command)
        self._timer.set(self._holder.next_timeout_ns(), now_ns)

    def _place(self, key: ChunkKey) -> ChunkPlace:
        chunk = self._pinned[key]
        return ChunkPlace(key, chunk.offset, chunk.size_bytes)
