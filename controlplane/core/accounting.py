"""What the pool saved and what managing it cost. Pure counters; `metrics` shows them."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from controlplane.core.ids import ChunkKey
from kvchunk.sources import ChunkSource
from kvproto.rpc import control_pb2 as rpc

_CAST_NS = 2_000_000_000
"""Arrivals of one chunk by cast within this time count as one cast."""
_CASTS_REMEMBERED_MAX = 10_000

_SOURCE_NAMES: dict[int, str] = {**{one: one.label for one in ChunkSource}, rpc.SOURCE_MISS: "miss"}


@dataclass(slots=True)
class Accounting:
    """Everything counted since the controller started."""

    bytes_kept_off_uplinks: int = 0
    """Estimate: what the switch served, and every arrival of a cast but the first."""
    fetched_chunks: Counter[str] = field(default_factory=Counter)
    """By source."""
    fetched_bytes: Counter[str] = field(default_factory=Counter)
    waited_us: int = 0
    messages: Counter[str] = field(default_factory=Counter)
    """Of the control channel, by direction: "in", "out"."""
    message_bytes: Counter[str] = field(default_factory=Counter)
    switch_updates: int = 0
    switch_reads: int = 0
    decisions: Counter[str] = field(default_factory=Counter)
    _casts: OrderedDict[ChunkKey, int] = field(default_factory=OrderedDict)

    def message(self, direction: str, size_bytes: int) -> None:
        """A message of the control channel; `direction` is "in" or "out"."""
        self.messages[direction] += 1
        self.message_bytes[direction] += size_bytes

    def fetch(self, key: ChunkKey, source: rpc.Source.ValueType, size_bytes: int, waited_us: int, at_ns: int) -> bool:
        """A node got (or missed) a chunk. True if it rode along: by a cast that another node has reported."""
        name = _SOURCE_NAMES.get(source, "unknown")
        self.fetched_chunks[name] += 1
        self.fetched_bytes[name] += size_bytes
        self.waited_us += waited_us
        if source == rpc.SOURCE_SWITCH:
            self.bytes_kept_off_uplinks += size_bytes
        elif source == rpc.SOURCE_CAST:
            last = self._casts.pop(key, None)
            rode_along = last is not None and abs(at_ns - last) <= _CAST_NS
            if rode_along:
                self.bytes_kept_off_uplinks += size_bytes
            self._casts[key] = at_ns
            if len(self._casts) > _CASTS_REMEMBERED_MAX:
                self._casts.popitem(last=False)
            return rode_along
        return False
