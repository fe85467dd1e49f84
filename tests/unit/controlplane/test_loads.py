"""What nodes have queued for readers, from one agent to all: at a bounded rate, and in snapshots."""

from __future__ import annotations

from controlplane.core.limits import LOADS_PUBLISH_S
from kvproto.rpc import control_pb2 as rpc
from tests.unit.controlplane.helpers import Scene

INTERVAL_NS = int(LOADS_PUBLISH_S * 1e9)


def told(scene: Scene, session: int) -> list[tuple[int, int, int]]:
    deltas = [message.directory for message in scene.sent[session] if message.HasField("directory")]
    return [(load.node, load.queued_bytes, load.readers) for delta in deltas for load in delta.loads]


def say(scene: Scene, session: int, queued_bytes: int, readers: int = 1) -> None:
    scene.say(session, load=rpc.HolderLoad(queued_bytes=queued_bytes, readers=readers))


def test_all_hear_what_one_has_queued() -> None:
    scene = Scene(with_switch=False)
    scene.attach(1)
    scene.attach(2)
    say(scene, 2, 10**9, 3)
    assert told(scene, 1) == told(scene, 2) == [(1, 10**9, 3)]


def test_changes_within_an_interval_are_told_together_and_only_the_last_of_a_node() -> None:
    scene = Scene(with_switch=False)
    for number in (1, 2, 3):
        scene.attach(number)
    say(scene, 2, 1)
    for size_bytes in (2, 4, 8):
        say(scene, 2, size_bytes)
        say(scene, 3, size_bytes)
    assert told(scene, 1) == [(1, 1, 1)]
    scene.now += INTERVAL_NS
    scene.advance()
    assert told(scene, 1)[1:] == [(1, 8, 1), (2, 8, 1)]


def test_who_comes_later_hears_of_queues_with_the_snapshot_and_a_node_begins_without_one() -> None:
    scene = Scene(with_switch=False)
    scene.attach(1)
    say(scene, 1, 10**9)
    scene.attach(2)
    assert told(scene, 2) == [(0, 10**9, 1)]
    scene.attach(1)
    scene.attach(3)
    assert told(scene, 3) == []
