"""What the checks share: the device, a sealed pool as an agent makes one, paged caches in vLLM's layouts."""

from __future__ import annotations

import fcntl
import logging
import math
import mmap
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from kvclient.engines.device import DeviceLayers, Staging
from kvclient.engines.layout import heads_of, page_view
from kvclient.engines.pinned import CudaRegistrar, RegisteredMemory

log = logging.getLogger("gpu-check")

MIB: Final = 1 << 20
GIB: Final = 1 << 30
SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
LAYOUTS: Final = {
    "LBHNC": "LBHNC",
    "LBNHC": "LBNHC",
    "BLHNC": "BLHNC",
    "BLNHC": "BLNHC",
    "LHBNC": "LHBNC",
    "BHLNC": "BHLNC",
    "latent": "LBHNC",
    "fp8": "LBHNC",
    "half of the heads": "LBNHC",
}
"""By name, the order of axes in memory: layers, blocks, heads, tokens, numbers."""


@dataclass(slots=True)
class Report:
    """What was found, for the table and the JSON."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, check: str, what: str, **found: Any) -> None:
        """One figure or finding. `ok`: False fails the whole run."""
        self.rows.append({"check": check, "what": what, **found})
        said = "  ".join(f"{name} {_shown(value)}" for name, value in found.items())
        print(f"{check}  {what:<48} {said}", flush=True)

    def left_out(self, check: str, what: str, why: str) -> None:
        """Something that this machine cannot show."""
        self.add(check, what, left_out=why)

    @property
    def ok(self) -> bool:
        return all(row.get("ok", True) for row in self.rows)


def _shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class Machine:
    """Where it runs, and how much of it."""

    device: torch.device
    is_quick: bool
    """Small sizes: for processors, and to try the script."""

    @property
    def is_cuda(self) -> bool:
        return bool(self.device.type == "cuda")

    @property
    def name(self) -> str:
        return torch.cuda.get_device_name(self.device) if self.is_cuda else "CPU"

    def synchronize(self) -> None:
        """Wait for all that was submitted."""
        if self.is_cuda:
            torch.cuda.synchronize(self.device)


class Pool:
    """A sealed memory file, mapped read-only as clients of an agent have it, and writable as the agent has."""

    def __init__(self, size_bytes: int, *, huge_pages: bool = False) -> None:
        """Raises OSError where the machine has no such pages."""
        flags = os.MFD_ALLOW_SEALING | (os.MFD_HUGETLB | os.MFD_HUGE_2MB if huge_pages else 0)
        self.file = os.memfd_create("gpu-check", flags)
        os.ftruncate(self.file, size_bytes)
        fcntl.fcntl(self.file, fcntl.F_ADD_SEALS, SEALS)
        self.size_bytes = size_bytes
        self.agents = mmap.mmap(self.file, size_bytes)
        self.clients = mmap.mmap(self.file, size_bytes, prot=mmap.PROT_READ)

    def touch(self) -> None:
        """Have all pages there, as an agent does."""
        for start in range(0, self.size_bytes, 64 * MIB):
            self.agents[start : start + min(64 * MIB, self.size_bytes - start)] = bytes(
                min(64 * MIB, self.size_bytes - start)
            )

    def map_again(self) -> None:
        """As the clients of an agent that has begun anew with the pool of before. A mapping goes with its last view."""
        self.clients = mmap.mmap(self.file, self.size_bytes, prot=mmap.PROT_READ)

    def close(self) -> None:
        """Give all up."""
        del self.clients, self.agents
        os.close(self.file)


@contextmanager
def registered(machine: Machine, views: list[memoryview]) -> Iterator[RegisteredMemory | None]:
    """These mappings, all registered; None on a processor."""
    if not machine.is_cuda:
        yield None
        return
    memory = RegisteredMemory(CudaRegistrar(machine.device), log)
    memory.begin(views, lambda registered_bytes: None)
    memory.join()
    try:
        yield memory
    finally:
        memory.end()


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a paged cache."""

    layers: int
    heads: int
    tokens: int
    numbers: int
    """Of keys and values together."""
    dtype: torch.dtype = torch.bfloat16

    @property
    def block_bytes(self) -> int:
        """Of all layers."""
        return int(self.layers * self.heads * self.tokens * self.numbers * self.dtype.itemsize)


LLAMA: Final = Shape(layers=32, heads=8, tokens=16, numbers=256)
"""Llama 3 8B: 128 KiB of a token."""
TINY: Final = Shape(layers=3, heads=2, tokens=8, numbers=16)


def shape_of(layout: str, base: Shape) -> Shape:
    """What a layout's name says beside the order of axes."""
    if layout == "latent":
        return Shape(base.layers, 1, base.tokens, base.heads * base.numbers)
    if layout == "fp8":
        return Shape(base.layers, base.heads, base.tokens, base.numbers, torch.float8_e4m3fn)
    return base


def caches(machine: Machine, layout: str, base: Shape, blocks: int) -> list[torch.Tensor]:
    """Of each layer (blocks, heads, tokens, numbers), of random bytes, in the layout's order of memory."""
    shape, order = shape_of(layout, base), LAYOUTS[layout]
    heads = shape.heads * 2 if layout == "half of the heads" else shape.heads
    sizes = {"L": shape.layers, "B": blocks, "H": heads, "N": shape.tokens, "C": shape.numbers * shape.dtype.itemsize}
    memory = torch.randint(0, 256, [sizes[axis] for axis in order], dtype=torch.uint8, device=machine.device)
    whole = memory.permute([order.index(axis) for axis in "LBHNC"])
    made = [layer.view(shape.dtype) for layer in whole]
    return [heads_of(layer, 1, 2) for layer in made] if layout == "half of the heads" else made


def layers_of(cache: Sequence[torch.Tensor], staging: Staging | None = None) -> DeviceLayers:
    """The copier that engines have on a device; on a processor the same code."""
    return DeviceLayers([page_view(layer, layer[0].numel() * layer.element_size()) for layer in cache], staging)


def timed(machine: Machine, call: Any, rounds: int) -> float:
    """Seconds of one call, the middle one of several."""
    took = []
    for _ in range(rounds):
        machine.synchronize()
        start = time.perf_counter()
        call()
        machine.synchronize()
        took.append(time.perf_counter() - start)
    return sorted(took)[len(took) // 2]


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank."""
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)]
