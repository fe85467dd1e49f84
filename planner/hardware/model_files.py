"""A model's shape from the `config.json` that its publisher gives it, as Hugging Face's Transformers reads it. Pure.

Parameters are counted from the shape (embeddings, attention, gated feed-forward or experts), without biases and norms:
within 2 % of what the publishers of dense models say, and 5 % of sparse ones (tests).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from planner.errors import PlanError
from planner.hardware.model import Attention, Model

BYTES_MAX: Final = 1 << 20
_NO_KV: Final = frozenset({"linear_attention", "mamba", "recurrent", "conv"})
"""Kinds of layers that keep a state in place of KV."""
_SLIDING: Final = frozenset({"sliding_attention", "local", "sliding"})


def model_from(content: bytes, name: str) -> Model:
    """The model that a config.json describes. Raises PlanError, with what is missing or not understood."""
    try:
        config = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{name} is no JSON: {str(error)[:80]}") from None
    if isinstance(config, dict) and isinstance(config.get("text_config"), dict):
        config = config["text_config"]  # of a model that also sees or hears
    if not isinstance(config, dict):
        raise PlanError(f"{name} is no configuration of a model: it is no JSON object")
    return _Shape(config, name).model()


class _Shape:
    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        self._config = config
        self._name = name
        self._layers = self._count("num_hidden_layers")
        self._hidden = self._count("hidden_size")
        self._heads = self._count("num_attention_heads")

    def model(self) -> Model:
        """All of it."""
        all_parameters, active = self._parameters()
        latent = self._count("kv_lora_rank", 0)
        sliding, window = self._sliding()
        return Model(
            str(self._config.get("model_type") or "model"),
            self._layers,
            self._heads,
            1 if latent else self._count("num_key_value_heads", self._heads),
            latent + self._count("qk_rope_head_dim", 0) if latent else self._head_dim,
            all_parameters,
            active,
            Attention.MLA if latent else Attention.GQA,
            sliding,
            window,
            source=self._name,
        )

    def _count(self, field: str, default: int | None = None) -> int:
        value = self._config.get(field)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 32:
            raise PlanError(f"{self._name}: {field} is {str(value)[:40]}, not a number: is it a model's config.json?")
        if value == 0 and default is None:
            raise PlanError(f"{self._name}: {field} is 0")
        return value

    @property
    def _head_dim(self) -> int:
        return self._count("head_dim", self._hidden // self._heads)

    def _sliding(self) -> tuple[int, int]:
        """Layers that look back a window only, and how far."""
        kinds = self._config.get("layer_types")
        window = self._count("sliding_window", 0)
        if not isinstance(kinds, list):
            is_used = self._config.get("use_sliding_window", True) and window
            return (self._layers, window) if is_used and self._config.get("model_type") == "mistral" else (0, 0)
        stateful = sorted({str(kind) for kind in kinds} & _NO_KV)
        if stateful:
            raise PlanError(
                f"{self._name}: layers of {', '.join(stateful)} keep a state in place of KV, and kvcast does not"
                " share that"
            )
        count = sum(str(kind) in _SLIDING for kind in kinds)
        return (count, window) if window else (0, 0)

    def _parameters(self) -> tuple[float, float]:
        """All, and those that one token goes through."""
        embeddings = self._count("vocab_size", 0) * self._hidden
        embeddings *= 1 if self._config.get("tie_word_embeddings") else 2
        attention = self._layers * self._attention()
        experts = self._first_of("n_routed_experts", "num_local_experts", "num_experts")
        inner = self._count("intermediate_size", 4 * self._hidden)
        if not experts:
            everything = embeddings + attention + self._layers * 3 * self._hidden * inner
            return float(everything), float(everything)
        dense = min(self._layers, self._count("first_k_dense_replace", 0))
        expert = 3 * self._hidden * self._count("moe_intermediate_size", inner)
        shared = self._count("n_shared_experts", 0)
        chosen = min(experts, self._first_of("num_experts_per_tok", "experts_per_token"))
        common = embeddings + attention + dense * 3 * self._hidden * inner
        sparse = self._layers - dense
        looked_up = self._count("vocab_size", 0) * self._hidden  # of which a token takes one row
        active = common - looked_up + sparse * (chosen + shared) * expert
        return float(common + sparse * (experts + shared) * expert), float(active)

    def _attention(self) -> int:
        """Of one layer."""
        hidden, heads = self._hidden, self._heads
        latent = self._count("kv_lora_rank", 0)
        if not latent:
            kv_heads = self._count("num_key_value_heads", heads)
            return 2 * hidden * (heads + kv_heads) * self._head_dim
        rope, nope = self._count("qk_rope_head_dim"), self._count("qk_nope_head_dim")
        value, query = self._count("v_head_dim"), self._count("q_lora_rank", 0)
        queries = heads * (nope + rope)
        asked = query * (hidden + queries) if query else hidden * queries
        return asked + hidden * (latent + rope) + latent * heads * (nope + value) + heads * value * hidden

    def _first_of(self, *fields: str) -> int:
        return next((count for count in (self._count(field, 0) for field in fields) if count), 0)
