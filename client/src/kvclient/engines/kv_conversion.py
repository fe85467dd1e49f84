"""Chunks of one layout copied into another (`kvchunk.kv_layout`): other orders of the same axes, blocks or none. Pure.

Numbers stay as they are: no rounding, no other type. What a layout leaves out (parts, heads) has size 1.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kvchunk.kv_layout import ELEMENT_BYTES, KvLayout

Numbers: TypeAlias = npt.NDArray[Any]
ORDER = "lpbrthd"
"""Of the axes in a view; r: blocks that another layout has as one."""


def convert(chunk: memoryview, given: KvLayout, into: memoryview, wanted: KvLayout) -> None:
    """Copy a chunk of layout `given` to `into` (writable) as `wanted` has it.

    Raises ValueError where bytes and layouts do not fit, or the two have other numbers: another type, another size of
    an axis, blocks that do not divide each other.
    """
    for each, layout in ((chunk, given), (into, wanted)):
        if each.nbytes != layout.size_bytes:
            raise ValueError(f"{each.nbytes} bytes are no chunk of {layout.text}, which has {layout.size_bytes}")
    if given.keys_across or wanted.keys_across:
        raise ValueError(f"keys that lie across are not converted: {given.text}, {wanted.text}")
    same = [(axis, given.size(axis), wanted.size(axis)) for axis in "lphd"]
    same.append(("b x t", _tokens(given), _tokens(wanted)))
    if given.element != wanted.element or any(one != other for _, one, other in same):
        raise ValueError(f"{given.text} and {wanted.text} have not the same numbers")
    short, long = sorted((given.size("t"), wanted.size("t")))
    if long % short:
        raise ValueError(f"blocks of {long} tokens are not whole blocks of {short}: {given.text}, {wanted.text}")
    np.copyto(_view(into, wanted, short, long // short), _view(chunk, given, short, long // short))


def _tokens(layout: KvLayout) -> int:
    return layout.size("b") * layout.size("t")


def _view(chunk: memoryview, layout: KvLayout, block_tokens: int, run: int) -> Numbers:
    """The chunk itself, its axes in the order of ORDER; `run` blocks of `block_tokens` are an axis of their own,
    whether this layout has them as blocks or as longer ones."""
    axes: list[tuple[str, int]] = []
    for name, size in layout.axes:
        if name == "t" and size > block_tokens:
            axes += [("r", run), ("t", block_tokens)]
        elif name == "b" and layout.size("t") == block_tokens:
            axes += [("b", size // run), ("r", run)]
        else:
            axes.append((name, size))
    names = [name for name, _ in axes]
    names += [name for name in ORDER if name not in names]
    words = np.frombuffer(chunk, f"u{ELEMENT_BYTES[layout.element]}")
    sizes = dict(axes)
    return words.reshape([sizes.get(name, 1) for name in names]).transpose([names.index(name) for name in ORDER])
