"""The lossless form: bytes of equal weight side by side, each such plane through zstd where that gains. Pure.

The numbers of a KV cache differ in sign and mantissa as noise does, and hardly in exponent. So every number is turned
left by one bit, which puts the sign below the mantissa and the exponent of bf16 and fp32 into a byte of its own, and
the first bytes of all numbers are stored side by side, then the second ones: planes. The exponents' plane shrinks to a
third; the others are stored as they are.

| offset | field | bytes |
|---|---|---|
| 0 | magic `KVCP` | 4 |
| 4 | bytes of a number: 1, 2 or 4; its planes follow, the most significant first | 1 |
| 5 | version | 1 |
| 6 | zeros | 2 |
| 8 | bytes of the chunk | 8 |
| 16 | of each plane: bytes stored; as many as the plane has: it is stored as it is | 8 each |

then the planes, then what is left of a chunk that is no whole number of numbers. Integers are big-endian.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import zstandard

from kvcodec.forms import SHARE_MAX, CodecError
from kvcodec.loops import Bytes, Loops

VERSION: Final = 1
WIDTHS: Final = (1, 2, 4)
_MAGIC: Final = b"KVCP"
_HEAD: Final = struct.Struct("!4sBB2xQ")
_PLANE: Final = struct.Struct("!Q")
_LEVEL: Final = 1
_SAMPLE_BYTES: Final = 1 << 16
_AS_GOOD: Final = 1.02
"""A sample of more planes looks a little better than it is: the narrowest width that is nearly the best is taken."""
_NOISE_BITS: Final = 7.8
"""Of entropy a byte: a sample that has more is not worth the time of trying."""


def encode(chunk: memoryview, loops: Loops, width: int | None = None) -> bytes | None:
    """The form of a chunk; None: it would not be smaller.

    `width`: bytes of a number (bf16 and fp16 have 2); None: whatever looks best in a sample.
    Raises CodecError for a width that is none of WIDTHS.
    """
    content = np.frombuffer(chunk, np.uint8)
    chosen = likely_width(content, loops) if width is None else width
    if chosen not in WIDTHS:
        raise CodecError(f"numbers of {chosen} bytes; {', '.join(map(str, WIDTHS))} are known")
    whole = len(content) // chosen * chosen
    stored = [_plane(plane) for plane in _split(content[:whole], chosen, loops)]
    head = _HEAD.pack(_MAGIC, chosen, VERSION, len(content)) + b"".join(_PLANE.pack(len(one)) for one in stored)
    size_bytes = len(head) + sum(map(len, stored)) + len(content) - whole
    if size_bytes > SHARE_MAX * len(content):
        return None
    return b"".join((head, *stored, content[whole:].tobytes()))


def decode(stored: memoryview, chunk: memoryview, loops: Loops) -> None:
    """Write the chunk that `encode` was given. Raises CodecError; the chunk may have been written to."""
    width, places, rest = _checked(stored, len(chunk))
    out = np.frombuffer(chunk, np.uint8)
    whole = len(out) // width * width
    count = whole // width
    found = [_unpacked(stored[start:end], count) for start, end in places]
    if width == 1:
        out[:whole] = found[0]
    else:
        loops.join(found, out[:whole])
    out[whole:] = np.frombuffer(stored[rest:], np.uint8)


def likely_width(content: Bytes, loops: Loops) -> int:
    """The width whose planes have about the least entropy, by a sample from the middle."""
    middle = len(content) // 2 // 4 * 4
    sample = content[max(0, middle - _SAMPLE_BYTES // 2) :][:_SAMPLE_BYTES]
    sample = sample[: len(sample) // 4 * 4]
    if not len(sample):
        return 1
    bits = {width: sum(map(entropy_bits, _split(sample, width, loops))) / width for width in WIDTHS}
    return next(width for width in WIDTHS if bits[width] <= _AS_GOOD * min(bits.values()))


def entropy_bits(plane: Bytes) -> float:
    """Bits a byte, each byte by itself."""
    counts = np.bincount(plane, minlength=256)
    shares = counts[counts > 0] / max(1, len(plane))
    return float(-(shares * np.log2(shares)).sum())


def _split(content: Bytes, width: int, loops: Loops) -> list[Bytes]:
    return [content] if width == 1 else loops.split(content, width)


def _plane(plane: Bytes) -> bytes:
    middle = max(0, len(plane) - _SAMPLE_BYTES) // 2
    if entropy_bits(plane[middle : middle + _SAMPLE_BYTES]) > _NOISE_BITS:
        return plane.tobytes()
    packed: bytes = zstandard.ZstdCompressor(level=_LEVEL).compress(plane.data)
    return packed if len(packed) < len(plane) else plane.tobytes()


def _checked(stored: memoryview, chunk_bytes: int) -> tuple[int, list[tuple[int, int]], int]:
    """(width, place of each plane, where the rest begins). Raises CodecError."""
    if len(stored) < _HEAD.size:
        raise CodecError(f"{len(stored)} bytes are not even a head")
    magic, width, version, size_bytes = _HEAD.unpack_from(stored)
    if magic != _MAGIC or version != VERSION or width not in WIDTHS:
        raise CodecError("not planes of a chunk")
    if size_bytes != chunk_bytes:
        raise CodecError(f"planes of a chunk of {size_bytes} bytes, not of {chunk_bytes}")
    at = _HEAD.size + width * _PLANE.size
    if len(stored) < at:
        raise CodecError("planes without their sizes")
    places = []
    for plane in range(width):
        (plane_bytes,) = _PLANE.unpack_from(stored, _HEAD.size + plane * _PLANE.size)
        if plane_bytes > min(chunk_bytes // width, len(stored) - at):
            raise CodecError(f"a plane of {plane_bytes} bytes does not fit")
        places.append((at, at + plane_bytes))
        at += plane_bytes
    if len(stored) - at != chunk_bytes % width:
        raise CodecError("planes with something else behind them")
    return width, places, at


def _unpacked(stored: memoryview, count: int) -> Bytes:
    """A plane of `count` bytes. Raises CodecError."""
    if len(stored) == count:
        return np.frombuffer(stored, np.uint8)
    try:
        # zstd takes as much memory as a frame says that it has: what it says is looked at before.
        if zstandard.get_frame_parameters(stored).content_size != count:
            raise CodecError("a plane of another size")
        plane = zstandard.ZstdDecompressor().decompress(stored, max_output_size=count, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CodecError(f"a damaged plane: {error}") from None
    if len(plane) != count:
        raise CodecError("a plane of another size")
    return np.frombuffer(plane, np.uint8)
