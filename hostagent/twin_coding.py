"""Makes twins of chunks, and chunks of twins, in a thread: what the core asks for by EncodeTwin, PlaceTwin, DecodeTwin.

One thread: encoding goes behind decoding, which somebody waits for, and the event loop has a core for itself.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from hostagent import coding
from hostagent.core import effects, events
from hostagent.pool.chunks import Chunk
from hostagent.pool.memory import PoolMemory
from hostagent.tree import NOT_HASHED, hashed
from kvcodec.forms import CodecError

_DECODING, _PLACING, _ENCODING, _END = range(4)


@dataclass(order=True, slots=True)
class _Work:
    rank: int
    number: int
    run: Callable[[], events.Event] | None = field(compare=False)


class TwinCoding:
    """One agent's. The core keeps all chunks in effects as they are until they are answered."""

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

    def encode(self, effect: effects.EncodeTwin) -> None:
        """Answered by TwinEncoded."""
        self._give(_ENCODING, partial(self._encode, effect))

    def place(self, effect: effects.PlaceTwin) -> None:
        """Answered by TwinPlaced."""
        self._give(_PLACING, partial(self._place, effect))

    def decode(self, effect: effects.DecodeTwin) -> None:
        """Answered by TwinDecoded."""
        self._give(_DECODING, partial(self._decode, effect))

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
        encoded = coding.encode(self._view(chunk), effect.form, chunk.namespace)
        return events.TwinEncoded(chunk, encoded.form, encoded.content, encoded.work)

    def _place(self, effect: effects.PlaceTwin) -> events.Event:
        view = self._view(effect.into)
        view[:] = effect.content
        return events.TwinPlaced(effect.into, hashed(view, effect.integrity))

    def _decode(self, effect: effects.DecodeTwin) -> events.Event:
        view = self._view(effect.into)
        try:
            work = coding.decode(effect.form, self._view(effect.twin), view)
        except CodecError:
            return events.TwinDecoded(effect.into, whole=False, hashed=NOT_HASHED, work=None)
        return events.TwinDecoded(effect.into, whole=True, hashed=hashed(view, effect.integrity), work=work)
