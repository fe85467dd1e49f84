"""Fetches that one node has told of, by chunk, to tell of them again where nobody knows. Pure, bounded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from math import exp2

from kvchunk.ids import ChunkKey
from kvpolicy.value.history import TOUCHES_MAX, PastFetches
from kvpolicy.value.parameters import HALF_LIFE_S, NS


class FetchTally:
    """Counts the fetches of the chunks that were fetched last."""

    def __init__(self, chunks_max: int, half_life_s: float = HALF_LIFE_S) -> None:
        """`chunks_max`: the chunk fetched longest ago is forgotten first. `half_life_s`: of a fetch's weight."""
        self._chunks_max = chunks_max
        self._half_life_s = half_life_s
        self._counted: OrderedDict[ChunkKey, tuple[int, float, int, int | None]] = OrderedDict()
        """By chunk, fetched longest ago first: fetches, their weight at the last one, when that was, and the time from
        the one before; in ns."""

    def __len__(self) -> int:
        """Chunks that are remembered."""
        return len(self._counted)

    def fetched(self, key: ChunkKey, at_ns: int) -> None:
        """A fetch of a chunk, told of in the order in which fetches were."""
        before = self._counted.pop(key, None)
        if before is None:
            self._counted[key] = (1, 1.0, at_ns, None)
            if len(self._counted) > self._chunks_max:
                del self._counted[next(iter(self._counted))]
            return
        touches, weight, last_ns, _ = before
        gap_ns = max(0, at_ns - last_ns)
        weight = 1.0 + weight * exp2(-gap_ns * NS / self._half_life_s)
        self._counted[key] = (min(touches + 1, TOUCHES_MAX), min(weight, TOUCHES_MAX), at_ns, gap_ns)

    def past(self, now_ns: int) -> Iterator[tuple[ChunkKey, PastFetches]]:
        """All that is remembered, fetched longest ago first."""
        for key, (touches, weight, last_ns, gap_ns) in self._counted.items():
            gap_s = None if gap_ns is None else gap_ns * NS
            yield key, PastFetches(touches, weight, max(0, now_ns - last_ns) * NS, gap_s)
