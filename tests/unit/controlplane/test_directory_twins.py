"""Chunks in fewer bytes at the controller: chunks like any, but for what only makes sense for the chunk itself."""

from __future__ import annotations

from controlplane.core.events import Requested
from controlplane.core.options import SwitchCacheRules
from controlplane.core.switch.entries import FillingEntry
from controlplane.core.switch.target import Down
from kvcodec.forms import Form
from kvproto.rpc import control_pb2 as rpc
from kvproto.twins import twin_key
from tests.digests import digest
from tests.unit.controlplane.helpers import CHUNK, Scene, key, record

SIZE = 5 * 4096
"""Of a twin: five segments of eight."""


def twin(name: str, position: int = 1) -> rpc.ChunkRecord:
    return rpc.ChunkRecord(
        key=twin_of(name), parent=key(name), size_bytes=SIZE, digest=digest(900 + ord(name)), position=position
    )


def twin_of(name: str) -> bytes:
    return twin_key(key(name), Form.PLANES)


def scene_with_twins(**changes: object) -> Scene:
    """Node 1 holds a <- b <- c and twins of a and b."""
    scene = Scene(**changes)  # type: ignore[arg-type]
    chunks = [record("a"), record("b", "a", 1), record("c", "b", 2)]
    scene.attach(1, [*chunks, twin("a"), twin("b", 2)])
    for number in (2, 3):
        scene.attach(number)
    scene.up()
    return scene


def fill_all(scene: Scene) -> None:
    """Node 1 does all fills that it is asked for; each that ends may let another one begin."""
    done: set[int] = set()
    scene.advance()
    while tasks := [task for task in scene.tasks(1, "fill") if task.task not in done]:
        for task in tasks:
            done.add(task.task)
            scene.finish(1, task)


def test_agents_hear_of_twins_as_of_any_chunk() -> None:
    entry = scene_with_twins().replica(2)[twin_of("a")]
    assert (entry.parent, entry.size_bytes, entry.position, list(entry.holders)) == (key("a"), SIZE, 1, [0])


def test_the_switch_takes_in_the_twins_of_what_is_pinned_there_and_lets_them_go() -> None:
    scene = scene_with_twins(slots=64, rules=SwitchCacheRules(admission=False))
    asked = rpc.PinRequest(key_hex=key("c").hex(), in_switch=True)
    scene.ask(Requested("pin", asked))
    fill_all(scene)
    assert scene.served() == {twin_of("a"), twin_of("b"), key("c")}
    assert scene.core.switch_cache.slots.used_count == 5 + 5 + 8
    assert scene.core.operations.pin_progress(asked).served_chunks == 3
    scene.ask(Requested("unpin", asked))
    scene.switch.contents.clear()
    scene.handle(Down("gone"))
    scene.up()
    scene.advance()
    assert scene.served() == set(), "nothing is pinned any more"
    assert not any(isinstance(entry, FillingEntry) for entry in scene.switch.contents.values())


def test_a_twin_that_several_read_comes_into_the_switch_by_itself() -> None:
    scene = scene_with_twins()
    read = [rpc.FetchEvent(key=twin_of("a"), source=rpc.SOURCE_HOLDER, bytes=SIZE)]
    for node in (2, 3):
        decoded = rpc.FetchEvent(key=key("a"), source=rpc.SOURCE_LOCAL)
        scene.say(node, usage=rpc.Usage(fetches=[*read, decoded]))
    fill_all(scene)
    assert scene.served() == {twin_of("a")}


def test_an_engine_that_starts_gets_no_twins() -> None:
    scene = scene_with_twins()
    events = [rpc.FetchEvent(key=one, source=rpc.SOURCE_LOCAL) for one in (key("a"), key("b"), twin_of("a"))]
    for _ in range(3):
        scene.say(1, usage=rpc.Usage(fetches=events))
    assert set(scene.core.hottest.first(9)) >= {twin_of("a")}
    assert set(scene.core.hottest.of("")) == {key("a"), key("b")}


def test_nobody_saves_the_last_copy_of_a_twin() -> None:
    scene = scene_with_twins()
    assert scene.core.directory.last_copies(scene.core.nodes.named("n1").index) == [key("a"), key("b"), key("c")]
    pool_bytes = 1 << 30
    used = [rpc.FetchEvent(key=one, source=rpc.SOURCE_LOCAL) for one in (key("c"), twin_of("a"), twin_of("b"))]
    scene.say(1, usage=rpc.Usage(fetches=used))
    beat = rpc.Heartbeat(pool_used_bytes=pool_bytes, next_victims=[twin_of("b"), twin_of("a")])
    scene.say(1, heartbeat=beat)
    scene.advance()
    assert scene.tasks(2, "fetch") == scene.tasks(3, "fetch") == []
    scene.say(1, heartbeat=rpc.Heartbeat(pool_used_bytes=pool_bytes, next_victims=[key("c")]))
    scene.advance()
    assert [list(task.fetch.keys) for task in [*scene.tasks(2, "fetch"), *scene.tasks(3, "fetch")]] == [[key("c")]]


def test_what_is_fetched_by_its_twin_is_a_candidate_for_pushes_itself() -> None:
    scene = scene_with_twins()
    hot = scene.core.pushes.policy
    for node in (2, 3):
        fetch = rpc.FetchEvent(key=twin_of("a"), source=rpc.SOURCE_CAST, bytes=SIZE)
        scene.say(node, usage=rpc.Usage(fetches=[fetch]))
    assert hot.hot(8, scene.now) == [key("a")]
    assert CHUNK > SIZE
