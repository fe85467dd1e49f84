"""Sizes and times of a workload on links that are scaled down: blocks and links shrink alike."""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.hardware import Engine, engine_of, find_model
from planner.workloads.workload_catalog import CHUNK_TOKENS, Workload


@dataclass(frozen=True, slots=True)
class Terms:
    """What a workload becomes on links of `link_bit_s`."""

    link_bit_s: int
    engine: Engine
    """Computes as the real one does; its KV is as much smaller as the link is slower. What follows the last token's KV
    (sampling, the first answer) and copies into the accelerator take no time."""

    @property
    def block_bytes(self) -> int:
        """KV of a block."""
        return self.engine.model.chunk_bytes(CHUNK_TOKENS)

    def compute_s(self, cached_blocks: int, tokens: int) -> float:
        """Seconds to compute the tokens of a prompt behind its first blocks."""
        return self.engine.prefill_s(cached_blocks * CHUNK_TOKENS, tokens)

    def recompute_s(self, cached_blocks: int, blocks: int) -> float:
        """Seconds to compute the blocks of a prompt behind its first ones, without the question."""
        return self.engine.prefill_s(cached_blocks * CHUNK_TOKENS, blocks * CHUNK_TOKENS)


def terms_of(workload: Workload, link_bit_s: int) -> Terms:
    """The workload on links of `link_bit_s`: Llama 3 8B on one H100 a node."""
    real = engine_of(find_model("llama-3-8b"))
    model = real.model.with_dtype(real.model.dtype_bytes * link_bit_s / workload.link_bit_s)
    return Terms(link_bit_s, replace(real, model=model, step_s=0.0))
