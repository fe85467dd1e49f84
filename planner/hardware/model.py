"""A model's shape: what its KV weighs and what its prefill costs. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace


class Attention(enum.Enum):
    """What a layer keeps for a token."""

    GQA = "keys and values of each KV head"
    MLA = "one latent vector and one rotary key"


@dataclass(frozen=True, slots=True)
class Model:
    """A transformer. Counts are whole-model; tensor parallelism splits bytes and work, but not their sums.

    For MLA `kv_heads` is 1 and `head_dim` is kv_lora_rank + qk_rope_head_dim (DeepSeek-V2, arXiv 2405.04434, section
    2.1): one vector per layer serves as key and value.
    """

    name: str
    layers: int
    heads: int
    """Query heads."""
    kv_heads: int
    head_dim: int
    parameters: float
    active_parameters: float
    """That one token goes through: all of a dense model."""
    attention: Attention = Attention.GQA
    sliding_layers: int = 0
    """Layers that look back `window` tokens only; what lies further back of theirs is never needed again."""
    window: int = 0
    dtype_bytes: float = 2.0
    source: str = "given by parameters"

    def with_dtype(self, dtype_bytes: float) -> Model:
        """The same with KV of another precision."""
        return replace(self, dtype_bytes=dtype_bytes)

    @property
    def layer_bytes_per_token(self) -> float:
        """KV of one token in one layer."""
        vectors = 2 if self.attention is Attention.GQA else 1
        return vectors * self.kv_heads * self.head_dim * self.dtype_bytes

    @property
    def bytes_per_token(self) -> float:
        """KV of one token in all layers, sliding ones included: what an engine writes."""
        return self.layers * self.layer_bytes_per_token

    def chunk_bytes(self, tokens: int) -> int:
        """KV that a chunk of `tokens` tokens needs to carry: of a sliding layer only the last `window` tokens."""
        full = (self.layers - self.sliding_layers) * tokens
        sliding = self.sliding_layers * min(tokens, self.window)
        return max(1, round((full + sliding) * self.layer_bytes_per_token))

    def prefill_flops(self, cached_tokens: int, total_tokens: int) -> float:
        """Floating-point operations to prefill tokens [cached, total) of a prompt.

        2 operations per parameter and token (Kaplan et al., arXiv 2001.08361, section 2.1), and for attention 4 per
        query head, dimension and position looked at (scores, and values weighted by them), causal.
        """
        fresh = total_tokens - cached_tokens
        if fresh <= 0:
            return 0.0
        positions = (total_tokens**2 - cached_tokens**2) / 2
        near = sum_of_windows(cached_tokens, total_tokens, self.window) if self.sliding_layers else 0.0
        looked_at = (self.layers - self.sliding_layers) * positions + self.sliding_layers * near
        return 2 * self.active_parameters * fresh + 4 * self.heads * self._query_dim * looked_at

    @property
    def _query_dim(self) -> int:
        """Dimensions of a query head at prefill. MLA unpacks its latent there: 128 + 64 for scores, 128 for values."""
        return self.head_dim if self.attention is Attention.GQA else 160


def sum_of_windows(first: int, end: int, window: int) -> float:
    """Positions that tokens [first, end) look at, each at most `window` back."""
    ramp_end = min(end, window)
    ramp = (ramp_end**2 - first**2) / 2 if first < ramp_end else 0.0
    return ramp + window * (end - max(first, ramp_end))
