"""How a chunk's numbers lie in memory, and what may become of them: a few words in a chunk's namespace. Pure.

An engine that says it puts ` kv=FORM:LAYOUT` at its end. FORM is `exact`, or `lossy` where those who share
the namespace have agreed to KV that is rounded somewhere on its way. LAYOUT is the type of a number and the axes of the
chunk in the order of memory, the innermost last: `bf16.l28.b16.p2.t16.h8.d128` is 28 layers, of each 16 blocks, of each
K and V, of each 16 tokens, of each 8 heads of 128 numbers. `.kdt` at the end: a head's keys lie number by number, each
of all tokens of a block (vLLM's attention on CPUs has them so); values lie as the axes say.

What may be lossy is never decided by a namespace alone: an engine whose KV may be rounded names its chunks by other
keys than one whose KV is exact (`kvclient.engines.core.identity`).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

ELEMENT_BYTES: Final = {"bf16": 2, "fp16": 2, "fp32": 4}
AXES: Final = "lpbthd"
"""Layer, part (K, V), block, token of a block, head, number of a head."""
AXIS_MAX: Final = 1 << 20
LAYOUT_BYTES_MAX: Final = 80
CHUNK_BYTES_MAX: Final = 1 << 32
_WORD: Final = " kv="
EXACT: Final = "exact"
LOSSY: Final = "lossy"
_KEYS_ACROSS: Final = "kdt"
_AXIS: Final = re.compile(rf"([{AXES}])([1-9][0-9]{{0,6}})")


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Of one chunk."""

    element: str
    """One of ELEMENT_BYTES."""
    axes: tuple[tuple[str, int], ...]
    """(axis, size) in the order of memory; `d` is the last."""
    keys_across: bool = False
    """Of keys, the first of the parts, `t` lies inside `d`, and both inside all else."""

    def __post_init__(self) -> None:
        if self.element not in ELEMENT_BYTES:
            raise ValueError(f"numbers of type {self.element!r}; {', '.join(ELEMENT_BYTES)} are known")
        names = [name for name, _ in self.axes]
        if not names or names[-1] != "d" or len(set(names)) != len(names) or not set(names) <= set(AXES):
            raise ValueError(f"axes {''.join(names)!r}: each of {AXES} at most once, and d last")
        if any(not 1 <= size <= AXIS_MAX for _, size in self.axes) or self.size_bytes > CHUNK_BYTES_MAX:
            raise ValueError("an axis without numbers, or a chunk larger than any")
        if self.keys_across and (names[-2:] != ["t", "d"] or self.size("p") != 2):
            raise ValueError("keys that lie across need keys and values, and t and d inside all else")

    @property
    def numbers(self) -> int:
        """In the whole chunk."""
        return math.prod(size for _, size in self.axes)

    @property
    def size_bytes(self) -> int:
        """Of the whole chunk."""
        return self.numbers * ELEMENT_BYTES[self.element]

    def size(self, axis: str) -> int:
        """Along an axis; 1 where there is none."""
        return dict(self.axes).get(axis, 1)

    @property
    def text(self) -> str:
        """As namespaces have it."""
        axes = [f"{name}{size}" for name, size in self.axes]
        return ".".join((self.element, *axes, *[_KEYS_ACROSS] * self.keys_across))


def parse_layout(text: str) -> KvLayout:
    """The reverse of `KvLayout.text`. Raises ValueError."""
    if len(text) > LAYOUT_BYTES_MAX:
        raise ValueError(f"a layout of {len(text)} characters; at most {LAYOUT_BYTES_MAX} are read")
    element, *words = text.split(".")
    if keys_across := words[-1:] == [_KEYS_ACROSS]:
        del words[-1]
    found = [_AXIS.fullmatch(word) for word in words]
    if any(one is None for one in found):
        raise ValueError("an axis is one of its letters and a size, as in h8")
    return KvLayout(element, tuple((one[1], int(one[2])) for one in found if one is not None), keys_across)


@dataclass(frozen=True, slots=True)
class KvTerms:
    """What a namespace says of a chunk's KV."""

    layout: KvLayout
    may_lose: bool
    """Those who share the namespace take KV that is rounded."""


def with_terms(namespace: str, terms: KvTerms) -> str:
    """A namespace that says it."""
    return f"{namespace}{_WORD}{LOSSY if terms.may_lose else EXACT}:{terms.layout.text}"


def terms_of(namespace: str, size_bytes: int) -> KvTerms | None:
    """What the namespace of a chunk of `size_bytes` says; None: nothing, or nothing that can be true of this chunk."""
    _, word, said = namespace.rpartition(_WORD)
    form, colon, text = said.partition(":")
    if not word or not colon or form not in (EXACT, LOSSY):
        return None
    try:
        layout = parse_layout(text)
    except ValueError:
        return None
    return KvTerms(layout, form == LOSSY) if layout.size_bytes == size_bytes else None
