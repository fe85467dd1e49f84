"""How much of a fetch under way is still worth waiting for. Pure.

The gate's own question, asked again with what is known by now: of the chunks still to come, bringing the first k takes

    t(k) = max(elapsed + left_s(k), queue_s) + compute_left_s(k)

with the engine's queue and its computing as they were at the start. An estimate has to be better by `MARGIN` to end
what has begun.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from kvpolicy.tiers.gate import Verdict
from kvpolicy.tiers.holder_load import HolderLoad

MARGIN: Final = 0.1
"""Share of the time to go by which less must be quicker."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How long a fetch has taken, what is left of it, and how quickly the rest may come."""

    elapsed_s: float
    left_bytes: Sequence[int]
    """Of each chunk of the verdict behind those that were local."""
    rate_bytes_per_s: float
    """At which the rest comes, when its holder has nothing else to send."""
    load: HolderLoad
    """What the holder has queued for others."""

    def left_s(self) -> list[float]:
        """Seconds until the first k chunks are here, k = 0 ... all."""
        rate = self.rate_bytes_per_s
        return [left / rate + self.load.delay_s(left, rate) for left in accumulate(self.left_bytes, initial=0)]


def worth_waiting(verdict: Verdict, progress: Progress) -> int:
    """For how many of the chunks in `progress.left_bytes` the engine should go on waiting: all, unless fewer are
    clearly quicker. Those that are here count."""
    left_s = progress.left_s()
    elapsed_s = progress.elapsed_s

    def to_go_s(count: int) -> float:
        return max(left_s[count], verdict.queue_s - elapsed_s) + verdict.compute_left_s[count]

    everything = len(progress.left_bytes)
    best = min(range(everything, -1, -1), key=to_go_s)
    return best if to_go_s(best) < (1 - MARGIN) * to_go_s(everything) else everything
