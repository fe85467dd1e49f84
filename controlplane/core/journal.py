"""Which chunks changed, publication by publication, as far back as it goes. Pure.

It keeps keys, not what became of them: whoever catches up is told how things are, once a chunk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from controlplane.core.ids import ChunkKey

CHANGES_MAX: Final = 65_536
"""3 MB; a router that was away for longer reads everything anew."""


class Journal:
    """Owns the numbers of what was published, which begin anew with each start of a controller."""

    def __init__(self) -> None:
        self._changes: deque[tuple[int, ChunkKey]] = deque()
        self._forgotten = 0
        """The last number of which something is forgotten."""
        self.sequence = 0

    def note(self, keys: Iterable[ChunkKey]) -> None:
        """These changed, or went."""
        self.sequence += 1
        self._changes.extend((self.sequence, key) for key in keys)
        while len(self._changes) > CHANGES_MAX:
            self._forgotten, _ = self._changes.popleft()

    def since(self, sequence: int) -> list[ChunkKey] | None:
        """What changed after a publication, in the order of its last change; None: nobody can say any more."""
        if not self._forgotten <= sequence <= self.sequence:
            return None
        found: dict[ChunkKey, None] = {}
        for number, key in reversed(self._changes):
            if number <= sequence:
                break
            found.setdefault(key)
        return list(reversed(found))
