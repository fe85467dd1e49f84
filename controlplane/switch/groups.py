"""Which sets of members have a multicast group of their own.

Up to eight members: every set of two or more, before anybody needs it; the group's number is then a function of the
set, so that a restarted controller finds its own groups again. Beyond: the sets that heat reports name, the least
recently named going first; all other sets are served by the group of everybody with pruning at egress.

A set of one never needs a group: it is unicast to the member's port.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from controlplane.ids import GroupId, Member, SwitchPort
from controlplane.limits import GROUPS_EXACT_MEMBERS_MAX, GROUPS_ON_DEMAND_MAX
from controlplane.switch.entries import Entry, GroupEntry, ReplicateToGroupEntry, ReplicateToPortEntry

_EXACT_BASE = 0x100
"""Number of the exact group of set s is _EXACT_BASE + s."""
_ON_DEMAND_BASE = 0x400

assert _EXACT_BASE + (1 << GROUPS_EXACT_MEMBERS_MAX) <= _ON_DEMAND_BASE


class ReplicationGroups:
    """Chooses groups for a changing membership."""

    def __init__(self, on_demand_max: int = GROUPS_ON_DEMAND_MAX) -> None:
        self._on_demand_max = on_demand_max
        self._ports: dict[Member, SwitchPort] = {}
        self._in_use: OrderedDict[int, GroupId] = OrderedDict()
        self._free: list[GroupId] = []
        self._next = _ON_DEMAND_BASE

    @property
    def exact(self) -> bool:
        """Every set has its group."""
        return all(member < GROUPS_EXACT_MEMBERS_MAX for member in self._ports)

    def set_members(self, ports: Mapping[Member, SwitchPort]) -> bool:
        """The members and their ports now. True if anything changed."""
        if dict(ports) == self._ports:
            return False
        self._ports = dict(ports)
        present = sum(1 << member for member in self._ports)
        for members in [one for one in self._in_use if self.exact or one & ~present]:
            self._free.append(self._in_use.pop(members))
        return True

    def use(self, members: int) -> bool:
        """Cast packets go to this set now. True if the entries changed."""
        present = sum(1 << member for member in self._ports)
        if self.exact or members & ~present or members.bit_count() < 2 or self._on_demand_max == 0:
            return False
        if members in self._in_use:
            self._in_use.move_to_end(members)
            return False
        if len(self._in_use) >= self._on_demand_max:
            _, group = self._in_use.popitem(last=False)
            self._free.append(group)
        self._in_use[members] = self._free.pop() if self._free else self._new_group()
        return True

    def entries(self) -> list[Entry]:
        """All groups and replicate entries for the present membership."""
        entries: list[Entry] = [ReplicateToPortEntry(1 << member, port) for member, port in sorted(self._ports.items())]
        if self.exact:
            members_present = sorted(self._ports)
            for choice in range(1, 1 << len(members_present)):
                if choice.bit_count() > 1:
                    members = sum(1 << member for at, member in enumerate(members_present) if choice >> at & 1)
                    entries += self._group(members, GroupId(_EXACT_BASE + members))
        else:
            for members, group in sorted(self._in_use.items()):
                entries += self._group(members, group)
        return entries

    def _group(self, members: int, group: GroupId) -> list[Entry]:
        ports = tuple(sorted(port for member, port in self._ports.items() if members >> member & 1))
        return [GroupEntry(group, ports), ReplicateToGroupEntry(members, group)]

    def _new_group(self) -> GroupId:
        group = GroupId(self._next)
        self._next += 1
        return group
