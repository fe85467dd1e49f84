"""What a fetch is: who wants it, what it brought, and the machines and observers around it. Values and seams only."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from hostagent.pool.chunks import Chunk
from kvchunk.ids import ChunkKey
from kvchunk.sources import ChunkSource
from kvclient.messages import Status
from kvpolicy.tiers.gate import Probe, Ticket
from kvpolicy.value import Tier
from kvproto import events
from kvproto.commands import ReaderCommand
from kvproto.ids import Address, FetchId
from kvproto.session.parameters import ReaderParameters


class ReaderMachine(Protocol):
    """What brings chunks from other nodes: `kvproto.session.reader.Reader`, or a model of it."""

    @property
    def led_count(self) -> int:
        """Chunks that this node pulls for everybody at the moment."""
        ...

    @property
    def patient(self) -> bool:
        """Whether cast segments may be reported some milliseconds late."""
        ...

    @property
    def half_window(self) -> int:
        """How many of the segments that were asked for may wait to be reported."""
        ...

    def handle(self, event: events.ReaderEvent, now_ns: int, /) -> list[ReaderCommand]:
        """What follows from an event."""
        ...

    def handle_all(self, events: Iterable[events.ReaderEvent], now_ns: int, /) -> list[ReaderCommand]:
        """What follows from several events that came together; the rules run once."""
        ...

    def handle_timer(self, now_ns: int, /) -> list[ReaderCommand]:
        """What follows from the time alone."""
        ...

    def next_timeout_ns(self) -> int | None:
        """When `handle_timer` should come; None: not before another event."""
        ...

    def missing(self, key: ChunkKey, /) -> npt.NDArray[np.bool_] | None:
        """Which segments of a chunk may still come by cast, shape (segments,); None: none are wanted."""
        ...

    def unsettled(self, key: ChunkKey, /) -> npt.NDArray[np.bool_] | None:
        """Segments of a chunk that may still be written, shape (segments,); None: it is not on its way."""
        ...

    def is_here(self, key: ChunkKey, /) -> bool:
        """Whether a chunk that some fetch wants has become whole and right."""
        ...

    def configure(self, parameters: ReaderParameters, now_ns: int, /) -> list[ReaderCommand]:
        """The node's parameters changed."""
        ...


MakeReader = Callable[[ReaderParameters], ReaderMachine]


class Purpose(enum.Enum):
    """Who wants a fetch, and how urgently."""

    ENGINE = "engine"
    """An engine waits for it: background work stays behind, and the pools learn from it."""
    TASK = "task"
    """The controller wants copies here."""
    DISK = "disk"
    """From this node's disk only, never asked of others: for a peer, or to promote."""
    TWIN = "twin"
    """Brings twins of chunks that another fetch wants."""
    PROBE = "probe"
    """The gate refused a source and wants to measure it again, in parallel with engines' fetches."""


@dataclass(frozen=True, slots=True)
class FetchResult:
    """Leading chunks (of a fetch in any order: those that came, as they were asked for), each pinned once for whoever
    asked, and why the first one missing is missing."""

    status: Status
    chunks: tuple[tuple[Chunk, ChunkSource], ...]


Progressed = Callable[[int, Sequence[tuple[Chunk, ChunkSource]]], None]
"""Hears the leading chunks of a fetch that came since the last time, and how many came before. Whoever wants to keep
them pins them."""


class Wanted(NamedTuple):
    """A chunk of which cast segments may be placed."""

    chunk: Chunk
    segments_count: int
    missing: npt.NDArray[np.bool_]
    """By segment; a view that changes with the next event."""


class FetchObserver(Protocol):
    """Who wants to know what fetches did."""

    def chunk_came(self, key: ChunkKey, source: ChunkSource, size_bytes: int, waited_s: float, holder: int) -> None:
        """A fetch got a chunk; `holder`: number of the node that it came from, 0 where that means nothing."""
        ...

    def chunk_missed(self, key: ChunkKey, waited_s: float) -> None:
        """A chunk that should have come did not."""
        ...

    def copy_arrived(self, chunk: Chunk, *, asked_for: bool) -> None:
        """A verified copy lies in the pool; `asked_for`: not (only) an engine's fetch brought it."""
        ...

    def fetch_over(self, keys: Sequence[ChunkKey]) -> None:
        """An engine's fetch of these is over, however it ended."""
        ...

    def engines_served(self) -> None:
        """A fetch ended, and no engine waits any more."""
        ...


@dataclass(slots=True, eq=False)
class Fetch:
    """One fetch under way."""

    fetch: FetchId
    keys: tuple[ChunkKey, ...]
    purpose: Purpose
    stopped: Status
    """Why the keys asked for go no further than `keys`; OK when they do."""
    ended: Callable[[FetchResult], None]
    progressed: Progressed | None
    started_ns: int
    ticket: Ticket
    pinned: dict[ChunkKey, Chunk]
    probe: Probe | None = None
    """What the gate wants to learn by it."""
    any_order: bool = False
    """Each chunk is of use by itself."""
    came_from: dict[ChunkKey, Address | None] = field(default_factory=dict)
    routes: dict[ChunkKey, Tier] = field(default_factory=dict)
    reckoned: dict[ChunkKey, int] = field(default_factory=dict)
    """Bytes that the gate reckons with for chunks that their source has in fewer bytes."""

    decoded: dict[ChunkKey, ChunkSource] = field(default_factory=dict)
    """Of chunks that came by their twins: where the twin came from."""

    def source_of(self, key: ChunkKey, source: ChunkSource) -> ChunkSource:
        """Where a chunk came from: the reader does not tell the cold store, or a twin, from the disk."""
        if source is ChunkSource.DISK and key in self.decoded:
            return self.decoded[key]
        cold = source is ChunkSource.DISK and self.routes.get(key) is Tier.COLD
        return ChunkSource.COLD if cold else source
