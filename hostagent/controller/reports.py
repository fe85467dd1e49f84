"""What the agent tells the controller by itself: what it holds, what was fetched, hints. In batches."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from hostagent import limits
from hostagent.api.messages import ChunkSource, Hint
from hostagent.controller.convert import announcement
from hostagent.pool.chunks import Chunk, ChunkPool, ChunkState
from kvproto.ids import ChunkKey
from kvproto.rpc import control_pb2 as pb
from kvproto.value import Measurement

T = TypeVar("T")

_SOURCES = {
    ChunkSource.LOCAL: pb.SOURCE_LOCAL,
    ChunkSource.HOLDER: pb.SOURCE_HOLDER,
    ChunkSource.CAST: pb.SOURCE_CAST,
    ChunkSource.SWITCH: pb.SOURCE_SWITCH,
    ChunkSource.DISK: pb.SOURCE_DISK,
}
_HINTS = {Hint.SESSION_ENDED: pb.ReuseHint.SESSION_ENDED, Hint.EXPECTED: pb.ReuseHint.EXPECTED}


class DiskCopies(Protocol):
    """What is on this node's disk."""

    def stored_chunks(self) -> list[Chunk]: ...
    def take_changes(self) -> tuple[list[Chunk], list[ChunkKey]]: ...


@dataclass(slots=True)
class Reports:
    """Collects, and sends a little later. What the controller cannot hear (it is away) is forgotten, oldest first."""

    pool: ChunkPool
    loop: asyncio.AbstractEventLoop
    send: Callable[[pb.FromAgent], None]
    pinned_keys: Callable[[], list[ChunkKey]]
    disk: DiskCopies | None = None
    measurements: Callable[[], Sequence[Measurement]] = tuple
    """Takes what this node has measured of sources since it was last asked."""
    connected: bool = False
    _fresh: dict[ChunkKey, float] = field(default_factory=dict)
    """Fetched copies: not to be announced before this time of the loop."""
    _held_back: dict[ChunkKey, Chunk] = field(default_factory=dict)
    _ripening: asyncio.TimerHandle | None = None
    _announcing: bool = False
    _flushing: bool = False
    _fetches: deque[tuple[float, pb.FetchEvent]] = field(default_factory=lambda: deque(maxlen=limits.USAGE_EVENTS_MAX))
    _hints: deque[pb.ReuseHint] = field(default_factory=lambda: deque(maxlen=limits.USAGE_EVENTS_MAX))

    def snapshot(self) -> None:
        """All that this node holds, after a Welcome; from now on changes are told."""
        self.pool.take_changes()
        self._fresh.clear()
        self._held_back.clear()
        chunks = self.pool.ready_chunks()
        pinned = self.pinned_keys()
        for part in _batches(chunks):
            self.send(announcement(part, (), pinned, snapshot=True))
        if self.disk is not None:
            self.disk.take_changes()
            for part in _batches(self.disk.stored_chunks()):
                self.send(announcement(part, (), (), on_disk=True, snapshot=True))
        self.send(announcement((), (), (), snapshot=True, snapshot_end=True))
        self.connected = True
        self.usage_changed()

    def disconnected(self) -> None:
        """Nobody listens."""
        self.connected = False

    def pool_changed(self) -> None:
        """Chunks came or went: announce them in a moment, together with what follows."""
        if not self._announcing and self.connected:
            self._announcing = True
            self.loop.call_later(limits.ANNOUNCE_DELAY_S, self._announce)

    def fetched_copy(self, key: ChunkKey) -> None:
        """This chunk came by an engine's fetch: announce it later, if it is still here."""
        self._fresh[key] = self.loop.time() + limits.FRESH_COPY_S
        self.pool_changed()

    def fetched(self, key: ChunkKey, source: ChunkSource | None, size_bytes: int, waited_s: float, holder: int) -> None:
        """A chunk was delivered from `source`, or not at all (None)."""
        event = pb.FetchEvent(
            key=key,
            source=pb.SOURCE_MISS if source is None else _SOURCES[source],
            bytes=0 if source in (None, ChunkSource.LOCAL, ChunkSource.DISK) else size_bytes,
            waited_us=min(int(waited_s * 1e6), 0xFFFF_FFFF),
            holder=holder,
        )
        self._fetches.append((self.loop.time(), event))
        self.usage_changed()

    def hinted(self, keys: Sequence[ChunkKey], hint: Hint, within_ms: int) -> None:
        """An engine knows something of the future."""
        self._hints.extend(pb.ReuseHint(key=key, kind=_HINTS[hint], within_ms=within_ms) for key in keys)
        self.usage_changed()

    def usage_changed(self) -> None:
        """Send what was collected, in a moment."""
        if not self._flushing and self.connected and (self._fetches or self._hints):
            self._flushing = True
            self.loop.call_later(limits.USAGE_DELAY_S, self._flush)

    def _announce(self) -> None:
        self._announcing = False
        if not self.connected:
            return
        changed, removed = self.pool.take_changes()
        for key in removed:
            self._fresh.pop(key, None)
        # What came and went unsaid is none of the directory's business.
        removed = [key for key in removed if self._held_back.pop(key, None) is None]
        added = self._ripe(changed)
        pinned = self.pinned_keys()
        for part in _batches(added):
            self.send(announcement(part, (), pinned))
        for gone in _batches(removed):
            self.send(announcement((), gone, ()))
        if self.disk is not None:
            stored, lost = self.disk.take_changes()
            for part in _batches(stored):
                self.send(announcement(part, (), (), on_disk=True))
            for gone in _batches(lost):
                self.send(announcement((), gone, (), on_disk=True))

    def _ripe(self, changed: list[Chunk]) -> list[Chunk]:
        """Which chunks to announce now; fresh copies wait, and come and go unsaid. Looks again when the next is due."""
        now_s = self.loop.time()
        waiting = {**self._held_back, **{chunk.key: chunk for chunk in changed}}
        ripe = [chunk for key, chunk in waiting.items() if self._fresh.get(key, 0.0) <= now_s]
        for chunk in ripe:
            self._fresh.pop(chunk.key, None)
        self._held_back = {key: chunk for key, chunk in waiting.items() if key in self._fresh}
        if self._held_back and self._ripening is None:
            due_s = min(self._fresh[key] for key in self._held_back)
            self._ripening = self.loop.call_at(due_s, self._ripened)
        return [chunk for chunk in ripe if chunk.state is ChunkState.READY]

    def _ripened(self) -> None:
        self._ripening = None
        self._announce()

    def close(self) -> None:
        """Announce nothing any more."""
        self.connected = False
        if self._ripening is not None:
            self._ripening.cancel()

    def _flush(self) -> None:
        self._flushing = False
        if not self.connected:
            return
        now_s = self.loop.time()
        fetches: list[pb.FetchEvent] = []
        while self._fetches and len(fetches) < limits.USAGE_BATCH_EVENTS:
            at_s, event = self._fetches.popleft()
            event.age_ms = int((now_s - at_s) * 1000)
            fetches.append(event)
        hints = [self._hints.popleft() for _ in range(min(len(self._hints), limits.USAGE_BATCH_EVENTS))]
        measurements = [_measurement(one) for one in self.measurements()]
        self.send(pb.FromAgent(usage=pb.Usage(fetches=fetches, hints=hints, measurements=measurements)))
        self.usage_changed()


def _measurement(one: Measurement) -> pb.SourceMeasurement:
    source = pb.SourceMeasurement.From.Value(f"FROM_{one.source.name}")
    return pb.SourceMeasurement(source=source, bytes=one.size_bytes, took_us=max(1, round(one.seconds * 1e6)))


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), limits.ANNOUNCE_BATCH_CHUNKS):
        yield items[start : start + limits.ANNOUNCE_BATCH_CHUNKS]
