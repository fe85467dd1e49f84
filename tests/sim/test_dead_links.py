"""A holder whose data link is dead while its control channel works; a reader whose own link is dead; and a liar."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from controlplane.core.ids import NodeIndex
from controlplane.core.nodes import Graces, NodeFacts, NodeRegistry
from controlplane.core.reachability import Reachability
from hostagent.core.effects import PathChanged, ReportPaths
from kvclient.messages import Status
from kvproto.limits import MS
from kvsim.link import Faults
from kvsim.node import Node
from kvsim.world import PUBLISH_NS, Report, World
from tests.sim.test_faults import SMALL

SETTING = replace(SMALL, readers=4, deadline_ns=20_000 * MS)
LEARNT_S = 2.0
"""Of a deadline of 20 s: some reactions of silence, and three attempts to connect."""


def cut(world: World, *nodes: Node) -> None:
    """Nothing goes to these or comes from them on the data network; the control channel is another one."""
    gone = {node.address for node in nodes}
    for node in world.nodes:
        faults = Faults(loses=lambda packet: packet.source in gone or packet.destination in gone)
        node.uplink.faults = faults if gone else Faults()


class Controller:
    """The controller's own judgement, among simulated nodes: hears their words, tells all of them who is unreached."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.registry = NodeRegistry(Graces(1, 1, 1), with_switch=False)
        self.reachability = Reachability(self.registry)
        self.words: list[tuple[str, ReportPaths]] = []
        for number, node in enumerate(world.nodes):
            facts = NodeFacts(node.name, 1, bytes([10, 0, 0, number]), bytes(6), "", 4793, None, 1, frozenset())
            self.registry.hello(number, facts, 0)
            node.paths_reported = lambda effect, node=node: self.told(node.name, effect)

    def told(self, name: str, effect: ReportPaths) -> None:
        self.words.append((name, effect))
        reader = self.registry.named(name)
        assert reader is not None
        now_ns = self.world.engine.now_ns
        for number in effect.nodes:
            self.reachability.told(reader, NodeIndex(number), now_ns, reached=effect.reached)
        self.look()

    def look(self) -> None:
        for changed in self.reachability.look(self.world.engine.now_ns):
            for node in self.world.nodes:
                entry = replace(self.world.nodes_for(node)[changed.index], unreached=changed.unreached)
                self.world.engine.at(self.world.engine.now_ns + PUBLISH_NS, partial(node.learn, (entry,)))

    @property
    def unreached(self) -> set[str]:
        return {node.facts.name for node in self.registry if node.unreached}


def changes(node: Node) -> list[PathChanged]:
    return node.paths_changed


Checked = Callable[..., Report]


@pytest.mark.parametrize("plain", [False, True], ids=["casts", "reads"])
@pytest.mark.parametrize("seed", range(3))
def test_a_dead_link_is_learnt_from_the_first_fetch_and_healed(seed: int, plain: bool, checked: Checked) -> None:
    world = World(replace(SETTING, seed=seed, plain=plain, is_known_plain=plain))
    controller = Controller(world)
    cut(world, *world.holders)
    report = checked(world)
    assert set(report.outcomes) == {Status.UNAVAILABLE}
    assert max(report.times_s) < LEARNT_S, "nobody waits for its deadline"
    assert controller.unreached == {"holder-0"}
    for node in world.readers:
        assert [one.reached for one in changes(node)] == [False]
        # The next fetch does not even begin.
        node.answer = None
        node.fetch(tuple(world.keys), world.engine.now_ns + 20_000 * MS)
        began_ns = world.engine.now_ns
        world.engine.run(began_ns + 1_000 * MS, world.finished)
        assert node.answer.outcome is Status.UNAVAILABLE
        assert node.answer.at_ns - began_ns < 10 * MS
    cut(world)
    world.engine.run(world.engine.now_ns + 20_000 * MS, lambda: False)
    controller.look()
    assert controller.unreached == set()
    for node in world.readers:
        assert changes(node)[-1].reached
        node.answer = None
        node.fetch(tuple(world.keys), world.engine.now_ns + 20_000 * MS)
    world.engine.run(world.engine.now_ns + 20_000 * MS, world.finished)
    assert {node.answer.outcome for node in world.readers} == {Status.OK}


def test_a_fetch_finds_what_has_been_mended(checked: Checked) -> None:
    """The first one after it has the holder tried again; the second need not wait until its next turn."""
    world = World(replace(SETTING, readers=1, plain=True, is_known_plain=True))
    (reader,) = world.readers
    cut(world, *world.holders)
    checked(world)
    # By now the holder's next turn is eight seconds away.
    world.engine.run(world.engine.now_ns + 20_000 * MS, lambda: False)
    cut(world)
    outcomes = []
    for _ in range(2):
        reader.answer = None
        reader.fetch(tuple(world.keys), world.engine.now_ns + 20_000 * MS)
        world.engine.run(world.engine.now_ns + 1_000 * MS, world.finished)
        outcomes.append(reader.answer.outcome)
        world.engine.run(world.engine.now_ns + 100 * MS, lambda: False)
    assert outcomes == [Status.UNAVAILABLE, Status.OK]


@pytest.mark.parametrize("seed", range(3))
def test_a_reader_whose_own_link_is_dead_blames_itself(seed: int, checked: Checked) -> None:
    world = World(replace(SETTING, seed=seed, holders=3, is_known_plain=True, plain=True))
    controller = Controller(world)
    cut(world, world.readers[0])
    report = checked(world)
    assert report.outcomes == (Status.UNAVAILABLE, Status.OK, Status.OK, Status.OK)
    assert report.times_s[0] < 3 * LEARNT_S
    name = world.readers[0].name
    assert name not in {reader for reader, _ in controller.words}, "it has reached no witness"
    assert controller.unreached <= {name}
    reason = world.readers[0].core.paths.own_trouble()
    assert reason is not None and reason.startswith("none of 6 nodes can be reached on the data network")
    assert all(node.core.paths.own_trouble() is None for node in world.nodes if node is not world.readers[0])
    cut(world)
    world.engine.run(world.engine.now_ns + 20_000 * MS, lambda: False)
    assert world.readers[0].core.paths.own_trouble() is None


def test_a_holder_that_is_merely_busy_is_not_given_up(checked: Checked) -> None:
    """Everything crowds its link, a tenth of the packets is lost."""
    world = World(replace(SETTING, readers=8, plain=True, is_known_plain=True, faults=Faults(loss=0.1)))
    controller = Controller(world)
    assert set(checked(world).outcomes) == {Status.OK}
    assert controller.unreached == set()
