"""All that is shown to people who watch, kept as the core's news comes. Pure.

The slots of the switch as a map of cells: what is in them, and how hot that is. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from controlplane.core.core import Core
from controlplane.core.ids import ChunkKey, Member, NodeIndex
from controlplane.core.limits import ARRIVING_MAX
from controlplane.core.live.figures import Events, NodeFigures, Rate, Sources
from controlplane.core.live.increments import Tables, tables_of
from controlplane.core.live.runs import Prefixes, Runs
from controlplane.core.live.transfers import Transfers
from controlplane.core.nodes import Node
from controlplane.core.observer import Observer
from controlplane.core.switch.chunk_states import ChunkEvent, ChunkState
from controlplane.core.switch.slots import SlotRange
from controlplane.core.views import node_names, node_view
from kvproto.rpc import control_pb2 as rpc

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
