"""Groups of a Tofino: whatever the membership, and at every step of a change, a cast reaches exactly its set."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from controlplane.core.ids import GroupId, Member, SwitchPort
from controlplane.core.switch.bitmap_groups import FLOOD_GROUP, MEMBER_ORDER, Addressing, BitmapGroups, addressing
from controlplane.core.switch.entries import (
    Bitmap,
    EgressMemberEntry,
    GroupEntry,
    PortMemberEntry,
    ReplicateByBitmapEntry,
    ReplicateToGroupEntry,
    SwitchContents,
    contents,
)
from controlplane.core.switch.programmer import apply, difference
from kvproto.ids import members_of

STRANGER = SwitchPort(200)
"""A port without a member."""


def ports_of(*members: int) -> dict[Member, SwitchPort]:
    return {Member(member): SwitchPort(member + 1) for member in members}


def wanted(groups: BitmapGroups, ports: Mapping[Member, SwitchPort]) -> SwitchContents:
    """What the core writes for these members."""
    groups.set_members(ports)
    members = [entry(port, member) for member, port in ports.items() for entry in (PortMemberEntry, EgressMemberEntry)]
    flood = GroupEntry(FLOOD_GROUP, (*sorted(ports.values()), STRANGER))
    return contents(*members, flood, *groups.entries())


def copies(switch: SwitchContents, members: int) -> list[SwitchPort]:
    """Ports that get a copy of a packet for this set: control Replication of p4/tna, then Pruning."""
    exact = switch.get(("replicate", members))
    default = switch.get(("replicate_default", None))
    if isinstance(exact, ReplicateToGroupEntry):
        groups = [exact.group]
    elif not isinstance(default, ReplicateByBitmapEntry):
        groups = [FLOOD_GROUP]
    else:
        groups = [GroupId(members & 0xFFFF)]
        if default.bitmap is Bitmap.TWO and members >> 16 & 0xFFFF:
            groups.append(GroupId(members >> 16 & 0xFFFF | 0x8000))
    made = [found.ports for one in groups if isinstance(found := switch.get(("group", one)), GroupEntry)]
    receivers = {one.port: one.member for one in switch.values() if isinstance(one, EgressMemberEntry)}
    return sorted(port for ports in made for port in ports if port in receivers and members >> receivers[port] & 1)


def assert_cast_reaches(switch: SwitchContents, members: int) -> None:
    there = {one.member: one.port for one in switch.values() if isinstance(one, EgressMemberEntry)}
    assert copies(switch, members) == sorted(there[member] for member in members_of(members) if member in there)


def some_sets(rng: random.Random, members: set[Member]) -> list[int]:
    """Sets of one, all of them, and some others."""
    found = [1 << member for member in members] + [sum(1 << member for member in members)]
    found += [sum(1 << member for member in members if rng.random() < 0.5) for _ in range(20)]
    return [one for one in found if one]


@pytest.mark.parametrize(
    ("members", "groups_max", "expected"),
    [
        (range(12), 4095, Addressing.ONE_BITMAP),
        (range(12), 4094, Addressing.PRUNED),
        (range(16), 0xFFFF, Addressing.ONE_BITMAP),
        ((0, 15), 3, Addressing.ONE_BITMAP),
        ((0, 15, 16), 0xFFFF, Addressing.PRUNED),
        ((0, 16), 2, Addressing.TWO_BITMAPS),
        ((*range(15), *range(16, 31)), 2 * 0x7FFF, Addressing.TWO_BITMAPS),
        ((*range(15), *range(16, 31)), 2 * 0x7FFF - 1, Addressing.PRUNED),
        ((0, 31), 0xFFFF, Addressing.PRUNED),
        ((0, 32), 0xFFFF, Addressing.PRUNED),
        ((), 0, Addressing.ONE_BITMAP),
    ],
)
def test_addressing_follows_members_and_limit(members: range, groups_max: int, expected: Addressing) -> None:
    assert addressing(map(Member, members), groups_max) is expected


def test_ports_get_members_so_that_few_groups_are_enough() -> None:
    assert MEMBER_ORDER[:8] == tuple(range(8)), "as on any other switch"
    for count in range(31):
        first = MEMBER_ORDER[:count]
        assert addressing(first, 0xFFFF) is not Addressing.PRUNED
    assert addressing(MEMBER_ORDER[:22], 4096) is Addressing.TWO_BITMAPS
    assert addressing(MEMBER_ORDER[:31], 0xFFFF) is Addressing.PRUNED


@pytest.mark.parametrize("members", [(0, 3, 5), (2, 15), (15,), (0, 7, 16, 30), (0, 31), range(40)])
def test_every_set_reaches_its_members_once(members: range) -> None:
    there = ports_of(*members)
    groups = BitmapGroups()
    switch = wanted(groups, there)
    rng = random.Random(1)
    for asked in some_sets(rng, set(there)):
        assert_cast_reaches(switch, asked)
    for asked in some_sets(rng, set(there)):
        groups.use(asked)
        assert_cast_reaches(wanted(groups, there), asked)


def test_the_set_whose_number_is_that_of_all_ports_has_a_smaller_group() -> None:
    switch = wanted(BitmapGroups(), ports_of(3, 9, 15))
    entry = switch["replicate", 1 << 15]
    assert entry == ReplicateToGroupEntry(1 << 15, GroupId(1 << 15 | 1 << 3))
    group = switch["group", GroupId(1 << 15 | 1 << 3)]
    assert isinstance(group, GroupEntry)
    assert group.ports == (4, 16)
    alone = wanted(BitmapGroups(), ports_of(15))
    assert ("replicate", 1 << 15) not in alone
    assert copies(alone, 1 << 15) == [16], "all ports, pruned"


def test_sets_that_name_somebody_who_has_gone_reach_the_others() -> None:
    groups = BitmapGroups()
    wanted(groups, ports_of(0, 1, 2))
    switch = wanted(groups, ports_of(0, 2))
    for asked in range(1, 8):
        assert_cast_reaches(switch, asked)
    groups.forget()
    assert ("group", GroupId(0b11)) not in wanted(groups, ports_of(0, 2)), "a switch that restarted names nobody"


@pytest.mark.parametrize("members", [(0, 1, 2), (0, 1, 16, 17)])
def test_a_new_controller_keeps_groups_for_who_has_gone(members: tuple[int, ...]) -> None:
    before = BitmapGroups()
    wanted(before, ports_of(*members))
    switch = wanted(before, ports_of(members[0], members[-1]))
    after = BitmapGroups()
    after.adopt(switch)
    assert wanted(after, ports_of(members[0], members[-1])) == switch


@pytest.mark.parametrize("seed", range(6))
def test_a_cast_reaches_its_set_at_every_step_of_every_change(seed: int) -> None:
    """Members come and go and the addressing changes with them; after each single update all is well for any set of
    members that were there before and are afterwards."""
    rng = random.Random(seed)
    groups = BitmapGroups(groups_max=64)
    there: dict[Member, SwitchPort] = {}
    switch: SwitchContents = {}
    modes = set()
    for _ in range(12):
        after = dict(there)
        for member in rng.sample(MEMBER_ORDER[:12] if rng.random() < 0.8 else [Member(15), Member(40)], k=2):
            if after.pop(member, None) is None:
                after[member] = SwitchPort(member + 1)
        stay = set(there) & set(after)
        desired = wanted(groups, after)
        asked = some_sets(rng, stay)
        for update in difference(switch, desired):
            apply(switch, update)
            for one in asked:
                assert_cast_reaches(switch, one)
        assert switch == desired
        there = after
        modes.add(groups.addressing)
        if groups.addressing is Addressing.PRUNED:
            for one in some_sets(rng, set(there)):
                groups.use(one)
            for update in difference(switch, wanted(groups, there)):
                apply(switch, update)
            groups.forget()
    assert len(modes) > 1, "this seed shows nothing"
