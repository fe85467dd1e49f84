"""Streams of agents: who may attach, what it is told first, and by which tokens it reads from others. Pure."""

from __future__ import annotations

from dataclasses import replace

from controlplane.core import parse
from controlplane.core.cluster import Cluster
from controlplane.core.effects import CloseSession
from controlplane.core.ids import NodeIndex
from controlplane.core.leadership import Leadership
from controlplane.core.limits import NODE_NAME_BYTES_MAX
from controlplane.core.nodes import Node, NodeFacts, RefusedNodeError
from controlplane.core.read_access import ReadTokens
from controlplane.core.switch_link import SwitchLink
from controlplane.core.ways import fanout_of
from kvproto import __version__
from kvproto.integrity import code_of
from kvproto.rpc import control_pb2 as rpc
from kvproto.rpc.versions import PROTOCOL, skew
from kvproto.wire.rdma import rdma_segment_bytes_max


class Attachments:
    """Owns the open streams, the names of the nodes that are put out, and the signing of read tokens."""

    def __init__(self, cluster: Cluster, link: SwitchLink, leadership: Leadership) -> None:
        self._cluster = cluster
        self._link = link
        self._leadership = leadership
        options = cluster.options
        self.tokens = ReadTokens(options.secret, options.read_token_ms, cluster.namespace_rules)
        self._tokens_due_ns = 0
        self.sessions: dict[int, NodeIndex] = {}
        """Streams that have said Hello and have not ended."""
        self._rdma_problems: dict[str, str] = {}
        """What was said of each node's NIC, by the node's name."""

    def node_of(self, session: int) -> Node | None:
        """Who speaks on a stream; None: nobody has said Hello on it, or it has ended."""
        index = self.sessions.get(session)
        return None if index is None else self._cluster.nodes.get(index)

    def admit(self, session: int, hello: rpc.Hello, speaker: str) -> Node:
        """The node that says Hello. Raises RefusedNodeError, RecordError."""
        name, version = hello.node[:NODE_NAME_BYTES_MAX], hello.version[:NODE_NAME_BYTES_MAX]
        if reason := skew(f"agent {name}", version, hello.protocol, __version__):
            raise RefusedNodeError("FAILED_PRECONDITION", reason)
        if reason := self._cluster.options.cells.refusal(name, hello.cell[:NODE_NAME_BYTES_MAX]):
            raise RefusedNodeError("FAILED_PRECONDITION", reason)
        facts = parse.node_facts(hello, speaker)
        if 0 < hello.replica_rows < len(self._cluster.directory):
            facts = replace(facts, follows=True)
        self._check(facts)
        parse.check_operator_state(hello.operator_state)
        return self._cluster.nodes.hello(session, facts, self._cluster.now_ns)

    def _check(self, facts: NodeFacts) -> None:
        if facts.name in self.tokens.expelled:
            raise RefusedNodeError("PERMISSION_DENIED", expelled_words(facts.name))
        segment_bytes, integrity = self._link.segment_bytes, self._cluster.options.fabric.integrity
        if facts.segment_bytes and segment_bytes not in facts.segment_bytes:
            raise RefusedNodeError(
                "FAILED_PRECONDITION", f"the fabric's segments have {segment_bytes} bytes, which this agent lacks"
            )
        if integrity not in facts.integrities:
            raise RefusedNodeError(
                "FAILED_PRECONDITION",
                f"the fabric's chunks are digested by {integrity.value}, which agent"
                f" {facts.name} (kvcast {facts.version or 'of an unknown version'}) lacks: upgrade it",
            )

    def take_older_streams(self, node: Node) -> list[int]:
        """End what a node that attaches again has left open elsewhere."""
        older = [session for session, index in self.sessions.items() if index == node.index]
        for session in older:
            del self.sessions[session]
            self.close(session, "ABORTED", "this node attached again on another stream")
        return older

    def close(self, session: int, code: str, reason: str) -> None:
        """End a stream with a gRPC status."""
        self._cluster.emit(CloseSession(session, code, reason))

    def close_all(self, code: str, reason: str) -> None:
        """End all streams with a gRPC status."""
        for session in list(self.sessions):
            self.close(session, code, reason)

    # -- what an agent is told

    def welcome(self, node: Node, switch_state: rpc.SwitchState) -> None:
        """Tell a node who it is here, how the fabric is set up, and by what it reads; `switch_state`: how it stands
        with the switch."""
        cluster, options = self._cluster, self._cluster.options
        fabric = options.fabric
        fanout = fanout_of(cluster, node)
        welcome = rpc.Welcome(
            node=node.index,
            controller=options.incarnation,
            heartbeat_ms=options.graces.heartbeat_ns // 1_000_000,
            switch_state=switch_state,
            protocol=PROTOCOL,
            takes_loads=True,
            takes_columns=True,
            takes_look_ups=True,
            follows=node.facts.follows,
            read_tokens=True,
            version=__version__,
            epoch=self._leadership.epoch,
            silence_ms=options.silence_ms,
            fabric=rpc.Fabric(
                group_ip=fabric.entry.group_ip,
                group_mac=fabric.entry.group_mac,
                pool_ip=fabric.entry.pool_ip,
                qkey=fabric.qkey,
                data_port=fabric.data_port,
                control_port=fabric.control_port,
                segment_bytes=self._link.segment_bytes,
                from_switch_dscp=fabric.entry.from_switch_dscp,
                interest_ttl_ms=fabric.entry.interest_ttl_us // 1000,
                integrity=rpc.Integrity.ValueType(code_of(fabric.integrity)),
                fanout=rpc.Fanout.ValueType(fanout.value),
                unasked_weight=fabric.unasked_weight,
            ),
        )
        if node.member is not None and (options.with_switch or fanout.keeps):
            welcome.member = node.member
        cluster.send(node.session, rpc.ToAgent(welcome=welcome))
        cluster.send(node.session, self.tokens.access_of(node.facts, cluster.now_ns))

    def warn_of_rdma(self, facts: NodeFacts) -> None:
        """Say once when a node's NIC does not carry the fabric's casts."""
        problem = _rdma_problem(facts, self._link.segment_bytes)
        if problem != self._rdma_problems.get(facts.name, ""):
            self._rdma_problems[facts.name] = problem
            if problem:
                self._cluster.warn(problem)

    # -- tokens

    def expel(self, names: frozenset[str]) -> None:
        """These nodes, and no others, are put out: every holder learns that their tokens are no good."""
        self.tokens.expelled = names
        self.send_tokens()

    @property
    def tokens_are_due(self) -> bool:
        """Whether agents need tokens that are good for longer than their last."""
        return self._cluster.now_ns >= self._tokens_due_ns

    def send_tokens(self) -> None:
        """Give every agent a token that is good for longer than its last."""
        now_ns = self._cluster.now_ns
        self._tokens_due_ns = now_ns + self.tokens.renew_ns
        for session in self.sessions:
            node = self.node_of(session)
            if node is not None:
                self._cluster.send(session, self.tokens.access_of(node.facts, now_ns))


def expelled_words(name: str) -> str:
    """Why an agent is refused that speaks for a node that is put out."""
    return f"node '{name}' is expelled: an operator has put it out (kvcast expel {name} --cancel takes it in again)"


def _rdma_problem(facts: NodeFacts, segment_bytes: int) -> str:
    if not facts.rdma_mtu_bytes:
        return ""
    fits_bytes = rdma_segment_bytes_max(facts.rdma_mtu_bytes)
    if fits_bytes >= segment_bytes:
        return ""
    return (
        f"{facts.name}: its RDMA MTU of {facts.rdma_mtu_bytes} bytes takes segments of {fits_bytes} at most,"
        f" the fabric's have {segment_bytes}: its casts go over sockets, its reads over RDMA. Build the"
        f" switch program with SEGMENT_BYTES={fits_bytes} or raise the interface's MTU"
    )
