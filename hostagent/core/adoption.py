"""Takes over the pool of the agent before: compares its chunks with their digests, a few at a time.

A chunk is not to be found until its bytes are known to be right. Nothing of the pool is given to anybody else for
ADOPTED_HELD_S. An engine that still reads it, because it does not know yet that the agent it talked to has gone, learns
so before it trusts what it read, however late (`kvclient.fetched`); within that time it has read the right bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from hostagent import limits
from hostagent.core import effects, events
from hostagent.core.node import Node
from hostagent.pool.chunks import Chunk
from hostagent.pool.index import Found
from hostagent.tree import Hashed
from kvproto.integrity import algorithm_of


class Adoption:
    """Owns the chunks that are still to be compared, and the pins that keep extents as they are until engines have
    noticed. What the agent before did with the pool it does not know."""

    def __init__(self, node: Node, adopted: Callable[[Chunk], None]) -> None:
        """`adopted(chunk)`: it is READY."""
        self._clock = node.clock
        self._emit = node.emit
        self._pool = node.pool
        self._adopted = adopted
        self._waiting: deque[Chunk] = deque()
        self._verifying: set[Chunk] = set()
        self._held: list[Chunk] = []
        """Pinned for readers of before."""
        self._let_go = node.alarms.add(self._readers_are_done)
        self._good_count = 0
        self._good_bytes = 0
        self._lost_count = 0

    @property
    def left_count(self) -> int:
        """Chunks that are still to be compared."""
        return len(self._waiting) + len(self._verifying)

    def begin(self, event: events.PoolFound) -> None:
        """What the agent before had given out when it ended."""
        for found in event.found:
            self._take(found)
        if self._held:
            self._let_go.set(self._clock.now_ns + int(limits.ADOPTED_HELD_S * 1e9))
        self._go_on()

    def _take(self, found: Found) -> None:
        chunk = self._pool.adopt(found)
        if chunk is None:
            self._lost_count += 1
            return
        self._held.append(chunk)
        if found.ready:
            self._waiting.append(chunk)
            self._pool.pin(chunk)

    def _go_on(self) -> None:
        while self._waiting and len(self._verifying) < limits.ADOPTED_AT_ONCE:
            chunk = self._waiting.popleft()
            self._verifying.add(chunk)
            self._pool.pin(chunk)
            self._emit(effects.ComputeDigest(chunk, algorithm_of(chunk.digest), events.DigestUse.ADOPTION))
        if not self.left_count:
            self._emit(effects.PoolAdopted(self._good_count, self._good_bytes, self._lost_count))

    def digest_computed(self, chunk: Chunk, hashed: Hashed) -> None:
        """The digest of a chunk that is being taken over."""
        if chunk not in self._verifying:
            return
        self._verifying.remove(chunk)
        if hashed.digest == chunk.digest:
            self._good_count += 1
            self._good_bytes += chunk.size_bytes
            self._pool.commit(chunk, hashed)
            self._adopted(chunk)
        else:
            self._lost_count += 1
            self._pool.abort(chunk)
        self._go_on()

    def _readers_are_done(self) -> None:
        for chunk in self._held:
            self._pool.unpin(chunk)
        self._held.clear()

    def close(self) -> None:
        """Give back all pins; what is not compared yet stays in the index for the next agent."""
        for chunk in self._verifying:
            self._pool.unpin(chunk)
        self._verifying.clear()
        self._waiting.clear()
        self._readers_are_done()
