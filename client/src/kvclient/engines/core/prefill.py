"""How long an engine takes to compute prompts, fitted to its own steps, and what a fetch is asked with. Pure.

    seconds(step) = pace_s * (tokens + bend * sum of the positions of these tokens)

The second part is attention: the token at position p attends to p others. How dear that is beside the rest, the bend,
is the model's and the hardware's: it is learned slowly, from many steps, and believed to be small until they say
otherwise. The pace is the machine's at the moment, and learned quickly. Fitted together, from the few steps that say
how fast the machine is now, noise would pass for attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PACE_FORGETTING: Final = 0.8
"""Weight of a step relative to the next one: about ten steps forget an old load of the machine."""
BEND_FORGETTING: Final = 0.97
STALL: Final = 2.0
"""A step that takes longer counts as this many times what was expected of it: a stall is no pace."""
BEND_SCALE: Final = 1 / 4096
"""Bends that are expected, in order of magnitude: a token at position 4096 is twice as dear as the first. A transformer
of width d has 1/(6 d) by its operations alone, and attention runs at less of a processor's peak than the rest."""
BEND_MAX: Final = 1 / 256
BEND_DOUBT: Final = 2048 * 0.3**2
"""How firmly: as this many tokens of steps would say it, whose times scatter by 30 %."""
STEP_TOKENS_MIN: Final = 64
"""Steps with fewer prompt tokens measure the engine's overhead, not its rate."""
DEADLINE_S_MIN: Final = 0.05
"""With a shorter deadline, the jitter of a busy machine alone would end fetches."""


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """What computing a part of a prompt takes."""

    seconds: float
    attention_share: float = 0.0
    """Of it, the share that grows with the position, 0 to 1."""


def positions_of(first: int, tokens: int) -> float:
    """Sum of the positions of `tokens` tokens from position `first` on, each in its middle."""
    return tokens * (first + tokens / 2)


class _Moments:
    """Sums over steps, each with a weight, and less with every step after it: what least squares needs."""

    def __init__(self, forgetting: float) -> None:
        self._forgetting = forgetting
        self._tokens_tokens = self._tokens_positions = self._positions_positions = 0.0
        self._tokens_s = self._positions_s = 0.0

    def add(self, tokens: float, positions: float, seconds: float, weight: float) -> None:
        """A step."""
        old = self._forgetting
        self._tokens_tokens = self._tokens_tokens * old + weight * tokens * tokens
        self._tokens_positions = self._tokens_positions * old + weight * tokens * positions
        self._positions_positions = self._positions_positions * old + weight * positions * positions
        self._tokens_s = self._tokens_s * old + weight * tokens * seconds
        self._positions_s = self._positions_s * old + weight * positions * seconds

    def pace_s(self, bend: float) -> float:
        """Seconds of a token at the beginning, the bend being given."""
        seconds = self._tokens_s + bend * self._positions_s
        return seconds / (
            self._tokens_tokens + 2 * bend * self._tokens_positions + bend * bend * self._positions_positions
        )

    def bend(self, otherwise: float) -> float:
        """Least squares with a prior (ridge regression, Hoerl and Kennard 1970); `otherwise`: where steps say none."""
        prior = BEND_DOUBT / (self._tokens_s / self._tokens_tokens * BEND_SCALE) ** 2
        positions_positions = self._positions_positions + prior
        token = self._tokens_s * positions_positions - self._positions_s * self._tokens_positions
        position = self._positions_s * self._tokens_tokens - self._tokens_s * self._tokens_positions
        return min(max(0.0, position) / token, BEND_MAX) if token > 0 else otherwise


class PrefillModel:
    """One engine's. Knows nothing until a step with a prompt has ended, unless an operator has set a rate."""

    def __init__(self, fixed_tokens_per_s: float = 0.0) -> None:
        """`fixed_tokens_per_s`: if above 0, it is taken as given and nothing is measured."""
        self._fixed_tokens_per_s = fixed_tokens_per_s
        self._pace_s = 1 / fixed_tokens_per_s if fixed_tokens_per_s > 0 else 0.0
        self._bend = 0.0
        self._recent = _Moments(PACE_FORGETTING)
        self._all = _Moments(BEND_FORGETTING)

    @property
    def tokens_per_s(self) -> float | None:
        """At the beginning of a prompt; None when not known yet."""
        if self._fixed_tokens_per_s > 0:
            return self._fixed_tokens_per_s
        return 1 / self._pace_s if self._pace_s > 0 else None

    def observe(self, prompt_tokens: int, positions: float, decode_tokens: int, seconds: float) -> None:
        """A step took `seconds`; `positions` is the sum of the positions of its prompt tokens.

        Steps that mostly decode teach nothing.
        """
        if self._fixed_tokens_per_s > 0 or seconds <= 0:
            return
        if prompt_tokens < STEP_TOKENS_MIN or prompt_tokens < decode_tokens:
            return
        tokens = prompt_tokens + decode_tokens
        # By the square of their times, since errors are shares of those; by tokens, since each is a measurement.
        self._all.add(tokens, positions, seconds, tokens / seconds**2)
        expected_s = self._pace_s * (tokens + self._bend * positions)
        self._recent.add(tokens, positions, min(seconds, STALL * expected_s) if expected_s else seconds, 1.0)
        self._bend = self._all.bend(self._bend)
        self._pace_s = self._recent.pace_s(self._bend)

    def cost(self, first: int, tokens: int) -> PrefillCost | None:
        """Of computing `tokens` tokens from position `first` on; None when not known yet."""
        if self._pace_s <= 0:
            return None
        attention_s = self._pace_s * self._bend * positions_of(first, tokens)
        seconds = self._pace_s * tokens + attention_s
        return PrefillCost(seconds, attention_s / seconds if seconds > 0 else 0.0)


@dataclass(frozen=True, slots=True)
class FetchTerms:
    """What a fetch is asked with."""

    recompute_s: float | None
    """None: fetch whatever it takes."""
    deadline_s: float
    queue_s: float = 0.0
    """Time until the engine would begin to compute this prompt, behind others."""
    attention_share: float = 0.0
    """See PrefillCost."""
    behind: int = 0
    """Requests that wait for the engine behind this one."""
    traceparent: str | None = None
    """Trace context of the engine's request (W3C Trace Context)."""
    expected_s: float = 0.0
    """Chunks that no node has or computes yet will be announced within this time."""


def terms_of(
    cost: PrefillCost | None,
    queue_s: float,
    behind: int = 0,
    *,
    gated: bool,
    deadline_s_max: float,
    traceparent: str | None = None,
) -> FetchTerms:
    """A fetch may take as long as computing would; what has arrived by then is used, the rest is computed."""
    if cost is None or not gated:
        return FetchTerms(None, deadline_s_max, traceparent=traceparent)
    deadline_s = min(deadline_s_max, max(DEADLINE_S_MIN, queue_s + cost.seconds))
    return FetchTerms(cost.seconds, deadline_s, queue_s, cost.attention_share, behind, traceparent)


def expecting_terms(expected_s: float, *, deadline_s_max: float, traceparent: str | None = None) -> FetchTerms:
    """Of chunks that another engine computes for this one: waited for whatever computing would cost here."""
    return FetchTerms(None, expected_s + deadline_s_max, traceparent=traceparent, expected_s=expected_s)
