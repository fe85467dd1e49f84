"""Multicast groups of a Tofino: the set of members is the number of the group, so casting looks nothing up. Pure.

* All members below 16: one group a packet, named by the set.
* All members below 31, and none of them 15: two groups a packet, one for the members below 15 and one, with the highest
  bit set, for those from 16 on. Half as many members in each take far fewer groups than all in one.
* Otherwise, or where that would be more groups than `groups_max`: the group of all ports, pruned at egress, and exact
  groups for the sets in use, as with v1model beyond eight members (`groups.ReplicationGroups`).

A set may still name a member that has gone: its bit stays in the interest of others until their entries expire. So the
groups cover every member that there has been since the switch started, and lead to the ports of those who are there.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from controlplane.core.ids import GroupId, Member, SwitchPort
from controlplane.core.limits import BITMAP_GROUPS_MAX, MEMBERS_MAX
from controlplane.core.switch.entries import (
    Bitmap,
    Entry,
    GroupEntry,
    ReplicateByBitmapEntry,
    ReplicateToGroupEntry,
    ReplicateToPortEntry,
    SwitchContents,
)
from controlplane.core.switch.groups import Change, ReplicationGroups, subsets
from kvproto.ids import members_of

FLOOD_GROUP: Final = GroupId(0x8000)
_HALF_BITS: Final = 16
_NOBODY: Final = 15
"""The bit of each half that no member has where two groups are used: it distinguishes the halves."""

MEMBER_ORDER: Final[tuple[Member, ...]] = tuple(
    map(
        Member,
        [
            *range(8),
            *range(16, 24),
            *(member for low in range(8, _NOBODY) for member in (low, low + _HALF_BITS)),
            _NOBODY,
            *range(_HALF_BITS + _NOBODY, MEMBERS_MAX),
        ],
    )
)
"""In which order ports get members: as the first eight of any switch, then both halves alike."""

assert sorted(MEMBER_ORDER) == list(range(MEMBERS_MAX))


class Addressing(enum.Enum):
    """How a set becomes groups."""

    ONE_BITMAP = "one bitmap"
    TWO_BITMAPS = "two bitmaps"
    PRUNED = "pruned"


def addressing(members: Iterable[Member], groups_max: int) -> Addressing:
    """What these members and a limit of groups allow."""
    there = set(members)
    if all(member < _HALF_BITS for member in there) and (1 << len(there)) - 1 <= groups_max:
        return Addressing.ONE_BITMAP
    low = sum(member < _HALF_BITS for member in there)
    fits = all(member < 2 * _HALF_BITS and member % _HALF_BITS != _NOBODY for member in there)
    if fits and (1 << low) - 1 + (1 << (len(there) - low)) - 1 <= groups_max:
        return Addressing.TWO_BITMAPS
    return Addressing.PRUNED


class BitmapGroups:
    """`Groups` for a Tofino: owns which pairs of groups reach which members."""

    def __init__(self, groups_max: int = BITMAP_GROUPS_MAX) -> None:
        self._groups_max = groups_max
        self._ports: dict[Member, SwitchPort] = {}
        self._known: set[Member] = set()
        """Members that a set in the switch may name."""
        self._pruned = ReplicationGroups(exact_members_max=0)

    @property
    def addressing(self) -> Addressing:
        """How sets of the known members become groups."""
        return addressing(self._known, self._groups_max)

    def adopt(self, actual: SwitchContents) -> None:
        """Take over what the switch already has: exact groups, or bitmaps that show which members there have been."""
        default = actual.get(("replicate_default", None))
        if not isinstance(default, ReplicateByBitmapEntry):
            self._pruned.adopt(actual)
            return
        for entry in actual.values():
            if isinstance(entry, GroupEntry) and entry.group != FLOOD_GROUP:
                high = default.bitmap is Bitmap.TWO and entry.group & FLOOD_GROUP
                members = (entry.group ^ FLOOD_GROUP) << _HALF_BITS if high else entry.group
                self._known.update(members_of(members))

    def set_members(self, ports: Mapping[Member, SwitchPort]) -> None:
        """The members and their ports now."""
        self._known |= ports.keys()
        self._ports = dict(ports)
        self._pruned.set_members(ports)

    def forget(self) -> None:
        """The switch restarted: no set names anybody that is not there."""
        self._known = set(self._ports)

    def use(self, members: int) -> Change:
        """Cast packets go to this set now. Returns how `entries` has changed."""
        return self._pruned.use(members) if self.addressing is Addressing.PRUNED else Change()

    def entries(self) -> list[Entry]:
        """All groups and replicate entries for the present membership."""
        match self.addressing:
            case Addressing.ONE_BITMAP:
                groups = {members: GroupId(members) for members in subsets(self._known)}
                collision = groups.pop(1 << _NOBODY, None)
                return [
                    ReplicateByBitmapEntry(Bitmap.ONE),
                    *self._groups(groups),
                    *(self._around_the_flood_group() if collision is not None else ()),
                ]
            case Addressing.TWO_BITMAPS:
                low = subsets(member for member in self._known if member < _HALF_BITS)
                high = subsets(member for member in self._known if member >= _HALF_BITS)
                groups = {members: GroupId(members) for members in low}
                groups |= {members: GroupId(FLOOD_GROUP | members >> _HALF_BITS) for members in high}
                return [ReplicateByBitmapEntry(Bitmap.TWO), *self._groups(groups)]
            case Addressing.PRUNED:
                # Circulating packets need their unicast copy for the recirculation port, so sets of one get no port.
                return [one for one in self._pruned.entries() if not isinstance(one, ReplicateToPortEntry)]

    def _groups(self, groups: Mapping[int, GroupId]) -> Iterator[Entry]:
        """Groups that have somebody in them."""
        for members, group in groups.items():
            ports = sorted(port for member, port in self._ports.items() if members >> member & 1)
            if ports:
                yield GroupEntry(group, tuple(ports))

    def _around_the_flood_group(self) -> Iterator[Entry]:
        """Member 15 alone would be the group of all ports: a group with one more is enough, egress prunes it."""
        other = min((member for member in self._ports if member != _NOBODY), default=None)
        if other is not None and _NOBODY in self._ports:
            yield ReplicateToGroupEntry(1 << _NOBODY, GroupId(1 << _NOBODY | 1 << other))
