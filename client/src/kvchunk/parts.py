"""Parts of a chunk: ranges of its bytes, and those that hold some of its layers or tokens. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from kvchunk.kv_layout import ELEMENT_BYTES, KvLayout


class ByteRange(NamedTuple):
    """Bytes of a chunk that follow each other."""

    offset: int
    """Of the first one, from the beginning of the chunk."""
    size_bytes: int

    @property
    def end(self) -> int:
        """Offset of the first byte behind it."""
        return self.offset + self.size_bytes


def check_ranges(ranges: Sequence[ByteRange]) -> None:
    """Raises ValueError unless there is one, none is empty, and they are in order without overlap."""
    if not ranges:
        raise ValueError("no ranges: name at least one, or fetch whole chunks")
    end = 0
    for one in ranges:
        if one.size_bytes < 1 or one.offset < end:
            raise ValueError(
                f"the range of {one.size_bytes} bytes from byte {one.offset} is empty, or does not follow on those"
                " before it: give ranges in order, without overlap"
            )
        end = one.end


def merged(ranges: Iterable[ByteRange]) -> list[ByteRange]:
    """The same bytes, with ranges that touch made one. `ranges`: in order, without overlap."""
    made: list[ByteRange] = []
    for one in ranges:
        if made and made[-1].end == one.offset:
            made[-1] = ByteRange(made[-1].offset, made[-1].size_bytes + one.size_bytes)
        else:
            made.append(one)
    return made


def ranges_of(
    layout: KvLayout, *, layers: Collection[int] | None = None, tokens: Collection[int] | None = None
) -> list[ByteRange]:
    """Where some layers, or some tokens, or some tokens of some layers of a chunk lie; None: all.

    `tokens`: counted from the chunk's first token, over all of its blocks. Raises ValueError for a layer or a token
    that the chunk does not have.
    """
    layers_wanted = _checked("layer", layers, layout.size("l"))
    tokens_wanted = _checked("token", tokens, layout.size("b") * layout.size("t"))
    chosen = {axis for axis, of in (("l", layers), ("b", tokens), ("t", tokens)) if of is not None}
    names = [name for name, _ in layout.axes]
    depth = max((place + 1 for place, name in enumerate(names) if name in chosen), default=0)
    outer, inner = layout.axes[:depth], layout.axes[depth:]
    run_bytes = math.prod(size for _, size in inner) * ELEMENT_BYTES[layout.element]
    ranges = []
    for number, at in enumerate(itertools.product(*(range(size) for _, size in outer))):
        index = dict(zip(names, at, strict=False))
        token = index.get("b", 0) * layout.size("t") + index.get("t", 0)
        if (layers is None or index.get("l", 0) in layers_wanted) and (tokens is None or token in tokens_wanted):
            ranges.append(ByteRange(number * run_bytes, run_bytes))
    return merged(ranges)


def _checked(what: str, wanted: Collection[int] | None, count: int) -> frozenset[int]:
    if wanted is None:
        return frozenset()
    if not wanted:
        raise ValueError(f"no {what}s: name at least one")
    for one in wanted:
        if not 0 <= one < count:
            raise ValueError(f"{what} {one}: the chunk has {count}, counted from 0")
    return frozenset(wanted)
