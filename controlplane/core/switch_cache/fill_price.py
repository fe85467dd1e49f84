"""Whether filling a chunk into the switch pays. Pure.

An idle holder answers as quickly as the switch, so a copy in the switch spares its readers only what holders have
queued for others at that moment:

    gain = fetches still expected * share of such fetches that came * mean delay at the least busy holder
    cost = the holder's uplink for as long as the fill takes

Where nodes wait for the chunk and the switch casts FILLs, the fill rides on their cast: it costs its headers, and what
of the cast is over. The holder is casting then, so the delay is at least what it has queued now.

The delay is that of other fetches from the holder lately: at each reported fetch, what it had queued about then.
Chunks may leave the switch before they are fetched; so the price remembers how many fetches fills were made for, and
how many the switch has served. Where fills brought little, it makes fewer, and tries again as candidates go by.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from controlplane.core.directory import Chunk
from controlplane.core.ids import NodeIndex
from controlplane.core.values import ClusterValues
from kvpolicy.tiers.holder_load import IDLE, HolderLoad
from kvpolicy.value import Tier

_FADES_S: Final = 1.0
"""Reports of fetches come a little later than what holders say of their queues, which is halved after this time."""
_PRESUMED: Final = 8.0
"""Fetches that are presumed to have been expected, and to have come."""
_FORGET: Final = 1 / 512
"""Share of what is remembered of fills that is forgotten with each candidate that is refused."""
_HEADERS: Final = 40 / 4194
"""What a FILL that is cast is longer than the data datagram, of a segment of 4 KiB."""
_MEMORY: Final = 1 / 16
"""Weight of one more fetch in the mean of a holder."""


@dataclass(slots=True)
class _Holder:
    peak: HolderLoad = IDLE
    peak_ns: int = 0
    queued_bytes: float = 0.0
    """Mean over fetches."""
    readers: float = 0.0

    def share(self, now_ns: int) -> float:
        """Of the peak, what counts by now."""
        return float(0.5 ** ((now_ns - self.peak_ns) / 1e9 / _FADES_S))


class FillPrice:
    """Owns what holders have queued and how many fetches fills were made for; says whether a fill is worth it."""

    def __init__(self, values: ClusterValues, *, free: bool = False) -> None:
        """`free`: fills cost nothing, so that all of them pay."""
        self._values = values
        self._free = free
        self._holders: dict[NodeIndex, _Holder] = {}
        self._expected = _PRESUMED
        """Fetches that fills were made for."""
        self._served = _PRESUMED

    def load_reported(self, node: NodeIndex, load: HolderLoad, now_ns: int) -> None:
        """A node says what it has queued for its readers."""
        holder = self._holders.setdefault(node, _Holder())
        if load.queued_bytes >= holder.peak.queued_bytes * holder.share(now_ns):
            holder.peak, holder.peak_ns = load, now_ns

    def fetched(self, node: NodeIndex, now_ns: int) -> None:
        """Something was fetched from a node."""
        holder = self._holders.get(node)
        if holder is not None:
            share = holder.share(now_ns)
            holder.queued_bytes += _MEMORY * (share * holder.peak.queued_bytes - holder.queued_bytes)
            holder.readers += _MEMORY * (share * holder.peak.readers - holder.readers)

    def node_forgotten(self, node: NodeIndex) -> None:
        """The node was forgotten."""
        self._holders.pop(node, None)

    def delay_s(self, chunk: Chunk, now_ns: int | None = None) -> float:
        """How long a reader waits for others at the least busy holder, usually or, with a time, at least then; 0 where
        nobody holds it in DRAM."""
        return min((self._delay_s(node, chunk.facts.size_bytes, now_ns) for node in chunk.holders), default=0.0)

    def pays(self, chunk: Chunk, waiting: int, now_ns: int, cast_since_ns: int | None = None) -> bool:
        """Whether the fill of a chunk is worth it; `waiting`: nodes that want it now, as the switch reports;
        `cast_since_ns`: when the cast began on which the fill may ride, None: it would leave by itself."""
        if self._free:
            return True
        expected = self._expects(chunk, waiting, now_ns) * min(1.0, self._served / self._expected)
        fill_s = chunk.facts.size_bytes / self._values.costs.cost(Tier.REMOTE_DRAM).rate_bytes_per_s
        if cast_since_ns is not None:
            over_s = (now_ns - cast_since_ns) / 1e9
            return expected * self.delay_s(chunk, now_ns) > min(fill_s, max(_HEADERS * fill_s, over_s))
        if expected * self.delay_s(chunk) > fill_s:
            return True
        self._expected += _FORGET * (_PRESUMED - self._expected)
        self._served += _FORGET * (_PRESUMED - self._served)
        return False

    def fill_began(self, chunk: Chunk, waiting: int, now_ns: int) -> None:
        """A chunk comes into the switch."""
        self._expected += self._expects(chunk, waiting, now_ns)

    def served(self) -> None:
        """A node fetched a chunk from the switch."""
        self._served += 1

    def _expects(self, chunk: Chunk, waiting: int, now_ns: int) -> float:
        values = self._values
        return waiting + values.cache.rate(chunk.key, now_ns) * values.cache.parameters.half_life_s / math.log(2)

    def _delay_s(self, node: NodeIndex, size_bytes: int, now_ns: int | None) -> float:
        holder = self._holders.get(node)
        if holder is None:
            return 0.0
        queued_bytes, readers = holder.queued_bytes, holder.readers
        if now_ns is not None:
            queued_bytes = max(queued_bytes, holder.share(now_ns) * holder.peak.queued_bytes)
            readers = max(readers, holder.peak.readers)
        rate = self._values.costs.cost(Tier.REMOTE_DRAM).rate_bytes_per_s
        return min(queued_bytes, readers * size_bytes) / rate
