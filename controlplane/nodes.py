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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from controlplane.ids import ChunkKey, Member, NodeIndex, SwitchPort
from controlplane.limits import HEARTBEATS_MISSED_MAX, MEMBERS_MAX, NODES_MAX

ASCENDING: Final[tuple[Member, ...]] = tuple(map(Member, range(MEMBERS_MAX)))
"""All members."""


class NodeState(enum.Enum):
    ATTACHED = "attached"
    SUSPECT = "suspect"
    GONE = "gone"


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


@dataclass(slots=True)
class Node:
    """An agent as the controller knows it; changed only by `NodeRegistry` and, for the counts, by the core."""

    index: NodeIndex
    facts: NodeFacts
    session: int
    """The stream it speaks on now."""
    state: NodeState = NodeState.ATTACHED
    port: SwitchPort | None = None
    member: Member | None = None
    draining: bool = False
    heard_ns: int = 0
    gone_ns: int = 0
    copies_forgotten: bool = False
    pool_used_bytes: int = 0
    disk_used_bytes: int = 0
    next_victims: tuple[ChunkKey, ...] = ()
    """What its full pool would lose next."""
    sent_bytes: int = 0
    received_bytes: int = 0

    @property
    def attached(self) -> bool:
        return self.state is not NodeState.GONE

    @property
    def free_bytes(self) -> int:
        return max(0, self.facts.pool_bytes - self.pool_used_bytes)

    @property
    def disk_free_bytes(self) -> int:
        return max(0, self.facts.disk_bytes - self.disk_used_bytes)


@dataclass(frozen=True, slots=True)
class Expiry:
    """What time did to the nodes."""

    copies: tuple[NodeIndex, ...] = ()
    """Gone long enough that their copies are to be forgotten."""
    nodes: tuple[NodeIndex, ...] = ()
    """Forgotten altogether: their member and port are free."""
    reservations: bool = False
    """Members that a predecessor's nodes had were given up."""


@dataclass(frozen=True, slots=True)
class Graces:
    heartbeat_ns: int
    copies_ns: int
    member_ns: int


@dataclass(slots=True)
class NodeRegistry:
    """All agents that the controller remembers."""

    graces: Graces
    configured_ports: Mapping[str, SwitchPort] = field(default_factory=dict)
    """By node name; wins over what an agent says."""
    member_order: Sequence[Member] = ASCENDING
    """All members; port p has the one at p - 1 if it can."""
    _nodes: dict[NodeIndex, Node] = field(default_factory=dict)
    _by_name: dict[str, NodeIndex] = field(default_factory=dict)
    _displaced: list[NodeIndex] = field(default_factory=list)
    _reserved: dict[SwitchPort, tuple[Member, int]] = field(default_factory=dict)
    """Port -> member that a switch already knows, and until when it is kept for the node that is missing."""

    def __iter__(self) -> Iterator[Node]:
        return iter(list(self._nodes.values()))

    def __len__(self) -> int:
        return len(self._nodes)

    def get(self, index: NodeIndex) -> Node | None:
        return self._nodes.get(index)

    def named(self, name: str) -> Node | None:
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
        if node is None:
            index = self._lowest_free_index()
            node = Node(index, facts, session)
            self._nodes[index] = node
            self._by_name[facts.name] = index
        node.facts, node.session = facts, session
        node.state, node.heard_ns, node.copies_forgotten = NodeState.ATTACHED, now_ns, False
        self._assign_port(node, now_ns)
        return node

    def reserve(self, members: Mapping[SwitchPort, Member], now_ns: int) -> None:
        """A switch already has these members, from before this controller started: their nodes will attach soon, and
        casts to them must not break off meanwhile."""
        taken_ports = {node.port for node in self._nodes.values()}
        taken = {node.member for node in self._nodes.values()}
        for port, member in members.items():
            if port not in taken_ports and member not in taken:
                self._reserved[port] = (member, now_ns + self.graces.member_ns)

    def take_displaced(self) -> list[NodeIndex]:
        """Nodes forgotten because another one came up at their switch port."""
        displaced, self._displaced = self._displaced, []
        return displaced

    def heard(self, node: Node, now_ns: int) -> None:
        node.heard_ns = now_ns
        if node.state is NodeState.SUSPECT:
            node.state = NodeState.ATTACHED

    def closed(self, session: int, now_ns: int) -> Node | None:
        """A stream ended. Returns its node, unless the node has meanwhile attached again on another stream."""
        for node in self._nodes.values():
            if node.session == session and node.attached:
                node.state, node.gone_ns = NodeState.GONE, now_ns
                return node
        return None

    def expire(self, now_ns: int) -> Expiry:
        copies, nodes = [], []
        for node in list(self._nodes.values()):
            if node.state is NodeState.ATTACHED:
                if now_ns - node.heard_ns > HEARTBEATS_MISSED_MAX * self.graces.heartbeat_ns:
                    node.state = NodeState.SUSPECT
            elif node.state is NodeState.GONE:
                if not node.copies_forgotten and now_ns - node.gone_ns >= self.graces.copies_ns:
                    node.copies_forgotten = True
                    copies.append(node.index)
                if now_ns - node.gone_ns >= self.graces.member_ns:
                    nodes.append(node.index)
                    self._forget(node)
        overdue = [port for port, (_, until_ns) in self._reserved.items() if until_ns <= now_ns]
        for port in overdue:
            del self._reserved[port]
        return Expiry(tuple(copies), tuple(nodes), bool(overdue))

    def member_ports(self) -> dict[Member, SwitchPort]:
        """Of the nodes that are known, and of those that a switch knows and that have not attached yet."""
        ports = {member: port for port, (member, _) in self._reserved.items()}
        for node in self._nodes.values():
            if node.member is not None and node.port is not None:
                ports[node.member] = node.port
        return ports

    def reserved_ports(self) -> frozenset[SwitchPort]:
        return frozenset(self._reserved)

    def _assign_port(self, node: Node, now_ns: int) -> None:
        """Port: from the configuration, else what the agent says, unless another node that is here sits on it."""
        port = self.configured_ports.get(node.facts.name, node.facts.switch_port)
        for other in list(self._nodes.values()):
            if other is not node and other.port == port and port is not None:
                if other.attached:
                    node.state, node.gone_ns = NodeState.GONE, now_ns
                    raise RefusedNodeError(
                        "FAILED_PRECONDITION",
                        f"switch port {port} of node '{node.facts.name}' is that of '{other.facts.name}':"
                        " correct `nodes` in the controller's configuration",
                    )
                self._forget(other)
                self._displaced.append(other.index)
        node.port = port
        if port is not None and node.member is not None:
            self._reserved.pop(port, None)
        if port is None:
            node.member = None
        elif node.member is None:
            node.member = self._choose_member(port)

    def _lowest_free_index(self) -> NodeIndex:
        for index in range(NODES_MAX):
            if index not in self._nodes:
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
