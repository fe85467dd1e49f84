"""The loops in numpy: the oracle of those in C, far slower. What says how it is done is here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from kvcodec.loops import (
    ESCAPE,
    LANES,
    PROB_BITS,
    PROBS,
    STATE_LOW,
    ZERO,
    Bytes,
    Coded,
    Element,
    Place,
    Quantised,
    States,
    Steps,
)

_WORDS: Final[dict[int, np.dtype[np.unsignedinteger]]] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}


class NumpyLoops:
    """See `Loops`."""

    def split(self, content: Bytes, width: int) -> list[Bytes]:
        """See `Loops`."""
        words = content.view(_WORDS[width])
        turned = ((words << 1) | (words >> (8 * width - 1))).astype(_WORDS[width], copy=False)
        parts = turned.view(np.uint8).reshape(-1, width)
        return [np.ascontiguousarray(parts[:, width - 1 - plane]) for plane in range(width)]

    def join(self, planes: Sequence[Bytes], out: Bytes) -> None:
        """See `Loops`."""
        width = len(planes)
        words = out.view(_WORDS[width])
        turned = np.empty(len(words), _WORDS[width])
        parts = turned.view(np.uint8).reshape(-1, width)
        for plane, content in enumerate(planes):
            parts[:, width - 1 - plane] = content
        np.bitwise_or(turned >> 1, turned << (8 * width - 1), out=words)

    def largest(self, chunk: Bytes, element: Element, place: Place) -> Steps:
        """See `Loops`."""
        bits = _numbers(chunk, element).view(np.uint32)[_indices(place)] & 0x7FFFFFFF
        found: npt.NDArray[np.uint32] = bits.max(axis=0)
        return found.view(np.float32)

    def quantise(self, chunk: Bytes, element: Element, place: Place, steps: Steps, group: int) -> Quantised:
        """See `Loops`."""
        numbers = _numbers(chunk, element)[_indices(place)]
        multiples = np.rint(numbers / steps).astype(np.int32)
        is_anchor = np.arange(len(multiples)) % group == 0
        first = np.flatnonzero(is_anchor)[np.arange(len(multiples)) // group]
        coded = np.where(is_anchor[:, None], multiples, multiples - multiples[first])
        escapes = np.abs(coded) > ZERO
        symbols = np.where(escapes, ESCAPE, coded + ZERO).astype(np.uint8)
        return Quantised(symbols[is_anchor].ravel(), symbols[~is_anchor].ravel(), coded[escapes].astype(np.int16))

    def restore(self, found: Quantised, steps: Steps, group: int, place: Place, element: Element, chunk: Bytes) -> int:
        """See `Loops`."""
        tokens = len(place.token_at)
        is_anchor = np.arange(tokens) % group == 0
        symbols = np.empty((tokens, place.channels), np.uint8)
        symbols[is_anchor] = found.anchors.reshape(-1, place.channels)
        symbols[~is_anchor] = found.deltas.reshape(-1, place.channels)
        coded = symbols.astype(np.int32) - ZERO
        escaped = symbols == ESCAPE
        used = int(np.count_nonzero(escaped))
        if used > len(found.escapes):
            raise ValueError("too few escapes")
        coded[escaped] = found.escapes[:used]
        first = np.flatnonzero(is_anchor)[np.arange(tokens) // group]
        multiples = np.where(is_anchor[:, None], coded, coded[first] + coded)
        numbers = multiples.astype(np.float32) * steps
        if element is Element.BF16:
            bits = numbers.view(np.uint32)
            halves = ((bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16).astype("<u2")
            chunk.view("<u2")[_indices(place)] = halves
        else:
            chunk.view("<f4")[_indices(place)] = numbers
        return used

    def rans_encode(self, symbols: Bytes, frequency: npt.NDArray[np.uint32]) -> Coded:
        """See `Loops`."""
        start = np.cumsum(frequency, dtype=np.uint32) - frequency
        states = np.full(LANES, STATE_LOW, np.uint32)
        words: list[npt.NDArray[np.uint16]] = []
        for begin in reversed(range(0, len(symbols), LANES)):
            row = symbols[begin : begin + LANES]
            state, share = states[: len(row)], frequency[row]
            full = state >= share << (32 - PROB_BITS)
            words.append(state[full].astype(np.uint16))
            state = np.where(full, state >> 16, state).astype(np.uint32)
            states[: len(row)] = (state // share << PROB_BITS) + state % share + start[row]
        joined = np.concatenate(words[::-1]) if words else np.zeros(0, np.uint16)
        return Coded(states, joined)

    def rans_decode(self, coded: Coded, frequency: npt.NDArray[np.uint32], count: int) -> tuple[Bytes, States, int]:
        """See `Loops`."""
        table = table_of(frequency)
        symbols, states, at = np.empty(count, np.uint8), coded.states.copy(), 0
        for begin in range(0, count, LANES):
            state = states[: min(LANES, count - begin)]
            entry = table[state & (PROBS - 1)]
            symbols[begin : begin + len(state)] = entry & 255
            state = (entry >> 8 & (PROBS - 1)) * (state >> PROB_BITS) + (entry >> 20)
            low = np.flatnonzero(state < STATE_LOW)
            if at + len(low) > len(coded.words):
                raise ValueError("too few words")
            state[low] = state[low] << 16 | coded.words[at : at + len(low)]
            states[: len(state)] = state
            at += len(low)
        return symbols, states, at


def table_of(frequency: npt.NDArray[np.uint32]) -> States:
    """By slot: symbol | frequency << 8 | slot's place among the symbol's slots << 20, shape (PROBS,)."""
    symbols = np.repeat(np.arange(256, dtype=np.uint32), frequency)
    starts = np.repeat(np.cumsum(frequency, dtype=np.uint32) - frequency, frequency)
    table = symbols | frequency[symbols] << 8 | (np.arange(PROBS, dtype=np.uint32) - starts) << 20
    return table.astype(np.uint32, copy=False)


def _indices(place: Place) -> npt.NDArray[np.int64]:
    """Of all numbers in the chunk, shape (tokens, channels)."""
    inner = (place.head_at[:, None] + np.arange(place.head_numbers)).ravel()
    found: npt.NDArray[np.int64] = place.token_at[:, None] + inner
    return found


def _numbers(chunk: Bytes, element: Element) -> npt.NDArray[np.float32]:
    if element is Element.BF16:
        return (chunk.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return chunk.view("<f4")
