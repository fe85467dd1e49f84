"""Twins in this node's pool, the room that they may take, and which of them a fetch should bring.

A twin is a chunk in fewer bytes, under a key of its own (`kvproto.twins`). In the pool it hangs on its chunk, so it
goes before it, and it is worth little: it can be made again. Twins together take TWINS_SHARE of the pool at most.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Final

from hostagent.core.forms import Forms
from hostagent.core.node import Node
from hostagent.core.sources import Found, Sources
from hostagent.pool.chunks import Chunk, ChunkState
from kvchunk.ids import ChunkKey, Digest
from kvcodec.forms import Form, StoredForm
from kvpolicy.value import Tier
from kvproto.twins import twin_code, twin_key

TWINS_SHARE: Final = 1 / 4
"""Of the pool."""
TWIN_COST_SHARE: Final = 1 / 64
"""Of what evicting a chunk of its size costs."""
_WRONG_MAX: Final = 4096
CROSSING: Final = (Tier.SWITCH, Tier.REMOTE_DRAM)
"""Where a chunk crosses the network from, the better first."""


@dataclass(frozen=True, slots=True)
class Twin:
    """A twin that can be had."""

    key: ChunkKey
    stored: StoredForm
    here: bool
    """In this node's pool."""


def is_twin(chunk: Chunk) -> bool:
    """Whether a chunk is its parent in another form."""
    return twin_code(chunk.key, chunk.parent) is not None


class Twins:
    """One node's."""

    def __init__(self, node: Node, sources: Sources, forms: Forms) -> None:
        self._pool = node.pool
        self._sources = sources
        self._forms = forms
        self._here: OrderedDict[ChunkKey, Chunk] = OrderedDict()
        """Those that came first, first; some may be gone."""
        self._wrong: OrderedDict[tuple[ChunkKey, Digest], None] = OrderedDict()
        """Twins that were not what they should be, and the digest of the chunk."""
        self.wrong_count = 0

    # ------------------------------------------------------------------ what is here

    def __contains__(self, key: ChunkKey) -> bool:
        return key in self._here

    def arrived(self, chunk: Chunk) -> None:
        """A twin takes room in the pool from now on, be it FILLING."""
        self._here[chunk.key] = chunk

    @property
    def size_bytes(self) -> int:
        """Of all twins in the pool."""
        return sum(chunk.size_bytes for chunk in self._present())

    def _present(self) -> Iterator[Chunk]:
        for key in [key for key, chunk in self._here.items() if chunk.state is ChunkState.GONE]:
            del self._here[key]
        return iter(self._here.values())

    def make_room(self, size_bytes: int, kept: Set[ChunkKey]) -> bool:
        """Drop twins that nobody uses, the oldest first, until there is room for so much; False: there is none."""
        room_bytes = int(self._pool.usage().size_bytes * TWINS_SHARE) - size_bytes
        present = list(self._present())
        used_bytes = sum(chunk.size_bytes for chunk in present)
        for chunk in present:
            if used_bytes <= room_bytes:
                break
            idle = chunk.state is ChunkState.READY and not chunk.pins and not chunk.holds
            if idle and chunk.key not in kept:
                self._pool.drop(chunk.key)
                del self._here[chunk.key]
                used_bytes -= chunk.size_bytes
        return used_bytes <= room_bytes

    # ------------------------------------------------------------------ what a fetch should bring

    def best_for(self, found: Found) -> Twin | None:
        """The twin by which a chunk that others have should come; None: it should come as it is."""
        entry = found.entry
        if not self._forms.reads_twins or (Tier.REMOTE_DRAM not in found.tiers and Tier.SWITCH not in found.tiers):
            return None
        for form in (Form.LOSSY, Form.PLANES):
            key = twin_key(entry.key, form)
            if (key, entry.digest) in self._wrong:
                continue
            twin = self._here_or_there(key, form, found)
            if twin is not None:
                return twin
        return None

    def _here_or_there(self, key: ChunkKey, form: Form, found: Found) -> Twin | None:
        entry = found.entry
        here = self._pool.find(key)
        if here is not None:
            least = StoredForm(form, 1)  # it crosses no link any more
            takes = self._forms.takes_twin(least, entry.namespace, entry.size_bytes, Tier.REMOTE_DRAM, 0)
            return Twin(key, StoredForm(form, here.size_bytes), here=True) if takes else None
        there = self._sources.find(key)
        if there is None or there.entry.parent != entry.key or there.entry.size_bytes >= entry.size_bytes:
            return None
        source = next((tier for tier in CROSSING if tier in there.tiers), None)
        if source is None or (Tier.SWITCH in found.tiers and source is not Tier.SWITCH):
            return None  # the switch costs no holder anything
        stored = StoredForm(form, there.entry.size_bytes)
        if self._forms.takes_twin(stored, entry.namespace, entry.size_bytes, source, there.load.readers):
            return Twin(key, stored, here=False)
        return None

    def was_wrong(self, twin: Chunk, digest: Digest) -> None:
        """A twin whose bytes were those announced did not give the chunk with this digest: it is not asked for
        again."""
        self.wrong_count += 1
        self._wrong[twin.key, digest] = None
        if len(self._wrong) > _WRONG_MAX:
            self._wrong.popitem(last=False)
        if self._pool.find(twin.key) is twin:
            self._pool.drop(twin.key)
