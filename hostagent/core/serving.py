"""The serving side: runs the protocol's holder, and pins chunks being sent.

A question about a chunk on this node's disk waits until the chunk is in the pool, or cannot be loaded.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from hostagent.core import effects
from hostagent.core.directory import DirectoryReplica
from hostagent.core.node import Node
from hostagent.core.work import FillWork
from hostagent.pool.chunks import Chunk, ChunkPool
from kvchunk.ids import ChunkKey
from kvproto.blocks import cover
from kvproto.commands import FillEnded, HolderCommand, PinChunk, SendControl, SendFill, SendSegments, UnpinChunk
from kvproto.events import ControlReceived, FillCancelled, FillRequested, HolderEvent, SegmentsSent, SendFailed
from kvproto.fanout import Fanout
from kvproto.ids import Address, FillId, Member
from kvproto.session.holder import Holder, HolderCounts
from kvproto.session.interest import InterestTable
from kvproto.session.keeper import Keeper
from kvproto.session.parameters import HolderParameters
from kvproto.wire.control import Op

WAITING_CONTROLS_MAX = 4096
"""Questions about chunks that are on their way from disk; more are dropped, and asked again."""
_ASKS = frozenset({Op.JOIN, Op.GET})
LoadForPeer = Callable[[ChunkKey, Callable[[], None]], bool]
"""See `PeerLoads.load`."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """How it stands with interest in a node's chunks."""

    fanout: Fanout
    member: Member | None
    """The node's own number."""
    ttl_ns: int
    unasked_weight: float


class PoolInventory:
    """What the holder may serve: the READY chunks of the pool."""

    def __init__(self, pool: ChunkPool, segment_bytes: int) -> None:
        self._pool = pool
        self._segment_bytes = segment_bytes

    def segments_of(self, key: ChunkKey) -> int | None:
        """Segments of a chunk that is here."""
        chunk = self._pool.find(key)
        return None if chunk is None else -(-chunk.size_bytes // self._segment_bytes)


@dataclass(frozen=True, slots=True)
class _RailMembers:
    """Members as they are known on a further rail."""

    directory: DirectoryReplica
    rail: int

    def member_at(self, address: Address) -> Member | None:
        """See `Members.member_at`."""
        return self.directory.member_at(address)

    def address_of(self, member: Member) -> Address | None:
        """See `Members.address_of`."""
        return self.directory.address_of(member, self.rail)


@dataclass(slots=True)
class _Orphan:
    """Segments that a former holder gave to the transport: their chunk stays until they are reported."""

    chunk: Chunk
    left: int


class Serving:
    """Owns the protocol's holder, the pins of what is being sent, and the questions that wait for the disk. Who reads
    chunks of this node it does not decide."""

    def __init__(
        self,
        node: Node,
        load: LoadForPeer,
        asked: Callable[[ChunkKey], None],
        had_from: Callable[[ChunkKey], Address | None],
        rail: int = 0,
    ) -> None:
        """`asked(key)`: a peer reads a chunk that is here, or has it cast, or the switch is filled with it;
        `had_from(key)`: whose cast brought a chunk that may be in flight still; `rail`: what is cast leaves by it."""
        self._rail = rail
        self._asked = asked
        self._had_from = had_from
        self._directory = node.directory
        self._clock = node.clock
        self._holder_alarm = node.alarms.add(self._holder_due)
        self._emit = node.emit
        self._pool = node.pool
        self._load = load
        self._waiting: dict[ChunkKey, dict[ControlReceived, None]] = {}
        """Questions about chunks that are being loaded from disk."""
        self._waiting_count = 0
        self._segment_bytes = node.options.segment_bytes
        self._keeping = Keeping(Fanout.SWITCH, None, 0, 0.0)
        self._keeper: Keeper | None = None
        self._holder = self._make_holder()
        self.queued_bytes = 0
        """Of casts that were asked for and have not left."""
        self._pinned: dict[ChunkKey, Chunk] = {}
        self._on_way: Counter[ChunkKey] = Counter()
        """Segments that the transport has not reported yet."""
        self._orphans: dict[ChunkKey, deque[_Orphan]] = {}
        self._filling: dict[ChunkKey, list[Chunk]] = {}
        """Chunks with FILLs in the transport, one entry and one pin per segment: they outlive an abandoned fill."""
        self._fills: dict[FillId, Callable[[FillEnded], None]] = {}
        self._fill_id = 0
        self._fills_ride = True

    def _make_holder(self) -> Holder:
        inventory = PoolInventory(self._pool, self._segment_bytes)
        return Holder(HolderParameters(segment_bytes=self._segment_bytes), inventory, self._keeper)

    def keep_interest(self, keeping: Keeping) -> None:
        """How it stands with interest in this node's chunks from now on. Interest of before is forgotten if that
        changes: its readers renew their JOINs."""
        if keeping == self._keeping:
            return
        self._keeping = keeping
        if keeping.fanout.keeps:
            table = InterestTable(keeping.ttl_ns)
            members = _RailMembers(self._directory, self._rail) if self._rail else self._directory
            self._keeper = Keeper(table, members, keeping.member, self._had_from)
        else:
            self._keeper = None
        self._holder.use_keeper(self._keeper)

    def use_casts(self, *, made_by_nic: bool) -> None:
        """Who makes cast datagrams. A NIC makes data datagrams only: fills do not ride on its casts."""
        self._fills_ride = not made_by_nic

    def use_segment_bytes(self, segment_bytes: int) -> None:
        """The fabric's segment size changed: sends under way are void, and a fresh holder starts."""
        if segment_bytes == self._segment_bytes:
            return
        self._segment_bytes = segment_bytes
        fills, self._fills = self._fills, {}
        for key, chunk in self._pinned.items():
            if self._on_way[key]:
                self._orphans.setdefault(key, deque()).append(_Orphan(chunk, self._on_way[key]))
            else:
                self._pool.unpin(chunk)
        self._pinned.clear()
        self._on_way.clear()
        self._holder = self._make_holder()
        self.queued_bytes = 0
        for fill, ended in fills.items():
            ended(FillEnded(fill, ChunkKey(b""), complete=False, acknowledged=0))

    @property
    def keeps_interest(self) -> bool:
        """Whether this node keeps the interest in its chunks, and LEAVE is for it."""
        return self._keeper is not None

    @property
    def counts(self) -> HolderCounts:
        """What the holder counted; starts from zero after a change of the segment size."""
        return self._holder.counts

    # ------------------------------------------------------------------ what peers ask

    def controls_received(self, events: Sequence[ControlReceived]) -> None:
        """JOIN, LEAVE, GET or FILL_ACK, those that came together."""
        here: list[ControlReceived] = []
        for event in events:
            key = event.message.key
            asks = event.message.op in _ASKS and self._pool.find(key) is None
            if asks and (key in self._waiting or self._load(key, partial(self._chunk_loaded, key))):
                self._wait(event)
            else:
                here.append(event)
        if here:
            self._carry_out(self._holder.handle_all(here, self._clock.now_ns))

    def _wait(self, event: ControlReceived) -> None:
        waiting = self._waiting.setdefault(event.message.key, {})
        if self._waiting_count >= WAITING_CONTROLS_MAX:
            self._emit(effects.DatagramsDropped("control_held_too_many"))
        elif event not in waiting:
            waiting[event] = None
            self._waiting_count += 1

    def _chunk_loaded(self, key: ChunkKey) -> None:
        waiting = self._waiting.pop(key, {})
        self._waiting_count -= len(waiting)
        self._carry_out(self._holder.handle_all(waiting, self._clock.now_ns))

    def lend(self, key: ChunkKey) -> Chunk | None:
        """A peer reads a chunk reliably: it stays pinned until PeerReadEnded."""
        chunk = self._pool.find(key)
        if chunk is not None:
            self._pool.pin(chunk)
        return chunk

    def segments_sent(self, key: ChunkKey, count: int) -> None:
        """The transport took segments."""
        count = self._without_orphans(key, count)
        if count and key in self._pinned:
            self._handle(SegmentsSent(key, count))

    def segments_failed(self, key: ChunkKey, count: int) -> None:
        """The transport could not send segments."""
        count = self._without_orphans(key, count)
        if count and key in self._pinned:
            self._handle(SendFailed(key, count))

    def _without_orphans(self, key: ChunkKey, count: int) -> int:
        """How many of the segments reported concern this holder: those of its predecessors come first."""
        orphans = self._orphans.get(key, deque())
        while orphans and count:
            taken = min(count, orphans[0].left)
            orphans[0].left -= taken
            count -= taken
            if not orphans[0].left:
                self._pool.unpin(orphans.popleft().chunk)
        if not orphans:
            self._orphans.pop(key, None)
        self._on_way[key] -= count
        return count

    def fill_sent(self, key: ChunkKey, count: int) -> None:
        """The transport is done with segments of a fill."""
        waiting = self._filling[key]
        for _ in range(count):
            self._pool.unpin(waiting.pop(0))
        if not waiting:
            del self._filling[key]

    # ------------------------------------------------------------------ fills

    def fill(
        self, work: FillWork, pool_address: Address, deadline_ns: int, ended: Callable[[FillEnded], None]
    ) -> FillId:
        """Put a chunk into the switch; `ended` comes once, unless cancelled."""
        self._fill_id += 1
        fill = FillId(self._fill_id)
        self._fills[fill] = ended
        rides = work.cast_too and self._fills_ride
        self._handle(FillRequested(fill, work.key, pool_address, deadline_ns, rides, work.readers))
        return fill

    def cancel_fill(self, fill: FillId) -> None:
        """The controller no longer wants it."""
        if self._fills.pop(fill, None) is not None:
            self._handle(FillCancelled(fill))

    def close(self) -> None:
        """Give every pin back."""
        for chunk in self._pinned.values():
            self._pool.unpin(chunk)
        for chunks in self._filling.values():
            for chunk in chunks:
                self._pool.unpin(chunk)
        for orphans in self._orphans.values():
            for orphan in orphans:
                self._pool.unpin(orphan.chunk)
        self._pinned.clear()
        self._orphans.clear()
        self._filling.clear()

    # ------------------------------------------------------------------ the machine

    def _blocks(self, to: int | None) -> tuple[int, ...]:
        keeping = self._keeping
        if to is None:
            return ()
        me = 0 if keeping.member is None else 1 << keeping.member
        return cover(to, self._directory.members & ~me, keeping.unasked_weight)

    def _holder_due(self) -> None:
        self._carry_out(self._holder.handle_timer(self._clock.now_ns))

    def _handle(self, event: HolderEvent) -> None:
        self._carry_out(self._holder.handle(event, self._clock.now_ns))

    def _carry_out(self, commands: list[HolderCommand]) -> None:
        for command in commands:
            match command:
                case SendControl(message, address):
                    self._emit(SendControl(message, address, self._rail) if self._rail else command)
                case SendSegments(key, first, count, to):
                    self._on_way[key] += count
                    self._emit(effects.CastSegments(self._pinned[key], first, count, self._blocks(to), self._rail))
                case SendFill(key, first, count, pool_address, cast_too=True):
                    self._on_way[key] += count
                    self._emit(effects.FillSegments(self._pinned[key], first, count, pool_address, cast_too=True))
                case SendFill(key, first, count, pool_address):
                    filled = self._pinned[key]
                    for _ in range(count):
                        self._pool.pin(filled)
                    self._filling.setdefault(key, []).extend([filled] * count)
                    self._emit(effects.FillSegments(filled, first, count, pool_address))
                case PinChunk(key):
                    chunk = self._pool.find(key)
                    if chunk is None:
                        raise LookupError(f"the holder pins {key.hex()}, which is not in its inventory")
                    self._pool.pin(chunk)
                    self._pool.touch((key,))
                    self._pinned[key] = chunk
                    self._asked(key)
                case UnpinChunk(key):
                    self._pool.unpin(self._pinned.pop(key))
                    del self._on_way[key]
                case FillEnded(fill):
                    ended = self._fills.pop(fill, None)
                    if ended is not None:
                        ended(command)
                case _:
                    assert_never(command)
        self.queued_bytes = self._holder.queued_segments * self._segment_bytes
        self._holder_alarm.set(self._holder.next_timeout_ns())
