"""What a holder was asked for of one chunk: what waits to leave, and what has just left, and for whom. Pure."""

from collections import deque
from itertools import takewhile

from kvproto.session.timing import ANSWERED

_FREE, _TAKEN = b"\x00", b"\x01"


class Sending:
    """One chunk at its holder. A GET costs it a few searches of bytes, whatever the chunk's size."""

    __slots__ = ("_left", "_queued", "on_way", "used_ns", "waiting")

    def __init__(self, segments: int, now_ns: int) -> None:
        self._queued = bytearray(segments)
        """One byte a segment: whether it waits in the holder's queue."""
        self._left: deque[tuple[int, int, int, int]] = deque()
        """When, first, end and for which member: runs that left within the ceiling of ANSWERED, the oldest first."""
        self.used_ns = now_ns
        """When it was asked for, or a segment of it left, last."""
        self.waiting = 0
        """Segments in the holder's queue."""
        self.on_way = 0
        """Segments handed to the shell, not yet reported sent."""

    @property
    def busy(self) -> bool:
        """Whether anything of it is still to leave."""
        return bool(self.waiting or self.on_way)

    def wanted(self, first: int, count: int, member: int, since_ns: int) -> list[tuple[int, int]]:
        """Runs (first, count) of these segments that neither wait nor left after `since_ns` for another member than
        this one."""
        end = first + count
        recent = [
            run for run in takewhile(lambda run: run[0] > since_ns, reversed(self._left)) if _meet(run, first, end)
        ]
        if not recent and self._queued.find(_TAKEN, first, end) < 0:
            return [(first, count)]
        taken = bytearray(count)
        for _, left, left_end, other in reversed(recent):
            start, stop = max(left, first) - first, min(left_end, end) - first
            taken[start:stop] = (_FREE if other == member else _TAKEN) * (stop - start)
        for at in range(count):
            taken[at] |= self._queued[first + at]
        return _runs(taken, first)

    def queue(self, first: int, count: int) -> None:
        """These segments wait from now on."""
        self._queued[first : first + count] = _TAKEN * count
        self.waiting += count

    def leave(self, first: int, count: int, member: int, now_ns: int) -> None:
        """These segments wait no longer: they are handed over, on this member's behalf."""
        self._queued[first : first + count] = _FREE * count
        self.waiting -= count
        self.on_way += count
        while self._left and now_ns - self._left[0][0] >= ANSWERED.ceiling_ns:
            self._left.popleft()
        self._left.append((now_ns, first, first + count, member))


def _meet(run: tuple[int, int, int, int], first: int, end: int) -> bool:
    return run[1] < end and first < run[2]


def _runs(taken: bytearray, first: int) -> list[tuple[int, int]]:
    """Runs of what is not taken, counted from `first`."""
    runs: list[tuple[int, int]] = []
    at = taken.find(_FREE)
    while at >= 0:
        end = taken.find(_TAKEN, at)
        end = len(taken) if end < 0 else end
        runs.append((first + at, end - at))
        at = taken.find(_FREE, end)
    return runs
