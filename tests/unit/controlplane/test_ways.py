"""`fabric.fanout: auto`: what a controller makes of networks that do this and that with groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from controlplane.config import parse
from controlplane.core.events import ExaminationRequested
from controlplane.core.examination.observations import Surroundings
from controlplane.core.views import switch_view
from controlplane.core.ways import AGAIN_NS, BARRED_NS, TRY_NS
from kvproto.blocks import EVERYBODY, TRIAL
from kvproto.fanout import Fanout
from kvproto.rpc import control_pb2 as rpc
from tests.unit.controlplane.helpers import SECOND, Scene
from tests.unit.controlplane.test_fanout import SPEAKS


@dataclass
class Network:
    """What is between nodes, and their agents."""

    scene: Scene
    deaf: set[int] = field(default_factory=set)
    cut: set[int] = field(default_factory=set)
    floods: bool = False
    forgets: bool = False
    """It knows no members that joined long ago."""
    unlucky: int = 0
    """In so many trials to come everything is lost."""
    is_lost: bool = False
    may_watch: bool = True
    looked: dict[int, rpc.ProbeLook] = field(default_factory=dict)
    senders: set[int] = field(default_factory=set)
    """In the last trial; by session."""
    answered: set[int] = field(default_factory=set)

    def run(self, seconds: float) -> None:
        end = self.scene.now + int(seconds * SECOND)
        while self.scene.now < end:
            while self._answer():
                pass
            self.scene.wait(0.5)

    def _answer(self) -> bool:
        asked = [
            (session, task)
            for session in list(self.scene.sent)
            for task in self.scene.tasks(session, "probe")
            if task.task not in self.answered
        ]
        for session, task in asked:
            self.answered.add(task.task)
            result = rpc.TaskResult(task=task.task, status=rpc.TaskResult.DONE)
            self._do(session, task.probe, result.probe)
            self.scene.say(session, task_result=result)
        return bool(asked)

    def _do(self, session: int, probe: rpc.Probe, result: rpc.ProbeResult) -> None:
        match probe.WhichOneof("step"):
            case "look":
                self.looked[session] = probe.look
                if session == 1:
                    self.is_lost, self.unlucky = self.unlucky > 0, max(0, self.unlucky - 1)
                self.senders.clear()
                watches = probe.look.block != 0 and (self.may_watch or not probe.look.watches)
                result.facts.CopyFrom(rpc.ProbeFacts(hears=True, watches=watches))
            case "send":
                if not probe.send.block:
                    return  # to nodes
                assert probe.send.block == self.looked[session].block
                self.senders.add(session)
            case "hear":
                nodes = {node.index: node.session for node in self.scene.core.nodes}
                for number in probe.hear.nodes if probe.hear.by_group else ():
                    small = self._comes(session) and nodes[number] in self.senders
                    result.heard.add(node=number, small=int(small), large=int(small and session not in self.cut))

    def _comes(self, session: int) -> bool:
        look = self.looked[session]
        if look.watches:
            return self.floods
        return session not in self.deaf and not self.is_lost and not (self.forgets and look.block == EVERYBODY)


def network(count: int = 4, **fabric: object) -> Network:
    options = parse({"fabric": {"fanout": "auto", **fabric}}, Path()).core
    scene = Scene(with_switch=False, fabric=options.fabric)
    made = Network(scene)
    for number in range(1, count + 1):
        scene.attach(number, fanouts=SPEAKS)
    return made


def told(it: Network, session: int) -> rpc.Membership:
    return [one.membership for one in it.scene.sent[session] if one.HasField("membership")][-1]


def test_groups_that_work_are_used_and_every_agent_is_told() -> None:
    it = network()
    welcome = next(one.welcome for one in it.scene.sent[3] if one.HasField("welcome"))
    assert welcome.fabric.fanout == rpc.FANOUT_RELAY
    assert not welcome.HasField("member"), "it would join where nobody keeps interest"
    it.run(TRY_NS / SECOND)
    assert it.scene.core.way == (Fanout.MULTICAST, "groups reach their members, and none of 2 others")
    assert {(told(it, one).fanout, told(it, one).member) for one in (1, 2, 3, 4)} == {
        (rpc.FANOUT_MULTICAST, number) for number in range(4)
    }
    it.scene.attach(5, fanouts=SPEAKS)
    late = next(one.welcome for one in it.scene.sent[5] if one.HasField("welcome"))
    assert (late.fabric.fanout, late.member) == (rpc.FANOUT_MULTICAST, 4)
    it.scene.attach(6)
    old = next(one.welcome for one in it.scene.sent[6] if one.HasField("welcome"))
    assert (old.fabric.fanout, old.HasField("member")) == (rpc.FANOUT_SWITCH, False)
    it.run(3 * TRY_NS / SECOND)
    assert it.scene.core.way[0] is Fanout.MULTICAST
    assert {one.block for one in it.looked.values()} == {EVERYBODY}, "it looks whether the network still knows members"


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ({"deaf": {3}}, "groups do not reach n3"),
        ({"cut": {3}}, "datagrams as large as a segment to groups do not reach n3: MTU 9000 on all ports"),
        ({"floods": True}, "what goes to a group comes to n2, n4, too, unasked: is IGMP snooping off?"),
    ],
)
def test_networks_that_do_not_are_left_to_relays_and_the_reason_is_said(broken: dict[str, object], why: str) -> None:
    it = network()
    for name, value in broken.items():
        setattr(it, name, value)
    it.run(3 * TRY_NS / SECOND)
    assert it.scene.core.way == (Fanout.RELAY, why)
    assert {one.block for one in it.looked.values()} == {TRIAL}
    assert not [one for one in it.scene.sent[1] if one.HasField("membership")], "nothing has changed"


def test_one_unlucky_trial_changes_nothing() -> None:
    it = network()
    it.run(TRY_NS / SECOND)
    it.unlucky = 1
    it.run(3 * TRY_NS / SECOND)
    assert (it.unlucky, it.scene.core.way[0]) == (0, Fanout.MULTICAST)
    it.deaf = {2}
    it.run(3 * TRY_NS / SECOND)
    assert it.scene.core.way[0] is Fanout.MULTICAST, "a node that is cut off is no reason for the others"


def test_a_network_that_forgets_members_is_left_to_relays_for_long() -> None:
    it = network()
    it.run(TRY_NS / SECOND)
    it.forgets = True
    it.run(3 * TRY_NS / SECOND)
    why = "groups do not reach n1, n2, n3 and 1 more any more: is there an IGMP querier?"
    assert it.scene.core.way == (Fanout.RELAY, why)
    assert told(it, 1).fanout == rpc.FANOUT_RELAY
    assert not told(it, 1).HasField("member")
    it.run(10 * TRY_NS / SECOND)
    assert it.scene.core.way == (Fanout.RELAY, why), "that groups work at first is known"
    assert BARRED_NS > 100 * TRY_NS


def test_where_nobody_may_look_at_frames_reaching_members_is_enough() -> None:
    it = network()
    it.may_watch = False
    it.run(TRY_NS / SECOND)
    assert it.scene.core.way == (Fanout.MULTICAST, "groups reach their members")


def test_behind_a_kvcast_switch_nothing_is_tried() -> None:
    values = {"fabric": {"fanout": "auto"}, "switch": {"target": "p4switch", "address": "127.0.0.1:1"}}
    fabric = parse(values, Path()).core.fabric
    assert (fabric.fanout, fabric.is_auto) == (Fanout.SWITCH, False)


def test_an_operators_examination_comes_first() -> None:
    it = network()
    it.scene.wait(2 * AGAIN_NS / SECOND)
    assert it.scene.core.examinations.phase == "groups"
    number = it.scene.ask(ExaminationRequested(Surroundings(0, "1.0", "", "")))
    assert it.scene.core.examinations.phase == "nodes"
    assert it.scene.core.examinations.findings(number) is None


def test_the_doctor_says_where_nodes_stand_and_who_did_not_say() -> None:
    it = network(fanout="relay")
    it.scene.attach(7, rack="a")
    number = it.scene.ask(ExaminationRequested(Surroundings(0, "1.0", "", "")))
    it.run(3)
    found = [one for one in it.scene.core.examinations.findings(number) or () if one.check == "racks"]
    assert [(one.path, one.found, one.level) for one in found] == [
        ("all nodes", "a (1)", rpc.Finding.OK),
        ("n1, n2, n3, n4", "no rack", rpc.Finding.NOTE),
    ]


@pytest.mark.parametrize("floods", [False, True])
def test_the_doctor_tries_groups_where_casts_go_by_them(*, floods: bool) -> None:
    it = network(fanout="multicast")
    it.floods = floods
    number = it.scene.ask(ExaminationRequested(Surroundings(0, "1.0", "", "")))
    it.run(3)
    it.scene.core.examinations.advance()
    while (found := it.scene.core.examinations.findings(number)) is None:
        it.run(1)
    said = {one.check: (one.found, one.level) for one in found}
    assert said["fan-out"] == ("multicast", rpc.Finding.OK)
    if floods:
        words = "what goes to a group comes to n2, n4, too, unasked: is IGMP snooping off?"
        assert said["groups"] == (words, rpc.Finding.BROKEN)
    else:
        assert said["groups"] == ("groups reach their members, and none of 2 others", rpc.Finding.OK)


def test_where_a_node_found_that_reading_ends_sooner_is_said() -> None:
    scene = Scene(with_switch=False)
    scene.attach(1)
    scene.attach(2)
    ways = [
        rpc.WayChoice(readers=2, read=True, read_bytes_per_s=300 << 20, fanout_bytes_per_s=150 << 20),
        rpc.WayChoice(readers=8, fanout_bytes_per_s=100 << 20),
    ]
    scene.say(2, heartbeat=rpc.Heartbeat(ways=ways))
    words = "2 readers each read at 300 MiB/s, 150 MiB/s if fanned out (n2)"
    assert scene.core.way[1] == words
    assert switch_view(scene.core, "none", "").fanout_why == words
    scene.say(2, heartbeat=rpc.Heartbeat(ways=ways[1:]))
    assert scene.core.way[1] == ""
