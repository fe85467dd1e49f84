"""What the control plane is told once, at its start: by the operator's configuration and by the daemon. Pure.

Among it how much a member's port may ask for in a second, which follows from what the port carries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from controlplane.core.ids import Member, SwitchPort
from controlplane.core.limits import BITMAP_GROUPS_MAX, COPIES_PER_NODE_MAX, PUBLISH_S
from controlplane.core.nodes import ASCENDING, Graces
from controlplane.core.switch.entries import Entry, FabricEntry, Request, RequestLimitEntry, SegmentLimitEntry
from kvpolicy.tiers.push import PushParameters
from kvpolicy.value import ValueParameters
from kvproto.cells import Cells
from kvproto.fanout import Fanout
from kvproto.integrity import Integrity

LIMIT_KINDS = frozenset({"request_limit", "segment_limit"})
_WIRE_BYTES: Final = 122
"""Of a segment beside its payload: headers 98, FCS 4, preamble and gap 20."""
_SEGMENTS_SPARE: Final = 2
"""A leader asks for what its own link takes; twice that, for segments that were lost and asked for again."""
_SEGMENTS_A_GET: Final = 4
"""A GET at line rate asks for 16 segments at least, and repairs of single ones are a tenth of all at most: one GET for
every six segments. Four leave room."""
_SEGMENTS_A_JOIN: Final = 32
"""Chunks of 64 segments, the least that is worth a cast, with a JOIN and an announcement each."""
_JOINS_LEAST: Final = 4096
"""128 chunks joined at a time, renewed three times within a time to live, asked for again where answers are lost."""
_BURST_S: Final = 0.1
"""A host may stand still for this long, and then do all at once."""
_BURST_LEAST: Final = 1024


@dataclass(frozen=True, slots=True)
class PortLimits:
    """What each member's port may cause, packets a second."""

    joins_per_s: int
    gets_per_s: int
    segments_per_s: int
    """Cast because of this member: those of chunks that it leads, and those that the switch serves to it."""

    @classmethod
    def of_rate(cls, rate_bit_s: int, segment_bytes: int) -> PortLimits:
        """Limits that no honest host meets whose port carries `rate_bit_s`."""
        segments = max(1, rate_bit_s // (8 * (segment_bytes + _WIRE_BYTES)))
        return cls(
            joins_per_s=max(_JOINS_LEAST, segments // _SEGMENTS_A_JOIN),
            gets_per_s=max(_JOINS_LEAST, segments // _SEGMENTS_A_GET),
            segments_per_s=max(_JOINS_LEAST, segments * _SEGMENTS_SPARE),
        )

    def entries(self, members: Mapping[Member, SwitchPort]) -> Iterable[Entry]:
        """Limits of these members at these ports."""
        for member, port in members.items():
            for request, per_s in ((Request.JOIN, self.joins_per_s), (Request.GET, self.gets_per_s)):
                yield RequestLimitEntry(port, request, per_s, _burst(per_s))
            yield SegmentLimitEntry(member, self.segments_per_s, _burst(self.segments_per_s))


def _burst(per_s: int) -> int:
    return max(_BURST_LEAST, round(per_s * _BURST_S))


@dataclass(frozen=True, slots=True)
class FabricParameters:
    """What every agent and the switch must agree on."""

    entry: FabricEntry
    qkey: int
    data_port: int = 4791
    control_port: int = 4793
    segment_bytes: int = 4096
    """Until a switch says otherwise."""
    integrity: Integrity = Integrity.BLAKE3
    """How chunks are digested."""
    fanout: Fanout = Fanout.SWITCH
    is_auto: bool = False
    """Whether that may change to what the network does best (`Ways`)."""
    unasked_weight: float = 0.0
    """Of multicast: what a byte counts at a port that did not ask, against one on a holder's uplink."""

    @property
    def has_numbers(self) -> bool:
        """Whether agents get numbers without a switch, as multicast needs them."""
        return self.fanout.keeps or self.is_auto


class StateSeals(Protocol):
    """Signatures of controllers, by which they know again what agents kept for them."""

    def seal(self, content: bytes) -> tuple[bytes, bytes]:
        """(signature, certificate) of this controller."""

    def holds(self, content: bytes, signature: bytes, certificate: bytes) -> bool:
        """Whether some controller of the cluster has signed it."""


@dataclass(frozen=True, slots=True)
class SwitchCacheRules:
    """What an operator may tune."""

    admission: bool = True
    """False: only pinned chunks go into the switch."""
    spill: bool = True
    price_fills: bool = True
    """Chunks come in only where readers of busy holders save more time than the fill takes of a holder's uplink."""
    fills_at_once: int = 8
    fills_per_holder: int = 2
    """A fill shares the holder's uplink with what its readers wait for."""
    candidate_ns: int = 10_000_000_000
    """Evidence is forgotten after this time."""
    refill_ns: int = 1_000_000_000
    """A chunk that loses segments again within this time after its gaps were filled is evicted: there is no room."""
    adopt_ns: int = 5_000_000_000
    """For this time after a restart of the controller an agent may announce a chunk that the switch already serves."""


@dataclass(frozen=True, slots=True)
class CoreOptions:
    """What an operator configured, and what the daemon knows of this start."""

    fabric: FabricParameters
    graces: Graces
    incarnation: int
    """Larger on each start of the controller."""
    with_switch: bool
    values: ValueParameters = field(default_factory=ValueParameters)
    rules: SwitchCacheRules = field(default_factory=SwitchCacheRules)
    pushes: PushParameters = field(default_factory=PushParameters)
    ports: Mapping[str, SwitchPort] = field(default_factory=dict)
    flood_ports: tuple[SwitchPort, ...] = ()
    """Ports of the group of all ports; empty: what the switch has, and the ports of nodes."""
    is_p4switch: bool = False
    """A program that asks for it gets its flooding from the switch itself, to all ports, until somebody writes the
    group: leave it so."""
    member_order: tuple[Member, ...] = ASCENDING
    """Members in the order in which ports get them."""
    bitmap_groups_max: int = BITMAP_GROUPS_MAX
    salt_interval_ns: int = 0
    """A salt of the interest table lasts so long, and with it an epoch; 0: for good."""
    limits: PortLimits | None = None
    """Of what each member's port may cause."""
    check_switch_ns: int = 2_000_000_000
    fill_timeout_ms: int = 10_000
    transfer_timeout_ms: int = 60_000
    secret: bytes = b""
    """From which follow what agents say in HERE and the salts of the interest table: nobody else knows it. Empty: the
    table has no salt."""
    seals: StateSeals | None = None
    """None: agents are believed what they say that operators had set."""
    silence_ms: int = 0
    """Agents that hear nothing of their controller for so long look for another one; 0: they wait for it."""
    read_token_ms: int = 600_000
    """For how long a token opens connections for reads."""
    namespaces: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By pattern: the nodes that may have chunks of these namespaces, see `kvproto.grants`."""
    copies_max: int = COPIES_PER_NODE_MAX
    """Of each node, in its pool and on its disk, each."""
    publish_ns: int = int(PUBLISH_S * 1e9)
    cells: Cells = field(default_factory=Cells)
    """Changes of the directory wait so long for others before they are published together."""
    look_ns: int = 50_000_000
    """So often the core looks what is due, if nothing happens."""
    settle_ns: int = 3_000_000_000
    """For this time after its start a controller lets agents keep the directory of its predecessor."""

    @property
    def has_members(self) -> bool:
        """Whether nodes are numbered for casts: by a switch's ports, or where holders keep interest in some order."""
        return self.with_switch or self.fabric.has_numbers
