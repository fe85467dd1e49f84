"""One chunk that a reader is fetching: its phase, its bitmap, who else wants it, who pulls it."""

import enum
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kvproto.commands import Source
from kvproto.events import HolderRef
from kvproto.ids import Address, ChunkKey, FetchId, Member, NodeId
from kvproto.session.machine import Table


class Phase(enum.Enum):
    """How a chunk is being fetched."""

    WAITING = "not begun: too many are joined already"
    LOADING = "the shell loads it from this node's disk"
    JOINING = "JOIN sent, no NOTICE yet"
    JOINED = "the switch keeps our interest"
    DIRECT = "no switch to rely on: reliable reads only"
    STRICT = "a copy was bad: reliable reads from one holder, casts ignored"
    VERIFYING = "all segments are here, the checksum is being taken"
    HERE = "whole and right"
    GONE = "no holder is left"


class Cause(enum.Enum):
    """What changes a phase."""

    JOIN = "a JOIN was sent"
    ADMITTED = "a NOTICE says that the switch keeps our interest"
    REFUSED = "a NOTICE says that it does not, or that there is no switch"
    UNHEARD = "no NOTICE, or no segment, after several tries"
    REBOOT = "the switch forgot everything"
    WHOLE = "no segment is missing"
    GOOD = "the checksum is right"
    BAD = "the checksum is wrong"
    EXHAUSTED = "no holder is left"
    FOUND = "the directory knows a holder again"
    LOAD = "it lies on this node's disk"
    LOADED = "the disk delivered"
    UNLOADED = "the disk did not deliver"


_OPEN = {Cause.WHOLE: Phase.VERIFYING, Cause.EXHAUSTED: Phase.GONE}

PHASES: Table[Phase, Cause] = Table(
    "chunk",
    {
        Phase.WAITING: {
            Cause.JOIN: Phase.JOINING,
            Cause.ADMITTED: Phase.WAITING,
            Cause.REFUSED: Phase.DIRECT,
            Cause.REBOOT: Phase.WAITING,
            Cause.EXHAUSTED: Phase.GONE,
            Cause.LOAD: Phase.LOADING,
        },
        Phase.LOADING: {
            Cause.LOADED: Phase.HERE,
            Cause.UNLOADED: Phase.WAITING,
        },
        Phase.JOINING: {
            Cause.JOIN: Phase.JOINING,
            Cause.ADMITTED: Phase.JOINED,
            Cause.REFUSED: Phase.DIRECT,
            Cause.UNHEARD: Phase.DIRECT,
            Cause.REBOOT: Phase.JOINING,
            **_OPEN,
        },
        Phase.JOINED: {
            Cause.JOIN: Phase.JOINED,
            Cause.ADMITTED: Phase.JOINED,
            Cause.REFUSED: Phase.DIRECT,
            Cause.UNHEARD: Phase.DIRECT,
            Cause.REBOOT: Phase.JOINING,
            **_OPEN,
        },
        Phase.DIRECT: {
            Cause.ADMITTED: Phase.DIRECT,
            Cause.REFUSED: Phase.DIRECT,
            Cause.UNHEARD: Phase.DIRECT,
            Cause.REBOOT: Phase.JOINING,
            **_OPEN,
        },
        Phase.STRICT: {
            Cause.ADMITTED: Phase.STRICT,
            Cause.REFUSED: Phase.STRICT,
            Cause.REBOOT: Phase.STRICT,
            **_OPEN,
        },
        Phase.VERIFYING: {
            Cause.ADMITTED: Phase.VERIFYING,
            Cause.REFUSED: Phase.VERIFYING,
            Cause.REBOOT: Phase.VERIFYING,
            Cause.GOOD: Phase.HERE,
            Cause.BAD: Phase.STRICT,
        },
        Phase.HERE: {
            Cause.ADMITTED: Phase.HERE,
            Cause.REFUSED: Phase.HERE,
            Cause.REBOOT: Phase.HERE,
        },
        Phase.GONE: {
            Cause.ADMITTED: Phase.GONE,
            Cause.REFUSED: Phase.GONE,
            Cause.REBOOT: Phase.GONE,
            Cause.EXHAUSTED: Phase.GONE,
            Cause.FOUND: Phase.WAITING,
        },
    },
)

_CASTABLE = frozenset({Phase.JOINING, Phase.JOINED, Phase.DIRECT})
_READABLE = frozenset({Phase.JOINED, Phase.DIRECT, Phase.STRICT})


@dataclass(slots=True, eq=False)
class Chunk:
    """State of one chunk at this reader. Times are nanoseconds; arrays have one entry a segment."""

    key: ChunkKey
    segments: int
    size_bytes: int
    order: int
    """Place among all chunks of the node: fetches in order of arrival, chunks in prefix order."""
    holders: tuple[HolderRef, ...]
    read_alone: bool = False
    """Without company it is read from a holder, not asked of the switch."""
    phase: Phase = Phase.WAITING
    """Changed by `move` only."""
    castable: bool = False
    """The phase is one in which cast segments are welcome."""
    readable: bool = False
    """The phase is one in which segments may be asked for."""
    joined: bool = False
    """The phase is JOINED."""
    fetches: set[FetchId] = field(default_factory=set)
    missing: npt.NDArray[np.bool_] = field(init=False)
    missing_count: int = field(init=False)
    batch_of: npt.NDArray[np.int32] = field(init=False)
    """The GET that asked for a segment and is not settled, -1: none."""
    reading: npt.NDArray[np.bool_] = field(init=False)
    """Segments under a reliable read."""
    busy_count: int = 0
    """Missing segments that are asked for or under a read."""

    interest_at: Address | None = None
    """Where the last JOIN went, as long as no LEAVE has followed it: the switch may keep our interest."""
    join_sent_ns: int = 0
    join_tries: int = 0
    members: int = 0
    """Interest set as of the last NOTICE, as a bitmap."""
    cached: bool = False
    leader: Member | None = None
    leader_ns: int = 0
    """When the leader was last heard of."""
    left_ns: int | None = None
    """When the leader left or gave up, as long as there is no other."""
    arrived_ns: int | None = None
    """When the last cast segment came, wanted or not."""
    foreign_ns: int | None = None
    """When the last cast segment came that we had not asked for."""
    high: int = 0
    """One above the highest segment that came without our asking since the leader took over."""
    low: int = 0
    """The lowest of those segments."""

    failures: dict[NodeId, int] = field(default_factory=dict)
    excluded: set[NodeId] = field(default_factory=set)
    contributors: set[Address] = field(default_factory=set)
    holder: NodeId | None = None
    """Whom we ask."""
    strict_holder: NodeId | None = None
    by_read: int = 0
    by_cast: int = 0
    by_switch: int = 0
    loaded: bool = False
    """It came from this node's disk."""

    def __post_init__(self) -> None:
        self.wipe()

    def wipe(self) -> None:
        """Nothing of it is here."""
        self.missing = np.ones(self.segments, np.bool_)
        self.missing_count = self.segments
        self.batch_of = np.full(self.segments, -1, np.int32)
        self.reading = np.zeros(self.segments, np.bool_)
        self.busy_count = 0
        self.contributors = set()
        self.by_read = self.by_cast = self.by_switch = 0
        self.high = 0
        self.low = self.segments

    def move(self, cause: Cause) -> None:
        """Take a transition of the table. Raises StateError when it has none."""
        phase = self.phase = PHASES.next(self.phase, cause)
        self.castable, self.readable, self.joined = phase in _CASTABLE, phase in _READABLE, phase is Phase.JOINED

    @property
    def free_count(self) -> int:
        """Missing segments that nobody was asked for by us."""
        return self.missing_count - self.busy_count

    def recount(self) -> None:
        """Bring the counts in line with the arrays."""
        self.missing_count = int(np.count_nonzero(self.missing))
        self.busy_count = int(np.count_nonzero(self.missing & ((self.batch_of >= 0) | self.reading)))

    def free_runs(self, limit: int) -> list[tuple[int, int]]:
        """Runs (first, count) of segments missing and not asked for, lowest first, `limit` segments at most."""
        free = np.flatnonzero(self.missing & (self.batch_of < 0) & ~self.reading)[:limit]
        if not len(free):
            return []
        breaks = np.flatnonzero(np.diff(free) != 1) + 1
        starts = free[np.concatenate(([0], breaks))]
        ends = free[np.concatenate((breaks - 1, [len(free) - 1]))]
        return [(int(first), int(last - first + 1)) for first, last in zip(starts, ends, strict=True)]

    def free_run(self) -> tuple[int, int]:
        """The first of them, whole; there must be one."""
        free = self.missing & (self.batch_of < 0) & ~self.reading
        first = int(free.argmax())
        rest = free[first:]
        count = int(rest.argmin())
        return first, count if not rest[count] else len(rest)

    def first_missing(self) -> int:
        """Lowest missing segment; 0 when none is."""
        return int(self.missing.argmax())

    def usable_holders(self) -> list[HolderRef]:
        """Holders that are not excluded for this chunk."""
        return [holder for holder in self.holders if holder.node not in self.excluded]

    @property
    def any_readable(self) -> bool:
        """Whether some usable holder answers reliable reads."""
        return any(holder.readable for holder in self.usable_holders())

    def company(self, me: Member | None) -> int:
        """Bitmap of the others in the interest set."""
        return self.members if me is None else self.members & ~(1 << me)

    def source(self) -> Source:
        """Where most of it came from."""
        if self.loaded:
            return Source.DISK
        best = max(self.by_read, self.by_cast, self.by_switch)
        if best == self.by_read:
            return Source.UNICAST
        return Source.CAST if best == self.by_cast else Source.SWITCH
