"""Which segments of a chunk are here, asked for, or under a read, and what of its cast has passed by."""

import numpy as np
import numpy.typing as npt


class Progress:
    """Owned by one chunk and written here only. Arrays have one entry per segment; times are nanoseconds."""

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
        self.missing: npt.NDArray[np.bool_] = np.empty(self.segments, np.bool_)
        self.missing.fill(True)  # half of what np.ones takes
        self.missing_count = self.segments
        self.batch_of: npt.NDArray[np.int32] = np.empty(self.segments, np.int32)
        self.batch_of.fill(-1)
        """The GET that asked for a segment and is not over, -1: none."""
        self.reading: npt.NDArray[np.bool_] = np.zeros(self.segments, np.bool_)
        """Segments under a reliable read."""
        self.busy_count = 0
        """Missing segments that are asked for or under a read."""
        self.expect_cast()

    def lose(self, segments: npt.NDArray[np.uint32]) -> None:
        """These are not right: they are missing again. Nothing is asked for, nothing is under a read."""
        self.missing[segments] = True
        self.missing_count = int(np.count_nonzero(self.missing))

    def expect_cast(self) -> None:
        """Another leader begins: nothing of its cast has passed by yet."""
        self.high = 0
        """One above the highest segment that came without our asking since the leader took over."""
        self._low = self.segments
        """The lowest of those segments."""

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
        if self.free_count == self.segments:
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
