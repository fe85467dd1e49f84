"""How fast a node prefills. Pure.

The model of an engine is one figure: floating-point operations per second that prefill really achieves, `efficiency` of
the accelerators' dense bf16 peak. The default of 0.5 is what puts the break-even between fetching and recomputing
where it was measured and published figures put it (33 Gbit/s for Llama-3-8B on one H100, 73 Gbit/s for 70B on eight).
`--prefill-rate` replaces it by a rate measured on the real engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from planner.errors import PlanError
from planner.hardware.model import Model

ACCELERATORS: Final = {
    "a10": 125e12,
    "a100": 312e12,
    "l40s": 362e12,
    "h100": 989e12,
    "h200": 989e12,
    "b200": 2250e12,
    "mi300x": 1307e12,
}
"""Dense bf16 operations per second, from the vendors' data sheets (no structured sparsity, SXM where there is one)."""
EFFICIENCY: Final = 0.5
CALIBRATION_TOKENS: Final = 8192
"""A prefill rate is taken to be that of a prompt of this many tokens, nothing of it cached."""
STEP_S: Final = 0.02
"""From the last token's KV to the first answer token on its way: sampling, detokenising, one scheduler round."""
LOAD_BYTES_PER_S: Final = 50e9
"""From DRAM into the accelerator: PCIe 5.0 x16 as copies reach it; each accelerator of a node has its own."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One node's engine: times in seconds."""

    model: Model
    accelerator: str
    accelerators: int
    flops: float
    """Achieved, all accelerators of the node together."""
    step_s: float = STEP_S

    def prefill_s(self, cached_tokens: int, total_tokens: int) -> float:
        """Time to prefill tokens [cached, total)."""
        return self.model.prefill_flops(cached_tokens, total_tokens) / self.flops

    def load_s(self, size_bytes: int) -> float:
        """Time to bring KV from the node's DRAM into its accelerators."""
        return size_bytes / (LOAD_BYTES_PER_S * self.accelerators)

    @property
    def prefill_tokens_per_s(self) -> float:
        """Of a prompt of CALIBRATION_TOKENS."""
        return CALIBRATION_TOKENS / self.prefill_s(0, CALIBRATION_TOKENS)

    @property
    def break_even_bit_s(self) -> float:
        """Rate at which KV is made: a slower fetch is not worth it."""
        return self.prefill_tokens_per_s * self.model.bytes_per_token * 8


def engine_of(
    model: Model, accelerator: str = "h100", accelerators: int = 1, prefill_tokens_per_s: float | None = None
) -> Engine:
    """The engine of a node. Raises PlanError for an accelerator that is not known."""
    if accelerator not in ACCELERATORS:
        raise PlanError(
            f"unknown accelerator '{accelerator}': known are {', '.join(ACCELERATORS)}; or give --prefill-rate"
        )
    if prefill_tokens_per_s is not None:
        flops = prefill_tokens_per_s * model.prefill_flops(0, CALIBRATION_TOKENS) / CALIBRATION_TOKENS
    else:
        flops = ACCELERATORS[accelerator] * accelerators * EFFICIENCY
    return Engine(model, accelerator, accelerators, flops)
