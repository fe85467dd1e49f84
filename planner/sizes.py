"""What the KV of a prompt weighs, how long it takes to bring and to compute, and how much of it fits where. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from kvclient.engines.core.chunk_sizes import chunk_tokens_for
from planner.errors import PlanError
from planner.hardware import ACCELERATORS, Attention, Model, engine_of

DTYPE_BYTES: Final[Mapping[str, float]] = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "fp4": 0.5}
"""Of one number in the KV; scales of quantized ones, some per cent, are not counted."""
LINKS_GBIT_S: Final = (10, 25, 100, 200, 400)
HEADERS_SHARE: Final = 0.024
"""Of what a link carries in segments of 4 KiB."""
ENGINE_BLOCK_TOKENS: Final = 16
TOKENS_MAX: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class Link:
    """Bringing the KV over one link that carries nothing else."""

    gbit_s: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Computed:
    """Computing it anew."""

    accelerator: str
    count: int
    seconds: float
    break_even_gbit_s: float
    """Slower links bring it later than it is computed."""


@dataclass(frozen=True, slots=True)
class Place:
    """Memory for chunks."""

    name: str
    bytes: int
    chunks: int
    tokens: int
    prompts: float
    """How many times the prompt fits."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of one model and one prompt."""

    model: str
    dtype: str
    tokens: int
    tensor_parallel: int
    bytes_per_token: float
    bytes_per_token_and_rank: float
    """That one of the accelerators has; the pool has all of it once."""
    prompt_bytes: int
    """Of the whole chunks: what lies behind them is computed."""
    chunk_tokens: int
    chunk_bytes: int
    chunks: int
    links: Sequence[Link]
    computed: Sequence[Computed]
    places: Sequence[Place]

    def to_json(self) -> dict[str, object]:
        """For other programs."""
        return asdict(self)


def sizes(
    model: Model, dtype: str, tokens: int, tensor_parallel: int, places: Mapping[str, int], chunk_tokens: int = 0
) -> Sizes:
    """`places`: bytes by name; `chunk_tokens`: 0: as vLLM's connector chooses it. Raises PlanError."""
    if dtype not in DTYPE_BYTES:
        raise PlanError(f"unknown dtype '{dtype}': known are {', '.join(DTYPE_BYTES)}")
    if not 1 <= tokens <= TOKENS_MAX:
        raise PlanError(f"{tokens} tokens: 1 to {TOKENS_MAX} can be a prompt")
    if model.heads % tensor_parallel:
        raise PlanError(f"{tensor_parallel} ranks do not divide {model.heads} query heads of {model.name}")
    kept = model.with_dtype(DTYPE_BYTES[dtype])
    token_bytes = kept.bytes_per_token
    chunk_tokens = chunk_tokens or chunk_tokens_for(max(1, round(token_bytes)), ENGINE_BLOCK_TOKENS)
    chunks, chunk_bytes = tokens // chunk_tokens, kept.chunk_bytes(chunk_tokens)
    prompt_bytes = chunks * chunk_bytes
    # A head that several ranks need is on each of them, and so is a latent vector.
    heads_at_rank = 1 if kept.attention is Attention.MLA else max(1.0, kept.kv_heads / tensor_parallel)
    return Sizes(
        model.name,
        dtype,
        tokens,
        tensor_parallel,
        token_bytes,
        token_bytes * heads_at_rank / kept.kv_heads,
        prompt_bytes,
        chunk_tokens,
        chunk_bytes,
        chunks,
        [Link(gbit_s, prompt_bytes * 8 / (gbit_s * 1e9 * (1 - HEADERS_SHARE))) for gbit_s in LINKS_GBIT_S],
        [_computed(kept, name, tensor_parallel, tokens) for name in ACCELERATORS],
        [
            Place(
                name,
                size_bytes,
                size_bytes // chunk_bytes,
                size_bytes // chunk_bytes * chunk_tokens,
                size_bytes // chunk_bytes / chunks if chunks else 0.0,
            )
            for name, size_bytes in places.items()
        ],
    )


def _computed(model: Model, accelerator: str, count: int, tokens: int) -> Computed:
    engine = engine_of(model, accelerator, count)
    seconds = engine.prefill_s(0, tokens)
    return Computed(accelerator, count, seconds, tokens * model.bytes_per_token * 8 / seconds / 1e9)
