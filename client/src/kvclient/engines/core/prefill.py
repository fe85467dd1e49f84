"""How long an engine takes to compute prompts, fitted to its own steps, and what a fetch is asked with. Pure.

    seconds(step) = token_s * tokens + position_s * sum of the positions of these tokens

The second part is attention: the token at position p attends to p others. Both are fitted by least squares, each step
weighing FORGETTING times the one after it. While the steps seen so far cannot separate them, all is the first part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FORGETTING: Final = 0.8
"""Weight of a step relative to the next one: about ten steps forget an old load of the machine."""
INDEPENDENT_MIN: Final = 0.02
"""The least 1 - r^2 of tokens and positions over the steps seen that separates them (r: their correlation)."""
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


class PrefillModel:
    """One engine's. Knows nothing until a step with a prompt has ended, unless an operator has set a rate."""

    def __init__(self, fixed_tokens_per_s: float = 0.0) -> None:
        """`fixed_tokens_per_s`: if above 0, it is taken as given and nothing is measured."""
        self._fixed_tokens_per_s = fixed_tokens_per_s
        self._token_s = 1 / fixed_tokens_per_s if fixed_tokens_per_s > 0 else 0.0
        self._position_s = 0.0
        self._tokens_tokens = self._tokens_positions = self._positions_positions = 0.0
        self._tokens_s = self._positions_s = 0.0

    @property
    def tokens_per_s(self) -> float | None:
        """At the beginning of a prompt; None when not known yet."""
        if self._fixed_tokens_per_s > 0:
            return self._fixed_tokens_per_s
        return 1 / self._token_s if self._token_s > 0 else None

    def observe(self, prompt_tokens: int, positions: float, decode_tokens: int, seconds: float) -> None:
        """A step took `seconds`; `positions` is the sum of the positions of its prompt tokens.

        Steps that mostly decode teach nothing.
        """
        if self._fixed_tokens_per_s > 0 or seconds <= 0:
            return
        if prompt_tokens < STEP_TOKENS_MIN or prompt_tokens < decode_tokens:
            return
        tokens = prompt_tokens + decode_tokens
        self._tokens_tokens = self._tokens_tokens * FORGETTING + tokens * tokens
        self._tokens_positions = self._tokens_positions * FORGETTING + tokens * positions
        self._positions_positions = self._positions_positions * FORGETTING + positions * positions
        self._tokens_s = self._tokens_s * FORGETTING + tokens * seconds
        self._positions_s = self._positions_s * FORGETTING + positions * seconds
        self._fit()

    def _fit(self) -> None:
        squares = self._tokens_tokens * self._positions_positions
        determinant = squares - self._tokens_positions**2
        if determinant > INDEPENDENT_MIN * squares:
            token_s = self._tokens_s * self._positions_positions - self._positions_s * self._tokens_positions
            position_s = self._positions_s * self._tokens_tokens - self._tokens_s * self._tokens_positions
            if token_s > 0 and position_s >= 0:
                self._token_s, self._position_s = token_s / determinant, position_s / determinant
                return
        # Attention as it was when last separated, if that leaves anything for the first part; else none.
        rest_s = self._tokens_s - self._position_s * self._tokens_positions
        if rest_s <= 0:
            rest_s, self._position_s = self._tokens_s, 0.0
        self._token_s = rest_s / self._tokens_tokens

    def cost(self, first: int, tokens: int) -> PrefillCost | None:
        """Of computing `tokens` tokens from position `first` on; None when not known yet."""
        if self._token_s <= 0:
            return None
        attention_s = self._position_s * positions_of(first, tokens)
        seconds = self._token_s * tokens + attention_s
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
