"""What it would cost an engine to compute a prefix instead of loading it. Pure.

Prefill time has a part that grows with the number of tokens (projections, MLPs) and one that grows with its square
(attention: the token at position p attends to p others). So a late chunk costs more to compute than an early one:

    seconds(chunk) = linear_s * tokens/all tokens + attention_s * sum of positions in it / sum of all positions

`attention_share` is attention_s / (linear_s + attention_s) over the chunks in question. An engine fits it to its own
steps (`kvclient.engines.core.prefill`); 0 takes computing as linear.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prefill:
    """The engine's own way to the chunks of a request that are not in local DRAM."""

    compute_s: float
    """Seconds to compute all of them, nothing else being computed."""
    attention_share: float = 0.0
    """Share of `compute_s` that grows with the position, 0 to 1."""
    queue_s: float = 0.0
    """Seconds until the engine begins with this request: others are before it. A fetch has that time for free."""
    behind: float = 0
    """Requests that wait for the same engine behind this one: what it need not compute is spared them, too."""

    def __post_init__(self) -> None:
        if self.compute_s < 0 or self.queue_s < 0 or self.behind < 0 or not 0 <= self.attention_share <= 1:
            raise ValueError(f"no such prefill: {self}")

    def of_leading(self, count: int, chunks: int, first: int) -> Prefill:
        """The same of only the first `count` of `chunks` equal chunks that follow on `first` others."""
        if count >= chunks or not chunks:
            return self
        linear = count / chunks
        attention = count * (first + count / 2) / (chunks * (first + chunks / 2))
        share = (1 - self.attention_share) * linear + self.attention_share * attention
        attention_share = self.attention_share * attention / share if share else 0.0
        return Prefill(self.compute_s * share, min(1.0, attention_share), self.queue_s, self.behind)

    def without_leading(self, first: int, chunks: int) -> Prefill:
        """Of `chunks` equal chunks those behind the first `first`."""
        if not first or not chunks:
            return self
        leading = self.of_leading(first, chunks, 0) if first < chunks else self
        compute_s = max(0.0, self.compute_s - leading.compute_s)
        attention_s = max(0.0, self.compute_s * self.attention_share - leading.compute_s * leading.attention_share)
        share = min(1.0, attention_s / compute_s) if compute_s else 0.0
        return Prefill(compute_s, share, self.queue_s, self.behind)

    def left_s(self, weights: Sequence[float], first: int) -> tuple[float, ...]:
        """Seconds to compute everything behind the first k chunks, for k = 0 ... len(weights).

        `weights`: bytes of each chunk, which stand for its tokens; `first`: chunks of the prefix before them.
        """
        total = sum(weights) or 1.0
        mean = total / len(weights) if weights else 1.0
        # In units of a mean chunk: where a chunk begins, and what its positions add up to.
        begins, linear, attention = float(first), [], []
        for weight in weights:
            tokens = weight / mean
            linear.append(tokens)
            attention.append(tokens * (begins + tokens / 2))
            begins += tokens
        all_linear, all_attention = sum(linear) or 1.0, sum(attention) or 1.0
        behind_s = [self.compute_s]
        for one, other in zip(linear, attention, strict=True):
            share = (1 - self.attention_share) * one / all_linear + self.attention_share * other / all_attention
            behind_s.append(max(0.0, behind_s[-1] - self.compute_s * share))
        return (*behind_s[:-1], 0.0) if weights else (self.compute_s,)
