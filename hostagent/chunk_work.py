"""What an agent does to the bytes of chunks: takes them in, hashes and codes them, keeps them on disk and in the cold
store.

Decides nothing: carries out the core's effects, and feeds it what came of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from hostagent import coding
from hostagent.cold.tier import ColdTier
from hostagent.core import effects, events
from hostagent.disk.store import DiskStore
from hostagent.hashing import Hashing
from hostagent.intake import Intake
from hostagent.pool.chunks import Chunk
from hostagent.tree import Hashed
from kvproto.units import format_bytes

log = logging.getLogger(__name__)


class ChunkWork:
    """Owns the threads that take chunks in and hash them. Where a chunk lies it is told; why, it does not know."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        handle: Callable[[events.Event], None],
        settle: Callable[[], None],
        hashing: Hashing,
        intake: Intake,
        store: DiskStore | None,
        cold: ColdTier | None,
    ) -> None:
        """`handle` feeds the core an event; `settle()`: once it returns, no cast is being written that was let in
        before. Those who do the work are closed by `close`, but the disk and the cold store, which are the caller's."""
        self._loop = loop
        self._handle = handle
        self._settle = settle
        self._hashing = hashing
        self._intake = intake
        self._store = store
        self._cold = cold
        self._forms_tried: asyncio.Task[None] | None = None

    def carriers(self) -> Mapping[type, Callable[[Any], None]]:
        """What carries out which effect."""
        return {
            effects.TakeChunk: self._intake.take,
            effects.ComputeDigest: self._compute_digest,
            effects.HashPieces: self._hash_pieces,
            effects.ForgetPieces: lambda one: self._hashing.forget(one.chunk.offset),
            effects.LoadChunk: self._load,
            effects.SaveChunk: self._save,
            effects.ForgetStored: self._forget_stored,
            effects.LookUpCold: self._in_cold(ColdTier.look_up),
            effects.LoadCold: self._in_cold(ColdTier.load),
            effects.SaveCold: self._in_cold(ColdTier.save),
            effects.ForgetCold: self._in_cold(ColdTier.forget),
            effects.PoolAdopted: self._pool_adopted,
        }

    def try_forms(self) -> None:
        """Learn what chunks in fewer bytes take here; until then they stay as they are."""
        self._forms_tried = self._loop.create_task(self._try_forms())

    def close(self) -> None:
        """End the threads; of trying forms nobody hears any more, although a thread ends what it has begun."""
        if self._forms_tried is not None:
            self._forms_tried.cancel()
        self._intake.close()
        self._hashing.close()

    def _compute_digest(self, effect: effects.ComputeDigest) -> None:
        chunk = effect.chunk
        done = partial(self._digest_computed, chunk, effect.use)
        self._hashing.start(chunk.offset, chunk.size_bytes, effect.integrity, done, in_background=effect.in_background)

    def _hash_pieces(self, effect: effects.HashPieces) -> None:
        # A cast that was let in before its segment came another way may still be being written.
        self._settle()
        self._hashing.begin(effect.chunk.offset, effect.chunk.size_bytes, effect.pieces)

    def _pool_adopted(self, effect: effects.PoolAdopted) -> None:
        log.info(
            "the pool of the agent before: %d chunks of %s are right, %d are not",
            effect.chunks_count,
            format_bytes(effect.size_bytes),
            effect.lost_count,
        )

    def _digest_computed(self, chunk: Chunk, use: events.DigestUse, hashed: Hashed) -> None:
        self._handle(events.DigestComputed(chunk, hashed, use))

    def _load(self, effect: effects.LoadChunk) -> None:
        if self._store is None:
            raise AssertionError("a load without a disk")
        self._store.load(effect.into.key, effect.into, partial(self._load_ended, effect.into))

    def _load_ended(self, into: Chunk, outcome: events.LoadOutcome, hashed: Hashed) -> None:
        self._handle(events.LoadEnded(into, outcome, hashed))

    def _save(self, effect: effects.SaveChunk) -> None:
        if self._store is None:
            raise AssertionError("a save without a disk")
        if not self._store.save(effect.chunk, partial(self._save_ended, effect.chunk), effect.form):
            ended = events.SaveEnded(effect.chunk, events.SaveOutcome.REFUSED)
            self._loop.call_soon(self._handle, ended)

    def _save_ended(self, chunk: Chunk, stored: bool) -> None:
        outcome = events.SaveOutcome.STORED if stored else events.SaveOutcome.FAILED
        self._handle(events.SaveEnded(chunk, outcome))

    async def _try_forms(self) -> None:
        for work in await self._loop.run_in_executor(None, coding.try_out):
            self._handle(events.FormMeasured(work))

    def _in_cold(self, method: Callable[[ColdTier, Any], None]) -> Callable[[Any], None]:
        """What carries out an effect in the cold store."""

        def carry(effect: Any) -> None:
            if self._cold is None:
                raise AssertionError("work for a cold store that there is not")
            method(self._cold, effect)

        return carry

    def _forget_stored(self, effect: effects.ForgetStored) -> None:
        if self._store is not None:
            self._store.drop(effect.key)
