"""The controller's relation to its switch: is it there, which epoch, and all that it should hold besides chunks. Pure.

Owns the fabric's parameters, the members' ports and addresses, multicast groups, flooding and digests; what chunks the
switch holds is `SwitchCache`'s. Both say what they want to `SwitchProgrammer`. Entries that depend on the program that
the switch runs are made by a dialect; `codecs` turns entries into P4Runtime.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.core.cluster import Cluster
from controlplane.core.ids import GroupId, Member, SwitchPort
from controlplane.core.limits import BITMAP_GROUPS_MAX
from controlplane.core.locations import Location
from controlplane.core.options import LIMIT_KINDS
from controlplane.core.switch import bitmap_groups
from controlplane.core.switch.bitmap_groups import BitmapGroups
from controlplane.core.switch.entries import (
    FLOOD_GROUP,
    NEXT_SEGMENT_SESSION,
    SALT_BYTES,
    AddressEntry,
    CloneSessionEntry,
    EgressMemberEntry,
    Entry,
    GroupEntry,
    PortMemberEntry,
    Report,
    SaltEntry,
    SourceEntry,
    StationEntry,
    SubscriptionEntry,
    SwitchContents,
    TakenAddressEntry,
)
from controlplane.core.switch.groups import Groups, ReplicationGroups
from controlplane.core.switch.programmer import Phase, SwitchProgrammer
from controlplane.core.switch.target import SwitchFacts

MIRROR_BYTES = 86
"""Bytes kept of a FILL that is mirrored: 4 bytes of the mirror's header, 82 up to the end of the control header."""

CONTROL_QUEUE = 1
"""Of the recirculation port: control datagrams that go round do not wait behind the segments (p4/tna/types.p4)."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one of the two programs wants groups, flooding and digests."""

    flood_group: GroupId
    subscriptions: tuple[Entry, ...]
    session: CloneSessionEntry | None
    """None: any port will do."""
    groups_max: int | None
    """Groups by bitmap; None: groups are looked up."""
    switch_port: SwitchPort
    """Where no host is: whoever sends from the switch's own addresses would have to be there."""

    def groups(self) -> Groups:
        """How sets of members become groups there."""
        return ReplicationGroups() if self.groups_max is None else BitmapGroups(self.groups_max)


V1MODEL = Dialect(
    FLOOD_GROUP,
    (SubscriptionEntry(Report.HEAT), SubscriptionEntry(Report.SIGHTING)),
    session=None,
    groups_max=None,
    switch_port=SwitchPort(511),
)


def dialect_of(facts: SwitchFacts, bitmap_groups_max: int = BITMAP_GROUPS_MAX) -> Dialect:
    """How to program a switch with these facts."""
    if facts.recirculation_port is None:
        return V1MODEL
    return Dialect(
        bitmap_groups.FLOOD_GROUP,
        (*V1MODEL.subscriptions, SubscriptionEntry(Report.LOSS)),
        session=CloneSessionEntry(NEXT_SEGMENT_SESSION, facts.recirculation_port, MIRROR_BYTES, CONTROL_QUEUE),
        groups_max=bitmap_groups_max,
        switch_port=facts.recirculation_port,
    )


_MEMBER_KINDS = frozenset(
    {
        *("station", "source", "address", "port_member", "egress_member", "dmac"),
        *("replicate", "replicate_default", "group", "clone_session"),
        *LIMIT_KINDS,
    }
)
_DIGEST_KINDS = frozenset({"digest"})


class SwitchLink:
    """Owns the programmer, the epoch, the salt and the groups of the one switch that there may be."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._options = cluster.options
        self._fabric = cluster.options.fabric.entry
        self._nodes = cluster.nodes
        self.programmer = SwitchProgrammer(cluster.options.check_switch_ns)
        self.segment_bytes = cluster.options.fabric.segment_bytes
        """Of the fabric: what the configuration says, until a switch says otherwise."""
        self.present = False
        """It runs our program, programmed as wanted."""
        self.epoch = 0
        """Changes whenever the switch program restarts; 0: no switch was seen yet."""
        self.restarts_count = 0
        """How often a switch that was present was found to have lost its state."""
        self._seen = False
        self._dialect = V1MODEL
        self._groups = self._dialect.groups()
        self._floods_itself = False
        self._salt: SaltEntry | None = None
        self._salted_ns = 0
        self._salts_count = 0
        """Salts that this controller has made."""
        self._is_new_salt = False
        """The switch has another salt, or is about to, and agents have not been told."""

    @property
    def state(self) -> str:
        """In one word: absent, connecting, degraded, programming or ready."""
        if not self._options.with_switch:
            return "absent"
        if self.programmer.phase is Phase.DOWN:
            return "connecting"
        if self.programmer.missed_reads:
            return "degraded"
        return "ready" if self.present else "programming"

    # -- what happened

    def up(self, facts: SwitchFacts) -> bool:
        """A session with the switch began, and this controller is primary. True if the size of segments changed."""
        dialect = dialect_of(facts, self._options.bitmap_groups_max)
        if dialect != self._dialect:
            self._dialect = dialect
            self._groups = dialect.groups()
        self._floods_itself = self._options.is_p4switch and facts.asks_to_flood
        self.programmer.up(facts)
        self.programmer.want(self._fabric)
        self.programmer.want_exactly(_DIGEST_KINDS, self._dialect.subscriptions)
        changed = facts.segment_bytes != self.segment_bytes
        self.segment_bytes = facts.segment_bytes
        return changed

    def down(self) -> None:
        """The session ended."""
        self.programmer.down()

    def contents_read(self, actual: SwitchContents) -> bool | None:
        """The switch holds this. True if it is trusted: its fabric parameters are ours, so it has not restarted. None
        if nobody asked (any more)."""
        now_ns = self._cluster.now_ns
        if not self.programmer.read_done(actual, now_ns):
            return None
        trusted = actual.get(("fabric", None)) == self._fabric
        if not trusted or self.epoch == 0:
            self.epoch = max(self.epoch + 1, self._options.incarnation)
            if self.present:
                self.restarts_count += 1
                self.present = False
        found = actual.get(("salt", None))
        if self._salt is None and trusted and isinstance(found, SaltEntry):
            self._use_salt(found, now_ns)  # a predecessor's: casts are under way
        elif self._salt is None and self._options.secret:
            self._use_salt(self._next_salt(), now_ns)
        if not trusted:
            self._groups.forget()
        elif not self._seen:
            self._take_over_members(actual, now_ns)
        self._seen = True
        return trusted

    def check_present(self) -> bool:
        """True once, when the switch has come to hold all that is wanted; and once more for each new epoch of the salt.

        Agents hear of an epoch only then: who joins before would join under the old salt.
        """
        if self.present and self._is_new_salt and self._salt is not None and self.programmer.has(self._salt):
            self._is_new_salt = False
            self.epoch += 1
            return True
        if self.present or not (self.programmer.has(self._fabric) and self.programmer.synchronised):
            return False
        self.present = True
        return True

    def change_salt(self) -> None:
        """Give the interest table another salt if its time has come: who has found colliding chunks begins anew."""
        interval_ns, now_ns = self._options.salt_interval_ns, self._cluster.now_ns
        if self.present and self._salt is not None and interval_ns and now_ns - self._salted_ns >= interval_ns:
            self._use_salt(self._next_salt(), now_ns)
            self._is_new_salt = True

    # -- what it should have

    def members_changed(self) -> None:
        """Nodes, members or ports are different: program what follows from them."""
        entries: list[Entry] = []
        ports: dict[Member, SwitchPort] = self._nodes.member_ports()
        for member, port in ports.items():
            entries += [PortMemberEntry(port, member), EgressMemberEntry(port, member)]
        if self._options.limits is not None:
            entries += self._options.limits.entries(ports)
        # Packets go where their node was seen, whatever anybody configured: a typo must not cost TCP.
        locations = self._nodes.locations()
        for place in locations:
            entries += [AddressEntry(place.mac, place.port), StationEntry(place.mac, place.port)]
            entries += [SourceEntry(place.port, place.mac, place.ip), TakenAddressEntry(place.ip)]
        fabric = self._fabric
        entries += [StationEntry(fabric.pool_mac, self._dialect.switch_port), TakenAddressEntry(fabric.pool_ip)]
        self._groups.set_members(ports)
        entries += self._groups.entries()
        entries += self._standing_entries(sorted({place.port for place in locations} | set(ports.values())))
        self.programmer.want_exactly(_MEMBER_KINDS, entries)

    def members_used(self, members: int) -> None:
        """Packets are cast to this set (bit i is member i) now: it should have a group of its own."""
        change = self._groups.use(members)
        for identity in change.gone:
            self.programmer.want_not(identity)
        for entry in change.new:
            self.programmer.want(entry)

    # -- inside

    def _use_salt(self, salt: SaltEntry, now_ns: int) -> None:
        self._salt, self._salted_ns = salt, now_ns
        self.programmer.want(salt)

    def _next_salt(self) -> SaltEntry:
        self._salts_count += 1
        said = b"salt" + self._options.incarnation.to_bytes(16, "big") + self._salts_count.to_bytes(16, "big")
        return SaltEntry(hashlib.blake2b(said, key=self._options.secret, digest_size=SALT_BYTES).digest())

    def _take_over_members(self, actual: SwitchContents, now_ns: int) -> None:
        """Keep what a predecessor wrote for nodes that are about to attach here: casts to them are under way."""
        entries = list(actual.values())
        members = {one.port: one.member for one in entries if isinstance(one, PortMemberEntry)}
        places = [Location(one.port, one.mac, one.ip) for one in entries if isinstance(one, SourceEntry)]
        self._nodes.reserve(members, places, now_ns)
        self._groups.adopt(actual)

    def _standing_entries(self, ports: Sequence[SwitchPort]) -> list[Entry]:
        """Flooding reaches what the switch floods to already and every node."""
        options = self._options
        flood_group = self._dialect.flood_group
        found = self.programmer.actual.get(("group", flood_group))
        before = found.ports if isinstance(found, GroupEntry) else ()
        flood_ports = tuple(sorted(options.flood_ports or {*before, *ports, *options.ports.values()}))
        write_flood = bool(flood_ports) and not (self._floods_itself and not options.flood_ports and found is None)
        session = self._dialect.session or self._any_session(flood_ports)
        return [GroupEntry(flood_group, flood_ports), session] if write_flood else [session]

    def _any_session(self, ports: Sequence[SwitchPort]) -> CloneSessionEntry:
        """The session that there is, or one to any port."""
        found = self.programmer.actual.get(("clone_session", NEXT_SEGMENT_SESSION))
        if isinstance(found, CloneSessionEntry):
            return found
        return CloneSessionEntry(NEXT_SEGMENT_SESSION, min(ports, default=SwitchPort(1)))
