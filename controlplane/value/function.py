"""The value function: decayed fetch rate per byte, in a chunk that its prefix makes useful.

    value(chunk, t) = rate(chunk, t) / size_bytes          if every ancestor is available, else 0
    rate(chunk, t)  = ln 2 / H * sum over its fetches i of readers_i * 2^-((t - t_i) / H)

H is the half-life. The factor makes `rate` an estimate in fetches per second: under a steady stream of r fetches per
second it settles at r. Between fetches every rate shrinks by the same factor, so the *order* of chunks changes only
when one of them is fetched; `score` is that order as one number that stays valid (log2 of the value carried back to
time 0), which is what agents are told.

Owns the fetch history. Directory, pools and time belong to the callers.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

from controlplane.ids import ChunkKey
from controlplane.limits import TRACKED_RATES_MAX

_NS = 1e-9
_SCORE_OF_NEVER = -1e9
"""Below any score of a chunk that was ever fetched, and finite, so that it survives arithmetic."""


@dataclass(frozen=True, slots=True)
class ValueParameters:
    """What an operator may tune."""

    half_life_s: float = 300.0
    """300 s suits chat, 5 s bursts; no single one wins everywhere."""
    second_touch_s: float = 60.0
    """Two fetches within this time are evidence of reuse."""
    tracked_max: int = TRACKED_RATES_MAX


@dataclass(slots=True)
class _History:
    weight: float
    """Decayed sum of readers at `last_ns`."""
    last_ns: int
    previous_ns: int
    """The fetch before the last; `last_ns` again if there was none."""
    touches: int


class ValueFunction:
    """Watches fetches; says what a chunk is worth at a moment."""

    def __init__(self, parameters: ValueParameters | None = None) -> None:
        self.parameters = parameters or ValueParameters()
        self._half_life_ns = self.parameters.half_life_s / _NS
        self._unit_rate = math.log(2) / self.parameters.half_life_s
        """What one fetch adds to a rate."""
        self._histories: OrderedDict[ChunkKey, _History] = OrderedDict()

    def __len__(self) -> int:
        return len(self._histories)

    def observe(self, key: ChunkKey, at_ns: int, readers: int = 1) -> None:
        """A chunk was fetched, or asked for, by `readers` nodes at once. Late reports (at_ns in the past) are fine."""
        history = self._histories.get(key)
        if history is None:
            self._histories[key] = _History(float(readers), at_ns, at_ns, 1)
            if len(self._histories) > self.parameters.tracked_max:
                self._histories.popitem(last=False)
            return
        self._histories.move_to_end(key)
        if at_ns >= history.last_ns:
            history.weight = history.weight * self._decay(at_ns - history.last_ns) + readers
            history.previous_ns, history.last_ns = history.last_ns, at_ns
        else:
            history.weight += readers * self._decay(history.last_ns - at_ns)
            history.previous_ns = max(history.previous_ns, at_ns) if history.touches > 1 else at_ns
        history.touches += 1

    def forget(self, key: ChunkKey) -> None:
        """Not expected again (the session ended)."""
        self._histories.pop(key, None)

    def expect(self, key: ChunkKey, now_ns: int, within_s: float) -> None:
        """A caller says that the chunk will be fetched in about `within_s`: counts as one reader then, at least."""
        horizon_ns = max(0, int(within_s / _NS))
        certain = self._decay(horizon_ns)
        history = self._histories.get(key)
        if history is None:
            self._histories[key] = _History(certain, now_ns, now_ns, 0)
            if len(self._histories) > self.parameters.tracked_max:
                self._histories.popitem(last=False)
            return
        current = history.weight * self._decay(now_ns - history.last_ns)
        if current < certain and now_ns >= history.last_ns:
            history.weight, history.last_ns = certain, now_ns
            history.previous_ns = min(history.previous_ns, now_ns)

    def rate(self, key: ChunkKey, now_ns: int) -> float:
        """Fetches per second, readers at once counted each."""
        history = self._histories.get(key)
        if history is None:
            return 0.0
        return history.weight * self._decay(now_ns - history.last_ns) * self._unit_rate

    def value(self, key: ChunkKey, size_bytes: int, rooted: bool, now_ns: int, waiting: int = 0) -> float:
        """Fetches per second and byte; 0 for a chunk whose ancestors are gone.

        `waiting`: nodes known to fetch it at this moment, whose fetches nobody has observed yet.
        """
        if not rooted:
            return 0.0
        return (self.rate(key, now_ns) + waiting * self._unit_rate) / max(1, size_bytes)

    def score(self, key: ChunkKey, size_bytes: int) -> float:
        """log2 of the value carried back to time 0: orders chunks at any moment, changes only with a fetch."""
        history = self._histories.get(key)
        if history is None or history.weight <= 0.0:
            return _SCORE_OF_NEVER
        return math.log2(history.weight / max(1, size_bytes)) + history.last_ns / self._half_life_ns

    def touched_again(self, key: ChunkKey, now_ns: int) -> bool:
        """Fetched at least twice within the second-touch time that ends now."""
        history = self._histories.get(key)
        if history is None or history.touches < 2:
            return False
        return now_ns - history.previous_ns <= self.parameters.second_touch_s / _NS

    def _decay(self, elapsed_ns: int) -> float:
        return float(2.0 ** (-max(0, elapsed_ns) / self._half_life_ns))
