"""All that is shown to people who watch, kept as the core's news comes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from controlplane.core.core import Core
from controlplane.core.ids import ChunkKey, Member, NodeIndex
from controlplane.core.limits import ARRIVING_MAX
from controlplane.core.live.figures import Events, NodeFigures, Sources
from controlplane.core.live.increments import Tables, tables_of
from controlplane.core.live.prefixes import Prefixes
from controlplane.core.live.runs import Runs
from controlplane.core.live.slot_map import SlotMap
from controlplane.core.live.transfers import Transfers
from controlplane.core.nodes import Node
from controlplane.core.observer import Observer
from controlplane.core.switch.chunk_states import ChunkEvent, ChunkState
from controlplane.core.switch.slots import SlotRange
from controlplane.core.views import node_names, node_view
from kvproto.rpc import control_pb2 as rpc

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
