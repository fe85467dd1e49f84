"""The audit of what is left behind sees each kind of it."""

from __future__ import annotations

import pytest

from bmv2_testbed.errors import TestbedError
from controlplane.core.ids import ChunkKey, GroupId, Member, Slot, SwitchPort
from controlplane.core.switch.entries import (
    FLOOD_GROUP,
    Entry,
    FillingEntry,
    GroupEntry,
    PortMemberEntry,
    ReplicateToGroupEntry,
    ServingEntry,
    SwitchContents,
    contents,
)
from controlplane.core.switch.groups import ReplicationGroups
from kvproto.rpc import control_pb2
from tests.leftovers import InterestWatch, agent_problems, contents_problems, group_problems, interest_problems

KEY = ChunkKey(b"k" * 16)
MEMBERS = {Member(0): SwitchPort(1), Member(2): SwitchPort(3), Member(3): SwitchPort(4)}


def switch(*more: Entry) -> SwitchContents:
    """What a switch with three members holds, and more."""
    groups = ReplicationGroups()
    groups.set_members(MEMBERS)
    ports = [PortMemberEntry(port, member) for member, port in MEMBERS.items()]
    return contents(*ports, GroupEntry(FLOOD_GROUP, (SwitchPort(1),)), *groups.entries(), *more)


def view(serving: int = 0, filling: int = 0, slots_used: int = 0) -> control_pb2.SwitchView:
    return control_pb2.SwitchView(serving=serving, filling=filling, slots_used=slots_used)


def test_nothing_is_left() -> None:
    served = ServingEntry(KEY, Slot(0), 8)
    assert contents_problems(switch(), view()) == []
    assert contents_problems(switch(served), view(serving=1, slots_used=8)) == []


@pytest.mark.parametrize(
    ("entry", "shown"),
    [
        (FillingEntry(KEY, Slot(0), 8, SwitchPort(1)), "is half filled"),
        (ServingEntry(KEY, Slot(0), 8), "0 chunks served, 0 filling; switch: 1"),
        (ReplicateToGroupEntry(0b11, GroupId(0x103)), "replicate 3 is left over"),
        (GroupEntry(GroupId(0x1FF), (SwitchPort(1), SwitchPort(2))), "group 511 is left over"),
    ],
)
def test_too_much(entry: Entry, shown: str) -> None:
    found = "\n".join(contents_problems(switch(entry), view()))
    assert shown in found


def test_too_little_and_another() -> None:
    held = switch()
    del held["replicate", 0b1101]
    held["group", GroupId(0x105)] = GroupEntry(GroupId(0x105), (SwitchPort(1),))
    found = group_problems(held)
    assert len(found) == 2
    assert "replicate 13 is missing" in found[0]


def test_slots_of_nobody() -> None:
    assert contents_problems(switch(), view(slots_used=8)) == ["controller: 8 slots in use; the switch serves from 0"]


def test_more_members_than_it_knows_groups_for() -> None:
    with pytest.raises(TestbedError, match="up to eight members"):
        group_problems(contents(*[PortMemberEntry(SwitchPort(one + 1), Member(one)) for one in range(9)]))


def test_interest_of_the_living_and_the_dead() -> None:
    assert interest_problems([0b0110, 0b0100], dead=(Member(1), Member(2))) == []
    assert interest_problems([0b0110, 0b0100], dead=(Member(1),)) == ["switch: member 2 is in 2 interest sets"]


def test_interest_that_nothing_renews_is_free_after_the_switchs_ttl() -> None:
    watch = InterestWatch(2.0)
    assert watch.live([(1, 0b10, 500), (7, 0b1, 600)], 100.0) == [0b10, 0b1]
    assert watch.live([(1, 0b10, 900), (7, 0b1, 600)], 101.9) == [0b10, 0b1]
    assert watch.live([(1, 0b10, 900), (7, 0b1, 600)], 102.1) == [0b10], "nobody has touched the other one"
    assert watch.live([(1, 0b10, 900), (7, 0b100, 700)], 103.0) == [0b10, 0b100], "others are in it now"
    assert watch.live([(1, 0, 900), (7, 0b100, 700)], 104.0) == [0b100]


def test_an_agent_that_is_not_idle() -> None:
    metrics = (
        "kvcast_agent_pool_pins 2\n"
        'kvcast_agent_pool_bytes{state="filling"} 4096\n'
        'kvcast_agent_pool_bytes{state="free"} 4096\n'
        "kvcast_agent_led_chunks 0\n"
        "kvcast_agent_internal_errors_total 1\n"
    )
    assert agent_problems("agent3", metrics) == [
        "agent3: 2 pins",
        "agent3: 4096 bytes of chunks that are being filled",
        "agent3: 1 internal errors",
    ]
