"""The lossy form: KV rounded to a grid, tokens as differences from an anchor token, range-coded. Pure.

In the style of CacheGen (Y. Liu et al., SIGCOMM 2024, arXiv 2310.07240), which found that neighbouring tokens have
similar KV, that layers near the input bear less rounding, and that the symbols of a layer and channel are far from
evenly spread:

* Every number becomes the nearest whole multiple of its channel's *step*. A step is a share of the channel's standard
  deviation, the smaller the nearer its layer is to the input (`Level`), and one of STEPS, which a byte names.
* The first of each GROUP_TOKENS tokens is an *anchor*. Other tokens are differences from it, of whole numbers, so no
  rounding adds up.
* Anchors and differences are coded by rANS (`kvcodec.loops`) with one static model each for a layer's K and for its V,
  which is stored with them. What no symbol stands for is stored beside.

A decoder works with whole numbers and one exact product, so it gives the same bits on any machine.

| offset | field | bytes |
|---|---|---|
| 0 | magic `KVCL` | 4 |
| 4 | version | 1 |
| 5 | bytes of the layout's text | 1 |
| 6 | tokens of a group | 2 |
| 8 | the layout (`kvchunk.kv_layout`) | as said |
| then | bytes of each segment | 4 each |

and the segments: of each layer, of each part (K, V):

| field | bytes |
|---|---|
| the number of each channel's step in STEPS | 1 each |
| twice, for anchors and differences: first symbol used, last one, frequency of each between | 1, 1, 2 each |
| escapes: how many, and the numbers | 4, 2 each |
| twice, for anchors and differences: words, states, the words | 4, 4 each, 2 each |

Integers are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from kvchunk.kv_layout import ELEMENT_BYTES, LAYOUT_BYTES_MAX, KvLayout, parse_layout
from kvcodec.forms import SHARE_MAX, CodecError
from kvcodec.loops import ESCAPE, LANES, PROBS, STATE_LOW, ZERO, Bytes, Coded, Element, Loops, Place, Quantised, Steps

VERSION: Final = 1
GROUP_TOKENS: Final = 10
MULTIPLE_MAX: Final = 16_383
"""Of a step; so the difference of two fits 16 bits."""
STEPS: Final[Steps] = np.array([(8 + code % 8) * 2.0 ** (code // 8 - 24) for code in range(256)], np.float32)
"""From 5e-7 to 1,920, each 6 to 12 % above the one before; exact, and so is a step's product with any multiple."""
_SAMPLE_TOKENS: Final = 128
"""Tokens that a channel's deviation is taken of."""
_NUMBER_MAX: Final = np.float32(STEPS[-2] * MULTIPLE_MAX / 2)
_MAGIC: Final = b"KVCL"
_HEAD: Final = struct.Struct("<4sBBH")
_COUNT: Final = struct.Struct("<I")
_FP16_MAX: Final = 65_504.0
_DEVIATION: Final = np.float32(1.25)
"""Standard deviation of what is spread as noise is, by its mean absolute one: this way single outliers (tokens that all
others attend to) hardly count."""


@dataclass(frozen=True, slots=True)
class Level:
    """How much is rounded: steps as shares of channels' standard deviations, in the first third of layers, the second
    and the last."""

    shares: tuple[float, float, float]


FINE: Final = Level((0.2, 0.3, 0.4))
MEDIUM: Final = Level((0.35, 0.5, 0.65))
COARSE: Final = Level((0.6, 0.8, 1.0))
LEVELS: Final = {"fine": FINE, "medium": MEDIUM, "coarse": COARSE}


def encode(
    chunk: memoryview, layout: KvLayout, loops: Loops, level: Level = MEDIUM, group: int = GROUP_TOKENS
) -> bytes | None:
    """The form of a chunk; None: it would not be smaller, or has numbers that no grid holds (infinite, or huge).

    Raises CodecError where the layout is not the chunk's.
    """
    if len(chunk) != layout.size_bytes:
        raise CodecError(f"a chunk of {len(chunk)} bytes with a layout of {layout.size_bytes}")
    content = np.frombuffer(chunk, np.uint8)
    content, element = _as_element(keys_turned(content, layout) if layout.keys_across else content, layout)
    segments = []
    for layer, start, place in _segments(layout):
        share = level.shares[3 * layer // layout.size("l")]
        part = content[start * _WIDTHS[element] :]
        codes = _step_codes(part, element, place, share, loops)
        if codes is None:
            return None
        found = loops.quantise(part, element, place, STEPS[codes], group)
        segments.append(_packed_segment(codes, found, loops))
    text = layout.text.encode()
    head = _HEAD.pack(_MAGIC, VERSION, len(text), group) + text
    stored = b"".join((head, *(_COUNT.pack(len(one)) for one in segments), *segments))
    return stored if len(stored) <= SHARE_MAX * len(chunk) else None


def decode(stored: memoryview, chunk: memoryview, loops: Loops) -> None:
    """Write the chunk as far as `encode` kept it. Raises CodecError; the chunk may have been written to."""
    layout, group, places = _checked(stored, len(chunk))
    out = np.frombuffer(chunk, np.uint8)
    is_half = layout.element == "fp16"
    element = Element.BF16 if layout.element == "bf16" else Element.FP32
    content = np.empty((1 + is_half) * len(out), np.uint8) if is_half or layout.keys_across else out
    width = _WIDTHS[element]
    for (_, start, place), (at, end) in zip(_segments(layout), places, strict=True):
        _restore_segment(stored[at:end], content[start * width :], place, element, group, loops)
    if is_half:
        content = np.clip(content.view("<f4"), -_FP16_MAX, _FP16_MAX).astype("<f2").view(np.uint8)
    if content is not out:
        out[:] = keys_turned(content, layout, back=True) if layout.keys_across else content


# ------------------------------------------------------------------ where numbers lie

_WIDTHS: Final = {Element.BF16: 2, Element.FP32: 4}


def _segments(layout: KvLayout) -> Iterator[tuple[int, int, Place]]:
    """(layer, first number, where its numbers lie from there) of each layer's K, then V."""
    sizes = [size for _, size in layout.axes]
    strides = dict.fromkeys("lpbthd", 0)
    below = 1
    for (axis, _), size in zip(reversed(layout.axes), reversed(sizes), strict=True):
        strides[axis] = below
        below *= size
    blocks, tokens = np.arange(layout.size("b")), np.arange(layout.size("t"))
    token_at = (blocks[:, None] * strides["b"] + tokens * strides["t"]).ravel().astype(np.int64)
    place = Place(token_at, np.arange(layout.size("h"), dtype=np.int64) * strides["h"], layout.size("d"))
    for layer in range(layout.size("l")):
        for part in range(layout.size("p")):
            yield layer, layer * strides["l"] + part * strides["p"], place


def keys_turned(content: Bytes, layout: KvLayout, *, back: bool = False) -> Bytes:
    """A copy of a chunk of `layout.keys_across` in which keys lie as values do; with `back` the reverse."""
    parts = [name for name, _ in layout.axes].index("p")
    made = content.view(f"<u{ELEMENT_BYTES[layout.element]}").reshape([size for _, size in layout.axes]).copy()
    keys = made.take(0, parts)
    *outer, tokens, numbers = keys.shape
    if back:
        turned = keys.swapaxes(-1, -2).reshape(keys.shape)
    else:
        turned = keys.reshape(*outer, numbers, tokens).swapaxes(-1, -2)
    np.moveaxis(made, parts, 0)[0] = turned
    found: Bytes = made.reshape(-1).view(np.uint8)
    return found


def _as_element(content: Bytes, layout: KvLayout) -> tuple[Bytes, Element]:
    if layout.element == "fp16":
        return content.view("<f2").astype("<f4").view(np.uint8), Element.FP32
    return content, Element.BF16 if layout.element == "bf16" else Element.FP32


def _floats(content: Bytes, element: Element, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    if element is Element.BF16:
        return (content.view("<u2")[indices].astype(np.uint32) << 16).view(np.float32)
    found: npt.NDArray[np.float32] = content.view("<f4")[indices]
    return found


def _step_codes(content: Bytes, element: Element, place: Place, share: float, loops: Loops) -> Bytes | None:
    """Of each channel; None: some number is beyond any grid, or none."""
    largest = loops.largest(content, element, place)
    if not np.all(largest <= _NUMBER_MAX):
        return None
    inner = (place.head_at[:, None] + np.arange(place.head_numbers)).ravel()
    sampled = place.token_at[:: -(-len(place.token_at) // _SAMPLE_TOKENS)]
    rows = _floats(content, element, sampled[:, None] + inner)
    deviation = np.abs(rows - rows.mean(axis=0)).mean(axis=0) * _DEVIATION
    wanted = np.maximum(share * deviation, largest / np.float32(MULTIPLE_MAX - 1))
    codes = np.maximum(np.searchsorted(STEPS, wanted, "right"), 1) - 1
    # A step below what is wanted, but never one that leaves a multiple too large.
    codes += STEPS[codes] * np.float32(MULTIPLE_MAX - 1) < largest
    found: Bytes = codes.astype(np.uint8)
    return found


# ------------------------------------------------------------------ segments


def _packed_segment(codes: Bytes, found: Quantised, loops: Loops) -> bytes:
    tables, streams = [], []
    for symbols in (found.anchors, found.deltas):
        frequency = frequencies(np.bincount(symbols, minlength=256))
        used = np.flatnonzero(frequency)
        first, last = int(used[0]), int(used[-1])
        tables.append(bytes((first, last)) + frequency[first : last + 1].astype("<u2").tobytes())
        coded = loops.rans_encode(symbols, frequency)
        streams.append(_COUNT.pack(len(coded.words)) + coded.states.astype("<u4").tobytes())
        streams.append(coded.words.astype("<u2").tobytes())
    escapes = _COUNT.pack(len(found.escapes)) + found.escapes.astype("<i2").tobytes()
    return b"".join((codes.tobytes(), *tables, escapes, *streams))


def frequencies(counts: npt.NDArray[np.intp]) -> npt.NDArray[np.uint32]:
    """Of 256 symbols, summing to PROBS: in proportion to their counts, at least 1 for each that occurs, and never all
    for one."""
    counts = counts.astype(np.int64)
    if np.count_nonzero(counts) < 2:
        counts[[0, 1]] += 1
    shares = np.maximum(counts > 0, counts * PROBS // counts.sum())
    while (excess := int(shares.sum()) - PROBS) > 0:
        largest = int(shares.argmax())
        shares[largest] -= min(excess, int(shares[largest]) // 2)
    shares[shares.argmax()] -= excess
    found: npt.NDArray[np.uint32] = shares.astype(np.uint32)
    return found


class _Bytes:
    """Stored bytes, taken from the front. Raises CodecError at their end."""

    def __init__(self, stored: memoryview) -> None:
        self._rest = stored

    def take(self, count: int, kind: str) -> npt.NDArray[np.generic]:
        """`count` numbers of a kind, in memory of their own."""
        size_bytes = count * np.dtype(kind).itemsize
        if size_bytes > len(self._rest):
            raise CodecError("a segment that ends too early")
        found = np.frombuffer(self._rest[:size_bytes], kind).astype(kind[1:])
        self._rest = self._rest[size_bytes:]
        return found

    def count(self) -> int:
        """A count."""
        return int(self.take(1, "<u4")[0])

    def frequencies(self) -> npt.NDArray[np.uint32]:
        """Of 256 symbols, summing to PROBS."""
        first, last = (int(one) for one in self.take(2, "<u1"))
        frequency = np.zeros(256, np.uint32)
        frequency[first : last + 1] = self.take(max(0, last - first + 1), "<u2")
        if frequency.sum() != PROBS or frequency.max() >= PROBS:
            raise CodecError("frequencies that are none")
        return frequency

    def stream(self) -> Coded:
        """A range code."""
        count = self.count()
        states = self.take(LANES, "<u4")
        return Coded(states.astype(np.uint32), self.take(count, "<u2").astype(np.uint16))

    def end(self) -> None:
        """Nothing follows."""
        if len(self._rest):
            raise CodecError("a segment with something else behind it")


def _restore_segment(
    stored: memoryview, content: Bytes, place: Place, element: Element, group: int, loops: Loops
) -> None:
    source = _Bytes(stored)
    steps = STEPS[source.take(place.channels, "<u1")]
    models = (source.frequencies(), source.frequencies())
    escapes = source.take(source.count(), "<i2").astype(np.int16)
    tokens = len(place.token_at)
    groups = -(-tokens // group)
    symbols = []
    for frequency, count in zip(models, (groups * place.channels, (tokens - groups) * place.channels), strict=True):
        coded = source.stream()
        try:
            found, states, used = loops.rans_decode(coded, frequency, count)
        except ValueError as error:
            raise CodecError(f"a damaged range code: {error}") from None
        if used != len(coded.words) or np.any(states != STATE_LOW):
            raise CodecError("a range code that does not end where it should")
        symbols.append(found)
    source.end()
    try:
        used = loops.restore(Quantised(symbols[0], symbols[1], escapes), steps, group, place, element, content)
    except ValueError as error:
        raise CodecError(str(error)) from None
    if used != len(escapes):
        raise CodecError("more escapes than numbers that escaped")


def _checked(stored: memoryview, chunk_bytes: int) -> tuple[KvLayout, int, list[tuple[int, int]]]:
    """(layout, tokens of a group, place of each segment). Raises CodecError."""
    if len(stored) < _HEAD.size:
        raise CodecError(f"{len(stored)} bytes are not even a head")
    magic, version, text_bytes, group = _HEAD.unpack_from(stored)
    if magic != _MAGIC or version != VERSION or text_bytes > LAYOUT_BYTES_MAX or not group:
        raise CodecError("not the lossy form of a chunk")
    try:
        layout = parse_layout(bytes(stored[_HEAD.size : _HEAD.size + text_bytes]).decode("ascii"))
    except ValueError as error:
        raise CodecError(f"malformed layout: {error}") from None
    if layout.size_bytes != chunk_bytes:
        raise CodecError(f"a chunk of {layout.size_bytes} bytes, not of {chunk_bytes}")
    at = _HEAD.size + text_bytes
    segments = layout.size("l") * layout.size("p")
    if len(stored) - at < segments * _COUNT.size:
        raise CodecError("segments without their sizes")
    sizes = np.frombuffer(stored[at : at + segments * _COUNT.size], "<u4").astype(np.int64)
    at += segments * _COUNT.size
    ends = at + np.cumsum(sizes)
    if ends[-1] != len(stored):
        raise CodecError("segments of other sizes than they say")
    return layout, group, list(zip((ends - sizes).tolist(), ends.tolist(), strict=True))


assert STEPS[0] > 0
assert np.all(np.diff(STEPS) > 0)
assert ESCAPE > 2 * ZERO
assert 2 * MULTIPLE_MAX < 1 << 15
