"""One filling of a chunk into the switch: which FILLs are out, which are acknowledged."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from kvproto.events import FillRequested
from kvproto.limits import FILL_WINDOW
from kvproto.session.timing import FILL_TIMEOUT_MAX_NS, FILL_TIMEOUT_NS

_OVERTAKEN = 8
"""A FILL is lost once one that was sent more than this many FILLs later is acknowledged."""


class Fill:
    """Window and bitmap of one fill. Pure bookkeeping: the holder sends what `due` gives."""

    __slots__ = ("_acknowledged", "_progress_ns", "_sent", "_serial", "_serials", "_timeout_ns", "request", "segments")

    def __init__(self, request: FillRequested, segments: int, now_ns: int) -> None:
        self.request = request
        self.segments = segments
        self._acknowledged: npt.NDArray[np.bool_] = np.zeros(segments, np.bool_)
        self._sent: npt.NDArray[np.bool_] = np.zeros(segments, np.bool_)
        self._serials: npt.NDArray[np.int64] = np.zeros(segments, np.int64)
        """When each was last sent, counted in FILLs: a switch acknowledges in the order in which they come."""
        self._serial = 0
        self._progress_ns = now_ns
        self._timeout_ns = FILL_TIMEOUT_NS

    @property
    def acknowledged(self) -> int:
        """Segments that the switch has."""
        return int(np.count_nonzero(self._acknowledged))

    @property
    def complete(self) -> bool:
        """Whether it has all of them."""
        return bool(self._acknowledged.all())

    def acknowledge(self, segment: int, now_ns: int) -> None:
        """FILL_ACK for one segment. Whatever went out well before it and is not acknowledged was lost."""
        if not self._sent[segment]:
            return
        self._acknowledged[segment] = True
        self._progress_ns = now_ns
        self._timeout_ns = FILL_TIMEOUT_NS
        lost = self._sent & ~self._acknowledged & (self._serials < self._serials[segment] - _OVERTAKEN)
        self._sent[lost] = False

    def due(self, now_ns: int) -> Iterator[tuple[int, int]]:
        """Runs (first, count) to send now, within the window; counts them as sent."""
        outstanding = int(np.count_nonzero(self._sent & ~self._acknowledged))
        if outstanding and now_ns - self._progress_ns >= self._timeout_ns:
            self._sent &= self._acknowledged
            self._progress_ns = now_ns
            self._timeout_ns = min(2 * self._timeout_ns, FILL_TIMEOUT_MAX_NS)
            outstanding = 0
        if not outstanding:
            self._progress_ns = now_ns
        free = np.flatnonzero(~self._sent)[: FILL_WINDOW - outstanding]
        self._sent[free] = True
        self._serials[free] = np.arange(self._serial, self._serial + len(free))
        self._serial += len(free)
        while len(free):
            run = 1 + int(np.argmin(np.concatenate((np.diff(free) == 1, [False]))))
            yield int(free[0]), run
            free = free[run:]

    def next_timeout_ns(self) -> int:
        """When to look again without an acknowledgement."""
        return min(self._progress_ns + self._timeout_ns, self.request.deadline_ns)
