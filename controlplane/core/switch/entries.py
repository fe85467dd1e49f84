"""Everything that the control plane writes into a switch, as values.

An entry is what one P4Runtime entity says. Its *identity* is the part that stays when it is modified (the match key,
the group number); two entries of the same identity cannot be in a switch together.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar, TypeAlias

from controlplane.core.ids import ChunkKey, GroupId, Member, Slot, SwitchPort

Identity: TypeAlias = tuple[str, object]
"""(kind of entry, match key)."""


class Entry:
    """What one P4Runtime entity says. Subclasses are values."""

    __slots__ = ()
    kind: ClassVar[str]
    by: ClassVar[attrgetter[Any] | None] = None
    """Gives the match key; None: there is one entry of this kind."""

    @property
    def identity(self) -> Identity:
        """What no two entries in a switch have in common."""
        return self.kind, None if self.by is None else self.by(self)


FLOOD_GROUP = GroupId(1)
"""The group of all ports of a v1model program: its default for what it does not know."""

NEXT_SEGMENT_SESSION = 500
"""Clone session through which a GET of several segments asks for the next one; its port is never sent to (v1model). On
a Tofino the mirror session through which the head of a FILL goes round to become its acknowledgement."""


@dataclass(frozen=True, slots=True)
class FabricEntry(Entry):
    """Parameters of the whole fabric. While absent, the switch is an ordinary one."""

    kind = "fabric"
    group_mac: bytes
    group_ip: bytes
    pool_mac: bytes
    pool_ip: bytes
    from_switch_dscp: int
    interest_ttl_us: int
    heat_window_us: int
    heat_gets: int


SALT_BYTES = 32


@dataclass(frozen=True, slots=True)
class SaltEntry(Entry):
    """Interest entries are found by a hash with this salt."""

    kind = "salt"
    salt: bytes
    """SALT_BYTES of them."""


class Report(enum.Enum):
    """What a switch reports by itself."""

    HEAT = "heat"
    SIGHTING = "sighting"
    """Where nodes are."""
    LOSS = "loss"
    """Of segments (Tofino)."""


@dataclass(frozen=True, slots=True)
class SubscriptionEntry(Entry):
    """Reports of this kind come to this controller."""

    kind = "digest"
    by = attrgetter("report")
    report: Report


@dataclass(frozen=True, slots=True)
class StationEntry(Entry):
    """Whoever sends from this MAC address stands behind this port: from another one it is forged."""

    kind = "station"
    by = attrgetter("mac")
    mac: bytes
    port: SwitchPort


@dataclass(frozen=True, slots=True)
class SourceEntry(Entry):
    """A node sends from this port with these addresses."""

    kind = "source"
    by = attrgetter("port", "mac", "ip")
    port: SwitchPort
    mac: bytes
    ip: bytes


@dataclass(frozen=True, slots=True)
class TakenAddressEntry(Entry):
    """This IP address is a node's: ARP that gives it to anybody whom `SourceEntry` does not name is forged."""

    kind = "address"
    by = attrgetter("ip")
    ip: bytes


@dataclass(frozen=True, slots=True)
class PortMemberEntry(Entry):
    """Packets from this port are this member's."""

    kind = "port_member"
    by = attrgetter("port")
    port: SwitchPort
    member: Member


class Request(enum.Enum):
    """What ports ask for; the value is the operation's number (p4/include/headers.p4, a test compares)."""

    JOIN = 1
    GET = 4


@dataclass(frozen=True, slots=True)
class RequestLimitEntry(Entry):
    """From this port, no more of these requests."""

    kind = "request_limit"
    by = attrgetter("port", "request.value")
    port: SwitchPort
    request: Request
    per_s: int
    burst: int
    """Packets at once."""


@dataclass(frozen=True, slots=True)
class SegmentLimitEntry(Entry):
    """Because of this member, no more segments."""

    kind = "segment_limit"
    by = attrgetter("leader")
    member: Member
    per_s: int
    burst: int
    """Segments at once."""

    @property
    def leader(self) -> int:
        """As the switch's table has it: 0 is nobody."""
        return self.member + 1


@dataclass(frozen=True, slots=True)
class EgressMemberEntry(Entry):
    """Copies for this port are for this member."""

    kind = "egress_member"
    by = attrgetter("port")
    port: SwitchPort
    member: Member


@dataclass(frozen=True, slots=True)
class AddressEntry(Entry):
    """This MAC address lies behind this port."""

    kind = "dmac"
    by = attrgetter("mac")
    mac: bytes
    port: SwitchPort


@dataclass(frozen=True, slots=True)
class GroupEntry(Entry):
    """A multicast group of the packet replication engine."""

    kind = "group"
    by = attrgetter("group")
    group: GroupId
    ports: tuple[SwitchPort, ...]
    """In order."""


@dataclass(frozen=True, slots=True)
class CloneSessionEntry(Entry):
    """The session that brings a GET round for its next segment, or the head of a FILL."""

    kind = "clone_session"
    by = attrgetter("session")
    session: int
    port: SwitchPort
    bytes_max: int = 0
    """Copies are cut there; 0: whole ones."""
    queue: int = 0
    """Of the port, where copies wait."""


@dataclass(frozen=True, slots=True)
class ReplicateToGroupEntry(Entry):
    """Cast packets for exactly this set of members go to this group."""

    kind = "replicate"
    by = attrgetter("members")
    members: int
    """Bit i is member i."""
    group: GroupId


@dataclass(frozen=True, slots=True)
class ReplicateToPortEntry(Entry):
    """Cast packets for exactly this one member leave by this port."""

    kind = "replicate"
    by = attrgetter("members")
    members: int
    port: SwitchPort


class Bitmap(enum.Enum):
    """How many groups a cast packet names by its set (Tofino)."""

    ONE = 1
    TWO = 2


@dataclass(frozen=True, slots=True)
class ReplicateByBitmapEntry(Entry):
    """Cast packets for sets that `replicate` does not name go to the groups with the set's own number (Tofino). While
    absent they go to the group of all ports."""

    kind = "replicate_default"
    bitmap: Bitmap


@dataclass(frozen=True, slots=True)
class FillingEntry(Entry):
    """Segments of this chunk are accepted from this port into base_slot, base_slot + 1, ..."""

    kind = "kv_cache"
    by = attrgetter("key")
    key: ChunkKey
    base_slot: Slot
    segments: int
    port: SwitchPort


@dataclass(frozen=True, slots=True)
class ServingEntry(Entry):
    """GETs of this chunk are answered from these slots."""

    kind = "kv_cache"
    by = attrgetter("key")
    key: ChunkKey
    base_slot: Slot
    segments: int


@dataclass(frozen=True, slots=True)
class ForeignEntry(Entry):
    """An entry that this control plane never writes, found in a table that it owns: to be deleted."""

    table: str
    match: object

    @property
    def identity(self) -> Identity:
        """As an entry of ours in its place would have."""
        return self.table, self.match


SwitchContents: TypeAlias = dict[Identity, Entry]


def contents(*entries: Entry) -> SwitchContents:
    """Entries by identity. Raises ValueError if two have the same."""
    found: SwitchContents = {}
    for entry in entries:
        if found.setdefault(entry.identity, entry) is not entry:
            raise ValueError(f"two entries for {entry.identity}")
    return found
