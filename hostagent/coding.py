"""Chunks into forms of fewer bytes and back, timed: what the threads of the disk and of the cold store call, and the
thread that makes twins.

The functions block, and let go of the GIL for most of their time. A thread's own time is measured, so that other work
on the processor does not make a form look slow.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np

from hostagent.core import effects, events
from hostagent.memory.pool_memory import PoolMemory
from hostagent.pool.chunks import Chunk
from hostagent.tree import NOT_HASHED, hashed
from kvchunk.kv_layout import KvLayout, terms_of
from kvcodec import codec
from kvcodec.forms import CodecError, Form, StoredForm
from kvcodec.native import native_loops
from kvpolicy.tiers.form_costs import FormWork

TRIAL_LAYOUT: Final = KvLayout("bf16", (("l", 2), ("b", 8), ("p", 2), ("t", 16), ("h", 8), ("d", 128)))
"""1 MiB."""
_DECODING, _PLACING, _ENCODING, _END = range(4)


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


def encode(chunk: memoryview, form: Form, namespace: str) -> Encoded:
    """A chunk in a form, or in a lesser one where that form gains nothing. `namespace`: its own."""
    if form is Form.RAW:
        return Encoded(form, chunk, None)
    terms = terms_of(namespace, len(chunk))
    if form is Form.LOSSY and (terms is None or not terms.may_lose):
        form = Form.PLANES
    began_s = time.thread_time()
    found, content = codec.encode(chunk, form, native_loops(), None if terms is None else terms.layout)
    work = FormWork(found, len(chunk), len(content), encode_s=time.thread_time() - began_s)
    return Encoded(found, content, None if found is Form.RAW else work)


def decode(form: Form, content: memoryview, chunk: memoryview) -> FormWork | None:
    """Write a chunk; what it took. Raises CodecError."""
    began_s = time.thread_time()
    codec.decode(form, content, chunk, native_loops())
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
        # The first time is for caches.
        for _ in range(2):
            began_s = time.thread_time()
            found, content = codec.encode(chunk, form, native_loops(), TRIAL_LAYOUT)
            encode_s = time.thread_time() - began_s
            work = decode(found, memoryview(content), into)
        assert work is not None
        works.append(FormWork(found, len(chunk), len(content), encode_s, work.decode_s))
    return works


@dataclass(order=True, slots=True)
class _Work:
    rank: int
    number: int
    run: Callable[[], events.Event] | None = field(compare=False)


class Coder:
    """Makes twins of chunks, and chunks of twins: what the core asks for by EncodeTwin, PlaceTwin, DecodeTwin.

    Owns one thread: encoding goes behind decoding, which somebody waits for, and the event loop has a core for itself.
    The core keeps all chunks in effects as they are until they are answered.
    """

    def __init__(
        self, memory: PoolMemory, loop: asyncio.AbstractEventLoop, handle: Callable[[events.Event], None]
    ) -> None:
        self._memory = memory
        self._loop = loop
        self._handle = handle
        self._numbers = itertools.count()
        self._works: queue.PriorityQueue[_Work] = queue.PriorityQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def carriers(self) -> Mapping[type, Callable[[Any], None]]:
        """What carries out which effect: each is answered by an event, TwinEncoded, TwinPlaced, TwinDecoded."""
        return {
            effects.EncodeTwin: lambda effect: self._give(_ENCODING, partial(self._encode, effect)),
            effects.PlaceTwin: lambda effect: self._give(_PLACING, partial(self._place, effect)),
            effects.DecodeTwin: lambda effect: self._give(_DECODING, partial(self._decode, effect)),
        }

    def close(self) -> None:
        """Wait for what the thread is at; nobody hears of it, nor of what waits."""
        self._closed = True
        if self._thread is not None:
            self._works.put(_Work(-1, next(self._numbers), None))
            self._thread.join()

    def _give(self, rank: int, run: Callable[[], events.Event]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="twins", daemon=True)
            self._thread.start()
        self._works.put(_Work(rank, next(self._numbers), run))

    def _run(self) -> None:
        while (run := self._works.get().run) is not None:
            event = run()
            if not self._closed:
                self._loop.call_soon_threadsafe(self._ended, event)

    def _ended(self, event: events.Event) -> None:
        if not self._closed:
            self._handle(event)

    # ------------------------------------------------------------------ in the thread

    def _view(self, chunk: Chunk) -> memoryview:
        return self._memory.view(chunk.offset, chunk.size_bytes)

    def _encode(self, effect: effects.EncodeTwin) -> events.Event:
        chunk = effect.chunk
        encoded = encode(self._view(chunk), effect.form, chunk.namespace)
        return events.TwinEncoded(chunk, encoded.form, encoded.content, encoded.work)

    def _place(self, effect: effects.PlaceTwin) -> events.Event:
        view = self._view(effect.into)
        view[:] = effect.content
        return events.TwinPlaced(effect.into, hashed(view, effect.integrity))

    def _decode(self, effect: effects.DecodeTwin) -> events.Event:
        view = self._view(effect.into)
        try:
            work = decode(effect.form, self._view(effect.twin), view)
        except CodecError:
            return events.TwinDecoded(effect.into, whole=False, hashed=NOT_HASHED, work=None)
        return events.TwinDecoded(effect.into, whole=True, hashed=hashed(view, effect.integrity), work=work)
