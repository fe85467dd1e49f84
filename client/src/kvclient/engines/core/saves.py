"""Saves under way: which blocks they read, which workers are still at them, and when one may not begin. Pure.

Workers copy in threads, after the step that computed a chunk and during those that follow. What they copy is what the
keys say, because

* a chunk is saved only if all its tokens were known before the step that computes the last of them: drafted tokens,
  which may not be kept, lie behind it;
* the copy begins when that step's work is done: on a CPU that is when it is ordered, on a GPU an event says so;
* their blocks are kept by vLLM's own reference counts, from the schedule of that step until every worker has answered.
  The end, the abort and the preemption of a request give up the request's own reference and no other;
* a full block is not written again while anybody has it: what follows goes into later blocks. The exceptions are loads
  that fail in the very step that computes on them, which vLLM repeats in place (`_layers_open` of the scheduler's
  connector says when);
* vLLM does not reset its prefix cache while blocks are kept. So a reset abandons the saves under way, and workers are
  told before they compute the next step: what a save has not read by then does not become a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvchunk.ids import ChunkKey
from kvclient.engines.core.requests import SavableChunk


@dataclass(frozen=True, slots=True)
class Save:
    """An order to all workers: copy a chunk's blocks into the pool. The blocks are kept until all have answered."""

    save: int
    keys: tuple[ChunkKey, ...]
    parents: tuple[ChunkKey | None, ...]
    position: int
    block_ids: tuple[int, ...]
    is_state: bool = False
    """Whether it is the state of recurrent layers at the end of the chunk that is its parent."""


@dataclass(frozen=True, slots=True)
class Saved:
    """All workers have answered."""

    save: Save
    whole: bool
    """Every shard is in the pool."""


@dataclass(slots=True)
class _Pending:
    save: Save
    waiting_count: int
    failed: bool = False


class SaveLedger:
    """Numbers saves and counts their answers."""

    def __init__(self, workers_count: int, blocks_max: int) -> None:
        """`blocks_max`: saves withhold at most this many blocks from the engine; a save beyond that is dropped."""
        self._workers_count = workers_count
        self._blocks_max = blocks_max
        self._pending: dict[int, _Pending] = {}
        self._abandoned: dict[int, _Pending] = {}
        """Workers have still to answer these."""
        self._keys: set[ChunkKey] = set()
        self._next = 0
        self.blocks_count = 0
        self.dropped_count = 0

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    def offer(self, chunk: SavableChunk) -> Save | None:
        """Begin to save a chunk; None: it is being saved already, or too many blocks are withheld."""
        if chunk.keys[0] in self._keys:
            return None
        if self.blocks_count + len(chunk.block_ids) > self._blocks_max:
            self.dropped_count += 1
            return None
        self._next += 1
        save = Save(self._next, chunk.keys, chunk.parents, chunk.chunk, chunk.block_ids, chunk.is_state)
        self._pending[save.save] = _Pending(save, self._workers_count)
        self._keys.add(chunk.keys[0])
        self.blocks_count += len(chunk.block_ids)
        return save

    def workers_answered(self, save: int, workers_count: int, failed_count: int) -> Saved | None:
        """`workers_count` more workers have ended a save; None: others are still at it, or it was abandoned. Raises
        KeyError for a save that is not under way."""
        pending = self._abandoned.get(save) or self._pending[save]
        pending.waiting_count -= workers_count
        pending.failed |= failed_count > 0
        if pending.waiting_count > 0:
            return None
        if self._abandoned.pop(save, None) is not None:
            return None
        del self._pending[save]
        self._keys.discard(pending.save.keys[0])
        self.blocks_count -= len(pending.save.block_ids)
        return Saved(pending.save, not pending.failed)

    def abandon(self) -> list[Save]:
        """No save under way counts any more; returns them, so that their blocks can be given back."""
        saves = [pending.save for pending in self._pending.values()]
        self._abandoned.update(self._pending)
        self._pending.clear()
        self._keys.clear()
        self.blocks_count = 0
        return saves
