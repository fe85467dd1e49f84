"""A small Llama-like model in numpy: what `tools/train_kv_model.py` trained, run here without torch.

It gives the KV of a prompt, and the logits of what follows on KV that it is handed: so the same tokens can be scored on
exact KV and on KV that a codec or reuse has changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """Sizes of a model."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_numbers: int
    feed_forward: int
    ROPE_BASE: ClassVar[float] = 10_000.0
    NORM_EPSILON: ClassVar[float] = 1e-5

    def angles(self, positions: npt.NDArray[np.int64]) -> Floats:
        """Of RoPE, shape (positions, head_numbers / 2)."""
        half = self.head_numbers // 2
        frequencies = self.ROPE_BASE ** (-np.arange(half, dtype=np.float64) / half)
        return (positions[:, None] * frequencies).astype(np.float32)

    def to_array(self) -> npt.NDArray[np.int64]:
        """As it is stored."""
        return np.array(astuple(self), np.int64)

    @classmethod
    def from_array(cls, stored: npt.NDArray[np.int64]) -> LlamaShape:
        """What `to_array` gave."""
        return cls(*map(int, stored))


class SmallLlama:
    """Weights, and what follows from them."""

    def __init__(self, shape: LlamaShape, weights: Mapping[str, Floats]) -> None:
        """`weights`: by the names that the training gives them."""
        self.shape = shape
        self._weights = weights

    def run(self, tokens: npt.NDArray[np.int32], past: Floats) -> tuple[Floats, Floats]:
        """(logits, shape (tokens, vocabulary); KV of past and tokens).

        `past`: KV of what comes before, shape (layers, 2, tokens, kv_heads, head_numbers), K with RoPE."""
        before = past.shape[2]
        positions = np.arange(before, before + len(tokens))
        hidden = self.embedded(tokens)
        made = []
        for layer in range(self.shape.layers):
            query, own = self.own(layer, hidden, positions)
            kv = np.concatenate((past[layer], own), axis=1)
            hidden = self.mixed(layer, hidden, query, kv, positions)
            made.append(kv)
        final = _normalised(hidden, self._weights["final_norm"])
        return final @ self._weights["embedding.weight"].T, np.stack(made)

    def embedded(self, tokens: npt.NDArray[np.int32]) -> Floats:
        """What the first layer gets of them."""
        return self._weights["embedding.weight"][tokens]

    def own(self, layer: int, hidden: Floats, positions: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
        """(queries, KV) of tokens at these positions."""
        normed = _normalised(hidden, self._weight(layer, "attention_norm"))
        query, key, value = (
            (normed @ self._weight(layer, f"{name}.weight").T).reshape(len(hidden), -1, self.shape.head_numbers)
            for name in ("query", "key", "value")
        )
        angles = self.shape.angles(positions)
        turns = np.cos(angles)[:, None], np.sin(angles)[:, None]
        return _rotated(query, *turns), np.stack((_rotated(key, *turns), value))

    def mixed(self, layer: int, hidden: Floats, query: Floats, kv: Floats, positions: npt.NDArray[np.int64]) -> Floats:
        """What the next layer gets of these tokens. `kv`: of all positions, their own included."""
        shape = self.shape
        keys, values = np.repeat(kv, shape.heads // shape.kv_heads, axis=2)
        scores = np.einsum("thd,shd->hts", query, keys) / np.float32(shape.head_numbers) ** 0.5
        scores[:, np.arange(kv.shape[1]) > positions[:, None]] = -np.inf
        mixed = np.einsum("hts,shd->thd", _softmax(scores), values).reshape(len(hidden), -1)
        hidden = hidden + mixed @ self._weight(layer, "output.weight").T
        normed = _normalised(hidden, self._weight(layer, "feed_norm"))
        gate = normed @ self._weight(layer, "gate.weight").T
        fed = (gate / (1 + np.exp(-gate))) * (normed @ self._weight(layer, "up.weight").T)
        made: Floats = hidden + fed @ self._weight(layer, "down.weight").T
        return made

    def _weight(self, layer: int, name: str) -> Floats:
        return self._weights[f"layers.{layer}.{name}"]

    def no_past(self) -> Floats:
        """KV of nothing."""
        shape = self.shape
        return np.zeros((shape.layers, 2, 0, shape.kv_heads, shape.head_numbers), np.float32)


def _normalised(hidden: Floats, weight: Floats) -> Floats:
    normed: Floats = hidden / np.sqrt(np.mean(hidden * hidden, axis=-1, keepdims=True) + LlamaShape.NORM_EPSILON)
    return normed * weight


def _rotated(heads: Floats, cosines: Floats, sines: Floats) -> Floats:
    first, second = np.split(heads, 2, axis=-1)
    return np.concatenate((first * cosines - second * sines, second * cosines + first * sines), axis=-1)


def _softmax(scores: Floats) -> Floats:
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: Floats = raised / raised.sum(axis=-1, keepdims=True)
    return shares
