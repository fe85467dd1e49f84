"""Makes twins of chunks that other nodes read, behind everything else. `kvpolicy.tiers.wire_forms` says of which."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from hostagent.core import effects
from hostagent.core.events import TwinEncoded
from hostagent.core.forms import Forms
from hostagent.core.node import Node
from hostagent.core.twins import Twins, is_twin
from hostagent.pool.chunks import Chunk, ChunkState, Refusal
from hostagent.tree import Hashed
from kvchunk.ids import ChunkKey
from kvcodec.forms import Form
from kvpolicy.tiers.lane import Lane, LaneLimits
from kvpolicy.tiers.wire_forms import Demand, Smaller
from kvproto.integrity import Integrity
from kvproto.twins import twin_key

WAITING_MAX: Final = 256
PATIENCE_NS: Final = 250_000_000
_USELESS_MAX: Final = 4096
_PUMP_NS_MIN: Final = 1_000_000


class TwinMaking:
    """One node's."""

    def __init__(
        self,
        node: Node,
        forms: Forms,
        twins: Twins,
        integrity: Callable[[], Integrity],
        busy: Callable[[], bool],
        changed: Callable[[], None],
    ) -> None:
        """`integrity()`: how the fabric digests chunks; `busy()`: an engine waits for something; `changed()`: chunks
        came or went."""
        self._clock = node.clock
        self._emit = node.emit
        self._pool = node.pool
        self._directory = node.directory
        self._forms = forms
        self._twins = twins
        self._integrity = integrity
        self._busy = busy
        self._changed = changed
        self._demand = Demand()
        self._smaller = Smaller()
        self.lane: Lane[ChunkKey] = Lane(LaneLimits(WAITING_MAX, 1, PATIENCE_NS))
        """Encoding: one chunk at a time."""
        self._encoding: set[Chunk] = set()
        self._placing: dict[Chunk, ChunkKey] = {}
        """Twins that are written, with the keys of their chunks."""
        self._useless: OrderedDict[ChunkKey, None] = OrderedDict()
        """Chunks that no form makes smaller."""
        self._alarm = node.alarms.add(self._pump)
        self.made_count = 0
        self.made_bytes = 0

    def put(self, chunk: Chunk) -> None:
        """An engine here has put a chunk."""
        if self._forms.has_wire:
            self._demand.put(chunk.key)
            self._consider(chunk, self._demand.share)

    def asked(self, key: ChunkKey) -> None:
        """Another node reads a chunk of this one, or has asked for a cast of it."""
        if not self._forms.has_wire:
            return
        self._demand.asked(key)
        chunk = self._pool.find(key)
        if chunk is not None:
            self._consider(chunk, 1.0)

    def engines_served(self) -> None:
        """No engine waits any more."""
        if len(self.lane):
            self._alarm.set(self._clock.now_ns)

    def _consider(self, chunk: Chunk, likely: float) -> None:
        if chunk.key in self.lane or chunk.key in self._useless or is_twin(chunk):
            return
        form = self._forms.for_wire(chunk, likely)
        if form is Form.RAW or self._has_twin(chunk, form):
            return
        if not self._forms.decides_wire or self._smaller.worth_trying():
            self.lane.offer(chunk.key, chunk.size_bytes, self._clock.now_ns)
            self._alarm.set(self._clock.now_ns)

    def _has_twin(self, chunk: Chunk, form: Form) -> bool:
        """Somebody has made it, or this copy has other bytes than those that others are offered first."""
        entry = self._directory.find(chunk.key)
        if entry is not None and entry.digest != chunk.digest:
            return True
        key = twin_key(chunk.key, form)
        return (key in self._twins and self._pool.find(key) is not None) or self._directory.find(key) is not None

    def _pump(self) -> None:
        self._alarm.cancel()
        busy, now_ns = self._busy(), self._clock.now_ns
        while (key := self.lane.take(busy, now_ns)) is not None:
            self._begin(key)
        due_ns = self.lane.due_ns(busy, now_ns)
        if due_ns is not None:
            self._alarm.set(max(now_ns + _PUMP_NS_MIN, due_ns))

    def _begin(self, key: ChunkKey) -> None:
        chunk = self._pool.find(key)
        form = Form.RAW if chunk is None else self._forms.for_wire(chunk, 1.0)
        if chunk is None or form is Form.RAW or self._has_twin(chunk, form):
            self.lane.ended(key)
            return
        self._pool.pin(chunk)
        self._encoding.add(chunk)
        self._emit(effects.EncodeTwin(chunk, form))

    def encoded(self, event: TwinEncoded) -> None:
        """What became of EncodeTwin."""
        chunk, size_bytes = event.chunk, len(event.content)
        if chunk not in self._encoding:
            return
        self._encoding.remove(chunk)
        if event.work is not None:
            self._forms.costs.measured(event.work)
        self._smaller.tried(event.form is not Form.RAW)
        into = self._room_for(chunk, event.form, size_bytes)
        self._pool.unpin(chunk)
        if into is None:
            self._ended(chunk.key)
            return
        self._twins.arrived(into)
        self._pool.pin(into)
        self._placing[into] = chunk.key
        self._emit(effects.PlaceTwin(into, event.content, self._integrity()))

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

    def placed(self, into: Chunk, hashed: Hashed) -> None:
        """What became of PlaceTwin."""
        key = self._placing.pop(into, None)
        if key is None:
            return
        self._pool.commit(into, hashed)
        self._pool.unpin(into)
        self.made_count += 1
        self.made_bytes += into.size_bytes
        self._changed()
        self._ended(key)

    def _ended(self, key: ChunkKey) -> None:
        self.lane.ended(key)
        self.engines_served()

    def close(self) -> None:
        """Make nothing any more."""
        self._alarm.cancel()
        for chunk in self._encoding:
            self._pool.unpin(chunk)
        self._encoding.clear()
        for into in self._placing:
            self._pool.abort(into)
            self._pool.unpin(into)
        self._placing.clear()
