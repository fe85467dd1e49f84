"""How fast an engine computes prompts, measured from its own steps, and what that means for a fetch. Pure."""

from __future__ import annotations

from dataclasses import dataclass

SMOOTHING = 0.3
"""Weight of a new step: about three steps forget an old load of the machine."""
STEP_TOKENS_MIN = 64
"""Steps with fewer prompt tokens measure the engine's overhead, not its rate."""
DEADLINE_S_MIN = 0.05
"""A deadline below this ends fetches for the jitter of a busy machine alone."""


@dataclass(slots=True)
class PrefillRate:
    """Prompt tokens a second; None until a step has told."""

    tokens_per_s: float | None = None
    fixed: bool = False
    """Set by the operator: not measured."""

    def observe(self, prompt_tokens: int, decode_tokens: int, seconds: float) -> None:
        """A step with so many tokens took so long. Steps that mostly decode teach nothing."""
        if self.fixed or seconds <= 0 or prompt_tokens < STEP_TOKENS_MIN or prompt_tokens < decode_tokens:
            return
        rate = (prompt_tokens + decode_tokens) / seconds
        if self.tokens_per_s is None:
            self.tokens_per_s = rate
        else:
            self.tokens_per_s += SMOOTHING * (rate - self.tokens_per_s)

    def recompute_s(self, tokens: int) -> float | None:
        """Seconds to compute so many prompt tokens; None when not known yet."""
        return None if self.tokens_per_s is None else tokens / self.tokens_per_s


@dataclass(frozen=True, slots=True)
class FetchTerms:
    """What a fetch is asked with."""

    recompute_s: float | None
    """None: fetch whatever it takes."""
    deadline_s: float


def terms_of(recompute_s: float | None, *, gated: bool, deadline_s_max: float) -> FetchTerms:
    """A fetch may take as long as computing would; what has arrived by then is used, the rest is computed."""
    if recompute_s is None or not gated:
        return FetchTerms(None, deadline_s_max)
    return FetchTerms(recompute_s, min(deadline_s_max, max(DEADLINE_S_MIN, recompute_s)))
