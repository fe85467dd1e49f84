"""What somebody who watches the controller's core hears. Pure; the core itself needs nobody who watches."""

from __future__ import annotations

from controlplane.core.ids import ChunkKey, Member
from controlplane.core.nodes import Node
from controlplane.core.switch.chunk_states import ChunkEvent, ChunkState
from controlplane.core.switch.slots import SlotRange
from kvproto.rpc import control_pb2 as rpc


class Observer:
    """Hears everything and does nothing. Whoever wants to know something overrides the method."""

    def fetched(self, node: Node, fetch: rpc.FetchEvent, at_ns: int, *, rode_along: bool) -> None:
        """A node got a chunk, or had to recompute it. `rode_along`: by a cast that another node has reported."""

    def heartbeat_received(self, node: Node, heartbeat: rpc.Heartbeat, now_ns: int) -> None:
        """A node's figures came."""

    def wanted_together(self, key: ChunkKey, members: frozenset[Member], now_ns: int) -> None:
        """The switch saw several members wait for one chunk: they get one cast."""

    def moved(self, key: ChunkKey, slots: SlotRange, state: ChunkState, event: ChunkEvent | None, why: str) -> None:
        """A chunk is in another state on its way through the switch. No event: it was found there. `why`: for a
        person; empty where the event says all."""

    def refused(self, key: ChunkKey, why: str) -> None:
        """A candidate for the switch was not admitted."""

    def happened(self, text: str, now_ns: int) -> None:
        """A role, a node or the switch changed; one line."""
