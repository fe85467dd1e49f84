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

from bmv2_testbed.bench.kv_quality import Quality, load_model, quality, scores_of, windows
from bmv2_testbed.bench.small_llama import Floats, LlamaShape, SmallLlama
from bmv2_testbed.errors import TestbedError
from kvchunk.kv_layout import KvLayout
from kvcodec import lossy, planes
from kvcodec.loops import Loops
from kvcodec.native import native_loops
from kvcodec.shipped import NotShippedError

CONTEXT_TOKENS: Final = 192
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
    """Of bf16 bytes, of all contexts as one chunk: a core's own time, medians; None: bf16 itself."""
    decode_gb_s: float | None
    quality: Quality

    def to_json(self) -> dict[str, Any]:
        figures = asdict(self)
        figures |= figures.pop("quality")
        return figures


@dataclass(frozen=True, slots=True)
class _Window:
    """A context's KV, shape (layers, 2, tokens, heads, numbers), and what follows it."""

    kv: Halves
    following: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class _Way:
    """A form as two functions over bytes."""

    name: str
    encode: Callable[[memoryview, KvLayout], bytes]
    decode: Callable[[bytes, memoryview], None]


def run_forms(plan: FormsPlan, say: Callable[[str], None], moved: Callable[[float], None]) -> list[FormFigures]:
    """Measure every form. Raises TestbedError."""
    try:
        loops = native_loops()
    except NotShippedError as error:
        raise TestbedError(str(error)) from error
    model, held_out = load_model(plan.model)
    say("exact KV")
    made = []
    for context, following in windows(held_out, plan.windows, CONTEXT_TOKENS):
        made.append(_Window(halves_of(model.run(context, model.no_past())[1]), following))
    exact = [scores_of(model, window.following, floats_of(window.kv)) for window in made]
    figures = [FormFigures("bf16", 1.0, None, None, quality(exact, exact, [window.following for window in made]))]
    ways = _ways(loops)
    for place, way in enumerate(ways):
        moved(place / len(ways))
        say(way.name)
        figures.append(_measured(way, plan, model, made, exact))
    moved(1.0)
    return figures


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


def _ways(loops: Loops) -> list[_Way]:
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
    ]


def _measured(
    way: _Way, plan: FormsPlan, model: SmallLlama, made: Sequence[_Window], exact: Sequence[Floats]
) -> FormFigures:
    stored_bytes, scores = 0, []
    for window in made:
        chunk = memoryview(window.kv.tobytes())
        into = memoryview(bytearray(len(chunk)))
        stored = way.encode(chunk, _layout(model.shape, CONTEXT_TOKENS))
        way.decode(stored, into)
        stored_bytes += len(stored)
        found = np.frombuffer(into, np.uint16).reshape(window.kv.shape)
        scores.append(scores_of(model, window.following, floats_of(found)))
    encode_gb_s, decode_gb_s = _speeds(way, plan.rounds, model.shape, made)
    return FormFigures(
        way.name,
        len(made) * made[0].kv.nbytes / stored_bytes,
        encode_gb_s,
        decode_gb_s,
        quality(scores, exact, [window.following for window in made]),
    )


def _speeds(way: _Way, rounds: int, shape: LlamaShape, made: Sequence[_Window]) -> tuple[float, float]:
    """GB/s there and back."""
    chunk = memoryview(np.concatenate([window.kv for window in made], axis=2).tobytes())
    layout = _layout(shape, len(made) * CONTEXT_TOKENS)
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


def forms_table(figures: Sequence[FormFigures]) -> Table:
    """For a terminal."""
    table = Table(title="KV in fewer bytes; speeds of one core, in bytes of bf16", box=box.SIMPLE)
    table.add_column("form")
    for column in ("smaller by", "encode, GB/s", "decode, GB/s", "perplexity", "divergence, nats", "same next token"):
        table.add_column(column, justify="right")
    exact = figures[0].quality.perplexity
    for one in figures:
        of = one.quality
        table.add_row(
            one.name,
            f"{one.ratio:.2f}",
            "" if one.encode_gb_s is None else f"{one.encode_gb_s:.2f}",
            "" if one.decode_gb_s is None else f"{one.decode_gb_s:.2f}",
            f"{of.perplexity:.2f} ({100 * (of.perplexity / exact - 1):+.2f} %)",
            f"{of.divergence:.5f}",
            f"{100 * of.same_first:.1f} %",
        )
    return table
