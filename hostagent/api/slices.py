"""Requests of many keys, worked in slices: other connections have their turns in between. Pure.

What these requests do with one key has nothing to do with the others, so a slice is the same request with some of its
keys, and the answers to all slices are one answer. A fetch is none of these, for how far it goes is decided for all of
its chunks at once: what is here of it is kept in slices, before it is requested as a whole. A lease ends in slices.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Final

from hostagent.core.events import ChunksNamed, ChunksRequested, LeaseReleased
from hostagent.limits import FETCH_SLICE_KEYS, SLICE_KEYS
from kvchunk.ids import KEY_BYTES
from kvclient.messages import CLAIM, HINT, LOCK, Frame, Hint, Kind, MalformedFrameError

_TIME_BYTES: Final = 8
_BODIES: Final[dict[int, tuple[int, tuple[int, ...]]]] = {
    Kind.CONTAINS: (0, (KEY_BYTES,)),
    Kind.PIN: (0, (KEY_BYTES,)),
    Kind.UNPIN: (0, (KEY_BYTES,)),
    Kind.LOCK: (LOCK.size, (KEY_BYTES,)),
    Kind.UNLOCK: (0, (KEY_BYTES,)),
    Kind.DROP: (0, (KEY_BYTES,)),
    Kind.HINT: (HINT.size, (KEY_BYTES,)),
    Kind.CLAIM: (CLAIM.size, (KEY_BYTES, _TIME_BYTES)),
    Kind.DISCLAIM: (0, (KEY_BYTES,)),
}
"""Bytes of the head of a request, and of what it says of each key: first the one of all keys, then the other."""
_FROM_THE_END: Final = frozenset({Kind.DROP})
"""A prefix is dropped from its end."""
_DONE: Final = b"\1"
_SESSION_ENDED: Final = bytes([Hint.SESSION_ENDED])


def is_sliced(frame: Frame) -> bool:
    """Whether a request can be worked in slices. The end of a session cannot: each time the pool is looked through."""
    return frame.kind in _BODIES and not (frame.kind == Kind.HINT and frame.body[:1] == _SESSION_ENDED)


class Slices:
    """One request about keys: what is left of it, and what was answered. Whose it is, it does not know."""

    def __init__(self, frame: Frame) -> None:
        """Raises MalformedFrameError for a body that has not what its count says."""
        self.frame = frame
        self._head_bytes, self._widths = _BODIES[frame.kind]
        if len(frame.body) != self._head_bytes + frame.count * sum(self._widths):
            raise MalformedFrameError(f"{frame.count} keys announced, {len(frame.body)} bytes sent")
        starts = range(0, frame.count, SLICE_KEYS)
        self._left = deque(reversed(starts) if frame.kind in _FROM_THE_END else starts)
        self._values: dict[int, bytes] = {}
        """By the first key of each slice that was answered."""
        self._start = 0

    @property
    def is_over(self) -> bool:
        """Whether all slices were taken."""
        return not self._left

    def take(self) -> Frame:
        """The next slice, a request by itself."""
        self._start = start = self._left.popleft()
        count = min(SLICE_KEYS, self.frame.count - start)
        body, at = self.frame.body[: self._head_bytes], self._head_bytes
        for width in self._widths:
            body += self.frame.body[at + start * width : at + (start + count) * width]
            at += self.frame.count * width
        return replace(self.frame, count=count, body=body)

    def slice_answered(self, values: bytes) -> None:
        """What became of each key of the slice taken last."""
        self._values[self._start] = values

    @property
    def values(self) -> bytes | None:
        """What became of each key; None: of none of them anything is said. A slice that says nothing was done."""
        if not self._values:
            return None
        done = bytearray(_DONE * self.frame.count)
        for start, values in self._values.items():
            done[start : start + len(values)] = values
        return bytes(done)


class LongFetch:
    """A fetch: its chunks are named in slices for as long as they are here, then it is requested."""

    def __init__(self, frame: Frame, request: ChunksRequested) -> None:
        """`request`: what the frame says."""
        self.frame = frame
        self.is_over = False
        self._request = request
        self._named_count = 0
        self._goes_on = True

    def take(self) -> ChunksNamed | ChunksRequested:
        """A slice, or the request."""
        request, first = self._request, self._named_count
        if not self._goes_on or first >= len(request.keys):
            self.is_over = True
            return request
        self._named_count += FETCH_SLICE_KEYS
        self._goes_on = False
        keys = request.keys[first : self._named_count]
        return ChunksNamed(request.engine, request.request, first, keys, request.deadline_s, request.any_order)

    def slice_kept(self, *, goes_on: bool) -> None:
        """The slice taken last is kept as far as it is here; `goes_on`: and the next one may be here."""
        self._goes_on = goes_on


class LongRelease:
    """The end of a lease of many chunks, of which a first slice is given back."""

    def __init__(self, released: LeaseReleased) -> None:
        self._released = released
        self._is_left = True

    @property
    def is_over(self) -> bool:
        """Whether nothing is left of the lease."""
        return not self._is_left

    def take(self) -> LeaseReleased:
        """The next slice."""
        self._is_left = False
        return self._released

    def lease_left(self) -> None:
        """There is more of it."""
        self._is_left = True
