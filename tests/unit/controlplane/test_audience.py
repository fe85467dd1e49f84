"""Who is told of which changes: nobody of what does not concern it, and everybody of what does, in sequence."""

from __future__ import annotations

import random
from fnmatch import fnmatch

import pytest

from controlplane.core import audience
from controlplane.core.events import StreamEnded
from kvproto.rpc import control_pb2 as rpc
from tests.unit.controlplane.helpers import MILLISECOND, SECOND, Scene, key, record

SEES = {1: ["a"], 2: ["a", "b"], 3: ["b"], 4: ["*"], 5: ["c*"]}
NAMES = ["a", "b", "c1", "c2", ""]


def deltas(scene: Scene, session: int) -> list[rpc.DirectoryDelta]:
    told = [one.directory for one in scene.sent[session] if one.HasField("directory")]
    return [delta for delta in told if not delta.snapshot]


def attach(scene: Scene, session: int, *, columns: bool = True) -> None:
    interests = rpc.Interests(namespaces=SEES[session])
    scene.attach(session, takes_columns=columns, interests=interests)


def put(scene: Scene, session: int, name: object, namespace: str, size: int = 8192) -> None:
    scene.announce(session, [record(name, size=size)], namespaces=[namespace])


def shows(session: int, namespace: str) -> bool:
    return any(fnmatch(namespace, pattern) for pattern in SEES[session])


def scene_of(*sessions: int, **changes: object) -> Scene:
    made = Scene(with_switch=False, **changes)
    for session in sessions:
        attach(made, session)
    return made


def test_who_does_not_use_a_namespace_is_not_told_and_its_next_message_says_on_what_it_follows() -> None:
    scene = scene_of(1, 3)
    before = len(deltas(scene, 3))
    for number in range(3):
        put(scene, 1, f"a{number}", "a")
    assert len(deltas(scene, 3)) == before
    put(scene, 1, "b0", "b")
    last = deltas(scene, 3)[-1]
    assert (last.HasField("after"), last.sequence - last.after) == (True, 4)
    assert not deltas(scene, 1)[-1].HasField("after"), "it was told of the one before"
    assert scene.replica(3).keys() == {key("b0")}
    assert scene.replica(1).keys() == {key(f"a{number}") for number in range(3)}


def test_an_agent_without_columns_expects_each_change() -> None:
    scene = scene_of(1)
    attach(scene, 3, columns=False)
    for number in range(3):
        put(scene, 1, f"a{number}", "a")
    told = deltas(scene, 3)[-3:]
    assert [one.HasField("after") or bool(one.chunks) for one in told] == [False] * 3
    assert [one.sequence - told[0].sequence for one in told] == [0, 1, 2]


def test_what_goes_is_told_to_those_who_saw_it() -> None:
    scene = scene_of(1, 3, 4)
    put(scene, 1, "x", "a")
    before = len(deltas(scene, 3))
    scene.say(1, announce=rpc.Announce(removed=[key("x")]))
    assert list(deltas(scene, 4)[-1].chunks_gone) == [key("x")]
    assert len(deltas(scene, 3)) == before


def test_what_changes_its_namespace_goes_for_some_and_comes_for_others() -> None:
    scene = scene_of(1, 3, 4)
    put(scene, 1, "x", "a")
    put(scene, 1, "x", "b", size=4096)
    assert [list(deltas(scene, one)[-1].chunks_gone) for one in (1, 3, 4)] == [[key("x")], [], []]
    assert [key("x") in scene.replica(one) for one in (1, 3, 4)] == [False, True, True]


@pytest.mark.parametrize("seed", range(20))
def test_everybody_knows_what_it_may_see_whatever_happens(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audience, "NAMES_MAX", 2)
    rng, scene = random.Random(seed), scene_of(*SEES)
    for session in SEES:
        if rng.random() < 0.3:
            scene.handle(StreamEnded(session))
            attach(scene, session, columns=rng.random() < 0.7)
    for _ in range(60):
        session = rng.choice(list(SEES))
        match rng.randrange(8):
            case 0:
                scene.say(session, announce=rpc.Announce(removed=[key(str(rng.randrange(12)))]))
            case 1:
                scene.handle(StreamEnded(session))
                attach(scene, session, columns=rng.random() < 0.7)
            case _:
                # Other bytes and other namespaces under one key stay apart, and are told of together.
                put(scene, session, str(rng.randrange(12)), rng.choice(NAMES), rng.choice((4096, 8192)))
    for session in SEES:
        node = scene.core.nodes.named(f"n{session}")
        assert node is not None
        chunks = list(scene.core.directory)
        seen = {one.key for one in chunks if any(shows(session, two.facts.namespace) for two in one.variants())}
        assert scene.replica(session).keys() == seen


def test_many_messages_at_once_are_followed_by_a_rest_and_what_comes_after_one_is_told_at_once() -> None:
    scene = Scene(with_switch=False, publish_ns=5 * MILLISECOND, look_ns=SECOND)
    for session in range(1, 33):
        scene.attach(session, takes_columns=True)
    for _ in range(2):
        scene.now += SECOND
        scene.advance()
    told = []
    for number in range(3):
        scene.announce(1, [record(number)])
        told.append(scene.core.next_timeout_ns() - scene.now)
        scene.now = scene.core.next_timeout_ns()
        scene.advance()
    # 32 messages, twice as many as may go at once: the next ones wait twice as long.
    assert told == [5 * MILLISECOND, 10 * MILLISECOND, 10 * MILLISECOND]
    scene.now += SECOND
    scene.announce(1, [record("later")])
    assert scene.core.next_timeout_ns() - scene.now == 5 * MILLISECOND
