"""A chunk into one of its forms and back: what those who store chunks call. Pure, given the loops."""

from __future__ import annotations

import numpy as np

from kvchunk.kv_layout import ELEMENT_BYTES, KvLayout
from kvcodec import lossy, planes
from kvcodec.forms import CodecError, Form
from kvcodec.loops import Loops

__all__ = ["decode", "encode"]


def encode(
    chunk: memoryview, form: Form, loops: Loops, layout: KvLayout | None = None
) -> tuple[Form, bytes | memoryview]:
    """(form, bytes) of a chunk in a form, or where that would not be smaller in the best one below it.

    `layout`: how its numbers lie; LOSSY needs it. Raises CodecError: it is not the chunk's, or missing.
    """
    if form is Form.LOSSY:
        if layout is None:
            raise CodecError("the lossy form of a chunk needs its layout")
        stored = lossy.encode(chunk, layout, loops)
        if stored is not None:
            return Form.LOSSY, stored
    if form is not Form.RAW:
        width = None if layout is None else ELEMENT_BYTES[layout.element]
        stored = planes.encode(chunk, loops, width)
        if stored is not None:
            return Form.PLANES, stored
    return Form.RAW, chunk


def decode(form: Form, stored: memoryview, chunk: memoryview, loops: Loops) -> None:
    """Write the chunk. Raises CodecError, and then the chunk's bytes mean nothing."""
    match form:
        case Form.LOSSY:
            lossy.decode(stored, chunk, loops)
        case Form.PLANES:
            planes.decode(stored, chunk, loops)
        case Form.RAW:
            if len(stored) != len(chunk):
                raise CodecError(f"{len(stored)} bytes of a chunk of {len(chunk)}")
            # numpy lets go of the GIL while it copies.
            np.copyto(np.frombuffer(chunk, np.uint8), np.frombuffer(stored, np.uint8))
