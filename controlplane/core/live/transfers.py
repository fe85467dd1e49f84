"""Chunks on their way to nodes, and which nodes share a cast. Pure.

Three sorts of news tell of them: the switch, which sees several members wait for one chunk; heartbeats, which name
what is arriving; and reports of fetches, which say how a chunk has come.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from controlplane.core.ids import ChunkKey
from kvproto.rpc import control_pb2 as rpc

KEPT: Final = 64
RIDERS_MAX: Final = 64
_SHOWN_NS: Final = 4_000_000_000
"""For this time what has arrived is still shown: most is over sooner than a person looks."""
_SILENT_NS: Final = 5_000_000_000
"""Without news for this time it is over, whatever was heard last."""
_MOMENT_NS: Final = 1_000_000_000
_HERE: Final = 100


@dataclass(slots=True)
class _Rider:
    percent: int
    """Of the chunk that the node has."""
    since_ns: int
    news_ns: int


@dataclass(slots=True)
class _Transfer:
    news_ns: int
    size_bytes: int = 0
    holder: str = ""
    cast: bool = False
    riders: dict[str, _Rider] = field(default_factory=dict)
    """By name."""

    def rider(self, node: str, percent: int, now_ns: int) -> None:
        """So much has come to a node. One that had all of it and gets it again begins anew."""
        rider = self.riders.get(node)
        if rider is None and len(self.riders) >= RIDERS_MAX:
            return
        again = rider is not None and rider.percent == _HERE and percent < _HERE
        if rider is None or again:
            rider = self.riders[node] = _Rider(percent, now_ns, now_ns)
        rider.percent, rider.news_ns = max(rider.percent, percent), now_ns

    def ended(self, now_ns: int) -> bool:
        return now_ns - self.news_ns > _SILENT_NS or all(rider.percent == _HERE for rider in self.riders.values())


class Transfers:
    """Owns the latest transfers: what is on its way to which nodes, and how it came."""

    def __init__(self) -> None:
        self._transfers: OrderedDict[ChunkKey, _Transfer] = OrderedDict()
        """The one with the oldest news first."""

    def wanted_together(self, key: ChunkKey, nodes: Sequence[str], size_bytes: int, now_ns: int) -> None:
        """Several nodes wait for a chunk at the switch."""
        transfer = self._news(key, size_bytes, now_ns, begins=True)
        transfer.cast = True
        for name in nodes:
            transfer.rider(name, 0, now_ns)

    def arriving(self, node: str, chunks: Sequence[rpc.Arriving], now_ns: int, *, all_of_them: bool) -> None:
        """So much of these chunks is not at a node yet. `all_of_them`: it waits for no other chunk."""
        for one in chunks:
            transfer = self._news(ChunkKey(one.key), one.size_bytes, now_ns, begins=True)
            there = (one.size_bytes - min(one.left_bytes, one.size_bytes)) * _HERE // max(1, one.size_bytes)
            transfer.rider(node, min(there, _HERE - 1), now_ns)
            transfer.cast = transfer.cast or len(transfer.riders) > 1
        if all_of_them:
            named = {one.key for one in chunks}
            for key in [one for one in self._transfers if one not in named]:
                self._gave_up(node, key, now_ns - _MOMENT_NS)

    def arrived(
        self, node: str, key: ChunkKey, size_bytes: int, source: rpc.Source.ValueType, holder: str, now_ns: int
    ) -> None:
        """A node has the chunk, or waits for it no longer; one that comes from its own pool or disk is no transfer."""
        if source not in (rpc.SOURCE_CAST, rpc.SOURCE_HOLDER, rpc.SOURCE_SWITCH):
            self._gave_up(node, key, now_ns)
            return
        transfer = self._news(key, size_bytes, now_ns, begins=False)
        transfer.rider(node, _HERE, now_ns)
        transfer.holder = "switch" if source == rpc.SOURCE_SWITCH else holder
        transfer.cast = transfer.cast or source == rpc.SOURCE_CAST

    def rows(self, prefix_of: Callable[[ChunkKey], ChunkKey], now_ns: int, born_ns: int) -> Iterator[rpc.TransferView]:
        """Under way, or over a moment ago. `prefix_of`: first chunk of a chunk's run. Times count from `born_ns`."""
        for key, transfer in list(self._transfers.items()):
            ended = transfer.ended(now_ns)
            if ended and now_ns - transfer.news_ns > _SHOWN_NS:
                del self._transfers[key]
                continue
            riders = {
                name: rider
                for name, rider in transfer.riders.items()
                if ended or rider.percent < _HERE or now_ns - rider.news_ns <= _SHOWN_NS
            }
            since_ns = min((rider.since_ns for rider in riders.values()), default=now_ns)
            yield rpc.TransferView(
                key=key,
                prefix=prefix_of(key),
                size_bytes=transfer.size_bytes,
                holder=transfer.holder,
                cast=transfer.cast,
                riders=[
                    rpc.RiderView(node=name, arrived_percent=rider.percent) for name, rider in sorted(riders.items())
                ],
                since_ms=max(0, since_ns - born_ns) // 1_000_000,
                ended=ended,
            )

    def _gave_up(self, node: str, key: ChunkKey, until_ns: int) -> None:
        """A node does not wait for the chunk any more, if it did, and has done so since that time or before."""
        transfer = self._transfers.get(key)
        rider = None if transfer is None else transfer.riders.get(node)
        if transfer is not None and rider is not None and rider.percent < _HERE and rider.since_ns <= until_ns:
            del transfer.riders[node]
            if not transfer.riders:
                del self._transfers[key]

    def _news(self, key: ChunkKey, size_bytes: int, now_ns: int, *, begins: bool) -> _Transfer:
        """The transfer that news are of: one that is over begins again, or only its end is told late."""
        transfer = self._transfers.pop(key, None)
        if transfer is None or (transfer.ended(now_ns) and (begins or now_ns - transfer.news_ns > _MOMENT_NS)):
            transfer = _Transfer(now_ns)
        self._transfers[key] = transfer
        transfer.news_ns = now_ns
        transfer.size_bytes = size_bytes or transfer.size_bytes
        if len(self._transfers) > KEPT:
            self._transfers.popitem(last=False)
        return transfer
