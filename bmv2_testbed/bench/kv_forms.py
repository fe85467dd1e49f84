"""The forms of KV side by side: bytes, speed of a core, and what a model says on KV that went through them.

KV is that of a small model which was trained for it (`tools/train_kv_model.py`), on text that it never saw. The model
reads the first CONTEXT_TOKENS of a window; its KV goes through a form and back; then the model goes on with the rest of
the window, on that KV and on the exact one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from rich import box
from rich.table import Table

from bmv2_testbed.bench.small_llama import Floats, LlamaShape, SmallLlama
from bmv2_testbed.errors import TestbedError
from kvchunk.kv_layout import KvLayout
from kvcodec import lossy, planes
from kvcodec.loops import Loops
from kvcodec.native import native_loops
from kvcodec.shipped import NotShippedError

CONTEXT_TOKENS: Final = 192
SCORED_TOKENS: Final = 64
MAKE_IT: Final = "make one in some minutes: .venv-vllm/bin/python tools/train_kv_model.py"
Halves = npt.NDArray[np.uint16]
"""bf16 numbers as they lie in memory."""


@dataclass(frozen=True, slots=True)
class FormsPlan:
    """`windows` of held-out text; each form is timed `rounds` times."""

    model: Path
    windows: int
    rounds: int


@dataclass(frozen=True, slots=True)
class FormFigures:
    """Of one form."""

    name: str
    ratio: float
    """bf16 bytes to stored ones, of each context by itself."""
    encode_gb_s: float | None
    """Of bf16 bytes, of all contexts as one chunk: a core's own time, medians; None: not one of ours."""
    decode_gb_s: float | None
    perplexity: float
    """Of the scored tokens."""
    divergence: float
    """Kullback-Leibler, of the next token's distribution on exact KV from the one on this KV, in nats a token."""
    same_first: float
    """Share of tokens whose most likely successor is the same as on exact KV."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Window:
    """A context's KV, shape (layers, 2, tokens, heads, numbers), and what follows it."""

    kv: Halves
    following: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class _Way:
    """A form as two functions over bytes; `timed`: it is one of ours."""

    name: str
    encode: Callable[[memoryview, KvLayout], bytes]
    decode: Callable[[bytes, memoryview], None]
    timed: bool = True


def run_forms(plan: FormsPlan, say: Callable[[str], None], moved: Callable[[float], None]) -> list[FormFigures]:
    """Measure every form. Raises TestbedError."""
    try:
        loops = native_loops()
    except NotShippedError as error:
        raise TestbedError(str(error)) from error
    model, held_out = load_model(plan.model)
    say("exact KV")
    windows = _windows(model, held_out, plan.windows)
    exact = _scores(model, windows, [window.kv for window in windows])
    figures = [FormFigures("bf16", 1.0, None, None, _perplexity(exact, windows), 0.0, 1.0)]
    ways = _ways(loops, model.shape)
    for place, way in enumerate(ways):
        moved(place / len(ways))
        say(way.name)
        figures.append(_measured(way, plan, model, windows, exact))
    moved(1.0)
    return figures


def load_model(path: Path) -> tuple[SmallLlama, npt.NDArray[np.int32]]:
    """(model, held-out tokens). Raises TestbedError."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (OSError, ValueError) as error:
        raise TestbedError(f"no model at {path} ({error}); {MAKE_IT} {path}") from error
    if not {"shape", "held_out"} <= set(arrays):
        raise TestbedError(f"{path} is not a model of tools/train_kv_model.py; {MAKE_IT} {path}")
    shape = LlamaShape.from_array(arrays.pop("shape"))
    held_out = arrays.pop("held_out")
    return SmallLlama(shape, arrays), held_out


def _windows(model: SmallLlama, held_out: npt.NDArray[np.int32], count: int) -> list[_Window]:
    length = CONTEXT_TOKENS + SCORED_TOKENS + 1
    if len(held_out) < count * length:
        raise TestbedError(f"{count} windows of {length} tokens are more than the {len(held_out)} held-out tokens")
    windows = []
    for start in range(0, count * (len(held_out) // count), len(held_out) // count):
        tokens = held_out[start : start + length]
        _, kv = model.run(tokens[:CONTEXT_TOKENS], model.no_past())
        windows.append(_Window(halves_of(kv), tokens[CONTEXT_TOKENS:]))
    return windows


def _layout(shape: LlamaShape, tokens: int) -> KvLayout:
    sizes = (shape.layers, 2, tokens, shape.kv_heads, shape.head_numbers)
    return KvLayout("bf16", tuple(zip("lpthd", sizes, strict=True)))


def halves_of(numbers: Floats) -> Halves:
    """bf16, rounded to the nearest."""
    bits = np.ascontiguousarray(numbers).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def floats_of(halves: Halves) -> Floats:
    """The reverse."""
    return (halves.astype(np.uint32) << 16).view(np.float32)


def _ways(loops: Loops, shape: LlamaShape) -> list[_Way]:
    def lossless(chunk: memoryview, _: KvLayout) -> bytes:
        return planes.encode(chunk, loops, 2) or bytes(chunk)

    def rounded(level: lossy.Level) -> Callable[[memoryview, KvLayout], bytes]:
        return lambda chunk, layout: lossy.encode(chunk, layout, loops, level) or bytes(chunk)

    return [
        _Way("lossless", lossless, lambda stored, into: planes.decode(memoryview(stored), into, loops)),
        *(
            _Way(f"lossy, {name}", rounded(level), lambda stored, into: lossy.decode(memoryview(stored), into, loops))
            for name, level in lossy.LEVELS.items()
        ),
        *(_uniform(bits, shape.head_numbers) for bits in (8, 4)),
    ]


def _uniform(bits: int, head_numbers: int) -> _Way:
    """What is done without a codec: whole numbers of 8 or 4 bits, a scale and an offset for each token and head."""
    most = (1 << bits) - 1

    def encode(chunk: memoryview, _: KvLayout) -> bytes:
        heads = floats_of(np.frombuffer(chunk, np.uint16)).reshape(-1, head_numbers)
        least = heads.min(axis=1, keepdims=True)
        scale = np.maximum(heads.max(axis=1, keepdims=True) - least, np.float32(1e-9)) / most
        whole = np.rint((heads - least) / scale).astype(np.uint8)
        packed = whole if bits == 8 else whole[:, ::2] | whole[:, 1::2] << 4
        return b"".join((packed.tobytes(), scale.astype(np.float16).tobytes(), least.astype(np.float16).tobytes()))

    def decode(stored: bytes, into: memoryview) -> None:
        count = len(into) // 2 // head_numbers
        packed = np.frombuffer(stored, np.uint8, count * head_numbers * bits // 8).reshape(count, -1)
        whole = packed if bits == 8 else np.stack((packed & 15, packed >> 4), axis=2).reshape(count, -1)
        rest = np.frombuffer(stored, np.float16, 2 * count, packed.size).astype(np.float32)
        numbers = whole * rest[:count, None] + rest[count:, None]
        np.frombuffer(into, np.uint16)[:] = halves_of(numbers.astype(np.float32)).ravel()

    return _Way(f"whole numbers of {bits} bits", encode, decode, timed=False)


def _measured(
    way: _Way, plan: FormsPlan, model: SmallLlama, windows: Sequence[_Window], exact: Sequence[Floats]
) -> FormFigures:
    stored_bytes, found = 0, []
    for window in windows:
        chunk = memoryview(window.kv.tobytes())
        into = memoryview(bytearray(len(chunk)))
        stored = way.encode(chunk, _layout(model.shape, CONTEXT_TOKENS))
        way.decode(stored, into)
        stored_bytes += len(stored)
        found.append(np.frombuffer(into, np.uint16).reshape(window.kv.shape))
    encode_gb_s, decode_gb_s = _speeds(way, plan.rounds, model.shape, windows) if way.timed else (None, None)
    scores = _scores(model, windows, found)
    pairs = list(zip(exact, scores, strict=True))
    return FormFigures(
        way.name,
        len(windows) * windows[0].kv.nbytes / stored_bytes,
        encode_gb_s,
        decode_gb_s,
        _perplexity(scores, windows),
        float(np.mean([(np.exp(right) * (right - other)).sum(axis=1).mean() for right, other in pairs])),
        float(np.mean([(right.argmax(axis=1) == other.argmax(axis=1)).mean() for right, other in pairs])),
    )


def _speeds(way: _Way, rounds: int, shape: LlamaShape, windows: Sequence[_Window]) -> tuple[float, float]:
    """GB/s there and back."""
    chunk = memoryview(np.concatenate([window.kv for window in windows], axis=2).tobytes())
    layout = _layout(shape, len(windows) * CONTEXT_TOKENS)
    into = memoryview(bytearray(len(chunk)))
    encode_s, decode_s = [], []
    for _ in range(rounds):
        began_s = time.thread_time()
        stored = way.encode(chunk, layout)
        between_s = time.thread_time()
        way.decode(stored, into)
        decode_s.append(time.thread_time() - between_s)
        encode_s.append(between_s - began_s)
    return len(chunk) / statistics.median(encode_s) / 1e9, len(chunk) / statistics.median(decode_s) / 1e9


def _scores(model: SmallLlama, windows: Sequence[_Window], kv: Sequence[Halves]) -> list[Floats]:
    """Logarithms of the next token's probabilities, shape (SCORED_TOKENS, vocabulary), of each window."""
    scores = []
    for window, halves in zip(windows, kv, strict=True):
        logits, _ = model.run(window.following[:-1], floats_of(halves))
        raised = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
        scores.append(raised - np.log(np.exp(raised).sum(axis=1, keepdims=True)))
    return scores


def _perplexity(scores: Sequence[Floats], windows: Sequence[_Window]) -> float:
    taken = [
        one[np.arange(SCORED_TOKENS), window.following[1:]].mean() for one, window in zip(scores, windows, strict=True)
    ]
    return float(np.exp(-np.mean(taken)))


def forms_table(figures: Sequence[FormFigures]) -> Table:
    """For a terminal."""
    table = Table(title="KV in fewer bytes; speeds of one core, in bytes of bf16", box=box.SIMPLE)
    table.add_column("form")
    for column in ("smaller by", "encode, GB/s", "decode, GB/s", "perplexity", "divergence, nats", "same next token"):
        table.add_column(column, justify="right")
    exact = figures[0].perplexity
    for one in figures:
        table.add_row(
            one.name,
            f"{one.ratio:.2f}",
            "" if one.encode_gb_s is None else f"{one.encode_gb_s:.2f}",
            "" if one.decode_gb_s is None else f"{one.decode_gb_s:.2f}",
            f"{one.perplexity:.2f} ({100 * (one.perplexity / exact - 1):+.2f} %)",
            f"{one.divergence:.5f}",
            f"{100 * one.same_first:.1f} %",
        )
    return table
