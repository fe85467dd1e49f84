"""The controller's core on a virtual clock: the daemon's loop without streams, and what managing costs.

Messages are the real ones, so their number and bytes are exact; the time that the core takes for them is measured on
the machine that plans.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from controlplane.core import Core, CoreOptions, FabricParameters
from controlplane.effects import Effect, ReadTheSwitch, SendTo, SendToAll, WriteTheSwitch
from controlplane.ids import ChunkKey
from controlplane.limits import PUBLISH_S
from controlplane.nodes import Graces
from controlplane.switch.entries import FabricEntry
from controlplane.switch.target import HeatReport, Up
from kvproto.rpc import control_pb2 as rpc
from planner.cluster.clock import VirtualClock
from planner.cluster.switch import VirtualSwitch

_TICK_S = 0.05
_HEARTBEAT_S = 1.0
_FABRIC = FabricEntry(
    group_mac=bytes.fromhex("01005e4b0001"),
    group_ip=bytes((239, 75, 0, 1)),
    pool_mac=bytes.fromhex("024b5600fffe"),
    pool_ip=bytes((10, 75, 255, 254)),
    from_switch_dscp=10,
    interest_ttl_us=10_000_000,
    heat_window_us=1_000_000,
    heat_gets=64,
)


class Peer(Protocol):
    """An agent, as the controller reaches it."""

    def task(self, task: rpc.Task) -> None: ...
    def hear(self, scores: Sequence[tuple[ChunkKey, float]]) -> None: ...
    def heartbeat(self) -> rpc.FromAgent: ...


class VirtualController:
    """Owns the core, and the clock's ticks for it."""

    def __init__(
        self, clock: VirtualClock, peers: int, pool_bytes: int, switch: VirtualSwitch | None, disk_bytes: int = 0
    ) -> None:
        self._clock = clock
        self._switch = switch
        self._peers: list[Peer] = []
        self._publish_due = False
        self._weighed = (rpc.ToAgent(), 0)
        """The message sent last, and its size: most go to every agent."""
        self._told: list[tuple[ChunkKey, float]] = []
        """What it says of chunks' values."""
        self.cpu_s = 0.0
        """Processor time that the core took, as measured here."""
        self.core = Core(
            CoreOptions(
                fabric=FabricParameters(_FABRIC, qkey=0x4B564341),
                graces=Graces(int(_HEARTBEAT_S * 1e9), 10**10, 10**11),
                incarnation=1,
                with_switch=switch is not None,
            )
        )
        for node in range(peers):
            self._timed(self.core.hello, node, _hello(node, pool_bytes, disk_bytes), 0)
        if switch is not None:
            self._timed(self.core.switch_event, Up(switch.facts), 0)

    def attach(self, peers: Sequence[Peer]) -> None:
        """The agents behind the sessions 0, 1, ...; from now on they are spoken to."""
        self._peers = list(peers)
        for node, _ in enumerate(peers):
            self.message(node, rpc.FromAgent(announce=rpc.Announce(snapshot=True, snapshot_end=True)))
        self._tick()
        self._beat()

    def message(self, node: int, message: rpc.FromAgent) -> None:
        """An agent says something."""
        self.core.accounting.message("in", message.ByteSize())
        self._timed(self.core.message, node, message, self._clock.now_ns)
        self._settle()

    def heat(self, key: ChunkKey, members: int) -> None:
        """The switch saw several members want a chunk."""
        if self._switch is not None:
            self._timed(self.core.switch_event, HeatReport(key, members, members.bit_count()), self._clock.now_ns)
            self._settle()

    # -- the daemon's loop

    def _timed(self, call: Callable[..., object], *args: object) -> None:
        began = time.thread_time()
        call(*args)
        self.cpu_s += time.thread_time() - began

    def _settle(self) -> None:
        self._timed(self.core.advance, self._clock.now_ns)
        self._carry_out(self.core.take_effects())
        if not self._publish_due:
            self._publish_due = True
            self._clock.call_later(PUBLISH_S, self._publish)

    def _publish(self) -> None:
        self._publish_due = False
        self._timed(self.core.publish)
        self._carry_out(self.core.take_effects())

    def _tick(self) -> None:
        self._timed(self.core.advance, self._clock.now_ns)
        self._carry_out(self.core.take_effects())
        self._clock.call_later(_TICK_S if self._switch is not None else _HEARTBEAT_S, self._tick)

    def _beat(self) -> None:
        for node, peer in enumerate(self._peers):
            message = peer.heartbeat()
            self.core.accounting.message("in", message.ByteSize())
            self._timed(self.core.message, node, message, self._clock.now_ns)
        self._clock.call_later(_HEARTBEAT_S, self._beat)

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendTo(session=session, message=message):
                    self._send(session, message)
                case SendToAll(message=message):
                    for session, _ in enumerate(self._peers):
                        self._send(session, message)
                case ReadTheSwitch() if self._switch is not None:
                    self._timed(self.core.switch_read, self._switch.read(effect), self._clock.now_ns)
                    self._clock.call_later(0.0, self._settle)
                case WriteTheSwitch() if self._switch is not None:
                    self._timed(self.core.switch_written, self._switch.write(effect), self._clock.now_ns)
                    self._clock.call_later(0.0, self._settle)
                case _:
                    raise AssertionError(f"nothing in a replay leads to {effect}")

    def _send(self, session: int, message: rpc.ToAgent) -> None:
        if message is not self._weighed[0]:
            self._weighed = (message, message.ByteSize())
            self._told = [(ChunkKey(entry.key), entry.value) for entry in message.directory.chunks]
        self.core.accounting.message("out", self._weighed[1])
        if message.HasField("task"):
            self._peers[session].task(message.task)
        elif self._told and session < len(self._peers):
            self._peers[session].hear(self._told)


def _hello(node: int, pool_bytes: int, disk_bytes: int) -> rpc.Hello:
    address = bytes((10, 75, node // 250, node % 250 + 1))
    return rpc.Hello(
        node=f"node{node}",
        incarnation=1,
        data_ip=address,
        data_mac=b"\x02\x4b" + address,
        read_endpoint=f"node{node}:4790",
        control_port=4793,
        switch_port=node + 1,
        pool_bytes=pool_bytes,
        disk_bytes=disk_bytes,
        segment_bytes=[4096],
        transports=[rpc.TRANSPORT_VERBS],
    )
