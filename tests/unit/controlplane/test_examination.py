"""`kvcast doctor cluster` without a cluster: what is tried, and what is made of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from controlplane.core.examination.blame import blame
from controlplane.core.examination.observations import Observations, Surroundings
from controlplane.core.examination.script import Ask, Examination, FillSwitch, Outcome, Subject
from controlplane.core.examination.verdict import findings
from controlplane.core.ids import NodeIndex
from kvproto.rpc import control_pb2 as rpc

UNIX_NS = 1_800_000_000_000_000_000
PACKET_BYTES = 4220
Pair = tuple[str, str]


@dataclass
class World:
    """Nodes n1, n2, ... and what is broken between them."""

    nodes: int = 3
    switch: str = "ready"
    small_lost: set[Pair] = field(default_factory=set)
    large_lost: set[Pair] = field(default_factory=set)
    reads_lost: set[Pair] = field(default_factory=set)
    reads_silent: set[Pair] = field(default_factory=set)
    """A firewall drops their TCP: what a silent read owes is cast instead."""
    reads_late: set[Pair] = field(default_factory=set)
    """So once, and not again."""
    unreached: set[Pair] = field(default_factory=set)
    """The reader could not reach the holder a while ago, and tries it again when it is asked."""
    no_casts: set[Pair] = field(default_factory=set)
    late_for_casts: dict[Pair, int] = field(default_factory=dict)
    """On how many tries a reader of a busy machine comes too late for the cast."""
    fills_failed: bool = False
    full: bool = False
    silent: set[str] = field(default_factory=set)
    mtu_bytes: dict[str, int] = field(default_factory=dict)
    address: dict[str, str] = field(default_factory=dict)
    clock_ns: dict[str, int] = field(default_factory=dict)
    version: dict[str, str] = field(default_factory=dict)
    certificate_ends_s: dict[str, int] = field(default_factory=dict)
    unplaced: dict[str, str] = field(default_factory=dict)
    deaf: bool = False
    asked: list[Ask] = field(default_factory=list)
    surroundings: Surroundings = field(
        default_factory=lambda: Surroundings(UNIX_NS, "1.0", "10.0.0.1:4800", "10.0.0.1:9559")
    )
    holders: dict[int, str] = field(default_factory=dict)

    def names(self) -> list[str]:
        return [f"n{number}" for number in range(1, self.nodes + 1)]

    def examine(self) -> Observations:
        subjects = [
            Subject(
                NodeIndex(number),
                name,
                self.version.get(name, "1.0"),
                bytes(map(int, self.address.get(name, f"10.20.0.{number + 1}").split("."))),
                1 << 30,
                lambda name=name: self.unplaced.get(name, ""),
            )
            for number, name in enumerate(self.names())
        ]
        seen = Observations(self.surroundings, 4096, PACKET_BYTES, self.switch)
        script = Examination(7, subjects, seen, 0).script()
        outcomes = None
        while True:
            try:
                batch = next(script) if outcomes is None else script.send(outcomes)
            except StopIteration:
                return seen
            outcomes = [self.take(step) for step in batch.steps]

    def take(self, step: Ask | FillSwitch) -> Outcome:
        result = rpc.TaskResult(status=rpc.TaskResult.DONE)
        if isinstance(step, FillSwitch):
            if self.full:
                result = rpc.TaskResult(status=rpc.TaskResult.REFUSED, detail="worth less")
            if self.fills_failed:
                result = rpc.TaskResult(status=rpc.TaskResult.FAILED, detail="n1: 0 of 16 segments acknowledged")
            return Outcome(result, 10, 10)
        self.asked.append(step)
        name = self.names()[step.node]
        problem = "no answer from the node" if name in self.silent else self.do(name, step.probe, result.probe)
        if problem:
            result.status, result.detail = rpc.TaskResult.FAILED, problem
        return Outcome(result, 2_000_000, 1_000_000)

    def do(self, name: str, probe: rpc.Probe, result: rpc.ProbeResult) -> str:
        names = self.names()
        match probe.WhichOneof("step"):
            case "look":
                result.facts.CopyFrom(
                    rpc.ProbeFacts(
                        unix_ns=UNIX_NS + self.clock_ns.get(name, 0),
                        interface="eth1",
                        mtu_bytes=self.mtu_bytes.get(name, 9000),
                        prefix_bits=16,
                        hears=not self.deaf,
                        certificate_ends_s=self.certificate_ends_s.get(name, 0),
                    )
                )
            case "hear":
                for node in probe.hear.nodes:
                    path = (names[node], name)
                    small = path not in self.small_lost
                    result.heard.add(node=node, small=3 * small, large=3 * (small and path not in self.large_lost))
            case "put":
                self.holders[probe.put.number] = name
            case "get":
                path = (self.holders[probe.get.number], name)
                if path in self.unreached:
                    self.unreached.remove(path)
                    return "unavailable"
                if path in self.reads_lost and not probe.get.from_switch:
                    return "deadline"
                cast = probe.get.size_bytes > 1 << 16 and path not in self.no_casts
                if cast and self.late_for_casts.get(path, 0):
                    self.late_for_casts[path] -= 1
                    cast = False
                silent = path in self.reads_silent | self.reads_late
                self.reads_late.discard(path)
                result.source = rpc.SOURCE_CAST if cast or silent else rpc.SOURCE_HOLDER
                if probe.get.from_switch:
                    result.source = rpc.SOURCE_SWITCH
        return ""


def broken(world: World) -> list[tuple[str, str, str]]:
    """(check, path, found) of what is broken, after an examination."""
    found = findings(world.examine())
    assert all(bool(one.remedy) == (one.level != rpc.Finding.OK) for one in found)
    return [(one.check, one.path, one.found) for one in found if one.level == rpc.Finding.BROKEN]


def both_ways(*pairs: Pair) -> set[Pair]:
    return {*pairs, *(pair[::-1] for pair in pairs)}


def test_blame_takes_the_smallest_explanation() -> None:
    nodes = ("a", "b", "c", "d")
    tried = {(one, other) for one in nodes for other in nodes if one != other}
    with_a = {path for path in tried if "a" in path}
    assert blame(set(), tried) == []
    assert [words for words, _ in blame(tried, tried)] == ["all nodes"]
    assert blame(with_a, tried) == [("a <-> all others", sorted(with_a))]
    into_b = {path for path in tried if path[1] == "b"}
    assert [words for words, _ in blame(into_b, tried)] == ["all others -> b"]
    assert [words for words, _ in blame({path[::-1] for path in into_b}, tried)] == ["b -> all others"]
    assert [words for words, _ in blame(with_a | {("c", "d")}, tried)] == ["a <-> all others", "c -> d"]
    assert [words for words, _ in blame({("a", "b"), ("b", "a"), ("c", "a")}, tried)] == ["a <-> b", "c -> a"]
    assert [words for words, _ in blame({("a", "b")}, {("a", "b"), ("b", "a")})] == ["a -> b"]


def test_of_many_single_paths_only_some_are_named() -> None:
    nodes = [f"n{number:02}" for number in range(20)]
    tried = {(one, other) for one in nodes for other in nodes if one != other}
    ring = {(nodes[at], nodes[(at + 1) % 20]) for at in range(20)}
    explained = blame(ring, tried)
    assert explained[-1][0] == "14 more paths"
    assert sum(len(paths) for _, paths in explained) == 20


def test_a_healthy_cluster_and_every_path_was_tried() -> None:
    world = World()
    found = findings(world.examine())
    assert {one.level for one in found} == {rpc.Finding.OK, rpc.Finding.NOTE}
    checks = [one.check for one in found if one.level == rpc.Finding.OK]
    assert " ".join(checks) == "management versions clocks switch data MTU put read cast fill serve"
    assert {step.probe.WhichOneof("step") for step in world.asked[-3:]} == {"drop"}
    assert not world.asked[-1].probe.drop.numbers


@pytest.mark.parametrize(
    ("world", "expected"),
    [
        (World(silent={"n2"}), [("management", "controller -> n2", "no answer from the node")]),
        (World(mtu_bytes={"n2": 1500}), [("MTU", "n2", "eth1 has MTU 1500; 4220 needed for segments of 4096")]),
        (
            World(large_lost=both_ways(("n3", "n1"), ("n3", "n2"))),
            [("MTU", "n3 <-> all others", "packets of 4220 bytes are lost, small ones pass")],
        ),
        (
            World(small_lost={("n2", "n1"), ("n3", "n1")}),
            [("data", "all others -> n1", "UDP 4791 does not pass, TCP does")],
        ),
        (
            World(small_lost=both_ways(("n1", "n3")), reads_lost=both_ways(("n1", "n3"))),
            [("data", "n1 <-> n3", "nothing passes")],
        ),
        (
            World(address={"n3": "172.16.0.3"}),
            [("addresses", "n3", "eth1 is 172.16.0.3/16, the others are in 10.20.0.0/16")],
        ),
        (
            World(address={"n3": "10.20.0.1"}),
            [("addresses", "n1 and n3", "both have 10.20.0.1")],
        ),
        (World(reads_lost={("n1", "n2")}), [("read", "n1 -> n2", "deadline")]),
        (
            World(reads_silent={("n1", "n2"), ("n1", "n3")}),
            [("read", "n1 -> all others", "came by a cast")],
        ),
        (World(reads_late={("n1", "n2"), ("n2", "n1"), ("n1", "n3")}), []),
        (World(unreached={("n1", "n2"), ("n3", "n1")}), []),
        (
            World(nodes=4, unplaced={"n4": "it is at port 3, that of n3"}),
            [("switch", "switch -> n4", "it is at port 3, that of n3")],
        ),
        (
            World(no_casts={("n1", "n2"), ("n3", "n2")}),
            [("cast", "all others -> n2", "came by reliable reads")],
        ),
    ],
)
def test_what_is_broken_is_named_and_nothing_else(world: World, expected: list[tuple[str, str, str]]) -> None:
    found = [one for one in broken(world) if one[0] != "cast" or ("cast" in {check for check, _, _ in expected})]
    assert found == expected


@pytest.mark.parametrize("late", [1, 3, 4])
def test_who_comes_too_late_for_casts_is_not_taken_for_deaf(late: int) -> None:
    everywhere = {(one, other): late for one in World().names() for other in World().names() if one != other}
    assert broken(World(late_for_casts=everywhere)) == []
    always_on_one_path = World(late_for_casts={("n1", "n2"): 100})
    assert broken(always_on_one_path) == [], "n1's casts come to n3, and n3's to n2"


def test_who_gets_no_cast_at_all_is_deaf_or_busy() -> None:
    (finding,) = [
        one for one in findings(World(no_casts={("n1", "n2"), ("n3", "n2")}).examine()) if one.check == "cast"
    ]
    assert finding.path == "all others -> n2"
    assert finding.remedy.endswith("nodes that are very busy come too late for a cast: try again when they are not")


def test_a_switch_that_does_not_answer() -> None:
    world = World(switch="connecting")
    everything = {(one, other) for one in world.names() for other in world.names() if one != other}
    world.small_lost = world.reads_lost = everything
    assert broken(world) == [
        ("switch", "controller -> switch", "10.0.0.1:9559: connecting"),
        ("data", "all nodes", "no node reaches another"),
    ]


def test_a_fill_that_fails_and_a_switch_without_room() -> None:
    found = broken(World(fills_failed=True))
    assert ("fill", "n1 -> switch", "0 of 16 segments acknowledged") in found
    found = [one for one in findings(World(full=True).examine()) if one.check in ("fill", "serve")]
    assert [(one.level, one.found) for one in found] == [
        (rpc.Finding.NOTE, "not tried, the switch has no room: worth less")
    ]


def test_clocks_versions_and_open_doors_are_no_breakage() -> None:
    world = World(clock_ns={"n2": -3_000_000_000}, version={"n3": "0.9"})
    world.surroundings = replace(world.surroundings, listen="0.0.0.0:4800", asked_by="1.1")
    found = findings(world.examine())
    slow = {(one.check, one.path): one.found for one in found if one.level == rpc.Finding.SLOW}
    assert slow["clocks", "n2"] == "3.0 s behind"
    assert slow["versions", "n3"] == "0.9, the controller 1.0"
    assert slow["versions", "this command"] == "1.1, the controller 1.0"
    assert "also on the data network" in slow["security", "controller"]
    assert "certificates" not in {one.check for one in found}
    assert not any(one.level == rpc.Finding.BROKEN for one in found)


def test_two_nodes_and_no_switch() -> None:
    found = {one.check: one for one in findings(World(nodes=2).examine())}
    assert found["cast"].found == "not tried"
    found = {one.check: one for one in findings(World(switch="absent").examine())}
    assert found["switch"].level == rpc.Finding.NOTE
    assert "cast" not in found
    assert found["read"].level == rpc.Finding.OK


def test_nodes_whose_casts_use_no_socket_are_examined_without_datagrams() -> None:
    found = {one.check: one.level for one in findings(World(deaf=True).examine())}
    assert "data" not in found
    assert found["cast"] == found["serve"] == rpc.Finding.OK


def test_reads_stop_where_none_works() -> None:
    world = World(nodes=6)
    world.reads_lost = {(one, other) for one in world.names() for other in world.names()}
    found = findings(world.examine())
    assert any("further reads" in one.found for one in found)
    assert sum(step.probe.HasField("get") and step.probe.get.size_bytes == 1 << 16 for step in world.asked) <= 6 * 4


@pytest.mark.parametrize(("days", "level"), [(300, rpc.Finding.OK), (3, rpc.Finding.SLOW), (-1, rpc.Finding.BROKEN)])
def test_certificates(days: int, level: rpc.Finding.Level.ValueType) -> None:
    world = World(certificate_ends_s={"n2": UNIX_NS // 10**9 + days * 86_400})
    ends_s = UNIX_NS / 1e9 + 400 * 86_400
    world.surroundings = replace(world.surroundings, security="tls", certificate_ends_s=ends_s)
    found = {one.check: one for one in findings(world.examine())}
    assert found["certificates"].level == level
    assert found["certificates"].path == ("2 of them" if days == 300 else "n2")
    assert (found["security"].level, found["security"].found) == (
        rpc.Finding.OK,
        "control channel and P4Runtime by TLS",
    )
