"""What a fetch is: who wants it, what it brought, and the machines and observers around it. Values and seams only."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from hostagent.core.effects import ChunkUse
from hostagent.pool.chunks import Chunk
from hostagent.pool.tenants import NOBODY
from kvchunk.ids import ChunkKey
from kvchunk.sources import ChunkSource
from kvclient.messages import Status
from kvpolicy.tiers.gate import Prefill, Probe, Ticket, Verdict
from kvpolicy.value import Tier
from kvproto import events
from kvproto.commands import ReaderCommand
from kvproto.ids import Address, FetchId
from kvproto.session.choice import Chooser
from kvproto.session.parameters import ReaderParameters


class ReaderMachine(Protocol):
    """What brings chunks from other nodes: `kvproto.session.reader.Reader`, or a model of it."""

    @property
    def choice(self) -> Chooser:
        """By which way chunks come that several want."""

    @property
    def led_count(self) -> int:
        """Chunks that this node pulls for everybody at the moment."""

    @property
    def patient(self) -> bool:
        """Whether cast segments may be reported some milliseconds late."""

    @property
    def half_window(self) -> int:
        """How many of the segments that were asked for may wait to be reported."""

    def handle_all(self, events: Iterable[events.ReaderEvent], now_ns: int, /) -> list[ReaderCommand]:
        """What follows from events that came together; the rules run once."""

    def handle_timer(self, now_ns: int, /) -> list[ReaderCommand]:
        """What follows from the time alone."""

    @property
    def wake_ns(self) -> int | None:
        """When `handle_timer` should come; None: not before another event."""

    def missing(self, key: ChunkKey, /) -> npt.NDArray[np.bool_] | None:
        """Which segments of a chunk may still come by cast, shape (segments,); None: none are wanted."""

    def unsettled(self, key: ChunkKey, /) -> npt.NDArray[np.bool_] | None:
        """Segments of a chunk that may still be written, shape (segments,); None: it is not on its way."""

    def left_at(self, key: ChunkKey, now_ns: int, rail: int = 0, /) -> Address | None:
        """Where the interest is of those who still want a chunk that this node has, by this rail; None: nobody does."""

    def configure(self, parameters: ReaderParameters, now_ns: int, /) -> list[ReaderCommand]:
        """The node's parameters changed."""


MakeReader = Callable[[ReaderParameters], ReaderMachine]


class Purpose(enum.Enum):
    """Who wants a fetch, and how urgently."""

    ENGINE = "engine"
    """An engine waits for it: background work stays behind, and the pools learn from it."""
    TASK = "task"
    """The controller wants copies here."""
    DISK = "disk"
    """From this node's disk only, never asked of others: for a peer, or to promote."""
    STAND_IN = "stand-in"
    """Brings the stand-ins of chunks that another fetch wants, on its ticket."""
    PROBE = "probe"
    """The gate refused a source and wants to measure it again, in parallel with engines' fetches."""


class Kept(NamedTuple):
    """What is here of a long fetch, kept for it before the rest was asked for."""

    chunks: tuple[Chunk, ...]
    size_bytes: int
    asked_ns: int
    """When the fetch began."""
    status: Status
    """Why nothing else of the fetch is asked for; OK when it is."""


class FetchRequest(NamedTuple):
    """Chunks that somebody wants (distinct, in prefix order), before a deadline."""

    keys: tuple[ChunkKey, ...]
    purpose: Purpose
    deadline_ns: int
    prefill: Prefill | None = None
    """The engine's own way to them; a fetch that falls behind it is cut."""
    expected_s: float = 0.0
    """What nobody computes yet will be computed or put within this time."""
    may_wait: bool = False
    """Also for a look into the cold store, and for chunks that somebody computes."""
    any_order: bool = False
    """Without a prefill: each chunk is of use by itself, and one that does not come ends nothing."""
    tenant: str = NOBODY
    """Whom the chunks count for."""
    traced: bool = False
    """The plan is told, too."""
    kept: Kept | None = None
    """What is here beside these, and in a prefix before them."""


class FetchResult(NamedTuple):
    """Leading chunks (of a fetch in any order: those that came, as they were asked for), each pinned once for whoever
    asked, and why the first one missing is missing."""

    status: Status
    chunks: tuple[tuple[Chunk, ChunkSource], ...]
    told_count: int = 0
    """Of the chunks, those that `Progressed` has told of."""


Progressed = Callable[[int, Sequence[tuple[Chunk, ChunkSource]]], None]
"""Takes the leading chunks of a fetch that came since the last time, and how many came before. Whoever wants to keep
them pins them."""


class Wanted(NamedTuple):
    """A chunk of which cast segments may be placed."""

    chunk: Chunk
    segments_count: int
    missing: npt.NDArray[np.bool_]
    """By segment; a view that changes with the next event."""


class FetchObserver(Protocol):
    """Who wants to know what fetches did."""

    def chunks_used(self, uses: Sequence[ChunkUse], over: Sequence[ChunkKey] = ()) -> None:
        """Fetches got chunks, or should have and did not. `over`: those of an engine's fetch that is over with it."""

    def copy_arrived(self, chunk: Chunk, *, asked_for: bool) -> None:
        """A verified copy lies in the pool; `asked_for`: not (only) an engine's fetch brought it."""

    def fetch_over(self, keys: Sequence[ChunkKey]) -> None:
        """An engine's fetch of these is over, however it ended."""

    def engines_served(self) -> None:
        """A fetch ended, and no engine waits any more."""


@dataclass(slots=True, eq=False)
class Stage:
    """Chunks of a fetch that were planned together: what they take teaches the gate what sources cost."""

    started_ns: int
    first: int
    """Place of the first of them."""
    end: int
    """Place behind the last one."""
    ticket: Ticket | None
    """None: all of them were here."""
    probe: Probe | None = None
    """What the gate wants to learn by it."""


@dataclass(slots=True, eq=False)
class Fetch:
    """One fetch under way: the only record of how far it has come and when it ends."""

    number: FetchId
    request: FetchRequest
    ended: Callable[[FetchResult], None]
    progressed: Progressed | None
    started_ns: int
    deadline_ns: int
    keys: tuple[ChunkKey, ...] = ()
    """What is brought."""
    wanted_count: int = 0
    """Leading keys that are worth waiting for."""
    leading_count: int = 0
    """Leading keys that are here."""
    unasked: deque[ChunkKey] = field(default_factory=deque)
    """What follows on `keys` and is about to be asked for, in windows (`hostagent.core.long_fetches`)."""
    told_count: int = 0
    """Of these, those that `progressed` has told of."""
    stopped: Status = Status.OK
    """Why the keys asked for go no further than `keys` and `awaited`; OK when they do."""
    missed: Status = Status.UNAVAILABLE
    """Why a chunk of `keys` did not come, if one does not."""
    awaited: list[ChunkKey] = field(default_factory=list)
    """What follows on `keys`: chunks that are being computed, and those behind them."""
    expected_ns: int = 0
    """Until then somebody may begin to compute what nobody computes."""
    verdict: Verdict | None = None
    """Of a fetch that waited for something to be computed."""
    planned_count: int = 0
    """Of such a fetch, how many of `keys` were not waited for."""
    stages: list[Stage] = field(default_factory=list)
    """Those under way."""
    pinned: dict[ChunkKey, Chunk] = field(default_factory=dict)
    """Chunks that are here, in the order in which they came."""
    gone: set[ChunkKey] = field(default_factory=set)
    """Of a fetch in any order: chunks that nobody has any more."""
    sources: dict[ChunkKey, ChunkSource] = field(default_factory=dict)
    """How chunks came that were not here when the fetch began."""
    holders: dict[ChunkKey, int] = field(default_factory=dict)
    """Numbers of the nodes that they came from, where that means something."""
    decoded: set[ChunkKey] = field(default_factory=set)
    """Those that came by their stand-ins."""
    routes: dict[ChunkKey, Tier] = field(default_factory=dict)
    """Where chunks were asked of first."""
    reckoned: dict[ChunkKey, int] = field(default_factory=dict)
    """Bytes that the gate reckons with for chunks that their source has in fewer bytes."""
    review_ns: int | None = None
    """When it is looked at whether it has fallen behind; None: never."""
    all_bytes: int = 0
    """What was still to come when it began to be reviewed."""

    def overdue(self, now_ns: int) -> Status:
        """Why a fetch ends whose `deadline_ns` has passed: the deadline of who asked, or computing is faster by now."""
        return Status.DEADLINE if self.request.deadline_ns <= now_ns else Status.GATE

    def look_ns(self, now_ns: int) -> int:
        """When a fetch that waits is to be looked at."""
        return self.expected_ns if now_ns < self.expected_ns < self.deadline_ns else self.deadline_ns
