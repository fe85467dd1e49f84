"""Without switch ports, nodes are numbered in the order of being known, where holders keep interest."""

from pathlib import Path

import pytest

from controlplane.config import parse
from hostagent.controller.convert import RemoteProtocolError, fabric_of
from kvdaemon.errors import ConfigError
from kvproto.fanout import Fanout
from kvproto.ids import Member
from kvproto.limits import MEMBERS_MAX
from kvproto.rpc import control_pb2 as rpc
from kvproto.wire.data import Fabric
from tests.unit.controlplane.helpers import Scene


def test_a_switch_is_the_default_and_unknown_ways_are_refused() -> None:
    assert parse({}, Path()).core.fabric.fanout is Fanout.SWITCH
    multicast = parse({"fabric": {"fanout": "multicast", "unasked_weight": 0.5}}, Path()).core
    assert (multicast.fabric.fanout, multicast.fabric.unasked_weight) == (Fanout.MULTICAST, 0.5)
    assert multicast.has_members
    with pytest.raises(ConfigError, match=r"fabric\.fanout: 'broadcast' is not one of switch, multicast"):
        parse({"fabric": {"fanout": "broadcast"}}, Path())
    with pytest.raises(ConfigError, match=r"multicast goes with switch\.target: none"):
        parse({"fabric": {"fanout": "multicast"}, "switch": {"target": "p4switch", "address": "127.0.0.1:1"}}, Path())


@pytest.mark.parametrize("group", ["239.255.255.200", "224.0.0.9"])
def test_groups_that_no_switch_filters_or_that_are_none_are_refused(group: str) -> None:
    assert parse({"fabric": {"group": group}}, Path()).core.fabric.entry.group_ip[0] >= 224
    with pytest.raises(ConfigError, match=r"fabric\.group: with multicast"):
        parse({"fabric": {"fanout": "multicast", "group": group}}, Path())


def test_members_are_numbered_and_a_node_that_is_away_for_a_moment_keeps_its_number() -> None:
    options = parse({"fabric": {"fanout": "multicast"}}, Path()).core
    scene = Scene(with_switch=False, fabric=options.fabric)
    for number in (1, 2, 3):
        scene.attach(number)
    members = [node.member for node in scene.core.nodes]
    assert members == [0, 1, 2]
    scene.attach(2)
    assert [node.member for node in scene.core.nodes] == [0, 1, 2]


def test_with_no_switch_and_no_keepers_nobody_is_a_member() -> None:
    scene = Scene(with_switch=False)
    scene.attach(1)
    assert [node.member for node in scene.core.nodes] == [None]


def test_agents_take_what_they_are_told_and_old_controllers_mean_a_switch() -> None:
    told = rpc.Fabric(fanout=rpc.FANOUT_MULTICAST, unasked_weight=0.5)
    fabric = fabric_of(told, Fabric(), Member(3))
    assert (fabric.fanout, fabric.unasked_weight, fabric.member) == (Fanout.MULTICAST, 0.5, 3)
    with pytest.raises(RemoteProtocolError, match="unknown here: upgrade this agent"):
        fabric_of(rpc.Fabric(fanout=3), Fabric(), Member(3))  # type: ignore[arg-type]  # of a later controller
    assert fabric_of(rpc.Fabric(unasked_weight=0.5), Fabric(), Member(3)) == Fabric()
    assert [group - fabric.group for group in fabric.groups] == [MEMBERS_MAX + 3, 33, 16, 8, 4, 2, 1]
    silent = fabric_of(rpc.Fabric(), Fabric())
    assert silent.fanout is Fanout.SWITCH
    assert silent.groups == (silent.group,)
