"""One chunk that a reader fetches: its phase, what of it is here, the switch's interest in it, whom it may come from.

Each part has one writer: `Interest` is written by `Membership`, the others by themselves.
"""

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from kvchunk.ids import ChunkKey
from kvchunk.sources import ChunkSource
from kvproto.events import ChunkWanted, HolderRef
from kvproto.ids import Address, Member, NodeId, ReadId
from kvproto.session.parameters import ReaderParameters
from kvproto.session.phases import PHASES, Cause, Phase
from kvproto.session.timing import HOLDER_FAILURES_MAX

_CASTABLE = frozenset({Phase.JOINING, Phase.JOINED, Phase.DIRECT})
_READABLE = frozenset({Phase.JOINED, Phase.DIRECT, Phase.STRICT})
_is_readable = attrgetter("readable")


@dataclass(frozen=True, slots=True)
class Proof:
    """A holder is asked for the leaves of the chunk's tree."""

    read: ReadId
    holder: NodeId
    due_ns: int
    """When that has taken too long."""


@dataclass(slots=True, eq=False)
class Interest:
    """What a reader knows of the interest that the switch keeps in one chunk. Times are nanoseconds."""

    at: Address | None = None
    """Where the last JOIN went, as long as no LEAVE has followed it: the switch may keep our interest."""
    join_sent_ns: int = 0
    join_tries: int = 0
    unanswered: bool = False
    """No NOTICE came after several tries, and nothing worse is known of the switch."""
    members: int = 0
    """Interest set as of the last NOTICE, as a bitmap."""
    cached: bool = False
    """The switch serves the chunk."""
    leader: Member | None = None
    leader_ns: int = 0
    """When the leader was last heard of."""
    left_ns: int | None = None
    """When the leader left or gave up, as long as there is no other."""
    over_ns: int | None = None
    """The same of a leader that was known: what has come since is what others repair, unless another leads."""

    def led_by(self, member: Member | None, now_ns: int) -> None:
        """This member pulls the chunk, and was heard of now."""
        self.leader, self.leader_ns, self.over_ns = member, now_ns, None

    def company(self, me: Member | None) -> int:
        """Bitmap of the others in the interest set."""
        return self.members if me is None else self.members & ~(1 << me)


@lru_cache(maxsize=64)
def _nothing_of(segments: int) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
    """What is missing, asked for and read of a chunk that nothing is here of, to be copied: chunks have few sizes, and
    a copy takes half the time of a new array that is filled."""
    return np.ones(segments, np.bool_), np.full(segments, -1, np.int32), np.zeros(segments, np.bool_)


class Progress:
    """Which segments are here, asked for, or under a read, and what of the cast has passed by.

    Arrays have one entry per segment; times are nanoseconds.
    """

    __slots__ = (
        "_low",
        "arrived_ns",
        "batch_of",
        "busy_count",
        "foreign_ns",
        "high",
        "missing",
        "missing_count",
        "reading",
        "segments",
    )

    def __init__(self, segments: int) -> None:
        self.segments = segments
        self.arrived_ns: int | None = None
        """When the last cast segment came, wanted or not."""
        self.foreign_ns: int | None = None
        """When the last cast segment came that this reader had not asked for."""
        self.wipe()

    def wipe(self) -> None:
        """Nothing of it is here."""
        self.high, self._low = 0, self.segments
        missing, batch_of, reading = _nothing_of(self.segments)
        self.missing = missing.copy()
        self.missing_count = self.segments
        self.batch_of = batch_of.copy()
        """The GET that asked for a segment and is not over, -1: none."""
        self.reading = reading.copy()
        """Segments under a reliable read."""
        self.busy_count = 0
        """Missing segments that are asked for or under a read."""

    def begin_with(self, missing: npt.NDArray[np.bool_]) -> int:
        """Only these are missing, of a chunk that has just begun: it goes on with the same array, which whoever places
        segments has. Returns how many are here."""
        self.missing = missing
        self.missing_count = int(np.count_nonzero(missing))
        return self.segments - self.missing_count

    def lose(self, segments: npt.NDArray[np.uint32]) -> None:
        """These are not right: they are missing again. Nothing is asked for, nothing is under a read."""
        self.missing[segments] = True
        self.missing_count = int(np.count_nonzero(self.missing))

    def expect_cast(self) -> None:
        """Another leader begins: nothing of its cast has passed by yet."""
        self.high, self._low = 0, self.segments
        """One above the highest segment that came without our asking since the leader took over, and the lowest."""

    # --- what is asked for -------------------------------------------------------------------------------------------

    def ask(self, first: int, count: int, serial: int) -> None:
        """GET `serial` asks for segments [first, first+count), all of them missing and asked for by no other GET."""
        self.batch_of[first : first + count] = serial
        self.busy_count += count - int(np.count_nonzero(self.reading[first : first + count]))

    def end_ask(self, first: int, count: int, serial: int) -> None:
        """GET `serial` is over: what it did not bring is free again."""
        span = self.batch_of[first : first + count]
        span[span == serial] = -1
        self._recount()

    def begin_read(self, first: int, count: int) -> None:
        """A reliable read of segments [first, first+count) goes out."""
        span = slice(first, first + count)
        free = self.missing[span]
        if self.busy_count:
            free = free & ~self.reading[span] & (self.batch_of[span] < 0)
        self.busy_count += int(np.count_nonzero(free))
        self.reading[span] = True

    def end_read(self, first: int, count: int) -> None:
        """That read is over, one way or the other."""
        self.reading[first : first + count] = False
        self._recount()

    # --- what arrives ------------------------------------------------------------------------------------------------

    def arrive(self, segments: npt.NDArray[np.uint32]) -> npt.NDArray[np.int32]:
        """Distinct missing segments are here. Returns the serials of the GETs that had asked for some of them."""
        at = index_of(segments)
        serials = self.batch_of[at]
        asked = serials >= 0
        self.missing[at] = False
        self.missing_count -= len(segments)
        self.busy_count -= int(np.count_nonzero(asked | self.reading[at]))
        serials = serials[asked]
        if len(serials):
            self.batch_of[at] = -1
        return serials

    def asked_of(self, segments: npt.NDArray[np.uint32]) -> int:
        """How many of these this reader has asked for."""
        return int(np.count_nonzero(self.batch_of[index_of(segments)] >= 0))

    def missing_of(self, segments: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        """Those of these that are missing, each once."""
        at = index_of(segments)
        missing = self.missing[at]
        if isinstance(at, slice):
            return segments if missing.all() else segments[missing]
        return _distinct(segments[missing])

    def note_cast(self, segments: npt.NDArray[np.uint32], *, foreign: bool, now_ns: int) -> None:
        """Cast segments came, wanted or not; `foreign`: this reader had not asked for all of them."""
        self.arrived_ns = now_ns
        if foreign:
            self.foreign_ns = now_ns
            self.high = max(self.high, int(segments.max()) + 1)
            self._low = min(self._low, int(segments.min()))

    @property
    def passed_count(self) -> int:
        """Segments between the lowest and the highest that the cast brought past this reader."""
        return max(0, self.high - self._low)

    @property
    def missed_share(self) -> float:
        """Share of them that this reader did not get; there must be some."""
        return int(self.missing[self._low : self.high].sum()) / self.passed_count

    @property
    def to_pass_count(self) -> int:
        """Missing segments that a cast in order still has to bring."""
        return int(self.missing[self.high :].sum())

    # --- what is free ------------------------------------------------------------------------------------------------

    @property
    def free_count(self) -> int:
        """Missing segments that this reader has asked nobody for."""
        return self.missing_count - self.busy_count

    def free_runs(self, limit: int) -> list[tuple[int, int]]:
        """Runs (first, count) of segments missing and not asked for, lowest first, `limit` segments at most."""
        if not self.free_count or limit <= 0:
            return []
        first, count = self.free_run()
        if count >= min(limit, self.free_count):
            return [(first, min(count, limit))]
        return _runs(self._free().nonzero()[0][:limit])

    def unasked_runs(self, first: int, count: int, limit: int) -> list[tuple[int, int]]:
        """Runs of segments among [first, first+count) that are missing and that no GET asks for, though a read may."""
        span = slice(first, first + count)
        unasked = (self.missing[span] & (self.batch_of[span] < 0)).nonzero()[0][: max(0, limit)]
        return _runs(unasked + first) if len(unasked) else []

    def free_run(self) -> tuple[int, int]:
        """The first of them, whole; there must be one."""
        if self.missing_count - self.busy_count == self.segments:
            return 0, self.segments
        free = self._free()
        first = int(free.argmax())
        rest = free[first:]
        count = int(rest.argmin())
        return first, count if not rest[count] else len(rest)

    def first_missing(self) -> int:
        """Lowest missing segment; 0 when none is."""
        return int(self.missing.argmax())

    def _free(self) -> npt.NDArray[np.bool_]:
        return self.missing & (self.batch_of < 0) & ~self.reading

    def _recount(self) -> None:
        """Bring the count in line with the arrays."""
        self.busy_count = int(np.count_nonzero(self.missing & ((self.batch_of >= 0) | self.reading)))


NO_KEY = ChunkKey(bytes(16))


def keeper_rank(key: ChunkKey, holder: NodeId) -> bytes:
    """Of its holders the one with the least is a chunk's keeper, by whatever way it comes. Rendezvous hashing: all
    readers agree, whatever else they know."""
    return hashlib.blake2b(key + holder.encode(), digest_size=8).digest()


class Provenance:
    """Holders of one chunk and what they brought."""

    __slots__ = (
        "_by_cast",
        "_by_read",
        "_by_switch",
        "_chosen",
        "_excluded",
        "_failures",
        "_holders",
        "_key",
        "_order",
        "any_readable",
        "strict",
        "usable",
    )

    def __init__(self, holders: tuple[HolderRef, ...], order: int, key: ChunkKey = NO_KEY) -> None:
        self._order, self._key = order, key
        self._failures: dict[NodeId, int] = {}
        self._excluded: set[NodeId] = set()
        self._chosen: HolderRef | None = None
        self.strict: NodeId | None = None
        """The one holder that the whole chunk is read from because a copy was bad; None: any may bring segments."""
        self._by_read = self._by_cast = self._by_switch = 0
        self.offer(holders)

    def wipe(self) -> None:
        """Nothing of the chunk is here."""
        self._by_read = self._by_cast = self._by_switch = 0

    # --- whom to ask -------------------------------------------------------------------------------------------------

    def offer(self, holders: tuple[HolderRef, ...]) -> None:
        """The directory names these holders now."""
        self._holders = holders
        excluded = self._excluded
        self.usable = tuple([holder for holder in holders if holder.node not in excluded]) if excluded else holders
        """Holders that are not excluded."""
        self.any_readable = any(map(_is_readable, self.usable))
        """Whether some usable holder answers reliable reads."""
        self._chosen = None if self._chosen is None else self._still(self._chosen.node)

    def names(self, node: NodeId) -> bool:
        """Whether the directory names this node."""
        return any(holder.node == node for holder in self._holders)

    def lose(self, node: NodeId) -> None:
        """This node is gone."""
        self.offer(tuple(holder for holder in self._holders if holder.node != node))

    def exclude(self, node: NodeId) -> None:
        """It does not have the chunk, or not the right bytes."""
        self._excluded.add(node)
        self.offer(self._holders)

    def choose(self, parameters: ReaderParameters) -> HolderRef | None:
        """The holder to ask: usable, with the fewest failures, least loaded; None when none is left.

        Readers begin at different places among equals, and chunks do too, so that copies share the work. A chunk stays
        with its holder as long as that works, whatever copies appear meanwhile.
        """
        if self.strict is not None:
            return self._still(self.strict) or self._choose_afresh(parameters)
        chosen = self._chosen
        if chosen is not None and not (self._failures and self._failures.get(chosen.node)):
            return chosen
        return self._choose_afresh(parameters)

    def choose_strictly(self, parameters: ReaderParameters) -> HolderRef | None:
        """Choose one holder for the whole chunk; None when none is left."""
        holder = self._choose_afresh(parameters)
        self.strict = holder.node if holder is not None else None
        return holder

    def relax(self) -> None:
        """Any holder may bring segments again."""
        self.strict = None

    def once_more(self) -> bool:
        """Let holders that answer no reads bring the chunk again, as often as reads may break. False: often enough."""
        self.relax()
        for holder in self.usable:
            self.fail(holder.node)
            if self._failures[holder.node] >= HOLDER_FAILURES_MAX:
                self.exclude(holder.node)
        return bool(self.usable)

    def _still(self, node: NodeId) -> HolderRef | None:
        """What the directory says of a node now; None: it is not usable any more."""
        return next((holder for holder in self.usable if holder.node == node), None)

    def _choose_afresh(self, parameters: ReaderParameters) -> HolderRef | None:
        usable = self.usable
        if len(usable) > 1:
            if parameters.by_keepers:
                self._chosen = min(usable, key=self._keeper_rank)
                return self._chosen
            start = ((parameters.member or 0) + self._order) % len(usable)
            turned = usable[start:] + usable[:start]
            self._chosen = min(
                turned, key=lambda holder: (self._failures.get(holder.node, 0), not holder.castable, holder.load)
            )
        else:
            self._chosen = usable[0] if usable else None
        return self._chosen

    def _keeper_rank(self, holder: HolderRef) -> tuple[int, bool, bytes]:
        return self._failures.get(holder.node, 0), not holder.castable, keeper_rank(self._key, holder.node)

    def fail(self, node: NodeId) -> None:
        """It did not deliver: others go first from now on."""
        self._failures[node] = self._failures.get(node, 0) + 1

    def turn_from(self, node: NodeId, named: Address | None) -> bool:
        """It keeps no interest in this chunk: choose the one that it `named`, else the next. False: there is none that
        has not failed, either."""
        self.fail(node)
        able = [holder for holder in self.usable if holder.castable and not self._failures.get(holder.node)]
        self._chosen = next((holder for holder in able if holder.address == named), None)
        return bool(able)

    def suspect(self, parameters: ReaderParameters) -> None:
        """The holder that is asked may have forgotten this reader: if there are others, they go first from now on."""
        holder = self.choose(parameters)
        if len(self.usable) > 1 and holder is not None:
            self._failures.setdefault(holder.node, 1)

    # --- what came ---------------------------------------------------------------------------------------------------

    def note_cast(self, count: int, from_switch: int) -> None:
        """`count` wanted segments came by casts, at most `from_switch` of them out of the switch, as they say."""
        from_switch = min(from_switch, count)
        self._by_switch += from_switch
        self._by_cast += count - from_switch

    def note_read(self, count: int) -> None:
        """`count` wanted segments came by a reliable read."""
        self._by_read += count

    def to_blame(self) -> list[NodeId]:
        """Who brought wrong bytes: the holder that everything new was read from while nothing else could be written.

        Before that, casts may have been written, too, and a cast's source address proves nothing.
        """
        return [] if self.strict is None else [self.strict]

    def source(self) -> ChunkSource:
        """Where most of it came from."""
        best = max(self._by_read, self._by_cast, self._by_switch)
        if best == self._by_read:
            return ChunkSource.HOLDER
        return ChunkSource.CAST if best == self._by_cast else ChunkSource.SWITCH


class Chunk:
    """Phase of one chunk, and its parts. Compared by identity."""

    __slots__ = (
        "alone",
        "castable",
        "interest",
        "joined",
        "key",
        "order",
        "phase",
        "progress",
        "proof",
        "provenance",
        "read_alone",
        "readable",
        "readers",
        "segments",
    )

    def __init__(self, wanted: ChunkWanted) -> None:
        self.key = wanted.key
        self.segments = wanted.segments
        self.order = wanted.order
        self.read_alone = wanted.read_alone
        self.phase = Phase.WAITING
        """Changed by `move` only."""
        self.alone = False
        """It is read reliably, at once, whatever others do or say."""
        self.castable = False
        """The phase is one in which cast segments are welcome."""
        self.readable = False
        """The phase is one in which segments may be asked for."""
        self.joined = False
        """The phase is JOINED."""
        self.readers = wanted.readers
        """So many nodes read it, each for itself, because that ends sooner; 0: nobody decided that."""
        self.progress = Progress(wanted.segments)
        self.proof: Proof | None = None
        """Under way while the phase is PROVING."""
        self.interest = Interest()
        self.provenance = Provenance(wanted.holders, wanted.order, wanted.key)
        if wanted.missing is not None:
            self.provenance.note_cast(self.progress.begin_with(wanted.missing), 0)

    def wipe(self) -> None:
        """Nothing of it is here."""
        self.progress.wipe()
        self.provenance.wipe()

    def move(self, cause: Cause) -> None:
        """Take a transition of the table. Raises StateError when it has none."""
        phase = self.phase = PHASES[self.phase, cause]
        self.castable, self.readable, self.joined = phase in _CASTABLE, phase in _READABLE, phase is Phase.JOINED


def index_of(segments: npt.NDArray[np.uint32]) -> slice | npt.NDArray[np.uint32]:
    """What to look these up with: a slice where they follow on each other, as they mostly do. It is much quicker."""
    if not len(segments):
        return segments
    first, last = int(segments[0]), int(segments[-1])
    if last - first + 1 != len(segments) or not (segments[1:] > segments[:-1]).all():
        return segments
    return slice(first, last + 1)


def _distinct(segments: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Each of them once. Mostly they are so already: copies are rare."""
    once = dict.fromkeys(segments.tolist())
    return segments if len(once) == len(segments) else np.fromiter(once, np.uint32, len(once))


def _runs(segments: npt.NDArray[np.intp]) -> list[tuple[int, int]]:
    """Runs (first, count) of these segments, which rise; there must be one."""
    breaks = (segments[1:] - segments[:-1] != 1).nonzero()[0] + 1
    starts = segments[np.concatenate(([0], breaks))]
    ends = segments[np.concatenate((breaks - 1, [len(segments) - 1]))]
    return [(int(first), int(last - first + 1)) for first, last in zip(starts, ends, strict=True)]
