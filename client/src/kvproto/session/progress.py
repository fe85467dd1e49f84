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
        self.missing: npt.NDArray[np.bool_] = np.ones(self.segments, np.bool_)
        self.missing_count = self.segments
        self.batch_of: npt.NDArray[np.int32] = np.full(self.segments, -1, np.int32)
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
        """GET `serial` asks for segments [first, first+count), all of them missing and free."""
        self.batch_of[first : first + count] = serial
        self.busy_count += count

    def end_ask(self, first: int, count: int, serial: int) -> None:
        """GET `serial` is over: what it did not bring is free again."""
        span = self.batch_of[first : first + count]
        span[span == serial] = -1
        self._recount()

    def begin_read(self, first: int, count: int) -> None:
        """A reliable read of segments [first, first+count) goes out."""
        span = slice(first, first + count)
        self.busy_count += int((self.missing[span] & ~self.reading[span] & (self.batch_of[span] < 0)).sum())
        self.reading[span] = True

    def end_read(self, first: int, count: int) -> None:
        """That read is over, one way or the other."""
        self.reading[first : first + count] = False
        self._recount()

    # --- what arrives ------------------------------------------------------------------------------------------------

    def arrive(self, segments: npt.NDArray[np.uint32]) -> npt.NDArray[np.int32]:
        """Distinct missing segments are here. Returns the serials of the GETs that had asked for some of them."""
        serials = self.batch_of[segments]
        asked = serials >= 0
        self.missing[segments] = False
        self.missing_count -= len(segments)
        self.busy_count -= int(np.count_nonzero(asked | self.reading[segments]))
        serials = serials[asked]
        if len(serials):
            self.batch_of[segments] = -1
        return serials

    def asked_of(self, segments: npt.NDArray[np.uint32]) -> int:
        """How many of these this reader has asked for."""
        return int(np.count_nonzero(self.batch_of[segments] >= 0))

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
        free = self._free().nonzero()[0][:limit]
        breaks = (free[1:] - free[:-1] != 1).nonzero()[0] + 1
        starts = free[np.concatenate(([0], breaks))]
        ends = free[np.concatenate((breaks - 1, [len(free) - 1]))]
        return [(int(first), int(last - first + 1)) for first, last in zip(starts, ends, strict=True)]

    def free_run(self) -> tuple[int, int]:
        """The first of them, whole; there must be one."""
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
