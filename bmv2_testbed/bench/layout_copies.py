"""Copies between an engine's pages and chunks on this processor, by layout, beside a plain copy of the same bytes.

The pages are those of Llama 3 8B in bfloat16. Layouts are vLLM's: the order of layers, blocks, heads, tokens and
numbers in memory.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from rich import box
from rich.table import Table

from kvclient.engines.paged import HostLayers

AXES: Final = "LBHNC"
LAYOUTS: Final = {name: name for name in ("LBHNC", "LBNHC", "BLHNC", "BLNHC", "LHBNC", "BHLNC")} | {
    "latent": "LBHNC",
    "half of the heads, LBHNC": "LBHNC",
    "half of the heads, LBNHC": "LBNHC",
}
"""By name, the order of axes in memory."""
LAYERS, HEADS, BLOCK_TOKENS, NUMBERS_BYTES = 32, 8, 16, 512
LATENT_BYTES: Final = 1152
CHUNKS: Final = 8
"""That the paged cache has room for: more than a processor's caches hold."""


@dataclass(frozen=True, slots=True)
class CopiesPlan:
    """`chunk_blocks` of 16 tokens; each copy is timed `rounds` times."""

    chunk_blocks: int
    rounds: int
    layers: int = LAYERS


@dataclass(frozen=True, slots=True)
class CopyFigures:
    """Of one layout; shares are of a plain copy."""

    layout: str
    chunk_bytes: int
    in_gb_s: float
    out_gb_s: float
    in_share: float
    out_share: float
    is_right: bool
    """What was gathered was scattered to the right places, and nowhere else."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def run_copies(plan: CopiesPlan) -> Iterator[CopyFigures]:
    """Layout by layout."""
    for name in LAYOUTS:
        yield _figures(plan, name)


def pages(plan: CopiesPlan, name: str) -> list[npt.NDArray[np.uint8]]:
    """Of each layer, shape (blocks, ..., bytes), in the order that a chunk has them; random bytes."""
    order = LAYOUTS[name]
    is_half = name.startswith("half")
    sizes = {
        "L": plan.layers,
        "B": plan.chunk_blocks * CHUNKS,
        "H": 1 if name == "latent" else HEADS,
        "N": BLOCK_TOKENS,
        "C": LATENT_BYTES if name == "latent" else NUMBERS_BYTES,
    }
    memory = np.random.default_rng(5).integers(0, 256, [sizes[axis] for axis in order], dtype=np.uint8)
    whole = memory.transpose([order.index(axis) for axis in AXES])
    if is_half:
        whole = whole[:, :, : HEADS // 2]
    inner = [axis for axis in order if axis not in "LB"]
    layers = [layer.transpose([0, *("BHNC".index(axis) for axis in inner)]) for layer in whole]
    return [_as_runs(layer) for layer in layers]


def _as_runs(layer: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Axes that follow on each other in memory as one."""
    shape, strides = list(layer.shape), list(layer.strides)
    while len(shape) > 2 and strides[-2] == shape[-1]:
        shape[-2:] = [shape[-2] * shape[-1]]
        strides[-2:] = [1]
    return np.lib.stride_tricks.as_strided(layer, shape, strides)


def _figures(plan: CopiesPlan, name: str) -> CopyFigures:
    layers = pages(plan, name)
    copies = HostLayers(layers)
    size = copies.chunk_bytes(plan.chunk_blocks)
    chunk, plain = bytearray(size), np.zeros(size, dtype=np.uint8)
    source = np.random.default_rng(6).integers(0, 256, (CHUNKS, size), dtype=np.uint8)
    # Blocks of a request lie anywhere.
    scattered = np.random.default_rng(7).permutation(plan.chunk_blocks * CHUNKS).reshape(CHUNKS, -1).tolist()
    is_right = True
    for content, blocks in zip(source, scattered, strict=True):
        copies.scatter(content.tobytes(), plan.chunk_blocks, 0, blocks)
    for content, blocks in zip(source, scattered, strict=True):
        copies.gather(blocks, chunk)
        is_right &= chunk == content.tobytes()
    contents = [content.tobytes() for content in source]

    def plainly(at: int) -> None:
        np.copyto(plain, source[at])

    def into(at: int) -> None:
        copies.scatter(contents[at], plan.chunk_blocks, 0, scattered[at])

    def out(at: int) -> None:
        copies.gather(scattered[at], chunk)

    rates = [size / _seconds(plan, call) for call in (plainly, into, out)]
    shares = rates[1] / rates[0], rates[2] / rates[0]
    return CopyFigures(name, size, rates[1] / 1e9, rates[2] / 1e9, *shares, is_right)


def _seconds(plan: CopiesPlan, call: Callable[[int], None]) -> float:
    """Of one copy: the median, over chunks by turns."""
    took = []
    for number in range(plan.rounds * CHUNKS):
        start = time.perf_counter()
        call(number % CHUNKS)
        took.append(time.perf_counter() - start)
    return statistics.median(took)


def copies_table(figures: Sequence[CopyFigures]) -> Table:
    """For people."""
    table = Table(title="An engine's pages in and out of chunks; shares of a plain copy", box=box.SIMPLE)
    for column in ("layout", "chunk MiB", "in GB/s", "share", "out GB/s", "share", ""):
        table.add_column(column, justify="left" if column in ("layout", "") else "right")
    for one in figures:
        table.add_row(
            one.layout,
            f"{one.chunk_bytes / 2**20:.1f}",
            f"{one.in_gb_s:.1f}",
            f"{one.in_share:.2f}",
            f"{one.out_gb_s:.1f}",
            f"{one.out_share:.2f}",
            "" if one.is_right else "WRONG BYTES",
        )
    return table
