"""The loops in C, which come built with the package (`kvcodec.so`, from `src`, by tools/native_build.py)."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from ctypes import c_void_p
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from kvcodec.declarations import Declarations
from kvcodec.loops import LANES, Bytes, Coded, Element, Place, Quantised, States, Steps
from kvcodec.shipped import load

_PATH = Path(__file__).with_name("kvcodec.so")


_DECLARED: Final = Declarations.of([Path(__file__).parent / "src" / "kvcodec.h"])


class NativeLoops:
    """See `Loops`. Calls let go of the GIL."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def use_level(self, level: int) -> int:
        """Use instructions up to a level of src/cpu.h; returns the one in use. For tests, while nothing else runs."""
        return int(self._library.kc_use_level(level))

    def split(self, content: Bytes, width: int) -> list[Bytes]:
        """See `Loops`."""
        count = len(content) // width
        planes = np.empty((width, count), np.uint8)
        self._library.kc_split(_at(content), count, width, _at(planes))
        return list(planes)

    def join(self, planes: Sequence[Bytes], out: Bytes) -> None:
        """See `Loops`."""
        places = (c_void_p * len(planes))(*map(_at, planes))
        self._library.kc_join(places, len(out) // len(planes), len(planes), _at(out))

    def largest(self, chunk: Bytes, element: Element, place: Place) -> Steps:
        """See `Loops`."""
        bits = np.empty(place.channels, np.uint32)
        self._library.kc_largest(_at(chunk), element, _place(place), _at(bits))
        return bits.view(np.float32)

    def quantise(self, chunk: Bytes, element: Element, place: Place, steps: Steps, group: int) -> Quantised:
        """See `Loops`."""
        tokens, channels = len(place.token_at), place.channels
        groups = -(-tokens // group)
        anchors, deltas = np.empty(groups * channels, np.uint8), np.empty((tokens - groups) * channels, np.uint8)
        escapes, scratch = np.empty(tokens * channels, np.int16), np.empty(3 * channels, np.int32)
        count = self._library.kc_quantise(
            _at(chunk),
            element,
            _place(place),
            _at(steps),
            group,
            _at(anchors),
            _at(deltas),
            _at(escapes),
            len(escapes),
            _at(scratch),
        )
        assert count >= 0, "there is room for every number to escape"
        return Quantised(anchors, deltas, escapes[:count].copy())

    def restore(self, found: Quantised, steps: Steps, group: int, place: Place, element: Element, chunk: Bytes) -> int:
        """See `Loops`."""
        scratch = np.empty(2 * place.channels, np.int32)
        used = int(
            self._library.kc_restore(
                _at(found.anchors),
                _at(found.deltas),
                _at(found.escapes),
                len(found.escapes),
                _at(steps),
                group,
                _place(place),
                element,
                _at(chunk),
                _at(scratch),
            )
        )
        if used < 0:
            raise ValueError("too few escapes")
        return used

    def rans_encode(self, symbols: Bytes, frequency: npt.NDArray[np.uint32]) -> Coded:
        """See `Loops`."""
        states, words = np.empty(LANES, np.uint32), np.empty(len(symbols), np.uint16)
        count = self._library.kc_rans_encode(
            _at(symbols), len(symbols), _at(frequency), _at(states), _at(words), len(words)
        )
        assert count >= 0, "no symbol takes more than a word"
        return Coded(states, words[len(words) - count :].copy())

    def rans_decode(self, coded: Coded, frequency: npt.NDArray[np.uint32], count: int) -> tuple[Bytes, States, int]:
        """See `Loops`."""
        symbols, states = np.empty(count, np.uint8), coded.states.copy()
        used = int(
            self._library.kc_rans_decode(
                _at(coded.words), len(coded.words), _at(states), _at(frequency), _at(symbols), count
            )
        )
        if used < 0:
            raise ValueError("too few words")
        return symbols, states, used


@functools.cache
def native_loops() -> NativeLoops:
    """The loops. Raises NotShippedError."""
    return NativeLoops(load(_PATH, _DECLARED.functions))


def _at(array: npt.NDArray[np.generic]) -> int:
    assert array.flags.c_contiguous
    return array.ctypes.data


def _place(place: Place) -> ctypes.Structure:
    return _DECLARED.structures["kc_place"](
        _at(place.token_at), _at(place.head_at), len(place.token_at), len(place.head_at), place.head_numbers
    )
