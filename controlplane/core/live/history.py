"""Where KV came from over the last minutes, and what was decided and happened. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from controlplane.core.ids import ChunkKey
from controlplane.core.live.figures import count_delivered
from kvproto.rpc import control_pb2 as rpc

BUCKET_NS: Final = 2_000_000_000
BUCKETS: Final = 90
EVENTS: Final = 64
_LOOKED_BACK: Final = 48
"""An event that is like one of so many before it counts as that one again."""


class Sources:
    """Bytes by source, in buckets of two seconds."""

    def __init__(self) -> None:
        self._buckets: dict[int, Counter[str]] = {}

    def add(self, source: rpc.Source.ValueType, size_bytes: int, at_ns: int, born_ns: int) -> None:
        """A chunk came. What came before the controller's start does not count."""
        if at_ns >= born_ns:
            delivered = self._buckets.setdefault((at_ns - born_ns) // BUCKET_NS, Counter())
            count_delivered(delivered, source, size_bytes)
            if len(self._buckets) > 2 * BUCKETS:
                self._forget_until(max(self._buckets) - BUCKETS)

    def rows(self, now_ns: int, born_ns: int) -> Iterator[rpc.SourcesView]:
        """The buckets of the last minutes in which something came."""
        self._forget_until((now_ns - born_ns) // BUCKET_NS - BUCKETS)
        for bucket, delivered in self._buckets.items():
            yield rpc.SourcesView(bucket=bucket, delivered=rpc.Delivered(**delivered))

    def _forget_until(self, bucket: int) -> None:
        self._buckets = {one: delivered for one, delivered in self._buckets.items() if one > bucket}


@dataclass(slots=True)
class _Event:
    number: int
    at_ns: int
    kind: str
    text: str
    like: str
    key: ChunkKey | None
    times: int


class Events:
    """Owns the latest events, the newest last; what is alike is counted as one."""

    def __init__(self) -> None:
        self._events: deque[_Event] = deque(maxlen=EVENTS)
        self._number = 0

    def add(
        self, kind: str, text: str, at_ns: int, key: ChunkKey | None = None, times: int = 1, like: str = ""
    ) -> None:
        """Something was decided or happened. One like it a moment ago is replaced by it and counted: one with the same
        `like`, or with the same text where there is none."""
        like = like or text
        self._number += 1
        for index in range(1, min(_LOOKED_BACK, len(self._events)) + 1):
            event = self._events[-index]
            if (event.kind, event.like) == (kind, like):
                del self._events[-index]
                times += event.times
                break
        self._events.append(_Event(self._number, at_ns, kind, text, like, key, times))

    def rows(self, born_ns: int) -> Iterator[rpc.EventView]:
        """All that are kept, the oldest first."""
        for event in self._events:
            yield rpc.EventView(
                number=event.number,
                at_ms=max(0, event.at_ns - born_ns) // 1_000_000,
                kind=event.kind,
                text=event.text,
                key=event.key or b"",
                times=event.times,
            )
