"""The agents: their indexes, members and ports, who is attached, who is gone. Pure.

(new) --hello--> attached --heartbeats missing--> suspect --heard--> attached
                    |  ^                            |
           stream closed  hello                stream closed
                    v  |                            v
                   gone <---------------------------+   copies forgotten after copies_grace,
                    |                                   member and port after member_grace
                    v
               (forgotten)
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from controlplane.core.ids import ChunkKey, Member, NodeIndex, SwitchPort
from controlplane.core.limits import HEARTBEATS_MISSED_MAX, HEARTBEATS_UNSEEN_MAX, MEMBERS_MAX, NODES_MAX
from controlplane.core.locations import Claim, Location, contradiction, refusal
from kvpolicy.tiers.holder_load import IDLE, HolderLoad
from kvproto.fanout import Fanout
from kvproto.integrity import Integrity

ASCENDING: Final[tuple[Member, ...]] = tuple(map(Member, range(MEMBERS_MAX)))
"""All members."""


class NodeState(enum.Enum):
    """Whether an agent is there; see the diagram above."""

    ATTACHED = "attached"
    SUSPECT = "suspect"
    GONE = "gone"


class NodeEvent(enum.Enum):
    """What happens to an agent that is known."""

    HELLO = "hello"
    MESSAGE = "message"
    SILENCE = "silence"
    """Its heartbeats are missing."""
    STREAM_ENDED = "stream ended"


_STEPS: Final = {
    (NodeState.ATTACHED, NodeEvent.HELLO): NodeState.ATTACHED,
    (NodeState.ATTACHED, NodeEvent.MESSAGE): NodeState.ATTACHED,
    (NodeState.ATTACHED, NodeEvent.SILENCE): NodeState.SUSPECT,
    (NodeState.ATTACHED, NodeEvent.STREAM_ENDED): NodeState.GONE,
    (NodeState.SUSPECT, NodeEvent.HELLO): NodeState.ATTACHED,
    (NodeState.SUSPECT, NodeEvent.MESSAGE): NodeState.ATTACHED,
    (NodeState.SUSPECT, NodeEvent.STREAM_ENDED): NodeState.GONE,
    (NodeState.GONE, NodeEvent.HELLO): NodeState.ATTACHED,
}
"""A pair that is not here cannot happen: a node that is gone has no stream to say something on, or to lose."""


class RefusedNodeError(Exception):
    """This agent cannot be attached; `code` is the gRPC status name."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What an agent says of itself when it attaches."""

    name: str
    incarnation: int
    data_ip: bytes
    """Of 16 bytes where it has no IPv4 on the data network, and takes part in no cast."""
    data_mac: bytes
    read_endpoint: str
    control_port: int
    switch_port: SwitchPort | None
    pool_bytes: int
    segment_bytes: frozenset[int]
    version: str = ""
    replica_of: int = 0
    """Incarnation of the controller whose directory it still has; 0: none."""
    replica_nodes: int = 0
    disk_bytes: int = 0
    """Of its disk tier; 0: none."""
    rdma_mtu_bytes: int = 0
    """0: it has no RDMA."""
    integrities: frozenset[Integrity] = frozenset(Integrity)
    """How it can digest chunks."""
    rail_endpoints: tuple[str, ...] = ()
    """Where it is read on its second and further rails."""
    rack: str = ""
    """That it stands in; empty: nobody said so."""
    link_rate_bit_s: int = 0
    """Of the port that carries its data; 0: it has not said."""
    takes_columns: bool = False
    """Many chunks of one message, in columns."""
    follows: bool = False
    """It is told only of chunks that it asked for."""
    member: Member | None = None
    """That a predecessor of this controller gave it."""
    fanouts: frozenset[Fanout] = frozenset({Fanout.SWITCH})
    """That it speaks."""
    speaker: str = ""
    """Who speaks for it: the name in its certificate, or without TLS its host."""


@dataclass(slots=True)
class Node:
    """An agent as the controller knows it; changed only by `NodeRegistry` and, for the counts, by the core."""

    index: NodeIndex
    facts: NodeFacts
    session: int
    """The stream it speaks on now."""
    state: NodeState = NodeState.ATTACHED
    configured_port: SwitchPort | None = None
    """By the controller's configuration or the agent's: to be verified."""
    seen_port: SwitchPort | None = None
    """Where the switch saw a frame of its own: packets for its address go there."""
    port: SwitchPort | None = None
    """The same, if nothing speaks against it: casts go there, and fills come from there."""
    member: Member | None = None
    port_problem: str = ""
    """Why it takes part in no cast, for a person; empty: it does, or it is too early to say."""
    here_key: bytes = b""
    """What it says to the switch, so that the controller knows it is this node."""
    listened_ns: int = 0
    """Since when it could have been seen."""
    draining: bool = False
    unreached: bool = False
    """Others cannot reach it on the data network (`Reachability`)."""
    heard_ns: int = 0
    gone_ns: int = 0
    copies_forgotten: bool = False
    pool_used_bytes: int = 0
    disk_used_bytes: int = 0
    next_victims: tuple[ChunkKey, ...] = ()
    """What its full pool would lose next."""
    sent_bytes: int = 0
    received_bytes: int = 0
    reads: str = ""
    """Where it found that several end sooner if each reads what all want; empty: nowhere."""
    load: HolderLoad = IDLE
    """What it has queued for its readers, as last reported."""

    def step(self, event: NodeEvent) -> None:
        """Something happened to it. Raises KeyError for what cannot."""
        self.state = _STEPS[self.state, event]

    @property
    def attached(self) -> bool:
        """Its stream is open."""
        return self.state is not NodeState.GONE

    @property
    def may_cast(self) -> bool:
        """It has IPv4 on the data network; the switch sees no other node."""
        return len(self.facts.data_ip) == 4

    @property
    def claim(self) -> Claim:
        """What others can contradict."""
        return Claim(self.facts.name, self.facts.data_mac, self.facts.data_ip, self.seen_port)

    @property
    def location(self) -> Location | None:
        """Where packets for it go; None: it was not seen, or its agent is gone and nobody knows whether it moved."""
        if self.seen_port is None or not self.attached:
            return None
        return Location(self.seen_port, self.facts.data_mac, self.facts.data_ip)

    @property
    def free_bytes(self) -> int:
        """Room in its pool, as last reported."""
        return max(0, self.facts.pool_bytes - self.pool_used_bytes)

    @property
    def disk_free_bytes(self) -> int:
        """Room in its disk tier, as last reported."""
        return max(0, self.facts.disk_bytes - self.disk_used_bytes)


@dataclass(frozen=True, slots=True)
class Expiry:
    """What time did to the nodes."""

    copies: tuple[NodeIndex, ...] = ()
    """Gone long enough that their copies are to be forgotten."""
    nodes: tuple[NodeIndex, ...] = ()
    """Forgotten altogether: their member and port are free."""
    suspects: tuple[NodeIndex, ...] = ()
    """Not heard for a while."""
    reservations: bool = False
    """Members that a predecessor's nodes had were given up."""


@dataclass(frozen=True, slots=True)
class Graces:
    """Interval of heartbeats, and how long a node that is gone keeps its copies and its member; in nanoseconds."""

    heartbeat_ns: int
    copies_ns: int
    member_ns: int


@dataclass(slots=True)
class NodeRegistry:
    """All agents that the controller remembers."""

    graces: Graces
    configured_ports: Mapping[str, SwitchPort] = field(default_factory=dict)
    """By node name; wins over what an agent says."""
    with_switch: bool = True
    """Ports are those where a switch sees nodes; without one nobody has a port."""
    member_order: Sequence[Member] = ASCENDING
    """All members; port p has the one at p - 1 if it can."""
    fanout: Fanout = Fanout.SWITCH
    """Where it keeps, nodes are members without ports, in the order of being known, if they speak it."""
    is_leaving: Callable[[NodeIndex], bool] = lambda index: False
    """Whether something of a node that was forgotten is still known under its index."""
    _nodes: dict[NodeIndex, Node] = field(default_factory=dict)
    _by_name: dict[str, NodeIndex] = field(default_factory=dict)
    _displaced: list[NodeIndex] = field(default_factory=list)
    _reserved: dict[SwitchPort, tuple[Member, int]] = field(default_factory=dict)
    """Port -> member that a switch already knows, and until when it is kept for the node that is missing."""
    _found: dict[tuple[bytes, bytes], SwitchPort] = field(default_factory=dict)
    """(MAC, IP address) -> port: where a predecessor had seen nodes that have not attached yet."""
    _changed: dict[NodeIndex, None] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Node]:
        return iter(list(self._nodes.values()))

    def __len__(self) -> int:
        return len(self._nodes)

    def get(self, index: NodeIndex) -> Node | None:
        """The node of this index, if it is remembered."""
        return self._nodes.get(index)

    def named(self, name: str) -> Node | None:
        """The node of this name, if it is remembered."""
        index = self._by_name.get(name)
        return None if index is None else self._nodes[index]

    def hello(self, session: int, facts: NodeFacts, now_ns: int) -> Node:
        """An agent attaches, for the first time or again. Raises RefusedNodeError."""
        node = self.named(facts.name)
        if node is not None and node.attached and facts.incarnation < node.facts.incarnation:
            raise RefusedNodeError(
                "ALREADY_EXISTS",
                f"node '{facts.name}' is attached with a newer incarnation: give this agent another name",
            )
        if node is not None and node.state is NodeState.ATTACHED and facts.speaker != node.facts.speaker:
            raise RefusedNodeError(
                "ALREADY_EXISTS",
                f"node '{facts.name}' is attached from {node.facts.speaker}: {facts.speaker} needs another name",
            )
        if node is None:
            index = self._lowest_free_index()
            node = Node(index, facts, session)
            self._nodes[index] = node
            self._by_name[facts.name] = index
        if (facts.data_mac, facts.data_ip) != (node.facts.data_mac, node.facts.data_ip):
            node.seen_port = None
        node.facts, node.session = facts, session
        node.step(NodeEvent.HELLO)
        node.heard_ns, node.copies_forgotten = now_ns, False
        node.load = IDLE
        node.listened_ns = now_ns
        node.configured_port = self.configured_ports.get(facts.name, facts.switch_port)
        self._recall(node)
        self._settle()
        self._changed.pop(node.index, None)
        return node

    # -- where they are

    def sighted(self, node: Node, seen: Location) -> None:
        """The switch saw a frame that this node sent."""
        others = [other.claim for other in self._nodes.values() if other is not node and other.location is not None]
        problem = contradiction(node.claim, seen, others)
        if problem:
            self._note(node, None, problem)
        elif node.seen_port != seen.port:
            self._note(node, seen.port, "")
        self._settle()

    def reserve(self, members: Mapping[SwitchPort, Member], locations: Sequence[Location], now_ns: int) -> None:
        """A switch already has these members, and knows nodes there, from before this controller started: they will
        attach soon, or have just attached, and casts to them must not break off meanwhile."""
        taken_ports = {node.port for node in self._nodes.values()}
        taken = {node.member for node in self._nodes.values()} - {None}
        for port, member in members.items():
            if port not in taken_ports and member not in taken:
                self._reserved[port] = (member, now_ns + self.graces.member_ns)
        self._found = {(one.mac, one.ip): one.port for one in locations if one.port in self._reserved}
        for node in self._nodes.values():
            self._recall(node)
        self._settle()

    def put_out(self, node: Node) -> None:
        """Forget a node now, and free its member and its port."""
        self._forget(node)
        self._changed.pop(node.index, None)
        self._settle()

    def take_changed(self) -> list[Node]:
        """Nodes whose port, member or problem is different since the last call."""
        changed, self._changed = list(self._changed), {}
        return [node for index in changed if (node := self._nodes.get(index)) is not None]

    def locations(self) -> list[Location]:
        """Of nodes that are here, and of those that a switch knows and that have not attached yet."""
        here = [location for node in self._nodes.values() if (location := node.location) is not None]
        known = {address for one in here for address in (one.mac, one.ip)}
        return here + [Location(port, *whose) for whose, port in self._found.items() if known.isdisjoint(whose)]

    def look_for(self, now_ns: int, listening_since_ns: int | None) -> None:
        """Note the nodes of which nothing was seen for long. `listening_since_ns`: since when the switch could have
        reported them; None: it cannot."""
        if listening_since_ns is None:
            return
        patience_ns = HEARTBEATS_UNSEEN_MAX * self.graces.heartbeat_ns
        for node in self._nodes.values():
            unseen = node.seen_port is None and node.attached and not node.port_problem and node.may_cast
            if unseen and now_ns - max(node.listened_ns, listening_since_ns) > patience_ns:
                self._note(node, None, "the switch has seen nothing of it on the data network")

    def take_displaced(self) -> list[NodeIndex]:
        """Nodes forgotten because another one came up at their switch port."""
        displaced, self._displaced = self._displaced, []
        return displaced

    def message_received(self, node: Node, now_ns: int) -> None:
        """The node said something: it is not suspect."""
        node.heard_ns = now_ns
        node.step(NodeEvent.MESSAGE)

    def stood_still(self, gap_ns: int) -> None:
        """The controller itself heard nobody for so long: that says nothing of nodes."""
        for node in self._nodes.values():
            node.heard_ns += gap_ns

    def stream_ended(self, session: int, now_ns: int) -> Node | None:
        """A stream ended. Returns its node, unless the node has meanwhile attached again on another stream."""
        for node in self._nodes.values():
            if node.session == session and node.attached:
                node.step(NodeEvent.STREAM_ENDED)
                node.gone_ns = now_ns
                return node
        return None

    def expire(self, now_ns: int) -> Expiry:
        """What the time brings about: nodes that become suspect, copies and nodes that are forgotten."""
        copies, nodes, suspects = [], [], []
        for node in list(self._nodes.values()):
            if node.state is NodeState.ATTACHED:
                if now_ns - node.heard_ns > HEARTBEATS_MISSED_MAX * self.graces.heartbeat_ns:
                    node.step(NodeEvent.SILENCE)
                    suspects.append(node.index)
            elif node.state is NodeState.GONE:
                if not node.copies_forgotten and now_ns - node.gone_ns >= self.graces.copies_ns:
                    node.copies_forgotten = True
                    copies.append(node.index)
                if now_ns - node.gone_ns >= self.graces.member_ns:
                    nodes.append(node.index)
                    self._forget(node)
        if nodes and self.fanout.keeps:
            self._number()
        overdue = [port for port, (_, until_ns) in self._reserved.items() if until_ns <= now_ns]
        for port in overdue:
            del self._reserved[port]
        if overdue:
            self._found = {whose: port for whose, port in self._found.items() if port in self._reserved}
        return Expiry(tuple(copies), tuple(nodes), tuple(suspects), bool(overdue))

    def member_ports(self) -> dict[Member, SwitchPort]:
        """Of the nodes that are known, and of those that a switch knows and that have not attached yet."""
        ports = {member: port for port, (member, _) in self._reserved.items()}
        for node in self._nodes.values():
            if node.member is not None and node.port is not None:
                ports[node.member] = node.port
        return ports

    def _recall(self, node: Node) -> None:
        """A predecessor had seen this node: it will be there still, or say HERE from where it is."""
        port = self._found.pop((node.facts.data_mac, node.facts.data_ip), None)
        if port is not None and node.seen_port is None:
            self._note(node, port, "")

    def _note(self, node: Node, seen_port: SwitchPort | None, problem: str) -> None:
        if (node.seen_port, node.port_problem) != (seen_port, problem):
            node.seen_port, node.port_problem = seen_port, problem
            self._changed[node.index] = None

    def _settle(self) -> None:
        """Who takes part in casts: who has a port and is alone there keeps it, in the order of being known."""
        if not self.with_switch:
            if self.fanout.keeps:
                self._number()
            return
        for _ in range(2):  # a node may free the port of one before it
            for node in list(self._nodes.values()):
                self._place(node)

    def _number(self) -> None:
        """A node keeps its number until it is forgotten, whatever becomes of its controller; those who start together
        get neighbouring ones."""
        for node in self._nodes.values():
            if node.member is not None or not node.attached:
                continue
            if not node.may_cast:
                node.port_problem = "no IPv4 on the data network"
                continue
            if self.fanout not in node.facts.fanouts:
                release = f"kvcast {node.facts.version or 'of an unknown version'}"
                node.port_problem = f"its agent ({release}) lacks fabric.fanout {self.fanout.name.lower()}: upgrade it"
                continue
            taken = {other.member for other in self._nodes.values()}
            wishes = [*([] if node.facts.member is None else [node.facts.member]), *ASCENDING]
            node.member = next((one for one in wishes if one not in taken), None)
            node.port_problem = "" if node.member is not None else f"all {MEMBERS_MAX} numbers of members are taken"
            if node.member is not None:
                self._changed[node.index] = None

    def _place(self, node: Node) -> None:
        """Port, member and problem that follow from where the node was seen; one that is gone keeps what it had."""
        if not node.attached:
            return
        port, member, problem = node.seen_port, node.member, node.port_problem
        if port is not None:
            at_port = [
                other for other in self._nodes.values() if other is not node and other.port == other.seen_port == port
            ]
            problem = refusal(port, node.configured_port, [other.claim for other in at_port if other.attached])
            for other in at_port if not problem else ():
                # Its agent is gone, and another node is where it was.
                self._forget(other)
                self._displaced.append(other.index)
        if port is None or problem:
            port = member = None
        elif member is None:
            member = self._choose_member(port)
            problem = problem if member is not None else f"all {MEMBERS_MAX} members of the switch are taken"
        else:
            self._reserved.pop(port, None)
        if (port, member, problem) != (node.port, node.member, node.port_problem):
            node.port, node.member, node.port_problem = port, member, problem
            self._changed[node.index] = None

    def _lowest_free_index(self) -> NodeIndex:
        for index in range(NODES_MAX):
            if index not in self._nodes and not self.is_leaving(NodeIndex(index)):
                return NodeIndex(index)
        raise RefusedNodeError("RESOURCE_EXHAUSTED", f"{NODES_MAX} nodes are known already")

    def _choose_member(self, port: SwitchPort) -> Member | None:
        """What the switch has for this port; else the member that goes with the port's own number, so that a controller
        that knows nothing yet comes to the same choice as the one before; else any free one."""
        taken = {node.member for node in self._nodes.values()}
        reserved = self._reserved.pop(port, None)
        wishes = [reserved[0]] if reserved else []
        wishes += [*self.member_order[port - 1 : port], *self.member_order]
        taken |= {member for member, _ in self._reserved.values()}
        return next((one for one in wishes if one not in taken), None)

    def _forget(self, node: Node) -> None:
        del self._nodes[node.index]
        del self._by_name[node.facts.name]
