"""What the agent says to the controller by itself, each in a rhythm of its own.

`Reports`: what this node holds, what was fetched, hints, in batches. `LoadReports`: what is queued for its readers,
when that has changed much. `Heartbeat`: that the node lives, to the controller and to the switch. Nothing is decided
here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, Protocol, TypeVar

from hostagent import limits
from hostagent.core import effects
from hostagent.core.disk_index import DiskState
from hostagent.core.fetches import Fetches
from hostagent.core.forms import next_victims_to_save
from hostagent.core.node import Node
from hostagent.core.serving import Serving
from hostagent.core.tasks import Tasks
from hostagent.pool.chunks import Chunk, ChunkState
from kvchunk.ids import ChunkKey
from kvclient.messages import Hint
from kvpolicy.tiers.gate import Gate
from kvpolicy.tiers.holder_load import IDLE, HolderLoad
from kvpolicy.value import FetchTally, Measurement
from kvproto.commands import SendControl
from kvproto.integrity import algorithm_of
from kvproto.wire.control import Control, Op

T = TypeVar("T")
_ANNOUNCE_DELAY_NS = int(limits.ANNOUNCE_DELAY_S * 1e9)
_USAGE_DELAY_NS = int(limits.USAGE_DELAY_S * 1e9)
_LOAD_INTERVAL_NS: Final = int(limits.LOAD_INTERVAL_S * 1e9)
_LOAD_AGAIN_NS: Final = int(limits.LOAD_AGAIN_S * 1e9)


class Reports:
    """Collects, and emits a little later. Reports that an absent controller cannot hear are dropped, oldest first."""

    def __init__(
        self,
        node: Node,
        pinned_keys: Callable[[], list[ChunkKey]],
        take_measurements: Callable[[], Sequence[Measurement]],
    ) -> None:
        """`pinned_keys()`: chunks that the controller pinned; `take_measurements()`: what this node has measured of
        sources since it was last asked."""
        self._clock = node.clock
        self._emit = node.emit
        self._pool = node.pool
        self._disk = node.disk
        self._pinned_keys = pinned_keys
        self._take_measurements = take_measurements
        self._fabric = node.fabric
        self._fresh: set[ChunkKey] = set()
        """Copies whose fetches are still under way: not to be announced yet."""
        self._held_back: dict[ChunkKey, Chunk] = {}
        self._uses: deque[effects.ChunkUse] = deque(maxlen=limits.USAGE_EVENTS_MAX)
        self._hints: deque[effects.ReuseHint] = deque(maxlen=limits.USAGE_EVENTS_MAX)
        self._warms: deque[effects.WarmWish] = deque(maxlen=limits.WARM_WISHES_MAX)
        self._tally = FetchTally(limits.PAST_FETCHES_MAX)
        """What was reported to any controller."""
        self._controllers: deque[int] = deque(maxlen=limits.CONTROLLERS_TOLD_MAX)
        """Those that were told of fetches, the last ones."""
        self._announce_alarm = node.alarms.add(self._announce)
        self._usage_alarm = node.alarms.add(self._report_usage)

    def snapshot(self, controller: int) -> None:
        """All that this node holds, after a Welcome by this controller; from now on changes are announced. A
        controller that is new to this node hears what its predecessors were told of fetches, too."""
        self._pool.take_changes()
        self._fresh.clear()
        self._held_back.clear()
        pinned = self._pinned_keys()
        for part in _batches(self._digested(self._pool.ready_chunks())):
            self._emit(effects.Announce(part, (), pinned, snapshot=True))
        if self._disk is not None:
            self._disk.take_changes()
            for part in _batches(self._digested(self._disk.stored_chunks())):
                self._emit(effects.Announce(part, (), (), on_disk=True, snapshot=True))
        self._emit(effects.Announce((), (), (), snapshot=True, snapshot_end=True))
        if controller not in self._controllers:
            self._controllers.append(controller)
            for told in _batches(tuple(self._tally.past(self._clock.now_ns)), limits.USAGE_BATCH_EVENTS):
                self._emit(effects.ReportUsage((), (), (), self._clock.now_ns, told))
        self._usage_changed()

    def pool_changed(self) -> None:
        """Chunks came or went: announce them in a moment, together with what follows."""
        if self._announce_alarm.due_ns is None and self._fabric.connected:
            self._announce_alarm.set(self._clock.now_ns + _ANNOUNCE_DELAY_NS)

    def announce_now(self) -> None:
        """Somebody may wait for what has just come."""
        if self._fabric.connected:
            self._announce_alarm.set(self._clock.now_ns)

    def fetched_copy(self, key: ChunkKey) -> None:
        """This chunk came by an engine's fetch: announce it when the fetch is over, if it is still here."""
        self._fresh.add(key)
        self.pool_changed()

    def fetch_over(self, keys: Iterable[ChunkKey]) -> None:
        """An engine's fetch of these is over, however it ended."""
        count = len(self._fresh)
        self._fresh.difference_update(keys)
        if len(self._fresh) < count:
            self.pool_changed()

    def chunks_used(self, uses: Sequence[effects.ChunkUse], over: Sequence[ChunkKey] = ()) -> None:
        """Chunks were delivered, or not at all; an engine's fetch of those that are named in `over` is over with it."""
        self._uses.extend(uses)
        self._usage_changed()
        if over:
            self.fetch_over(over)

    def hint_given(self, keys: Sequence[ChunkKey], hint: Hint, within_ms: int) -> None:
        """An engine knows something of the future."""
        self._hints.extend(effects.ReuseHint(key, hint, within_ms) for key in keys)
        self._usage_changed()

    def warm_wished(self, wish: effects.WarmWish) -> None:
        """An engine starts."""
        self._warms.append(wish)
        self._usage_changed()

    def _usage_changed(self) -> None:
        """Report what was collected, in a moment."""
        if self._usage_alarm.due_ns is None and self._fabric.connected and (self._uses or self._hints or self._warms):
            self._usage_alarm.set(self._clock.now_ns + _USAGE_DELAY_NS)

    def _announce(self) -> None:
        if not self._fabric.connected:
            return
        changed, removed = self._pool.take_changes()
        self._fresh.difference_update(set(removed).difference(chunk.key for chunk in changed))
        # Chunks that came and went unannounced do not concern the directory.
        removed = [key for key in removed if self._held_back.pop(key, None) is None]
        added = self._ripe(changed)
        # What came back is announced again, unless it is held back: the directory must not know of it then.
        removed = _without(removed, added)
        pinned = self._pinned_keys()
        for part in _batches(added):
            self._emit(effects.Announce(part, (), pinned))
        for gone in _batches(removed):
            self._emit(effects.Announce((), gone, ()))
        if self._disk is not None:
            stored, lost = self._disk.take_changes()
            lost = _without(lost, stored)
            for part in _batches(self._digested(stored)):
                self._emit(effects.Announce(part, (), (), on_disk=True))
            for gone in _batches(lost):
                self._emit(effects.Announce((), gone, (), on_disk=True))

    def _ripe(self, changed: list[Chunk]) -> list[Chunk]:
        """Which chunks to announce now; fresh copies wait, and may come and go unannounced."""
        waiting = {**self._held_back, **{chunk.key: chunk for chunk in changed}}
        self._held_back = {key: chunk for key, chunk in waiting.items() if key in self._fresh}
        ripe = [chunk for key, chunk in waiting.items() if key not in self._fresh]
        return self._digested(chunk for chunk in ripe if chunk.state is ChunkState.READY)

    def _digested(self, chunks: Iterable[Chunk]) -> list[Chunk]:
        """Those that the fabric takes: what an earlier setting digested otherwise serves this node alone."""
        return [chunk for chunk in chunks if algorithm_of(chunk.digest) is self._fabric.integrity]

    def close(self) -> None:
        """Announce nothing any more."""
        for alarm in (self._announce_alarm, self._usage_alarm):
            alarm.due_ns = None

    def _report_usage(self) -> None:
        if not self._fabric.connected:
            return
        uses = [self._uses.popleft() for _ in range(min(len(self._uses), limits.USAGE_BATCH_EVENTS))]
        hints = [self._hints.popleft() for _ in range(min(len(self._hints), limits.USAGE_BATCH_EVENTS))]
        warms = tuple(self._warms)
        self._warms.clear()
        self._emit(effects.ReportUsage(uses, hints, self._take_measurements(), self._clock.now_ns, warms=warms))
        for use in uses:
            self._tally.fetched(use.key, use.at_ns)
        self._usage_changed()


class ServedReads(Protocol):
    """The reliable reads that the shell serves. It keeps the figures, the core looks at them."""

    @property
    def reads_queued_bytes(self) -> int:
        """Bytes that peers have asked for and that have not left."""

    @property
    def readers_served(self) -> int:
        """Peers that wait for them."""


class NoReads:
    """Of a shell that serves none."""

    reads_queued_bytes = 0
    readers_served = 0


class LoadReports:
    """Looks at the queue while there is one; silent otherwise."""

    def __init__(self, node: Node, reads: ServedReads, casts: Serving) -> None:
        """`reads`: reliable reads that wait, `casts`: casts that do."""
        self._clock = node.clock
        self._emit = node.emit
        self._fabric = node.fabric
        self._reads = reads
        self._casts = casts
        self._told = IDLE
        self._wanted = True
        self._told_ns = -_LOAD_AGAIN_NS
        self._alarm = node.alarms.add(self._look)

    @property
    def load(self) -> HolderLoad:
        """What is queued for readers of this node: reliable reads and casts."""
        reads, cast_bytes = self._reads, self._casts.queued_bytes
        return HolderLoad(reads.reads_queued_bytes + cast_bytes, reads.readers_served + (cast_bytes > 0))

    def queue_grew(self) -> None:
        """Something was added to the queue."""
        if self._alarm.due_ns is None and self._wanted and self._fabric.connected:
            self._alarm.set(max(self._clock.now_ns, self._told_ns + _LOAD_INTERVAL_NS))

    def begin(self, *, wanted: bool) -> None:
        """A controller that knows nothing of the queue listens, and wants to."""
        self._told, self._wanted = IDLE, wanted
        if self.load.queued_bytes:
            self.queue_grew()

    def close(self) -> None:
        """Tell nothing any more."""
        self._alarm.due_ns = None

    def _look(self) -> None:
        self._alarm.due_ns = None
        if not self._fabric.connected:
            return
        load, now_ns = self.load, self._clock.now_ns
        stale = load.queued_bytes > 0 and now_ns - self._told_ns >= _LOAD_AGAIN_NS
        if load.differs(self._told) or stale:
            self._told, self._told_ns = load, now_ns
            self._emit(effects.ReportLoad(load))
        if load.queued_bytes or self._told.queued_bytes:
            self._alarm.set(now_ns + _LOAD_INTERVAL_NS)


class Heartbeat:
    """Says again and again that this node lives: to the controller with the figures of the moment, and to the switch,
    which tells the controller at which port the node is."""

    def __init__(self, node: Node, fetches: Fetches, tasks: Tasks, gate: Gate) -> None:
        self._node = node
        self._fetches = fetches
        self._tasks = tasks
        self._gate = gate
        self._here: ChunkKey | None = None
        """What the switch passes on."""
        self._interval_ns = 0
        self._alarm = node.alarms.add(self._beat)

    def begin(self, interval_s: float) -> None:
        """A controller listens; 0: it leaves the interval to this node."""
        self._interval_ns = int(max(limits.HEARTBEAT_S_MIN, interval_s or limits.HEARTBEAT_S_DEFAULT) * 1e9)
        self._beat()

    def close(self) -> None:
        """Nobody listens."""
        self._alarm.due_ns = None

    def say_here(self, here: ChunkKey | None) -> None:
        """Say this to the switch from now on, from the data interface; None: there is no switch that asks for it."""
        self._here = here
        self._tell_switch()

    def _tell_switch(self) -> None:
        pool_address = self._node.fabric.pool_address
        if self._here is not None and pool_address is not None:
            self._node.emit(SendControl(Control(Op.HERE, self._here, 1), pool_address))

    def _beat(self) -> None:
        node = self._node
        self._alarm.set(node.clock.now_ns + self._interval_ns)
        disk = node.disk.pool.usage() if node.disk is not None and node.disk.state is not DiskState.OFF else None
        node.emit(
            effects.BeatHeart(
                node.pool.usage(),
                node.directory.sequence,
                self._tasks.running_count,
                [chunk.key for chunk in next_victims_to_save(node.pool, limits.NEXT_VICTIMS_TOLD)],
                disk.size_bytes - disk.free_bytes if disk is not None else 0,
                [
                    effects.Arriving(one.chunk.key, one.entry.size_bytes, self._fetches.arrivals.left_bytes(one))
                    for one in islice(self._fetches.arrivals.under_way.values(), limits.ARRIVING_TOLD)
                ],
                self._gate_news(),
            )
        )
        self._tell_switch()

    def _gate_news(self) -> effects.GateNews:
        counts = self._gate.counts
        decisions = {choice.value: count for choice, count in counts.decisions.items()}
        ways = self._fetches.arrivals.reader.choice.standing()
        return effects.GateNews(decisions, counts.saved_s, counts.last, ways)


def _without(keys: Sequence[ChunkKey], chunks: Iterable[Chunk]) -> list[ChunkKey]:
    """Keys that are none of these chunks'."""
    here = {chunk.key for chunk in chunks}
    return [key for key in keys if key not in here]


def _batches(items: Sequence[T], size: int = limits.ANNOUNCE_BATCH_CHUNKS) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
