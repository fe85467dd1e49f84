"""Everything that the control plane writes into a switch, as values.

An entry is what one P4Runtime entity says. Its *identity* is the part that stays when it is modified (the match key,
the group number); two entries of the same identity cannot be in a switch together.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

from controlplane.core.ids import ChunkKey, GroupId, Member, Slot, SwitchPort

Identity: TypeAlias = tuple[str, object]
"""(kind of entry, match key)."""

FLOOD_GROUP = GroupId(1)
"""The group of all ports of a v1model program: its default for what it does not know."""

NEXT_SEGMENT_SESSION = 500
"""Clone session through which a GET of several segments asks for the next one; its port is never sent to (v1model). On
a Tofino the mirror session through which the head of a FILL goes round to become its acknowledgement."""


@dataclass(frozen=True, slots=True)
class FabricEntry:
    """Parameters of the whole fabric. While absent, the switch is an ordinary one."""

    group_mac: bytes
    group_ip: bytes
    pool_mac: bytes
    pool_ip: bytes
    from_switch_dscp: int
    interest_ttl_us: int
    heat_window_us: int
    heat_gets: int

    @property
    def identity(self) -> Identity:
        """There is one."""
        return ("fabric", None)


SALT_BYTES = 32


@dataclass(frozen=True, slots=True)
class SaltEntry:
    """Interest entries are found by a hash with this salt."""

    salt: bytes
    """SALT_BYTES of them."""

    @property
    def identity(self) -> Identity:
        """There is one."""
        return ("salt", None)


@dataclass(frozen=True, slots=True)
class HeatSubscriptionEntry:
    """Heat reports come to this controller."""

    @property
    def identity(self) -> Identity:
        """There is one."""
        return ("digest", None)


@dataclass(frozen=True, slots=True)
class LossSubscriptionEntry:
    """Reports of lost segments come to this controller (Tofino)."""

    @property
    def identity(self) -> Identity:
        """There is one."""
        return ("digest", "lost")


@dataclass(frozen=True, slots=True)
class SightingSubscriptionEntry:
    """Reports of where nodes are come to this controller."""

    @property
    def identity(self) -> Identity:
        """There is one."""
        return ("digest", "sighting")


@dataclass(frozen=True, slots=True)
class StationEntry:
    """Whoever sends from this MAC address stands behind this port: from another one it is forged."""

    mac: bytes
    port: SwitchPort

    @property
    def identity(self) -> Identity:
        """By MAC address."""
        return ("station", self.mac)


@dataclass(frozen=True, slots=True)
class SourceEntry:
    """A node sends from this port with these addresses."""

    port: SwitchPort
    mac: bytes
    ip: bytes

    @property
    def identity(self) -> Identity:
        """All of it."""
        return ("source", (self.port, self.mac, self.ip))


@dataclass(frozen=True, slots=True)
class TakenAddressEntry:
    """This IP address is a node's: ARP that gives it to anybody whom `SourceEntry` does not name is forged."""

    ip: bytes

    @property
    def identity(self) -> Identity:
        """By IP address."""
        return ("address", self.ip)


@dataclass(frozen=True, slots=True)
class PortMemberEntry:
    """Packets from this port are this member's."""

    port: SwitchPort
    member: Member

    @property
    def identity(self) -> Identity:
        """By port."""
        return ("port_member", self.port)


class Request(enum.Enum):
    """What ports ask for; the value is the operation's number (p4/include/headers.p4, a test compares)."""

    JOIN = 1
    GET = 4


@dataclass(frozen=True, slots=True)
class RequestLimitEntry:
    """From this port, no more of these requests."""

    port: SwitchPort
    request: Request
    per_s: int
    burst: int
    """Packets at once."""

    @property
    def identity(self) -> Identity:
        """By port and operation."""
        return ("request_limit", (self.port, self.request.value))


@dataclass(frozen=True, slots=True)
class SegmentLimitEntry:
    """Because of this member, no more segments."""

    member: Member
    per_s: int
    burst: int
    """Segments at once."""

    @property
    def identity(self) -> Identity:
        """By leader: 1 + the member."""
        return ("segment_limit", self.member + 1)


@dataclass(frozen=True, slots=True)
class EgressMemberEntry:
    """Copies for this port are for this member."""

    port: SwitchPort
    member: Member

    @property
    def identity(self) -> Identity:
        """By port."""
        return ("egress_member", self.port)


@dataclass(frozen=True, slots=True)
class AddressEntry:
    """This MAC address lies behind this port."""

    mac: bytes
    port: SwitchPort

    @property
    def identity(self) -> Identity:
        """By MAC address."""
        return ("dmac", self.mac)


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """A multicast group of the packet replication engine."""

    group: GroupId
    ports: tuple[SwitchPort, ...]
    """In order."""

    @property
    def identity(self) -> Identity:
        """By number."""
        return ("group", self.group)


@dataclass(frozen=True, slots=True)
class CloneSessionEntry:
    """The session that brings a GET round for its next segment, or the head of a FILL."""

    session: int
    port: SwitchPort
    bytes_max: int = 0
    """Copies are cut there; 0: whole ones."""
    queue: int = 0
    """Of the port, where copies wait."""

    @property
    def identity(self) -> Identity:
        """By number."""
        return ("clone_session", self.session)


@dataclass(frozen=True, slots=True)
class ReplicateToGroupEntry:
    """Cast packets for exactly this set of members go to this group."""

    members: int
    """Bit i is member i."""
    group: GroupId

    @property
    def identity(self) -> Identity:
        """By set of members."""
        return ("replicate", self.members)


@dataclass(frozen=True, slots=True)
class ReplicateToPortEntry:
    """Cast packets for exactly this one member leave by this port."""

    members: int
    port: SwitchPort

    @property
    def identity(self) -> Identity:
        """By set of members."""
        return ("replicate", self.members)


class Bitmap(enum.Enum):
    """How many groups a cast packet names by its set (Tofino)."""

    ONE = 1
    TWO = 2


@dataclass(frozen=True, slots=True)
class ReplicateByBitmapEntry:
    """Cast packets for sets that `replicate` does not name go to the groups with the set's own number (Tofino). While
    absent they go to the group of all ports."""

    bitmap: Bitmap

    @property
    def identity(self) -> Identity:
        """There is one."""
        return ("replicate_default", None)


@dataclass(frozen=True, slots=True)
class FillingEntry:
    """Segments of this chunk are accepted from this port into base_slot, base_slot + 1, ..."""

    key: ChunkKey
    base_slot: Slot
    segments: int
    port: SwitchPort

    @property
    def identity(self) -> Identity:
        """By key of the chunk."""
        return ("kv_cache", self.key)


@dataclass(frozen=True, slots=True)
class ServingEntry:
    """GETs of this chunk are answered from these slots."""

    key: ChunkKey
    base_slot: Slot
    segments: int

    @property
    def identity(self) -> Identity:
        """By key of the chunk."""
        return ("kv_cache", self.key)


@dataclass(frozen=True, slots=True)
class ForeignEntry:
    """An entry that this control plane never writes, found in a table that it owns: to be deleted."""

    table: str
    match: object

    @property
    def identity(self) -> Identity:
        """By table and match key."""
        return (self.table, self.match)


Entry: TypeAlias = (
    FabricEntry
    | SaltEntry
    | HeatSubscriptionEntry
    | LossSubscriptionEntry
    | SightingSubscriptionEntry
    | StationEntry
    | SourceEntry
    | TakenAddressEntry
    | PortMemberEntry
    | RequestLimitEntry
    | SegmentLimitEntry
    | EgressMemberEntry
    | AddressEntry
    | GroupEntry
    | CloneSessionEntry
    | ReplicateToGroupEntry
    | ReplicateToPortEntry
    | ReplicateByBitmapEntry
    | FillingEntry
    | ServingEntry
    | ForeignEntry
)

SwitchContents: TypeAlias = dict[Identity, Entry]


def contents(*entries: Entry) -> SwitchContents:
    """Entries by identity. Raises ValueError if two have the same."""
    found: SwitchContents = {}
    for entry in entries:
        if found.setdefault(entry.identity, entry) is not entry:
            raise ValueError(f"two entries for {entry.identity}")
    return found
