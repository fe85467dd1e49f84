"""One fetch: what it wants in prefix order, how far it has come."""

from dataclasses import dataclass

from kvproto.commands import Outcome, Source
from kvproto.ids import ChunkKey, FetchId


@dataclass(slots=True, eq=False)
class Fetch:
    """State of one fetch. `sources` grows with the leading chunks that are here."""

    fetch: FetchId
    keys: tuple[ChunkKey, ...]
    present: frozenset[ChunkKey]
    """Keys that were whole in memory when the fetch began."""
    deadline_ns: int
    sources: list[Source]
    wanted: int
    """Chunks still worth having: all of them until one is gone, then those before it."""
    outcome: Outcome | None = None

    @property
    def leading(self) -> int:
        """Leading chunks that are here and verified."""
        return len(self.sources)

    @property
    def settled(self) -> bool:
        """Whether nothing more is worth waiting for."""
        return self.leading >= self.wanted
