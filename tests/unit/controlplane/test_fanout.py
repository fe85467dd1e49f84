"""Without switch ports, nodes are numbered in the order of being known, where holders keep interest."""

from pathlib import Path

import pytest

from controlplane.config import parse
from controlplane.core.parse import node_facts
from hostagent.controller.convert import RemoteProtocolError, fabric_of
from kvdaemon.errors import ConfigError
from kvproto.fanout import Fanout
from kvproto.ids import Member
from kvproto.limits import MEMBERS_MAX
from kvproto.records import RecordError
from kvproto.rpc import control_pb2 as rpc
from kvproto.wire.data import Fabric
from tests.unit.controlplane.helpers import Scene, hello

SPEAKS = [rpc.FANOUT_SWITCH, rpc.FANOUT_MULTICAST, rpc.FANOUT_RELAY]


def test_a_switch_is_the_default_and_unknown_ways_are_refused() -> None:
    assert parse({}, Path()).core.fabric.fanout is Fanout.SWITCH
    assert parse({"fabric": {"fanout": "relay"}}, Path()).core.fabric.fanout is Fanout.RELAY
    multicast = parse({"fabric": {"fanout": "multicast", "unasked_weight": 0.5}}, Path()).core
    assert (multicast.fabric.fanout, multicast.fabric.unasked_weight) == (Fanout.MULTICAST, 0.5)
    assert multicast.has_members
    with pytest.raises(ConfigError, match=r"fabric\.fanout: 'broadcast' is not one of switch, multicast, relay"):
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
        scene.attach(number, fanouts=SPEAKS)
    members = [node.member for node in scene.core.nodes]
    assert members == [0, 1, 2]
    scene.attach(2, fanouts=SPEAKS)
    assert [node.member for node in scene.core.nodes] == [0, 1, 2]


def test_a_controller_that_starts_again_leaves_each_node_its_number() -> None:
    options = parse({"fabric": {"fanout": "multicast"}}, Path()).core
    scene = Scene(with_switch=False, fabric=options.fabric)
    scene.attach(3, fanouts=SPEAKS, member=2)
    scene.attach(4, fanouts=SPEAKS)
    scene.attach(1, fanouts=SPEAKS, member=0)
    scene.attach(2, fanouts=SPEAKS, member=2)
    members = {node.facts.name: node.member for node in scene.core.nodes}
    assert members == {"n3": 2, "n4": 0, "n1": 1, "n2": 3}, "who comes first keeps it"
    with pytest.raises(RecordError, match=r"member 64 is not in 0\.\.63"):
        node_facts(hello(1, member=64))


def test_agents_that_do_not_speak_it_get_no_number_and_are_told_of_a_switch() -> None:
    options = parse({"fabric": {"fanout": "multicast"}}, Path()).core
    scene = Scene(with_switch=False, fabric=options.fabric)
    scene.attach(1, version="0.9.0")
    scene.attach(2, fanouts=SPEAKS)
    old, young = 1, 2
    welcomes = {one: next(m.welcome for m in scene.sent[one] if m.HasField("welcome")) for one in (old, young)}
    assert welcomes[old].fabric.fanout == rpc.FANOUT_SWITCH
    assert welcomes[young].fabric.fanout == rpc.FANOUT_MULTICAST
    assert [welcomes[one].HasField("member") for one in (old, young)] == [False, True]
    problems = {node.facts.name: node.port_problem for node in scene.core.nodes}
    assert problems == {"n1": "its agent (kvcast 0.9.0) lacks fabric.fanout multicast: upgrade it", "n2": ""}


def test_with_no_switch_and_no_keepers_nobody_is_a_member() -> None:
    scene = Scene(with_switch=False)
    scene.attach(1)
    assert [node.member for node in scene.core.nodes] == [None]


def test_agents_take_what_they_are_told_and_old_controllers_mean_a_switch() -> None:
    told = rpc.Fabric(fanout=rpc.FANOUT_MULTICAST, unasked_weight=0.5)
    fabric = fabric_of(told, Fabric(), Member(3))
    assert (fabric.fanout, fabric.unasked_weight, fabric.member) == (Fanout.MULTICAST, 0.5, 3)
    with pytest.raises(RemoteProtocolError, match="unknown here: upgrade this agent"):
        fabric_of(rpc.Fabric(fanout=9), Fabric(), Member(3))  # type: ignore[arg-type]  # of a later controller
    assert fabric_of(rpc.Fabric(unasked_weight=0.5), Fabric(), Member(3)) == Fabric()
    assert [group - fabric.group for group in fabric.groups] == [MEMBERS_MAX + 3, 33, 16, 8, 4, 2, 1]
    silent = fabric_of(rpc.Fabric(), Fabric())
    assert silent.fanout is Fanout.SWITCH
    assert silent.groups == (silent.group,)
