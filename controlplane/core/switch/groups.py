"""Which sets of members have a multicast group of their own.

Up to eight members: every set of two or more, before anybody needs it. Beyond: the sets that heat reports name, the
least recently named going first; all other sets are served by the group of everybody with pruning at egress. The
number of a group stays while its set has one: it is a function of the set where all members are below eight, and
taken over from the switch (`adopt`) by a controller that has just started.

A set of one never needs a group: it is unicast to the member's port.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from controlplane.core.ids import GroupId, Member, SwitchPort
from controlplane.core.limits import GROUPS_EXACT_MEMBERS_MAX, GROUPS_ON_DEMAND_MAX
from controlplane.core.switch.entries import (
    Entry,
    GroupEntry,
    Identity,
    ReplicateToGroupEntry,
    ReplicateToPortEntry,
    SwitchContents,
)

_EXACT_BASE = 0x100
"""Number of the group of set s is _EXACT_BASE + s where all members of s are among the first ones, which are exact."""
_ON_DEMAND_BASE = 0x400

assert _EXACT_BASE + (1 << GROUPS_EXACT_MEMBERS_MAX) <= _ON_DEMAND_BASE


@dataclass(frozen=True, slots=True)
class Change:
    """What changes in the switch when a set gets a group. The sets of most casts change nothing, and a change is a few
    entries out of thousands: looking at all of them took a controller 14 ms per report with 1,024 groups."""

    gone: tuple[Identity, ...] = ()
    new: tuple[Entry, ...] = ()


class Groups(Protocol):
    """Chooses groups for a changing membership."""

    def adopt(self, actual: SwitchContents) -> None:
        """Take over what the switch already has: keep the numbers of its groups."""

    def set_members(self, ports: Mapping[Member, SwitchPort]) -> None:
        """The members and their ports now."""

    def forget(self) -> None:
        """The switch restarted: no set in it names anybody."""

    def use(self, members: int) -> Change:
        """Cast packets go to this set now. Returns how `entries` has changed."""

    def entries(self) -> list[Entry]:
        """All groups and replicate entries for the present membership."""


class ReplicationGroups:
    """`Groups` of a switch whose default is the group of all ports, pruned at egress (v1model)."""

    def __init__(
        self, on_demand_max: int = GROUPS_ON_DEMAND_MAX, exact_members_max: int = GROUPS_EXACT_MEMBERS_MAX
    ) -> None:
        self._on_demand_max = on_demand_max
        self._exact_members_max = exact_members_max
        self._ports: dict[Member, SwitchPort] = {}
        self._in_use: OrderedDict[int, GroupId] = OrderedDict()
        self._free: list[GroupId] = []
        self._next = _ON_DEMAND_BASE

    @property
    def exact(self) -> bool:
        """Every set has its group."""
        return len(self._ports) <= self._exact_members_max

    def adopt(self, actual: SwitchContents) -> None:
        """Groups that the switch already has for sets of members."""
        found = {one.members: one.group for one in actual.values() if isinstance(one, ReplicateToGroupEntry)}
        for members, group in sorted(found.items()):
            if group >= _ON_DEMAND_BASE:
                self._in_use.setdefault(members, group)
                self._next = max(self._next, group + 1)
            elif group == _EXACT_BASE + members:
                self._in_use.setdefault(members, group)

    def set_members(self, ports: Mapping[Member, SwitchPort]) -> None:
        """The members and their ports now."""
        if dict(ports) == self._ports:
            return
        self._ports = dict(ports)
        present = sum(1 << member for member in self._ports)
        wanted = {one for one in subsets(self._ports) if one.bit_count() > 1} if self.exact else None
        for members in [one for one in self._in_use if one & ~present or (wanted is not None and one not in wanted)]:
            self._release(self._in_use.pop(members))
        for members in sorted(wanted or ()):
            self._number(members)

    def forget(self) -> None:
        """Nothing here depends on who has been there."""

    def use(self, members: int) -> Change:
        """Cast packets go to this set now. Returns how `entries` has changed."""
        present = sum(1 << member for member in self._ports)
        if self.exact or members & ~present or members.bit_count() < 2 or self._on_demand_max == 0:
            return Change()
        if members in self._in_use:
            self._in_use.move_to_end(members)
            return Change()
        old: list[Entry] = []
        if len(self._in_use) >= self._on_demand_max:
            left, group = self._in_use.popitem(last=False)
            self._release(group)
            old = self._group(left, group)
        self._number(members)
        new = self._group(members, self._in_use[members])
        kept = {entry.identity for entry in new}
        return Change(tuple(entry.identity for entry in old if entry.identity not in kept), tuple(new))

    def entries(self) -> list[Entry]:
        """All groups and replicate entries for the present membership."""
        entries: list[Entry] = [ReplicateToPortEntry(1 << member, port) for member, port in sorted(self._ports.items())]
        for members, group in sorted(self._in_use.items()):
            entries += self._group(members, group)
        return entries

    def _number(self, members: int) -> None:
        """Give a set its group."""
        if members in self._in_use:
            return
        if members >> self._exact_members_max == 0:
            self._in_use[members] = GroupId(_EXACT_BASE + members)
        else:
            self._in_use[members] = self._free.pop() if self._free else self._new_group()

    def _group(self, members: int, group: GroupId) -> list[Entry]:
        ports = tuple(sorted(port for member, port in self._ports.items() if members >> member & 1))
        return [GroupEntry(group, ports), ReplicateToGroupEntry(members, group)]

    def _release(self, group: GroupId) -> None:
        if group >= _ON_DEMAND_BASE:
            self._free.append(group)

    def _new_group(self) -> GroupId:
        group = GroupId(self._next)
        self._next += 1
        return group


def subsets(members: Iterable[Member]) -> Iterator[int]:
    """Every set of one member or more, in order."""
    bits = sorted(1 << member for member in members)
    for choice in range(1, 1 << len(bits)):
        yield sum(bit for at, bit in enumerate(bits) if choice >> at & 1)
