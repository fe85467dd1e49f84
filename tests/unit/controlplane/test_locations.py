"""Where nodes are: seen, configured, moved, claimed by two; and that plain IP never depends on what somebody wrote."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controlplane.core.events import HelloReceived, StreamEnded
from controlplane.core.ids import SwitchPort
from controlplane.core.limits import HEARTBEATS_UNSEEN_MAX
from controlplane.core.locations import Claim, Location, contradiction, refusal
from controlplane.core.nodes import Node
from controlplane.core.switch.entries import AddressEntry, PortMemberEntry, SourceEntry, StationEntry
from controlplane.core.switch.target import Sighting
from kvproto.rpc import control_pb2 as rpc
from tests.unit.controlplane.helpers import FABRIC, SECOND, Scene, hello, record

MAC = bytes([2, 0x4B, 0x56, 0, 0, 1])
IP = bytes([10, 75, 0, 1])
HERE = Location(SwitchPort(3), MAC, IP)
OTHER_MAC, OTHER_IP = bytes(6), bytes([10, 75, 0, 9])


def claim(name: str, mac: bytes = MAC, ip: bytes = IP, port: int | None = None) -> Claim:
    return Claim(name, mac, ip, None if port is None else SwitchPort(port))


@pytest.mark.parametrize(
    ("seen", "others", "words"),
    [
        (HERE, [], ""),
        (HERE, [claim("n2", OTHER_MAC, OTHER_IP, 3)], ""),
        (Location(SwitchPort(3), OTHER_MAC, IP), [], "it sends from 00:00:00:00:00:00, 10.75.0.1 at switch port 3"),
        (Location(SwitchPort(3), MAC, OTHER_IP), [], "says that it is 02:4b:56:00:00:01, 10.75.0.1"),
        (HERE, [claim("n2", MAC, OTHER_IP, 4)], "its MAC address 02:4b:56:00:00:01 at switch port 3 is that of n2"),
        (HERE, [claim("n2", OTHER_MAC, IP, 4)], "its address 10.75.0.1 at switch port 3 is that of n2"),
    ],
)
def test_what_contradicts_a_sighting(seen: Location, others: list[Claim], words: str) -> None:
    said = contradiction(claim("n1"), seen, others)
    assert words in said
    assert bool(said) == bool(words)


@pytest.mark.parametrize(
    ("port", "configured", "others", "words"),
    [
        (3, None, [], ""),
        (3, 3, [], ""),
        (3, 4, [], "switch port 4 is configured, and it was seen at switch port 3"),
        (3, None, [claim("n2", port=4)], ""),
        (3, 3, [claim("n2", port=3)], "switch port 3 is that of n2, too"),
    ],
)
def test_who_takes_part(port: int, configured: int | None, others: list[Claim], words: str) -> None:
    assert refusal(SwitchPort(port), None if configured is None else SwitchPort(configured), others) == words


# -- in the controller


def node(scene: Scene, number: int) -> Node:
    found = scene.core.nodes.named(f"n{number}")
    assert found is not None
    return found


def address(number: int) -> bytes:
    return bytes([2, 0x4B, 0x56, 0, 0, number])


def place(scene: Scene, number: int) -> tuple[int | None, int | None]:
    """(where packets for the node go, port whose member it is), as the switch itself says."""
    forwarded = scene.switch.contents.get(("dmac", address(number)))
    station = scene.switch.contents.get(("station", address(number)))
    assert (forwarded is None) == (station is None)
    if isinstance(forwarded, AddressEntry) and isinstance(station, StationEntry):
        assert forwarded.port == station.port
        source = SourceEntry(station.port, station.mac, bytes([10, 75, 0, number]))
        assert scene.switch.contents[source.identity] == source
    member = node(scene, number).member
    ports = [one.port for one in scene.switch.contents.values() if isinstance(one, PortMemberEntry)]
    mine = node(scene, number).port
    assert (mine in ports) == (member is not None)
    return forwarded.port if isinstance(forwarded, AddressEntry) else None, mine


def cabled(*at: int, **changes: object) -> Scene:
    """Nodes n1, n2, ... at these ports of a running switch; nobody wrote them down, unless `changes` do."""
    scene = Scene(**changes)
    scene.up()
    for number, port in enumerate(at, start=1):
        scene.cabled[f"n{number}"] = SwitchPort(port)
        scene.attach(number, [record("a")] if number == 1 else [], switch_port=0)
    return scene


def test_ports_are_learned() -> None:
    scene = cabled(4, 2)
    assert [place(scene, number) for number in (1, 2)] == [(4, 4), (2, 2)]
    assert [said.membership.member for said in scene.sent[1] if said.HasField("membership")] == [3]
    assert scene.warned == []


def test_nothing_is_written_about_a_node_that_was_not_seen() -> None:
    scene = Scene(ports={"n1": SwitchPort(5)})
    scene.up()
    scene.attach(1, switch_port=0)
    assert place(scene, 1) == (None, None)
    scene.wait(HEARTBEATS_UNSEEN_MAX + 1)
    scene.wait(3)
    assert len(scene.warned) == 1
    assert "node n1: the switch has seen nothing of it on the data network" in scene.warned[0]
    scene.cabled["n1"] = SwitchPort(5)
    scene.wait(1)
    assert place(scene, 1) == (5, 5)
    assert node(scene, 1).port_problem == ""


def test_before_a_switch_answers_nobody_is_to_blame() -> None:
    scene = Scene()
    scene.attach(1)
    scene.wait(30)
    assert scene.warned == []


@pytest.mark.parametrize("who", ["controller", "agent"])
def test_a_typo_costs_casts_and_not_ip(who: str) -> None:
    scene = Scene(ports={"n1": SwitchPort(7)} if who == "controller" else {})
    scene.up()
    scene.cabled |= {"n1": SwitchPort(1), "n2": SwitchPort(2)}
    scene.attach(1, [record("a")], switch_port=7 if who == "agent" else 0)
    scene.attach(2)
    assert place(scene, 1) == (1, None), "packets for it go where it is"
    assert place(scene, 2) == (2, 2)
    scene.wait(20)
    (warning,) = scene.warned
    assert "node n1: switch port 7 is configured, and it was seen at switch port 1" in warning
    assert node(scene, 1).port_problem in warning
    scene.heat("a")
    assert scene.tasks(1, "fill") == [], "nobody fills from a port that may be another's"


def test_a_node_that_moves_is_found_again() -> None:
    scene = cabled(1, 2)
    member = node(scene, 1).member
    scene.cabled["n1"] = SwitchPort(9)
    scene.wait(1)
    assert place(scene, 1) == (9, 9)
    assert node(scene, 1).member == member
    assert ("port_member", SwitchPort(1)) not in scene.switch.contents


def test_nodes_that_change_places_are_both_found() -> None:
    scene = cabled(1, 2)
    scene.cabled |= {"n1": SwitchPort(2), "n2": SwitchPort(1)}
    scene.wait(1)
    assert [place(scene, number) for number in (1, 2)] == [(2, 2), (1, 1)]
    assert [node(scene, number).port_problem for number in (1, 2)] == ["", ""]


def test_two_nodes_behind_one_port_are_one_member_and_both_reached() -> None:
    scene = cabled(3, 3)
    assert [place(scene, number) for number in (1, 2)] == [(3, 3), (3, None)]
    assert "n2: switch port 3 is that of n1, too" in scene.warned[0]
    scene.cabled["n1"] = SwitchPort(4)
    scene.wait(1)
    assert [place(scene, number) for number in (1, 2)] == [(4, 4), (3, 3)]


def test_of_two_nodes_with_one_mac_the_first_keeps_it() -> None:
    scene = cabled(1)
    scene.cabled["n2"] = SwitchPort(2)
    scene.attach(2, data_mac=address(1))
    assert place(scene, 1) == (1, 1)
    assert node(scene, 2).seen_port is None
    assert "n2: its MAC address 02:4b:56:00:00:01 at switch port 2 is that of n1" in scene.warned[0]
    scene.wait(5)
    assert len(scene.warned) == 1, "said once"
    scene.handle(StreamEnded(1))
    scene.wait(1)
    assert scene.switch.contents["dmac", address(1)].port == 2


def test_a_node_whose_agent_is_gone_is_flooded_and_keeps_its_member_for_a_while() -> None:
    scene = cabled(1, 2)
    scene.handle(StreamEnded(1))
    scene.advance()
    assert ("dmac", address(1)) not in scene.switch.contents, "it may move, and nobody would say so"
    assert ("port_member", SwitchPort(1)) in scene.switch.contents
    scene.attach(1, switch_port=0)
    assert place(scene, 1) == (1, 1)


@pytest.mark.parametrize(
    "forge",
    [
        lambda said: bytes(16),
        lambda said: said[:15] + bytes([said[15] ^ 1]),
    ],
)
def test_nobody_speaks_for_a_node_without_its_key(forge: Callable[[bytes], bytes]) -> None:
    scene = cabled(1, 2)
    key = forge(node(scene, 1).here_key)
    scene.handle(Sighting(key, Location(SwitchPort(6), address(1), bytes([10, 75, 0, 1]))))
    scene.advance()
    assert place(scene, 1) == (1, 1)
    assert scene.core.decisions["sightings_of_nobody"] == 1


def test_the_key_is_another_one_for_each_node_attachment_and_epoch() -> None:
    scene = cabled(1, 2, check_switch_ns=2 * SECOND)
    keys = {node(scene, 1).here_key, node(scene, 2).here_key}
    scene.handle(HelloReceived(7, hello(1, switch_port=0)))
    scene.advance()
    keys.add(node(scene, 1).here_key)
    scene.switch.contents.clear()
    scene.wait(3)
    keys.add(node(scene, 1).here_key)
    assert len(keys) == 4
    assert place(scene, 1) == (1, 1)


def restarted(old: Scene) -> Scene:
    scene = Scene(incarnation=2000)
    scene.switch, scene.cabled = old.switch, dict(old.cabled)
    return scene


@pytest.mark.parametrize("agents_first", [True, False])
def test_a_new_controller_goes_on_with_what_the_switch_knows(agents_first: bool) -> None:
    scene = restarted(cabled(4, 2))
    before = dict(scene.switch.contents)
    scene.cabled.clear()  # nobody says HERE: what there is has to do
    comes = [lambda: scene.attach(1, switch_port=0), scene.up]
    for come in comes if agents_first else comes[::-1]:
        come()
    assert scene.switch.contents == before
    assert node(scene, 1).member == 3
    told = [said.welcome.member for said in scene.sent[1] if said.HasField("welcome")]
    told += [said.membership.member for said in scene.sent[1] if said.HasField("membership")]
    assert told[-1] == 3


def test_a_node_that_moved_while_no_controller_was_there_is_found() -> None:
    scene = restarted(cabled(4, 2))
    scene.cabled["n1"] = SwitchPort(8)
    scene.up()
    scene.attach(1, switch_port=0)
    scene.attach(2, switch_port=0)
    assert [place(scene, number) for number in (1, 2)] == [(8, 8), (2, 2)]


def test_another_address_is_another_place() -> None:
    scene = cabled(1)
    moved = hello(1, switch_port=0, data_ip=bytes([10, 75, 0, 77]))
    scene.cabled.clear()
    scene.handle(HelloReceived(5, moved))
    scene.advance()
    assert ("address", bytes([10, 75, 0, 1])) not in scene.switch.contents
    assert ("dmac", address(1)) not in scene.switch.contents


def test_nobody_else_is_the_pool() -> None:
    scene = Scene()
    scene.up()
    assert ("address", FABRIC.entry.pool_ip) in scene.switch.contents
    assert scene.switch.contents["station", FABRIC.entry.pool_mac].port == 511


def test_without_a_switch_nobody_looks() -> None:
    scene = Scene(with_switch=False)
    scene.attach(1)
    scene.wait(30)
    assert scene.warned == []
    assert scene.sent[1][0].welcome.switch_state == rpc.SwitchState()
