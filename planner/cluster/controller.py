"""The controller's core on a virtual clock: the daemon's loop without streams, and what managing costs.

Messages are the real ones, so their number and bytes are exact; the time that the core takes for them is measured on
the machine that plans.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from controlplane.core.core import Core
from controlplane.core.effects import Effect, Inform, ReadTheSwitch, SendTo, Warn, WriteTheSwitch
from controlplane.core.events import Event, HelloReceived, MessageReceived, SwitchRead, SwitchWritten, TimerFired
from controlplane.core.ids import ChunkKey, SwitchPort
from controlplane.core.limits import PUSHES_AT_ONCE_UNICAST
from controlplane.core.locations import Location
from controlplane.core.nodes import Graces
from controlplane.core.options import CoreOptions, FabricParameters
from controlplane.core.switch.entries import FabricEntry
from controlplane.core.switch.target import HeatReport, Sighting, Up
from hostagent.controller import convert
from hostagent.controller.refusals import Refusals
from hostagent.core.events import ControllerEvent
from kvpolicy.tiers.push import PushParameters
from kvproto.rpc import control_pb2 as rpc
from kvproto.wire.data import Fabric
from planner.cluster.clock import Timer, VirtualClock
from planner.cluster.switch import VirtualSwitch

_LOOK_S = 0.05
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


_AGENTS_FABRIC = Fabric()
"""Of datagrams, of which a replay has none."""


class Peer(Protocol):
    """An agent, as the controller reaches it."""

    def controller_event(self, event: ControllerEvent) -> None: ...


@dataclass(frozen=True, slots=True)
class _Sent:
    """A message, and what it says to an agent's core."""

    message: rpc.ToAgent
    events: Sequence[ControllerEvent]


class VirtualController:
    """Owns the core, and its timer on the virtual clock."""

    def __init__(
        self,
        clock: VirtualClock,
        peers: int,
        pool_bytes: int,
        switch: VirtualSwitch | None,
        disk_bytes: int = 0,
        *,
        casts: bool = True,
    ) -> None:
        """`casts`: the network copies chunks in flight; otherwise nodes take turns to be pushed to."""
        self._clock = clock
        self._switch = switch
        self._peers: list[Peer] = []
        self._seen: set[int] = set()
        """Nodes that the switch has reported."""
        self._timer: Timer | None = None
        self._timer_ns = 0
        """When it fires."""
        self._sent = _Sent(rpc.ToAgent(), [])
        """The message sent last: most go to every agent."""
        self.cpu_s = 0.0
        """Processor time that the core took, as measured here."""
        self.core = Core(
            CoreOptions(
                fabric=FabricParameters(_FABRIC, qkey=0x4B564341),
                graces=Graces(int(_HEARTBEAT_S * 1e9), 10**10, 10**11),
                incarnation=1,
                with_switch=switch is not None,
                pushes=PushParameters(nodes_at_once=0 if casts else PUSHES_AT_ONCE_UNICAST),
                look_ns=int((_LOOK_S if switch is not None else _HEARTBEAT_S) * 1e9),
            )
        )
        self._early = [
            effect
            for node in range(peers)
            for effect in self._timed(HelloReceived(node, hello_of(node, pool_bytes, disk_bytes)))
        ]
        """What is to be done when the agents are there."""
        if switch is not None:
            self._early += self._timed(Up(switch.facts))

    def attach(self, peers: Sequence[Peer]) -> None:
        """The agents behind the sessions 0, 1, ...; from now on they are spoken to."""
        self._peers = list(peers)
        early, self._early = self._early, []
        self._carry_out(early)
        self._set_timer()

    def message(self, node: int, message: rpc.FromAgent) -> None:
        """An agent says something."""
        self._handle(MessageReceived(node, message))

    def here(self, node: int, key: ChunkKey) -> None:
        """An agent says where it is: the switch reports what it does not know yet."""
        if self._switch is not None and node not in self._seen:
            self._seen.add(node)
            seen = Location(SwitchPort(node + 1), _mac(node), data_ip(node))
            self._handle(Sighting(key, seen))

    def heat(self, key: ChunkKey, members: int) -> None:
        """The switch saw several members want a chunk."""
        if self._switch is not None:
            self._handle(HeatReport(key, members, members.bit_count()))

    # -- the daemon's loop

    def _timed(self, event: Event) -> Sequence[Effect]:
        began = time.thread_time()
        effects = self.core.handle(event, self._clock.now_ns)
        self.cpu_s += time.thread_time() - began
        return effects

    def _handle(self, event: Event) -> None:
        self._carry_out(self._timed(event))
        self._set_timer()

    def _set_timer(self) -> None:
        due_ns = self.core.next_timeout_ns()
        if self._timer is not None:
            if self._timer_ns <= due_ns:
                return
            self._timer.cancel()
        self._timer_ns = due_ns
        # The clock counts in seconds: a nanosecond less, and the timer would come before its time.
        self._timer = self._clock.call_at((due_ns + 1) / 1e9, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self._handle(TimerFired())

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendTo(session=session, message=message):
                    self._send(session, message)
                case ReadTheSwitch() if self._switch is not None:
                    answer = SwitchRead(self._switch.read(effect))
                    self._clock.call_later(0.0, partial(self._handle, answer))
                case WriteTheSwitch() if self._switch is not None:
                    written = SwitchWritten(self._switch.write(effect))
                    self._clock.call_later(0.0, partial(self._handle, written))
                case Inform() | Warn():
                    pass  # a replay has no log
                case _:
                    raise AssertionError(f"nothing in a replay leads to {effect}")

    def _send(self, session: int, message: rpc.ToAgent) -> None:
        if message is not self._sent.message:
            self._sent = _Sent(message, convert.events_of(message, _AGENTS_FABRIC, Refusals()))
        for event in self._sent.events:
            self._peers[session].controller_event(event)


def data_ip(node: int) -> bytes:
    """A node's address on the network of the data, four bytes."""
    return bytes((10, 75, node // 250, node % 250 + 1))


def _mac(node: int) -> bytes:
    return b"\x02\x4b" + data_ip(node)


def hello_of(node: int, pool_bytes: int, disk_bytes: int) -> rpc.Hello:
    """What an agent says of itself."""
    address = data_ip(node)
    return rpc.Hello(
        integrities=[rpc.INTEGRITY_BLAKE3],
        node=f"node{node}",
        incarnation=1,
        data_ip=address,
        data_mac=_mac(node),
        read_endpoint=f"node{node}:4790",
        control_port=4793,
        switch_port=node + 1,
        pool_bytes=pool_bytes,
        disk_bytes=disk_bytes,
        segment_bytes=[4096],
        transports=[rpc.TRANSPORT_VERBS],
        takes_columns=True,
    )
