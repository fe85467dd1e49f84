"""KV-like numbers for tests: channels of unlike size and offset, tokens that resemble their neighbours."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvchunk.kv_layout import KvLayout


def kv_numbers(layout: KvLayout, seed: int = 1) -> npt.NDArray[np.float32]:
    """Numbers of a chunk in the order of memory, shape (numbers,)."""
    random = np.random.default_rng(seed)
    sizes = {axis: layout.size(axis) for axis in "lpbthd"}
    tokens, channels = sizes["b"] * sizes["t"], sizes["h"] * sizes["d"]
    shape = (sizes["l"], sizes["p"], tokens, channels)
    drift = np.cumsum(random.standard_normal(shape), axis=2) * 0.3
    spread = np.exp(random.standard_normal((*shape[:2], 1, channels)))
    offset = 3 * random.standard_normal((*shape[:2], 1, channels))
    numbers = (drift + random.standard_normal(shape)) * spread + offset
    whole = numbers.reshape(tuple(sizes.values()))
    order = ["lpbthd".index(axis) for axis, _ in layout.axes]
    missing = [place for place in range(6) if place not in order]
    return np.ascontiguousarray(whole.transpose(*order, *missing)).astype(np.float32).ravel()


def kv_chunk(layout: KvLayout, seed: int = 1) -> bytes:
    """The same in the layout's type."""
    return packed(kv_numbers(layout, seed), layout.element)


def packed(numbers: npt.NDArray[np.float32], element: str) -> bytes:
    """Numbers as bytes of a type; bf16 is rounded to the nearest."""
    if element == "fp32":
        return numbers.tobytes()
    if element == "fp16":
        return numbers.astype(np.float16).tobytes()
    bits = numbers.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16).tobytes()


def unpacked(content: bytes | bytearray, element: str) -> npt.NDArray[np.float32]:
    """The reverse."""
    if element == "fp32":
        return np.frombuffer(content, np.float32)
    if element == "fp16":
        return np.frombuffer(content, np.float16).astype(np.float32)
    return (np.frombuffer(content, np.uint16).astype(np.uint32) << 16).view(np.float32)
