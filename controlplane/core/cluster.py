"""What all parts of the core share, and what the pool saved and managing it cost: pure counters, which `metrics` shows.
Pure.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from controlplane.core.directory import Directory
from controlplane.core.effects import Effect, Inform, SendTo, Warn
from controlplane.core.ids import ChunkKey, NodeIndex
from controlplane.core.nodes import Node, NodeRegistry, NodeState
from controlplane.core.observer import Observer
from controlplane.core.options import CoreOptions
from controlplane.core.tasks import TaskTable
from controlplane.core.values import ClusterValues
from controlplane.core.visibility import Visibility
from kvchunk.sources import ChunkSource
from kvproto.fanout import Fanout
from kvproto.grants import NamespaceRules
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


def _is_taker(node: Node) -> bool:
    return node.state is NodeState.ATTACHED and not node.draining and not node.unreached


class Cluster:
    """Who is there, who has what, what it is worth and who may hear of it; the time, and where effects go."""

    def __init__(self, options: CoreOptions) -> None:
        self.options = options
        self.namespace_rules = NamespaceRules(options.namespaces)
        self.directory = Directory(self.namespace_rules.apart)
        self.nodes = NodeRegistry(
            options.graces,
            options.ports,
            options.with_switch,
            options.member_order,
            Fanout.MULTICAST if options.fabric.has_numbers else Fanout.SWITCH,
            self.directory.is_leaving,
        )
        self.values = ClusterValues(self.directory, options.values)
        self.visibility = Visibility(self.namespace_rules, self.directory)
        self.tasks = TaskTable(options.incarnation, options.transfer_timeout_ms)
        self.accounting = Accounting()
        self.observer = Observer()
        self.way = options.fabric.fanout
        """How the fabric fans out at this moment. `Ways` alone changes it."""
        self.way_why = ""
        """What was found of the network; empty: an operator says so, or nothing yet."""
        self.now_ns = 0
        """When the event that is being handled happened."""
        self._effects: list[Effect] = []
        self._measured: tuple[rpc.ToAgent, int] = rpc.ToAgent(), 0
        """The message sent last and its bytes: most go to every agent."""

    @property
    def decisions(self) -> Counter[str]:
        """Number of decisions and events, by name."""
        return self.accounting.decisions

    @property
    def why(self) -> str:
        """What was found of the network, and where a node found that reading ends sooner."""
        choosers = [node for node in self.nodes if node.attached and node.reads]
        found = [f"{choosers[0].reads} ({choosers[0].facts.name})"] if choosers else []
        return "; ".join([self.way_why] * bool(self.way_why) + found)

    @property
    def takers(self) -> list[Node]:
        """Nodes that chunks may be brought to."""
        return [node for node in self.nodes if _is_taker(node)]

    # -- effects

    def emit(self, effect: Effect) -> None:
        """Have the shell do this."""
        self._effects.append(effect)

    def take_effects(self) -> list[Effect]:
        """What was emitted since the last call, in order."""
        effects, self._effects = self._effects, []
        return effects

    def send(self, session: int, message: rpc.ToAgent) -> None:
        """Tell the agent of a stream."""
        if message is not self._measured[0]:
            self._measured = message, message.ByteSize()
        self.accounting.message("out", self._measured[1])
        self.emit(SendTo(session, message))

    def send_to_node(self, index: NodeIndex, message: rpc.ToAgent) -> None:
        """Tell a node, if it is attached."""
        node = self.nodes.get(index)
        if node is not None and node.attached:
            self.send(node.session, message)

    def inform(self, text: str) -> None:
        """A line for the log and for those who watch."""
        self.emit(Inform(text))
        self.observer.happened(text, self.now_ns)

    def warn(self, text: str) -> None:
        """A line that an operator should see."""
        self.emit(Warn(text))
        self.observer.happened(text, self.now_ns)
