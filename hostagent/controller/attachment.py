"""The agent's end of the control channel: who it is, what the controller told it of the fabric, and its heartbeats.

Owns the link and what only the controller decides (member, fabric, epoch of the switch). News for other parts are
handed to them.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from hostagent import limits
from hostagent.controller.convert import RemoteProtocolError, delta_of, fabric_of
from hostagent.controller.link import ControllerLink
from hostagent.transport.base import TransportError
from kvproto import __version__
from kvproto.ids import Member, parse_address
from kvproto.rpc import control_pb2 as pb
from kvproto.session.parameters import ReaderParameters
from kvproto.wire.data import Fabric

if TYPE_CHECKING:
    from hostagent.agent import Agent

log = logging.getLogger(__name__)


class Attachment:
    """`start` when the agent's parts are there, `leave` to say goodbye, `close` to end timers."""

    def __init__(self, agent: Agent) -> None:
        data = agent.config.data
        self._agent = agent
        self.connected = False
        self.fabric = Fabric(
            group=parse_address(data.group),
            qkey=data.qkey,
            segment_bytes=data.segment_bytes,
            from_switch_dscp=data.from_switch_dscp,
        )
        """As configured, until the controller says."""
        self.pool_address = parse_address(data.pool_address)
        self.member: Member | None = None
        self._switch_epoch: int | None = None
        self._interest_ttl_ns = 0
        self._link: ControllerLink | None = None
        self._heartbeat: asyncio.TimerHandle | None = None
        self._stale_timer: asyncio.TimerHandle | None = None
        self._heartbeat_s = limits.HEARTBEAT_S_DEFAULT

    def start(self) -> None:
        """Reach for the controller, if there is one."""
        if self._agent.config.controllers:
            self._link = ControllerLink(self._agent.config.controllers, self)
            self._link.start()

    async def leave(self) -> None:
        """Say goodbye and end the stream."""
        if self._link is not None:
            await self._link.close(pb.FromAgent(leaving=pb.Leaving(reason="stopping")))

    def close(self) -> None:
        """No more timers."""
        for timer in (self._heartbeat, self._stale_timer):
            if timer is not None:
                timer.cancel()

    def send(self, message: pb.FromAgent) -> None:
        """Tell the controller, if it is there."""
        if self._link is not None:
            self._link.send(message)

    @property
    def health(self) -> str:
        """For /healthz."""
        if not self._agent.config.controllers:
            return "none"
        return "connected" if self.connected else "away"

    def reader_parameters(self) -> ReaderParameters:
        """What the protocol's reader must know of this node and fabric."""
        segment_bytes = self.fabric.segment_bytes
        fitting = self._agent.facts.receive_buffer_bytes // (2 * segment_bytes)
        return ReaderParameters(
            member=self.member,
            segment_bytes=segment_bytes,
            receive_window_segments=max(limits.RECEIVE_WINDOW_SEGMENTS_MIN, fitting),
            interest_ttl_ns=self._interest_ttl_ns or ReaderParameters(member=None).interest_ttl_ns,
        )

    # ------------------------------------------------------------------ the link

    def hello(self) -> pb.FromAgent:
        """Who this node is."""
        agent = self._agent
        return pb.FromAgent(
            hello=pb.Hello(
                node=agent.config.node,
                incarnation=agent.incarnation,
                data_ip=agent.facts.address.to_bytes(4, "big"),
                data_mac=agent.facts.mac,
                read_endpoint=agent.facts.read_endpoint,
                control_port=agent.config.data.control_port,
                switch_port=agent.config.data.switch_port,
                pool_bytes=agent.memory.size_bytes,
                disk_bytes=agent.disk.size_bytes,
                segment_bytes=limits.SEGMENT_BYTES_SUPPORTED,
                transports=[pb.TRANSPORT_SOCKETS, *([pb.TRANSPORT_VERBS] if agent.facts.rdma_mtu_bytes else [])],
                rdma_mtu=agent.facts.rdma_mtu_bytes,
                version=__version__,
            )
        )

    def received(self, message: pb.ToAgent) -> None:
        """A message of the controller. Raises RemoteProtocolError or SequenceGapError, which end the stream."""
        agent = self._agent
        kind = message.WhichOneof("message")
        if kind == "welcome":
            self._welcomed(message.welcome)
        elif kind == "directory":
            applied = agent.directory.apply(delta_of(message.directory))
            for key in applied.changed:
                entry = agent.directory.find(key)
                if entry is not None:
                    agent.pool.hear(key, entry.value)
                    agent.disk.hear(key, entry.value)
            agent.fetching.directory_changed(applied.changed, applied.nodes_lost)
            if agent.directory.has_stale and self._stale_timer is None:
                self._stale_timer = asyncio.get_running_loop().call_later(limits.STALE_DIRECTORY_S, self._forget_stale)
        elif kind == "task":
            agent.tasks.run(message.task)
        elif kind == "cancel":
            agent.tasks.cancel(message.cancel.task)
        elif kind == "switch_state":
            self._switch_is(message.switch_state)

    def lost(self) -> None:
        """The stream ended: go on with what is known; what fetches here teach goes on deciding what stays."""
        agent = self._agent
        self.connected = False
        agent.reports.disconnected()
        agent.tasks.abandon()
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            self._heartbeat = None

    # ------------------------------------------------------------------ inside

    def _welcomed(self, welcome: pb.Welcome) -> None:
        agent = self._agent
        news = fabric_of(welcome.fabric, self.fabric)
        try:
            agent.transport.use_fabric(news.fabric)
        except TransportError as error:
            raise RemoteProtocolError(f"a fabric that this node cannot use: {error}") from error
        self.member = Member(welcome.member) if welcome.HasField("member") else None
        self._interest_ttl_ns = news.interest_ttl_ns
        self.pool_address = news.pool_address or self.pool_address
        self.fabric = news.fabric
        agent.fetching.sources.pool_address = self.pool_address
        agent.serving.use_segment_bytes(news.fabric.segment_bytes)
        agent.fetching.configure(self.reader_parameters())
        agent.directory.restart(welcome.controller)
        self.connected = True
        agent.reports.snapshot()
        self._heartbeat_s = welcome.heartbeat_ms / 1000 or limits.HEARTBEAT_S_DEFAULT
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        self._beat()
        if welcome.HasField("switch_state"):
            self._switch_is(welcome.switch_state)
        log.info("attached to the controller as node %d, member %s", welcome.node, self.member)

    def _forget_stale(self) -> None:
        agent = self._agent
        self._stale_timer = None
        if self.connected:
            applied = agent.directory.forget_stale()
            agent.fetching.directory_changed(applied.changed, applied.nodes_lost)
        else:
            self._stale_timer = asyncio.get_running_loop().call_later(limits.STALE_DIRECTORY_S, self._forget_stale)

    def _switch_is(self, state: pb.SwitchState) -> None:
        epoch = state.epoch if state.present else None
        if epoch != self._switch_epoch:
            self._switch_epoch = epoch
            self._agent.fetching.switch_changed()

    def _beat(self) -> None:
        agent = self._agent
        usage = agent.pool.usage()
        counters = agent.transport.counters
        segment_bytes = self.fabric.segment_bytes
        self.send(
            pb.FromAgent(
                heartbeat=pb.Heartbeat(
                    pool_used_bytes=usage.size_bytes - usage.free_bytes,
                    pool_pinned_bytes=usage.pinned_bytes,
                    sent_bytes=counters.read_bytes_sent + counters.cast_packets_sent * segment_bytes,
                    received_bytes=counters.read_bytes_received + counters.cast_packets_received * segment_bytes,
                    directory_sequence=agent.directory.sequence,
                    tasks_running=agent.tasks.running_count,
                    chunks=usage.chunks_count,
                    next_victims=agent.pool.next_victims(limits.NEXT_VICTIMS_TOLD),
                    disk_used_bytes=agent.disk.used_bytes,
                )
            )
        )
        self._heartbeat = asyncio.get_running_loop().call_later(self._heartbeat_s, self._beat)
