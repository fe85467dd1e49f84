"""The loops that every number of a chunk goes through: what they do, whoever does it. Pure.

`kvcodec.native` has them in C. The codecs are given them, and so know nothing of shared objects.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint16]
States = npt.NDArray[np.uint32]
Escapes = npt.NDArray[np.int16]
Steps = npt.NDArray[np.float32]

LANES: Final = 32
"""Of one rANS segment: symbol i belongs to lane i % LANES."""
PROB_BITS: Final = 12
PROBS: Final = 1 << PROB_BITS
"""The frequencies of a table sum to it."""
STATE_LOW: Final = 1 << 16
"""Each lane of the decoder ends with it."""
ESCAPE: Final = 255
"""The symbol of a number that stands beside the symbols."""
ZERO: Final = 127
"""The symbol of 0: symbol s stands for s - ZERO."""


class Element(enum.IntEnum):
    """What a number is while it is quantised or restored."""

    BF16 = 0
    FP32 = 1


@dataclass(frozen=True, slots=True)
class Place:
    """Where the numbers of one layer's K or V lie, in numbers from the chunk's first."""

    token_at: npt.NDArray[np.int64]
    """Shape (tokens,)."""
    head_at: npt.NDArray[np.int64]
    """Shape (heads,); the numbers of a head are side by side."""
    head_numbers: int

    @property
    def channels(self) -> int:
        """Numbers of a token."""
        return len(self.head_at) * self.head_numbers


@dataclass(frozen=True, slots=True)
class Quantised:
    """One layer's K or V as symbols."""

    anchors: Bytes
    """Of the first token of each group, shape (groups * channels,)."""
    deltas: Bytes
    """Of all other tokens, as differences from their group's first, shape ((tokens - groups) * channels,)."""
    escapes: Escapes
    """What no symbol stands for, in the order of tokens and channels."""


@dataclass(frozen=True, slots=True)
class Coded:
    """Symbols as a range code."""

    states: States
    """Shape (LANES,)."""
    words: Words


class Loops(Protocol):
    """All arrays are contiguous; sizes that do not fit each other are a ValueError or worse: callers check."""

    def split(self, content: Bytes, width: int) -> list[Bytes]:
        """The planes of whole numbers of `width` bytes (2 or 4), each turned left by a bit, the most significant
        first."""

    def join(self, planes: Sequence[Bytes], out: Bytes) -> None:
        """The reverse of `split`."""

    def largest(self, chunk: Bytes, element: Element, place: Place) -> Steps:
        """The largest absolute value of each channel, shape (channels,); NaN where something is not a number."""

    def quantise(self, chunk: Bytes, element: Element, place: Place, steps: Steps, group: int) -> Quantised:
        """Each number as the nearest whole multiple of its channel's step, shape (channels,). Every group of `group`
        tokens begins with an anchor. No multiple is beyond 16,383."""

    def restore(self, found: Quantised, steps: Steps, group: int, place: Place, element: Element, chunk: Bytes) -> int:
        """The reverse of `quantise`, into a chunk; how many escapes were used. Raises ValueError: too few."""

    def rans_encode(self, symbols: Bytes, frequency: npt.NDArray[np.uint32]) -> Coded:
        """`frequency`: of each symbol, shape (256,), summing to PROBS; above 0 for those that occur."""

    def rans_decode(self, coded: Coded, frequency: npt.NDArray[np.uint32], count: int) -> tuple[Bytes, States, int]:
        """(`count` symbols, states at the end, words used). `frequency`: as for `rans_encode`, each below PROBS.
        Raises ValueError: too few words."""
