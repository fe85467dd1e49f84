"""Chunks into forms of fewer bytes and back, timed: what the threads of the disk and of the cold store call.

Blocking, and it lets go of the GIL for most of its time. A thread's own time is measured, so that other work on the
processor does not make a form look slow.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

import numpy as np

from kvchunk.kv_layout import KvLayout, terms_of
from kvcodec import codec
from kvcodec.forms import Form, StoredForm
from kvcodec.native import best_loops
from kvpolicy.tiers.form_costs import FormWork

TRIAL_LAYOUT: Final = KvLayout("bf16", (("l", 2), ("b", 8), ("p", 2), ("t", 16), ("h", 8), ("d", 128)))
"""1 MiB."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A chunk in a form."""

    form: Form
    content: bytes | memoryview
    work: FormWork | None
    """What it took; None: it stayed as it is."""

    @property
    def stored(self) -> StoredForm:
        """How it lies in a store."""
        return StoredForm(self.form, len(self.content))


def encode(chunk: memoryview, form: Form, label: str) -> Encoded:
    """A chunk in a form, or in a lesser one where that form gains nothing. `label`: of its namespace."""
    if form is Form.RAW:
        return Encoded(form, chunk, None)
    terms = terms_of(label, len(chunk))
    if form is Form.LOSSY and (terms is None or not terms.may_lose):
        form = Form.PLANES
    began_s = time.thread_time()
    found, content = codec.encode(chunk, form, best_loops(), None if terms is None else terms.layout)
    work = FormWork(found, len(chunk), len(content), encode_s=time.thread_time() - began_s)
    return Encoded(found, content, None if found is Form.RAW else work)


def decode(form: Form, content: memoryview, chunk: memoryview) -> FormWork | None:
    """Write a chunk; what it took. Raises CodecError."""
    began_s = time.thread_time()
    codec.decode(form, content, chunk, best_loops())
    if form is Form.RAW:
        return None
    return FormWork(form, len(chunk), len(content), decode_s=time.thread_time() - began_s)


def try_out() -> list[FormWork]:
    """Each form once, there and back, on numbers spread as KV is: what this processor takes."""
    numbers = np.random.default_rng(0).standard_normal(TRIAL_LAYOUT.numbers, np.float32)
    chunk = memoryview((numbers.view(np.uint32) >> 16).astype(np.uint16).tobytes())
    into = memoryview(bytearray(len(chunk)))
    works = []
    for form in (Form.PLANES, Form.LOSSY):
        # The first time is for caches, and for the C compiler.
        for _ in range(2):
            began_s = time.thread_time()
            found, content = codec.encode(chunk, form, best_loops(), TRIAL_LAYOUT)
            encode_s = time.thread_time() - began_s
            work = decode(found, memoryview(content), into)
        assert work is not None
        works.append(FormWork(found, len(chunk), len(content), encode_s, work.decode_s))
    return works
