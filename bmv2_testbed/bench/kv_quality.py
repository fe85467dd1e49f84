"""What a small model makes of KV that was changed: its scores of held-out text on that KV, beside those on exact KV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from bmv2_testbed.bench.small_llama import Floats, LlamaShape, SmallLlama
from bmv2_testbed.errors import TestbedError

SCORED_TOKENS: Final = 64
_MAKE_IT: Final = "make one in some minutes: .venv-vllm/bin/python tools/train_kv_model.py"
Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Quality:
    """Of scored tokens, on some KV."""

    perplexity: float
    divergence: float
    """Kullback-Leibler, of the next token's distribution on exact KV from the one on this KV, in nats a token."""
    same_first: float
    """Share of tokens whose most likely successor is the same as on exact KV."""


def load_model(path: Path) -> tuple[SmallLlama, Tokens]:
    """(model, held-out tokens). Raises TestbedError."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (OSError, ValueError) as error:
        raise TestbedError(f"no model at {path} ({error}); {_MAKE_IT} {path}") from error
    if not {"shape", "held_out"} <= set(arrays):
        raise TestbedError(f"{path} is not a model of tools/train_kv_model.py; {_MAKE_IT} {path}")
    shape = LlamaShape.from_array(arrays.pop("shape"))
    held_out = arrays.pop("held_out")
    return SmallLlama(shape, arrays), held_out


def windows(held_out: Tokens, count: int, context_tokens: int) -> Iterator[tuple[Tokens, Tokens]]:
    """(context, SCORED_TOKENS + 1 tokens that follow it) at `count` places of the text. Raises TestbedError."""
    length = context_tokens + SCORED_TOKENS + 1
    if len(held_out) < count * length:
        raise TestbedError(f"{count} windows of {length} tokens are more than the {len(held_out)} held-out tokens")
    for start in range(0, count * (len(held_out) // count), len(held_out) // count):
        tokens = held_out[start : start + length]
        yield tokens[:context_tokens], tokens[context_tokens:]


def scores_of(model: SmallLlama, following: Tokens, kv: Floats) -> Floats:
    """Logarithms of the next token's probabilities on that KV, shape (SCORED_TOKENS, vocabulary)."""
    logits, _ = model.run(following[:-1], kv)
    raised = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    scores: Floats = raised - np.log(np.exp(raised).sum(axis=1, keepdims=True))
    return scores


def quality(scores: Sequence[Floats], exact: Sequence[Floats], following: Sequence[Tokens]) -> Quality:
    """Of the scores of all windows, beside those on exact KV."""
    taken = [one[np.arange(SCORED_TOKENS), tokens[1:]].mean() for one, tokens in zip(scores, following, strict=True)]
    pairs = list(zip(exact, scores, strict=True))
    return Quality(
        float(np.exp(-np.mean(taken))),
        float(np.mean([(np.exp(right) * (right - other)).sum(axis=1).mean() for right, other in pairs])),
        float(np.mean([(right.argmax(axis=1) == other.argmax(axis=1)).mean() for right, other in pairs])),
    )
