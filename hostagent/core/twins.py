"""Twins: which of them are in this node's pool, which one a fetch should bring, and the making of new ones.

A twin is a chunk in fewer bytes, under a key of its own (`kvproto.twins`). In the pool it hangs on its chunk, so it
goes before it, and it is worth little: it can be made again. Twins together take TWINS_SHARE of the pool at most.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Final

from hostagent.core import effects
from hostagent.core.events import TwinEncoded, TwinPlaced
from hostagent.core.forms import Forms, is_twin
from hostagent.core.node import Foreground, Node
from hostagent.core.sources import Found, Sources
from hostagent.pool.chunks import Chunk, ChunkState, Refusal
from kvchunk.ids import ChunkKey, Digest
from kvcodec.forms import Form, StoredForm
from kvpolicy.tiers.lane import Lane, LaneLimits
from kvpolicy.tiers.wire_forms import Demand, Smaller
from kvpolicy.value import Tier
from kvproto.twins import twin_key

TWINS_SHARE: Final = 1 / 4
"""Of the pool."""
TWIN_COST_SHARE: Final = 1 / 64
"""Of what evicting a chunk of its size costs."""
_WRONG_MAX: Final = 4096
_WAITING_MAX: Final = 256
_PATIENCE_NS: Final = 250_000_000
_USELESS_MAX: Final = 4096
_PUMP_NS_MIN: Final = 1_000_000
CROSSING: Final = (Tier.SWITCH, Tier.REMOTE_DRAM)
"""Where a chunk crosses the network from, the better first."""


@dataclass(frozen=True, slots=True)
class Twin:
    """A twin that can be had."""

    key: ChunkKey
    stored: StoredForm
    here: bool
    """In this node's pool."""


class TwinsHere(dict[ChunkKey, Chunk]):
    """Twins that take room in this node's pool, be they FILLING, those that came first, first. Some may be gone:
    whoever puts a twin into the pool puts it here, and nobody says when the pool evicts it."""

    def present(self) -> list[Chunk]:
        """Those that have not been evicted."""
        for key in [key for key, chunk in self.items() if chunk.state is ChunkState.GONE]:
            del self[key]
        return list(self.values())

    @property
    def size_bytes(self) -> int:
        """Of all twins in the pool."""
        return sum(chunk.size_bytes for chunk in self.present())


class Twins:
    """Owns the room that twins may take in the pool, and the memory of those that were wrong. It says which twin a
    fetch should bring; the fetch itself it does not know."""

    def __init__(self, node: Node, here: TwinsHere, sources: Sources, forms: Forms) -> None:
        self.here = here
        self._pool = node.pool
        self._sources = sources
        self.forms = forms
        self._wrong: OrderedDict[tuple[ChunkKey, Digest], None] = OrderedDict()
        """Twins that were not what they should be, and the digest of the chunk."""
        self.wrong_count = 0

    def make_room(self, size_bytes: int, kept: Set[ChunkKey]) -> bool:
        """Drop twins that nobody uses, the oldest first, until there is room for so much; False: there is none."""
        room_bytes = int(self._pool.usage().size_bytes * TWINS_SHARE) - size_bytes
        present = self.here.present()
        used_bytes = sum(chunk.size_bytes for chunk in present)
        for chunk in present:
            if used_bytes <= room_bytes:
                break
            idle = chunk.state is ChunkState.READY and not chunk.pins and not chunk.holds
            if idle and chunk.key not in kept:
                self._pool.drop(chunk.key)
                del self.here[chunk.key]
                used_bytes -= chunk.size_bytes
        return used_bytes <= room_bytes

    # ------------------------------------------------------------------ what a fetch should bring

    def best_for(self, found: Found) -> Twin | None:
        """The twin by which a chunk that others have should come; None: it should come as it is."""
        entry = found.entry
        if not self.forms.reads_twins or (Tier.REMOTE_DRAM not in found.tiers and Tier.SWITCH not in found.tiers):
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
            takes = self.forms.takes_twin(least, entry.namespace, entry.size_bytes, Tier.REMOTE_DRAM, 0)
            return Twin(key, StoredForm(form, here.size_bytes), here=True) if takes else None
        there = self._sources.find(key)
        if there is None or there.entry.parent != entry.key or there.entry.size_bytes >= entry.size_bytes:
            return None
        source = next((tier for tier in CROSSING if tier in there.tiers), None)
        if source is None or (Tier.SWITCH in found.tiers and source is not Tier.SWITCH):
            return None  # the switch costs no holder anything
        stored = StoredForm(form, there.entry.size_bytes)
        if self.forms.takes_twin(stored, entry.namespace, entry.size_bytes, source, there.load.readers):
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


class TwinMaking:
    """Makes twins of chunks that other nodes read, behind everything else: `kvpolicy.tiers.wire_forms` says of which.
    It owns the lane of encoding. Where twins go and who reads them it does not know."""

    def __init__(
        self, node: Node, forms: Forms, twins: Twins, foreground: Foreground, changed: Callable[[], None]
    ) -> None:
        """`changed()`: chunks came to the pool or left it."""
        self._clock = node.clock
        self._emit = node.emit
        self._pool = node.pool
        self._directory = node.directory
        self.forms = forms
        self._twins = twins
        self._fabric = node.fabric
        self._foreground = foreground
        self._changed = changed
        self._demand = Demand()
        self._smaller = Smaller()
        self.lane: Lane[ChunkKey] = Lane(LaneLimits(_WAITING_MAX, 1, _PATIENCE_NS))
        """Encoding: one chunk at a time."""
        self._encoding: set[Chunk] = set()
        self._placing: dict[Chunk, ChunkKey] = {}
        """Twins that are written, with the keys of their chunks."""
        self._useless: OrderedDict[ChunkKey, None] = OrderedDict()
        """Chunks that no form makes smaller."""
        self._alarm = node.alarms.add(self._pump)
        self.made_count = 0
        self.made_bytes = 0

    def chunk_put(self, chunk: Chunk) -> None:
        """An engine here has put a chunk."""
        if self.forms.has_wire:
            self._demand.put(chunk.key)
            self._consider(chunk, self._demand.share)

    def peer_asked(self, key: ChunkKey) -> None:
        """Another node reads a chunk of this one, or has asked for a cast of it."""
        if not self.forms.has_wire:
            return
        self._demand.chunk_requested(key)
        chunk = self._pool.find(key)
        if chunk is not None:
            self._consider(chunk, 1.0)

    def engines_served(self) -> None:
        """No engine waits any more."""
        if self.lane.waiting:
            self._alarm.set(self._clock.now_ns)

    def _consider(self, chunk: Chunk, likely: float) -> None:
        if chunk.key in self.lane or chunk.key in self._useless or is_twin(chunk):
            return
        form = self.forms.for_wire(chunk, likely)
        if form is Form.RAW or self._has_twin(chunk, form):
            return
        if not self.forms.decides_wire or self._smaller.worth_trying():
            self.lane.offer(chunk.key, chunk.size_bytes, self._clock.now_ns)
            self._alarm.set(self._clock.now_ns)

    def _has_twin(self, chunk: Chunk, form: Form) -> bool:
        """Somebody has made it, or this copy has other bytes than those that others are offered first."""
        entry = self._directory.find(chunk.key)
        if entry is not None and entry.digest != chunk.digest:
            return True
        key = twin_key(chunk.key, form)
        return (key in self._twins.here and self._pool.find(key) is not None) or self._directory.find(key) is not None

    def _pump(self) -> None:
        self._alarm.due_ns = None
        busy, now_ns = self._foreground.busy, self._clock.now_ns
        while (key := self.lane.take(busy, now_ns)) is not None:
            self._begin(key)
        due_ns = self.lane.due_ns(busy, now_ns)
        if due_ns is not None:
            self._alarm.set(max(now_ns + _PUMP_NS_MIN, due_ns))

    def _begin(self, key: ChunkKey) -> None:
        chunk = self._pool.find(key)
        form = Form.RAW if chunk is None else self.forms.for_wire(chunk, 1.0)
        if chunk is None or form is Form.RAW or self._has_twin(chunk, form):
            self.lane.ended(key)
            return
        self._pool.pin(chunk)
        self._encoding.add(chunk)
        self._emit(effects.EncodeTwin(chunk, form))

    def twin_encoded(self, event: TwinEncoded) -> None:
        """What became of EncodeTwin."""
        chunk, size_bytes = event.chunk, len(event.content)
        if chunk not in self._encoding:
            return
        self._encoding.remove(chunk)
        if event.work is not None:
            self.forms.costs.measured(event.work)
        self._smaller.tried(event.form is not Form.RAW)
        into = self._room_for(chunk, event.form, size_bytes)
        self._pool.unpin(chunk)
        if into is None:
            self._work_ended(chunk.key)
            return
        self._twins.here[into.key] = into
        self._pool.pin(into)
        self._placing[into] = chunk.key
        self._emit(effects.PlaceTwin(into, event.content, self._fabric.integrity))

    def _room_for(self, chunk: Chunk, form: Form, size_bytes: int) -> Chunk | None:
        if form is Form.RAW:
            self._useless[chunk.key] = None
            if len(self._useless) > _USELESS_MAX:
                self._useless.popitem(last=False)
            return None
        if chunk.state is not ChunkState.READY or not self._twins.make_room(size_bytes, frozenset()):
            return None
        made = self._pool.reserve(twin_key(chunk.key, form), chunk.key, size_bytes, chunk.position + 1, chunk.namespace)
        return None if isinstance(made, Refusal) else made

    def twin_placed(self, event: TwinPlaced) -> None:
        """What became of PlaceTwin."""
        into = event.into
        key = self._placing.pop(into, None)
        if key is None:
            return
        self._pool.commit(into, event.hashed)
        self._pool.unpin(into)
        self.made_count += 1
        self.made_bytes += into.size_bytes
        self._changed()
        self._work_ended(key)

    def _work_ended(self, key: ChunkKey) -> None:
        self.lane.ended(key)
        self.engines_served()

    def close(self) -> None:
        """Make nothing any more."""
        self._alarm.due_ns = None
        for chunk in self._encoding:
            self._pool.unpin(chunk)
        self._encoding.clear()
        for into in self._placing:
            self._pool.abort(into)
            self._pool.unpin(into)
        self._placing.clear()
