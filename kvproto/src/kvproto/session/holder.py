"""The holder of a node: answers GET, JOIN without a switch, and fills the switch. Where no switch keeps interest, its
keeper (keeper.py) does.

It owns the queue of segments asked for and the pins of chunks being sent or read. It knows no sockets and no memory.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from kvchunk.ids import ChunkKey
from kvproto.commands import FillEnded, HolderCommand, PinChunk, SendControl, SendFill, SendSegments, UnpinChunk
from kvproto.errors import LocalProtocolError
from kvproto.events import (
    ControlReceived,
    FillCancelled,
    FillRequested,
    HolderEvent,
    SegmentsSent,
    SendFailed,
)
from kvproto.ids import Address, FillId
from kvproto.limits import HOLDER_PEER_SEGMENTS_MAX, HOLDER_QUEUE_SEGMENTS_MAX, MS
from kvproto.session.burst import Burst
from kvproto.session.fill import Fill
from kvproto.session.keeper import Keeper
from kvproto.session.parameters import HolderParameters
from kvproto.session.sending import Sending
from kvproto.session.timing import ANSWERED, FILL_RIDES_MAX_NS, FILL_RIDES_NS
from kvproto.wire.control import Control, Flag, Op, reaction_of

_SENDING_MEMORY_NS = 1000 * MS
"""After this long without a GET for the chunk, the holder forgets what it sent when."""


_KEEPER_BURST_SEGMENTS = 8
"""Handed over at least, where a keeper says to whom: who joins after that misses them, and NOTICEs wait behind them."""


class Inventory(Protocol):
    """What this node holds, whole and verified."""

    def segments_of(self, key: ChunkKey) -> int | None:
        """Segments of a chunk that is here; None when it is not."""


@dataclass(slots=True, eq=False)
class _Order:
    """A run of segments in the queue."""

    key: ChunkKey
    first: int
    count: int
    member: int
    peer: Address


@dataclass(slots=True, eq=False)
class HolderCounts:
    """Running totals, for metrics."""

    segments_queued: int = 0
    answered_already: int = 0
    """Segments asked for that were in the queue or had just been sent for somebody else."""
    segments_refused: int = 0
    """Asked for while the queue, or the peer's share of it, was full; whoever asked asks again."""
    naks: int = 0
    rode: int = 0
    """Segments whose cast filled the switch, too."""


class Holder:
    """One per node. Deterministic: the same events at the same times give the same commands."""

    def __init__(self, parameters: HolderParameters, inventory: Inventory, keeper: Keeper | None = None) -> None:
        """`keeper`: of the interest in its chunks; None: a switch keeps it, or nobody."""
        self._keeper = keeper
        self._parameters = parameters
        self._inventory = inventory
        self._sendings: dict[ChunkKey, Sending] = {}
        self._idle: OrderedDict[ChunkKey, Sending] = OrderedDict()
        """Of those, the ones with nothing left to send, the longest unused first."""
        self._queue: deque[_Order] = deque()
        self._waiting = 0
        self._waiting_for: Counter[Address] = Counter()
        self._on_way = 0
        self._rests = True
        """The shell has nothing to send. Not so where it has reported all, and gets more at once."""
        self._asked_ns: int | None = None
        """When a GET came last."""
        self._burst = Burst(parameters.send_burst_segments)
        self._pins: dict[ChunkKey, int] = {}
        self._fills: dict[FillId, Fill] = {}
        self._fills_of: dict[ChunkKey, dict[FillId, Fill]] = {}
        """The same by chunk."""
        self._out: list[HolderCommand] = []
        self.counts = HolderCounts()
        self._handlers: dict[type, Callable[[Any, int], None]] = {
            ControlReceived: self._on_control,
            SegmentsSent: self._on_segments_sent,
            SendFailed: self._on_segments_sent,
            FillRequested: self._on_fill_requested,
            FillCancelled: self._on_fill_cancelled,
        }

    def handle(self, event: HolderEvent, now_ns: int) -> list[HolderCommand]:
        """Commands that follow from an event."""
        return self.handle_all((event,), now_ns)

    def handle_all(self, events: Iterable[HolderEvent], now_ns: int) -> list[HolderCommand]:
        """Commands that follow from events that came together: what they ask for is handed over as one."""
        for event in events:
            self._handlers[type(event)](event, now_ns)
        return self._finish(now_ns)

    def handle_timer(self, now_ns: int) -> list[HolderCommand]:
        """Commands that are due. Calling it early or late is safe."""
        return self._finish(now_ns)

    def next_timeout_ns(self) -> int | None:
        """When handle_timer should be called next; None: not before another event."""
        behind = self.queued_segments > 0
        dues = [
            fill.request.deadline_ns
            if behind
            else min(fill.request.deadline_ns, max(fill.next_timeout_ns(), self._rides_until_ns(fill)))
            for fill in self._fills.values()
        ]
        if self._idle:
            dues.append(next(iter(self._idle.values())).used_ns + _SENDING_MEMORY_NS)
        told_ns = None if self._keeper is None else self._keeper.next_timeout_ns()
        if told_ns is not None:
            dues.append(told_ns)
        return min(dues, default=None)

    def use_keeper(self, keeper: Keeper | None) -> None:
        """Another one keeps interest from now on, or nobody here does."""
        self._keeper = keeper
        least = self._parameters.send_burst_segments
        self._burst = Burst(least if keeper is None else min(least, _KEEPER_BURST_SEGMENTS))

    @property
    def pinned(self) -> frozenset[ChunkKey]:
        """Chunks that the holder keeps pinned at the moment."""
        return frozenset(self._pins)

    @property
    def queued_segments(self) -> int:
        """Segments of casts that were asked for and have not left."""
        return self._waiting + self._on_way

    # --- answering ---

    def _on_control(self, event: ControlReceived, now_ns: int) -> None:
        message = event.message
        if message.op is Op.GET:
            get: Control | None = message
            if self._keeper is not None:
                get = self._keeper.may_ask(message, event.source, now_ns)
            if get is not None:
                self._on_get(get, event.source, now_ns)
        elif message.op is Op.LEAVE:
            if self._keeper is not None:
                self._keeper.leave(message, event.source, now_ns)
        elif message.op is Op.JOIN:
            if self._inventory.segments_of(message.key) == message.segments:
                if self._keeper is not None and self._keeper.join(message, event.source, now_ns):
                    return
                flags = Flag.NO_SWITCH | Flag.JOINED
                notice = Control(
                    Op.NOTICE, message.key, message.segments, message.segment, tag=message.tag, flags=flags
                )
                self._out.append(SendControl(notice, event.source))
            else:
                self._nak(message, event.source)
        elif message.op is Op.FILL_ACK:
            for fill in self._fills_of.get(message.key, {}).values():
                if message.segment < fill.segments:
                    fill.acknowledge(message.segment, now_ns)

    def _nak(self, message: Control, to: Address) -> None:
        self.counts.naks += 1
        self._out.append(SendControl(Control(Op.NAK, message.key, message.segments, message.segment), to))

    def _on_get(self, get: Control, source: Address, now_ns: int) -> None:
        """Queue segments that are not queued already and have not just gone out for another member."""
        if self._inventory.segments_of(get.key) != get.segments:
            self._nak(get, source)
            return
        room = min(
            HOLDER_QUEUE_SEGMENTS_MAX - self._waiting, HOLDER_PEER_SEGMENTS_MAX - self._waiting_for.get(source, 0)
        )
        wanted = min(get.count, room)
        self.counts.segments_refused += get.count - wanted
        if not wanted:
            return
        self._asked_ns = now_ns
        sending = self._sendings.get(get.key)
        if sending is None:
            sending = self._sendings[get.key] = Sending(get.segments, now_ns)
        since_ns = now_ns - ANSWERED.of(reaction_of(get.tag), None)
        runs = sending.wanted(get.segment, wanted, get.member, since_ns)
        free = sum(count for _, count in runs)
        self.counts.answered_already += wanted - free
        if free and not sending.busy:
            self._pin(get.key)
        for first, count in runs:
            sending.queue(first, count)
            self._order(_Order(get.key, first, count, get.member, source))
        self._waiting += free
        self._waiting_for[source] += free
        self.counts.segments_queued += free
        self._used(get.key, sending, now_ns)

    def _order(self, order: _Order) -> None:
        """Behind all others; a run that goes on where the last one ends makes that one longer."""
        last = self._queue[-1] if self._queue else None
        if (
            last is not None
            and (last.key, last.member, last.peer) == (order.key, order.member, order.peer)
            and last.first + last.count == order.first
        ):
            last.count += order.count
        else:
            self._queue.append(order)

    def _used(self, key: ChunkKey, sending: Sending, now_ns: int) -> None:
        sending.used_ns = now_ns
        self._idle.pop(key, None)
        if not sending.busy:
            self._idle[key] = sending

    def _send(self, now_ns: int) -> None:
        """Hand over what the shell has room for."""
        if self._queue and self._rests:
            self._burst.begins(now_ns)
        while self._queue and self._on_way < self._burst.segments:
            order = self._queue[0]
            count = min(order.count, self._burst.segments - self._on_way)
            sending = self._sendings[order.key]
            sending.leave(order.first, count, order.member, now_ns)
            to = None if self._keeper is None else self._keeper.cast(order.key, now_ns)
            self._waiting -= count
            self._waiting_for[order.peer] -= count
            if not self._waiting_for[order.peer]:
                del self._waiting_for[order.peer]
            if to == 0:
                self._forget_unwanted(order.key, sending, count, now_ns)
            else:
                self._on_way += count
                self._hand_over(order.key, order.first, count, to, now_ns)
            if count == order.count:
                self._queue.popleft()
            else:
                order.first += count
                order.count -= count
        self._rests = not self._on_way

    def _forget_unwanted(self, key: ChunkKey, sending: Sending, count: int, now_ns: int) -> None:
        """Whoever asked for these segments has left: a switch would drop them."""
        sending.on_way -= count
        self._used(key, sending, now_ns)
        if not sending.busy:
            self._unpin(key)

    def _hand_over(self, key: ChunkKey, first: int, count: int, to: int | None, now_ns: int) -> None:
        """As data datagrams; as FILLs that the switch casts, where a fill still has to send the segments."""
        riders = (fill for fill in self._fills_of.get(key, {}).values() if fill.request.cast_too)
        fill = next(riders, None)
        if fill is None:
            self._out.append(SendSegments(key, first, count, to))
            return
        for at, run, rides in fill.ride(first, count, now_ns):
            if rides:
                self.counts.rode += run
                self._out.append(SendFill(key, at, run, fill.request.pool, cast_too=True))
            else:
                self._out.append(SendSegments(key, at, run, to))

    def _on_segments_sent(self, event: SegmentsSent | SendFailed, now_ns: int) -> None:
        sending = self._sendings.get(event.key)
        if sending is None or event.count > sending.on_way:
            raise LocalProtocolError(f"{event.count} segments of {event.key.hex()} reported as sent: too many")
        sending.on_way -= event.count
        self._on_way -= event.count
        self._burst.sent(event.count, now_ns)
        self._used(event.key, sending, now_ns)
        if not sending.busy:
            self._unpin(event.key)

    # --- pins --------------------------------------------------------------------------------------------------------

    def _pin(self, key: ChunkKey) -> None:
        if key not in self._pins:
            self._out.append(PinChunk(key))
        self._pins[key] = self._pins.get(key, 0) + 1

    def _unpin(self, key: ChunkKey) -> None:
        left = self._pins.get(key, 0) - 1
        if left < 0:
            raise LocalProtocolError(f"{key.hex()} is not pinned")
        if left:
            self._pins[key] = left
        else:
            del self._pins[key]
            self._out.append(UnpinChunk(key))

    # --- filling -----------------------------------------------------------------------------------------------------

    def _on_fill_requested(self, event: FillRequested, now_ns: int) -> None:
        if event.fill in self._fills:
            raise LocalProtocolError(f"fill {event.fill} is under way already")
        segments = self._inventory.segments_of(event.key)
        if segments is None:
            self._out.append(FillEnded(event.fill, event.key, complete=False, acknowledged=0))
            return
        self._pin(event.key)
        fill = self._fills[event.fill] = Fill(event, segments, now_ns)
        self._fills_of.setdefault(event.key, {})[event.fill] = fill

    def _on_fill_cancelled(self, event: FillCancelled, _: int) -> None:
        if event.fill in self._fills:
            self._forget_fill(event.fill)

    def _forget_fill(self, number: FillId) -> None:
        key = self._fills.pop(number).request.key
        of_chunk = self._fills_of[key]
        del of_chunk[number]
        if not of_chunk:
            del self._fills_of[key]
        self._unpin(key)

    def _rides_until_ns(self, fill: Fill) -> int:
        """Until then GETs are expected that ask for what it has to send."""
        request, until_ns = fill.request, fill.began_ns
        if not request.cast_too:
            return until_ns
        sending = self._sendings.get(request.key)
        if sending is not None:
            until_ns = max(until_ns, sending.used_ns + FILL_RIDES_NS)
        if request.readers:
            until_ns = max(until_ns, fill.began_ns + FILL_RIDES_NS)
            if self._asked_ns is not None:
                until_ns = max(until_ns, min(self._asked_ns + FILL_RIDES_NS, fill.began_ns + FILL_RIDES_MAX_NS))
        return until_ns

    def _drive_fills(self, now_ns: int) -> None:
        """Send the FILLs that the windows allow, behind all casts; end fills that are complete or late."""
        for fill in list(self._fills.values()):
            request = fill.request
            if fill.complete or now_ns >= request.deadline_ns:
                self._out.append(FillEnded(request.fill, request.key, fill.complete, fill.acknowledged))
                self._forget_fill(request.fill)
                continue
            if self.queued_segments or now_ns < self._rides_until_ns(fill):
                continue  # readers wait for what is cast; the switch does not
            for first, count in fill.due(now_ns):
                self._out.append(SendFill(request.key, first, count, request.pool))

    # --- time --------------------------------------------------------------------------------------------------------

    def _finish(self, now_ns: int) -> list[HolderCommand]:
        if self._keeper is not None:
            self._out += self._keeper.take(now_ns)
        self._drive_fills(now_ns)
        self._send(now_ns)
        while self._idle:
            key, sending = next(iter(self._idle.items()))
            if now_ns - sending.used_ns < _SENDING_MEMORY_NS:
                break
            del self._idle[key], self._sendings[key]
        out, self._out = self._out, []
        return out
