"""What is known of one chunk."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from controlplane.core.ids import ChunkKey, NodeIndex
from kvchunk.ids import Digest
from kvproto.twins import twin_code


@dataclass(frozen=True, slots=True)
class ChunkFacts:
    """The part that every true copy agrees on."""

    key: ChunkKey
    parent: ChunkKey | None
    size_bytes: int
    digest: Digest
    """Of the whole chunk."""
    position: int
    """0 for the first chunk of a prefix."""
    namespace: str = ""

    @property
    def is_twin(self) -> bool:
        """Whether it is its parent in fewer bytes (`kvproto.twins`)."""
        return twin_code(self.key, self.parent) is not None


class AddOutcome(enum.Enum):
    """What became of an announced copy."""

    NEW_CHUNK = "new chunk"
    NEW_COPY = "new copy"
    KNOWN = "known"
    CONFLICT = "conflict"
    """Size, digest or owners differ from what the directory has: kept apart, and offered after the other copies."""
    CYCLE = "cycle"
    """Its parent hangs on the chunk itself: not offered to anybody."""


@dataclass(frozen=True, slots=True)
class Variant:
    """Copies of one key with the same bytes."""

    facts: ChunkFacts
    holders: Set[NodeIndex]
    disk_holders: Set[NodeIndex] = frozenset()
    served: bool = False


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk of the directory as it was when somebody asked."""

    facts: ChunkFacts
    holders: Set[NodeIndex] = frozenset()
    disk_holders: Set[NodeIndex] = frozenset()
    """Nodes with a copy on disk, besides or instead of one in their pool."""
    served: bool = False
    """The switch serves it."""
    pinned: bool = False
    score_told: float = 0.0
    """The value last published with it."""
    dissenters: Mapping[NodeIndex, ChunkFacts] = field(default_factory=dict)
    """Nodes whose copy of the same key has other bytes (two engines need not round alike), or is said to be of another
    namespace that not the same nodes may have; in the order in which they said so."""

    @property
    def key(self) -> ChunkKey:
        """The chunk's key."""
        return self.facts.key

    def variants(self) -> list[Variant]:
        """Copies that agree with each other, those of the bytes that were known first before the others."""
        found = [Variant(self.facts, self.holders, self.disk_holders, self.served)]
        others: dict[ChunkFacts, set[NodeIndex]] = {}
        for node, facts in self.dissenters.items():
            others.setdefault(facts, set()).add(node)
        return [*found, *(Variant(facts, nodes) for facts, nodes in others.items())]

    @property
    def available(self) -> bool:
        """Somebody can deliver it."""
        return bool(self.holders) or self.served or bool(self.disk_holders)
