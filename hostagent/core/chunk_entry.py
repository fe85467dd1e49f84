"""What a node knows of a chunk somewhere in the fabric. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvchunk.ids import ChunkKey, Digest
from kvcodec.forms import StoredForm


@dataclass(frozen=True, slots=True)
class Variant:
    """Copies of a key with other bytes than those of its entry."""

    size_bytes: int
    digest: Digest
    holders: tuple[int, ...]
    served: bool = False
    disk_holders: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ChunkEntry:
    """A chunk somewhere in the fabric."""

    key: ChunkKey
    parent: ChunkKey | None
    size_bytes: int
    digest: Digest
    position: int
    holders: tuple[int, ...]
    served: bool = False
    pinned: bool = False
    value: float = 0.0
    disk_holders: tuple[int, ...] = ()
    """Nodes that have it on disk: slower to begin, as good afterwards."""
    namespace: str = ""
    """The namespace that it was put with."""
    others: tuple[Variant, ...] = ()
    """To be asked for in this order when nothing of these comes."""
    stored: StoredForm | None = None
    """How it lies in the cold store, where the entry is of one there; None: as it is."""

    @property
    def own(self) -> Variant:
        """What is asked for first."""
        return Variant(self.size_bytes, self.digest, self.holders, self.served, self.disk_holders)

    def preferring(self, place: int) -> ChunkEntry:
        """The same with `others[place]` asked for first, and what was first last."""
        chosen = self.others[place]
        return replace(
            self,
            size_bytes=chosen.size_bytes,
            digest=chosen.digest,
            holders=chosen.holders,
            served=chosen.served,
            disk_holders=chosen.disk_holders,
            others=(*self.others[:place], *self.others[place + 1 :], self.own),
        )
