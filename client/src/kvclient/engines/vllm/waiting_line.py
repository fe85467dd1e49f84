"""How long an engine computes before a request's turn, by the order of arrival, and what that means for a fetch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvclient.engines.core.prefill import FetchTerms, PrefillModel, expecting_terms, terms_of
from kvclient.engines.core.requests import Stage
from kvclient.engines.settings import Settings
from kvclient.engines.vllm.bindings import traceparent_of

STEPS_MAX = 64


@dataclass(frozen=True, slots=True)
class _Step:
    started_s: float
    prompt_tokens: int
    positions: float
    """Sum of these tokens' positions."""
    decode_tokens: int


class StepTimes:
    """How long an engine's steps take. Several may be under way; one begins to run when the one before has ended."""

    def __init__(self, prefill: PrefillModel) -> None:
        """`prefill` learns from them."""
        self._prefill = prefill
        self._steps: deque[_Step] = deque(maxlen=STEPS_MAX)
        self.ended_s = 0.0
        """When the last one ended, on a monotonic clock."""

    def step_scheduled(self, now_s: float, prompt_tokens: int, positions: float, decode_tokens: int) -> None:
        """A step begins; `positions` is the sum of the positions of its prompt tokens."""
        self._steps.append(_Step(now_s, prompt_tokens, positions, decode_tokens))

    def step_ended(self, now_s: float, *, whole: bool) -> None:
        """The oldest step has ended; not `whole`: some of it was for nothing."""
        if self._steps:
            step = self._steps.popleft()
            seconds = now_s - max(step.started_s, self.ended_s)
            if whole:
                self._prefill.observe(step.prompt_tokens, step.positions, step.decode_tokens, seconds)
        self.ended_s = now_s


class WaitingLine:
    """One scheduler's requests."""

    def __init__(
        self, requests: Mapping[str, Any], stage: Callable[[str], Stage], prefill: PrefillModel, settings: Settings
    ) -> None:
        """`requests`: in order of arrival; `stage(request)`: where one stands."""
        self._requests = requests
        self._stage = stage
        self._prefill = prefill
        self._settings = settings

    def terms(self, request: str, first: int, tokens: int) -> FetchTerms:
        """Of a fetch that spares computing `tokens` tokens from position `first` on."""
        return terms_of(
            self._prefill.cost(first, tokens),
            self.queue_s(request),
            self._behind(request),
            gated=self._settings.gate == "auto",
            deadline_s_max=self._settings.load_deadline_s,
            traceparent=traceparent_of(self._requests[request]),
        )

    def expecting(self, request: str, expected_s: float) -> FetchTerms:
        """Of a fetch of chunks that another engine computes."""
        return expecting_terms(
            expected_s,
            deadline_s_max=self._settings.load_deadline_s,
            traceparent=traceparent_of(self._requests[request]),
        )

    def queue_s(self, request: str) -> float:
        """Seconds that the engine computes before this prompt: earlier requests that do not load."""
        queue_s = 0.0
        for other_id, other in self._requests.items():
            if other_id == request:
                break
            left = other.num_prompt_tokens - other.num_computed_tokens
            if left > 0 and self._stage(other_id) not in (Stage.FETCHING, Stage.HELD):
                cost = self._prefill.cost(other.num_computed_tokens, left)
                queue_s += cost.seconds if cost is not None else 0.0
        return queue_s

    def _behind(self, request: str) -> int:
        """Later requests that have not begun."""
        others = list(self._requests)
        place = others.index(request) if request in self._requests else len(others)
        return sum(not self._requests[other].num_computed_tokens for other in others[place + 1 :])
