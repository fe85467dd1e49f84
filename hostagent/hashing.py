"""Digests of chunks, without holding up the event loop for big ones.

The leaves of a chunk's tree may be computed before the chunk is whole (`begin`); its digest then takes what is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from hostagent import limits
from hostagent.memory.pool_memory import PoolMemory
from hostagent.tree import PIECE_BYTES, Hashed, hashed, leaf_of, root_of
from kvproto.integrity import Integrity

T = TypeVar("T")
THREADS: Final = 2
"""Of BLAKE3 they take in about 12 GB/s together, of xxh3 more: as fast as any network brings chunks."""


@dataclass(slots=True, eq=False)
class _Tree:
    """A chunk whose leaves are being computed."""

    size_bytes: int
    given: set[int] = field(default_factory=set)
    """Pieces that a thread has or has had."""
    leaves: dict[int, bytes] = field(default_factory=dict)
    done: Callable[[Hashed], None] | None = None
    """Who asked for the digest; None: nobody yet."""

    @property
    def pieces(self) -> int:
        return -(-self.size_bytes // PIECE_BYTES)

    @property
    def is_whole(self) -> bool:
        return len(self.leaves) == self.pieces

    def hashed(self) -> Hashed:
        leaves = b"".join(self.leaves[piece] for piece in range(self.pieces))
        return Hashed(root_of(leaves, self.size_bytes), leaves)


class Hashing:
    """Hashes ranges of the pool, which the caller keeps as they are until `done`."""

    def __init__(
        self,
        memory: PoolMemory,
        loop: asyncio.AbstractEventLoop,
        soon: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """`soon(call)`: makes a call on the event loop, after the one at hand; None: on its next turn."""
        self._soon = loop.call_soon if soon is None else soon
        self._memory = memory
        self._loop = loop
        # Hashing lets go of the GIL: the pieces of a tree are hashed by all threads at a time.
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="hashing")
        self._begun: dict[int, _Tree] = {}
        """By the chunk's place in the pool: trees whose digest nobody has asked for yet."""

    def begin(self, offset: int, size_bytes: int, pieces: Sequence[int]) -> None:
        """Hash these pieces of a chunk that is not whole yet: `start` for the same place uses their leaves. The caller
        says `forget` if that is not going to come. A few pieces are hashed before this returns."""
        tree = self._begun.setdefault(offset, _Tree(size_bytes))
        fresh = [piece for piece in pieces if piece not in tree.given]
        if len(fresh) * PIECE_BYTES <= limits.HASH_INLINE_BYTES_MAX[Integrity.BLAKE3]:
            tree.given.update(fresh)
            tree.leaves |= _leaves(self._memory.view(offset, size_bytes), fresh)
        else:
            self._give(tree, offset, fresh)

    def forget(self, offset: int) -> None:
        """What `begin` hashed is of no use."""
        self._begun.pop(offset, None)

    def start(
        self,
        offset: int,
        size_bytes: int,
        algorithm: Integrity,
        done: Callable[[Hashed], None],
        *,
        in_background: bool = False,
    ) -> None:
        """Hash; `done(hashed)` comes on the event loop, later. `in_background`: never on the event loop itself."""
        view = self._memory.view(offset, size_bytes)
        tree = self._begun.pop(offset, None)
        inline_bytes_max = 0 if in_background else limits.HASH_INLINE_BYTES_MAX[algorithm]
        if tree is None and size_bytes <= inline_bytes_max:
            self._soon(partial(done, hashed(view, algorithm)))
        elif algorithm is Integrity.BLAKE3 and not in_background:
            self._finish(tree or _Tree(size_bytes), offset, view, done, inline_bytes_max)
        else:
            future = self._threads.submit(hashed, view, algorithm)
            future.add_done_callback(lambda ready: self._from_thread(ready, done))

    def _finish(
        self, tree: _Tree, offset: int, view: memoryview, done: Callable[[Hashed], None], inline_bytes_max: int
    ) -> None:
        """What no thread has had: here, if it is little, else all threads share it."""
        rest = [piece for piece in range(tree.pieces) if piece not in tree.given]
        if len(rest) * PIECE_BYTES <= inline_bytes_max:
            tree.leaves |= _leaves(view, rest)
        else:
            share = -(-len(rest) // THREADS)
            for start in range(0, len(rest), share):
                self._give(tree, offset, rest[start : start + share])
        if tree.is_whole:
            self._soon(partial(done, tree.hashed()))
        else:
            tree.done = done

    def _give(self, tree: _Tree, offset: int, pieces: list[int]) -> None:
        """To a thread."""
        if not pieces:
            return
        tree.given.update(pieces)
        future = self._threads.submit(_leaves, self._memory.view(offset, tree.size_bytes), pieces)
        future.add_done_callback(partial(self._from_thread, done=partial(self._leaves_computed, tree)))

    def _leaves_computed(self, tree: _Tree, leaves: dict[int, bytes]) -> None:
        tree.leaves |= leaves
        if tree.done is not None and tree.is_whole:
            tree.done(tree.hashed())

    def close(self) -> None:
        """Wait for what is being hashed, without calling its `done`."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _from_thread(self, ready: Future[T], done: Callable[[T], None]) -> None:
        if not ready.cancelled() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(done, ready.result())


def _leaves(view: memoryview, pieces: Sequence[int]) -> dict[int, bytes]:
    return {piece: leaf_of(view, piece) for piece in pieces}
