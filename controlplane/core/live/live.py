"""All that is shown to people who watch, kept as the core's news comes. Pure.

The slots of the switch as a map of cells: what is in them, and how hot that is. Pure.

Chunks on their way to nodes, and which nodes share a cast. Pure.

Three sorts of news tell of them: the switch, which sees several members wait for one chunk; heartbeats, which name
what is arriving; and reports of fetches, which say how a chunk has come.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from controlplane.core.core import Core
from controlplane.core.ids import ChunkKey, Member, NodeIndex
from controlplane.core.limits import ARRIVING_MAX
from controlplane.core.live.figures import Events, NodeFigures, Rate, Sources
from controlplane.core.live.increments import Tables, tables_of
from controlplane.core.live.runs import Prefixes, Runs
from controlplane.core.nodes import Node
from controlplane.core.observer import Observer
from controlplane.core.switch.chunk_states import ChunkEvent, ChunkState
from controlplane.core.switch.slots import SlotRange
from controlplane.core.views import node_names, node_view
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


CELLS_MAX: Final = 256
HEAT_MAX: Final = 8
_COOLEST_PER_S: Final = 0.05
"""Fetches per second of a cell that is just not cold; each step of heat is twice as much."""


@dataclass(slots=True)
class _Cell:
    slots: Counter[str] = field(default_factory=Counter)
    """By state, as it is shown."""
    heat: Rate = field(default_factory=Rate)
    key: ChunkKey | None = None
    """The chunk that came last."""


class SlotMap:
    """The map of one switch."""

    def __init__(self) -> None:
        self._capacity = 0
        self._per_cell = 1
        self._cells: list[_Cell] = []
        self._chunks: dict[ChunkKey, tuple[SlotRange, str]] = {}

    def resize(self, capacity: int) -> None:
        """The switch has so many slots; nothing happens if it had as many before."""
        if capacity == self._capacity:
            return
        self._capacity = capacity
        self._per_cell = max(1, -(-capacity // CELLS_MAX))
        self._cells = [_Cell() for _ in range(-(-capacity // self._per_cell))]
        chunks, self._chunks = self._chunks, {}
        for key, (slots, shown) in chunks.items():
            if slots.end <= capacity:
                self._put(key, slots, shown)

    def moved(self, key: ChunkKey, slots: SlotRange, state: ChunkState) -> None:
        """A chunk is in another state."""
        before = self._chunks.pop(key, None)
        if before is not None:
            for cell, count in self._shares(before[0]):
                cell.slots[before[1]] -= count
                if cell.key == key:
                    cell.key = None
        if state is not ChunkState.ABSENT:
            self._put(key, slots, state.shown)

    def fetched(self, key: ChunkKey, at_ns: int) -> None:
        """A node got a chunk; nothing happens unless the switch has it."""
        here = self._chunks.get(key)
        if here is not None:
            for cell, _ in self._shares(here[0]):
                cell.heat.add(1.0, at_ns)

    def rows(self, now_ns: int) -> Iterator[rpc.SlotsView]:
        """All cells."""
        for number, cell in enumerate(self._cells):
            yield rpc.SlotsView(
                cell=number,
                slots=min(self._per_cell, self._capacity - number * self._per_cell),
                serving=cell.slots[ChunkState.SERVING.shown],
                filling=cell.slots[ChunkState.FILLING.shown],
                leaving=cell.slots[ChunkState.RECOVERING.shown],
                heat=_level(cell.heat.per_s(now_ns)),
                key=cell.key or b"",
            )

    def _put(self, key: ChunkKey, slots: SlotRange, shown: str) -> None:
        self._chunks[key] = slots, shown
        for cell, count in self._shares(slots):
            cell.slots[shown] += count
            cell.key = key

    def _shares(self, slots: SlotRange) -> Iterator[tuple[_Cell, int]]:
        """Cells that slots reach into, each with how many of them."""
        for number in range(slots.base // self._per_cell, -(-slots.end // self._per_cell)):
            if number < len(self._cells):
                begin, end = number * self._per_cell, (number + 1) * self._per_cell
                yield self._cells[number], min(end, slots.end) - max(begin, slots.base)


def _level(per_s: float) -> int:
    """Steps of a factor of two."""
    return min(HEAT_MAX, int(per_s / _COOLEST_PER_S).bit_length())


_TOLD = {
    ChunkEvent.ADMIT: "admitted",
    ChunkEvent.EVICT: "evicted",
    ChunkEvent.EVICT_LAST: "evicted; the last copy is saved first",
    ChunkEvent.RECOVERED: "last copy saved",
    ChunkEvent.RECOVERY_FAILED: "last copy could not be saved",
    ChunkEvent.REFUSED: "the switch refused its entry",
    ChunkEvent.SEGMENT_LOST: "lost a segment: filled in again",
    ChunkEvent.LOST: "lost with the switch's state",
}
"""Steps of a chunk's way through the switch that a person wants to know of."""


class Live(Observer):
    """Owns what people who watch are shown: what has happened to a core since it was made, as tables of rows."""

    def __init__(self, core: Core) -> None:
        """Becomes the observer of `core`, to which nothing has happened yet."""
        self._events = Events()
        self._sources = Sources()
        self._transfers = Transfers()
        self._slots = SlotMap()
        self._figures: dict[NodeIndex, NodeFigures] = {}
        self._core = core
        self._runs = Runs(core.directory)
        self._prefixes = Prefixes(core.directory, self._runs)
        self.switch_drops: Mapping[str, int] = {}
        """Packets by reason, as the data plane counted them; set by whoever asks it."""
        core.watch(self)

    # -- news

    def fetched(self, node: Node, fetch: rpc.FetchEvent, at_ns: int, *, rode_along: bool) -> None:
        """A node got a chunk, or had to recompute it."""
        core = self._core
        key = ChunkKey(fetch.key)
        chunk = core.directory.get(key)
        size_bytes = fetch.bytes or (chunk.facts.size_bytes if chunk is not None else 0)
        self._sources.add(fetch.source, size_bytes, at_ns, self._born_ns)
        holder = core.nodes.get(NodeIndex(fetch.holder))
        name = holder.facts.name if holder is not None else ""
        self._transfers.arrived(node.facts.name, key, size_bytes, fetch.source, name, max(at_ns, core.now_ns))
        self._slots.fetched(key, at_ns)
        self._prefixes.fetched(node, fetch, at_ns, rode_along=rode_along)

    def heartbeat_received(self, node: Node, heartbeat: rpc.Heartbeat, now_ns: int) -> None:
        """A node's figures came."""
        figures = self._figures.get(node.index)
        if figures is None or figures.incarnation != node.facts.incarnation:
            figures = self._figures[node.index] = NodeFigures(node.facts.incarnation)
        for text, like, times in figures.beat(node.facts.name, heartbeat, now_ns):
            self._events.add("gate", text, now_ns, times=times, like=like)
        arriving = figures.arriving
        self._transfers.arriving(node.facts.name, arriving, now_ns, all_of_them=len(arriving) < ARRIVING_MAX)

    def wanted_together(self, key: ChunkKey, members: frozenset[Member], now_ns: int) -> None:
        """The switch saw several members wait for one chunk."""
        core = self._core
        chunk = core.directory.get(key)
        if chunk is not None:
            names = sorted(node.facts.name for node in core.nodes if node.member in members)
            self._transfers.wanted_together(key, names, chunk.facts.size_bytes, now_ns)

    def moved(self, key: ChunkKey, slots: SlotRange, state: ChunkState, event: ChunkEvent | None, why: str) -> None:
        """A chunk is in another state on its way through the switch."""
        core = self._core
        self._slots.resize(core.switch_cache.slots.capacity)
        self._slots.moved(key, slots, state)
        if event is ChunkEvent.FILL_FAILED:
            self._events.add("switch", f"could not be filled: {why or 'its filler is gone'}", core.now_ns, key)
        elif event is ChunkEvent.WRITTEN and state is ChunkState.SERVING:
            self._events.add("switch", "served by the switch", core.now_ns, key)
        elif event in _TOLD:
            self._events.add("admission", _TOLD[event], core.now_ns, key)

    def refused(self, key: ChunkKey, why: str) -> None:
        """A candidate for the switch was not admitted."""
        self._events.add("admission", f"not admitted: {why}", self._core.now_ns, key)

    def happened(self, text: str, now_ns: int) -> None:
        """A role, a node or the switch changed."""
        self._events.add("cluster", text, now_ns)

    # -- a look

    def tables(self, now_ns: int) -> Tables:
        """How things are now."""
        core = self._core
        self._slots.resize(core.switch_cache.slots.capacity)
        for index in [one for one in self._figures if core.nodes.get(one) is None]:
            del self._figures[index]
            self._prefixes.node_forgotten(index)
        return tables_of(
            {
                "nodes": self._node_rows(core),
                "prefixes": self._prefixes.rows(lambda indexes: node_names(core, indexes), now_ns),
                "transfers": self._transfers.rows(self._prefix_of, now_ns, self._born_ns),
                "slots": self._slots.rows(now_ns),
                "sources": self._sources.rows(now_ns, self._born_ns),
                "decisions": _counts(core.decisions),
                "drops": _counts(self._drops()),
                "events": self._events.rows(self._born_ns),
            }
        )

    def _node_rows(self, core: Core) -> Iterator[rpc.LiveNode]:
        for node in core.nodes:
            row = rpc.LiveNode(node=node_view(core, node))
            figures = self._figures.get(node.index)
            if figures is not None and node.attached:
                figures.show(row)
            yield row

    def _drops(self) -> Counter[str]:
        """By where and why."""
        drops = Counter({f"switch: {reason}": count for reason, count in self.switch_drops.items()})
        for figures in self._figures.values():
            drops.update({f"agents: {reason}": count for reason, count in figures.drops.items()})
        return drops

    def _prefix_of(self, key: ChunkKey) -> ChunkKey:
        run = self._runs.run_of(key)
        return key if run is None else run.first

    @property
    def _born_ns(self) -> int:
        started_ns = self._core.started_ns
        return 0 if started_ns is None else started_ns


def _counts(counts: Mapping[str, int]) -> Iterable[rpc.CountView]:
    return [rpc.CountView(name=name, count=count) for name, count in sorted(counts.items()) if count > 0]
