"""Long work of a controller goes in slices, whatever comes between them; and what is told in columns is what is told
one by one."""

import random

import pytest

from controlplane.core.events import MessageReceived, StreamEnded, TimerFired
from hostagent.controller import convert
from hostagent.controller.refusals import Refusals
from hostagent.core.directory import DirectoryReplica
from kvproto.rpc import control_pb2 as rpc
from tests.unit.controlplane.helpers import SECOND, Scene, key, record

WATCHERS = (7, 8)
"""Sessions: one takes columns, one does not."""


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.core.publication.SNAPSHOT_ROWS", 5)
    monkeypatch.setattr("controlplane.core.publication.DELTA_RECORDS_MAX", 7)
    directory = "controlplane.core.directory.tree.Directory"
    advance = __import__("controlplane.core.directory.tree", fromlist=["Directory"]).Directory.advance
    monkeypatch.setattr(f"{directory}.advance", lambda self: advance(self, 2))


def replica(scene: Scene, session: int) -> DirectoryReplica:
    made = DirectoryReplica("watcher")
    made.restart(1)
    refusals = Refusals()
    for message in scene.sent[session]:
        if message.WhichOneof("message") == "directory":
            made.apply(convert.delta_of(message.directory, refusals))
    assert not refusals.counts
    return made


def told(scene: Scene, session: int) -> dict[bytes, object]:
    return dict(replica(scene, session).entries().items())


def let_slices_pass(scene: Scene) -> None:
    for _ in range(50):
        scene.now += 2_000_000
        scene.handle(TimerFired())


@pytest.mark.parametrize("seed", range(15))
def test_all_agents_know_the_same_in_the_end(seed: int, small_slices: None) -> None:
    rng, scene = random.Random(seed), Scene(with_switch=False)
    names = [f"{root}{at}" for root in "pqr" for at in range(9)]
    above = {name: f"{name[0]}{int(name[1:]) - 1}" if name[1:] != "0" else None for name in names}

    def made(name: str) -> rpc.ChunkRecord:
        size = 4096 if rng.random() < 0.9 else 8192
        return record(name, above[name], int(name[1:]), size=size)

    for number in (1, 2, 3):
        scene.attach(number, [made(name) for name in names if rng.random() < 0.5])
    for session in WATCHERS:
        scene.attach(session, takes_columns=session == WATCHERS[0])
    for step in range(150):
        number = rng.choice((1, 2, 3))
        match rng.randrange(7):
            case 0 | 1 | 2:
                scene.announce(number, [made(name) for name in rng.sample(names, 4)])
            case 3:
                gone = [key(name) for name in rng.sample(names, 4)]
                scene.say(number, announce=rpc.Announce(removed=gone))
            case 4 if rng.random() < 0.3:
                scene.handle(StreamEnded(number))
                kept = [made(name) for name in names if rng.random() < 0.3]
                scene.attach(number, kept if rng.random() < 0.7 else [], incarnation=2 + step)
            case 5 if rng.random() < 0.2:
                session = rng.choice(WATCHERS)
                scene.handle(StreamEnded(session))
                scene.attach(session, takes_columns=session == WATCHERS[0], incarnation=2 + step)
    let_slices_pass(scene)
    directory = scene.core.directory
    columns, records = (told(scene, session) for session in WATCHERS)
    assert columns == records
    assert {one: (entry.size_bytes, set(entry.holders)) for one, entry in columns.items()} == {
        chunk.key: (chunk.facts.size_bytes, set(chunk.holders)) for chunk in directory
    }
    for node in scene.core.nodes:
        held = sum(node.index in chunk.holders for chunk in directory)
        assert directory.count_held_by(node.index) == held
        assert directory.count_last_copies(node.index) == len(directory.last_copies(node.index))


def test_copies_of_a_node_that_is_gone_go_in_slices_and_what_it_names_again_stays(small_slices: None) -> None:
    scene = Scene(with_switch=False, look_ns=SECOND)
    scene.attach(1, [record(name) for name in range(10)])
    scene.handle(StreamEnded(1))
    scene.core.directory.remove_node(scene.core.nodes.named("n1").index)
    assert len(scene.core.directory) == 8, "two at a time"
    scene.attach(1, [record(name) for name in range(3)], incarnation=2)
    let_slices_pass(scene)
    assert {chunk.key for chunk in scene.core.directory} == {key(name) for name in range(3)}
    assert scene.core.directory.count_held_by(scene.core.nodes.named("n1").index) == 3


def test_nobody_gets_the_index_of_a_node_whose_copies_are_not_forgotten_yet(small_slices: None) -> None:
    scene = Scene(with_switch=False, look_ns=3600 * SECOND)
    scene.attach(1, [record(name) for name in range(30)])
    index = scene.core.nodes.named("n1").index
    scene.core.nodes.put_out(scene.core.nodes.named("n1"))
    scene.core.directory.remove_node(index)
    assert scene.core.directory.is_leaving(index)
    scene.attach(2, [record(name) for name in range(2)])
    assert scene.core.nodes.named("n2").index != index


def test_a_controller_that_stood_still_suspects_nobody() -> None:
    scene = Scene(with_switch=False)
    scene.attach(1)
    scene.say(1, claims=rpc.Claims(made=[rpc.Claim(keys=[key("a")], size_bytes=4096, eta_ms=[60_000])]))
    scene.now += 20 * SECOND
    scene.core.stood_still(20 * SECOND)
    scene.handle(TimerFired())
    assert scene.core.claims.claims_count == 1
    scene.now += 20 * SECOND
    scene.handle(TimerFired())
    assert scene.core.claims.claims_count == 0, "this time it was the node"


def test_of_many_suspects_one_at_a_time_loses_its_claims_and_who_speaks_again_keeps_them() -> None:
    scene = Scene(with_switch=False)
    for number in (1, 2, 3):
        scene.attach(number)
        claim = rpc.Claim(keys=[key(number)], size_bytes=4096, eta_ms=[60_000])
        scene.say(number, claims=rpc.Claims(made=[claim]))
    scene.now += 20 * SECOND
    scene.handle(TimerFired())
    assert scene.core.claims.claims_count == 2
    scene.handle(MessageReceived(3, rpc.FromAgent(heartbeat=rpc.Heartbeat())))
    for _ in range(5):
        scene.now += SECOND // 10
        scene.handle(TimerFired())
    assert scene.core.claims.claims_count == 1
    assert key(3) in scene.core.claims.of(scene.core.nodes.named("n3").index)
