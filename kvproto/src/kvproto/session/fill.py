"""One filling of a chunk into the switch: which FILLs are out, which are acknowledged."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from kvproto.events import FillRequested
from kvproto.limits import FILL_WINDOW
from kvproto.session.timing import FILL_TIMEOUT_MAX_NS, FILL_TIMEOUT_NS

_OVERTAKEN = 8
"""A FILL is lost once one that was sent more than this many FILLs later is acknowledged."""


class Fill:
    """Window and bitmap of one fill. Pure bookkeeping: the holder sends what `due` and `ride` give."""

    __slots__ = (
        "_acknowledged",
        "_progress_ns",
        "_rode",
        "_sent",
        "_serial",
        "_serials",
        "_timeout_ns",
        "began_ns",
        "request",
        "segments",
    )

    def __init__(self, request: FillRequested, segments: int, now_ns: int) -> None:
        self.request = request
        self.segments = segments
        self.began_ns = now_ns
        self._acknowledged: npt.NDArray[np.bool_] = np.zeros(segments, np.bool_)
        self._sent: npt.NDArray[np.bool_] = np.zeros(segments, np.bool_)
        self._rode: npt.NDArray[np.bool_] = np.zeros(segments, np.bool_)
        """Those sent last by a cast, which keeps the pace of its leader: the window is for the others."""
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

    def ride(self, first: int, count: int, now_ns: int) -> Iterator[tuple[int, int, bool]]:
        """Runs (first, count, whether as FILL) of segments that are cast now; counts those that ride as sent.

        A switch that acknowledges nothing casts nothing of a FILL, so what readers wait for does not ride then.
        """
        unanswered = bool((self._sent & ~self._acknowledged).any())
        if unanswered and now_ns - self._progress_ns >= self._timeout_ns:
            yield first, count, False
            return
        if not unanswered:
            self._progress_ns = now_ns
        span = slice(first, first + count)
        rides = ~self._sent[span]
        riding = np.flatnonzero(rides) + first
        self._send(riding, rode=True)
        edges = [0, *(np.flatnonzero(np.diff(rides)) + 1).tolist(), count]
        for begin, end in pairwise(edges):
            yield first + begin, end - begin, bool(rides[begin])

    def due(self, now_ns: int) -> Iterator[tuple[int, int]]:
        """Runs (first, count) to send now, within the window; counts them as sent."""
        unanswered = self._sent & ~self._acknowledged
        if unanswered.any() and now_ns - self._progress_ns >= self._timeout_ns:
            self._sent &= self._acknowledged
            self._progress_ns = now_ns
            self._timeout_ns = min(2 * self._timeout_ns, FILL_TIMEOUT_MAX_NS)
            unanswered = np.zeros_like(unanswered)
        if not unanswered.any():
            self._progress_ns = now_ns
        outstanding = int(np.count_nonzero(unanswered & ~self._rode))
        free = np.flatnonzero(~self._sent)[: FILL_WINDOW - outstanding]
        self._send(free, rode=False)
        while len(free):
            run = 1 + int(np.argmin(np.concatenate((np.diff(free) == 1, [False]))))
            yield int(free[0]), run
            free = free[run:]

    def _send(self, segments: npt.NDArray[np.intp], *, rode: bool) -> None:
        self._sent[segments] = True
        self._rode[segments] = rode
        self._serials[segments] = np.arange(self._serial, self._serial + len(segments))
        self._serial += len(segments)

    def next_timeout_ns(self) -> int:
        """When to look again without an acknowledgement."""
        return min(self._progress_ns + self._timeout_ns, self.request.deadline_ns)
