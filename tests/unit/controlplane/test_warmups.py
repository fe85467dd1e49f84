"""Engines that start: what their nodes are told to fetch, and when."""

from __future__ import annotations

from controlplane.core.events import Requested
from controlplane.core.limits import WARM_WISHES_MAX
from kvproto.rpc import control_pb2 as rpc
from tests.unit.controlplane.helpers import CHUNK, MILLISECOND, Scene, key, record

MODEL, OTHER = "llama@1", "other@2"
PLENTY = 100 * CHUNK


def scene_with_hot_prefixes(nodes: int = 4, **options: object) -> Scene:
    """Node 1 has two documents of MODEL (a-b-c read five times, d-e twice), x never read, and one of another model."""
    scene = Scene(**options)  # type: ignore[arg-type]
    records = [record("a"), record("b", "a", 1), record("c", "b", 2), record("d"), record("e", "d", 1), record("x")]
    other = record("o")
    other.namespace_index = 1
    scene.attach(1)
    scene.announce(1, [*records, other], namespaces=[MODEL, OTHER])
    for number in range(2, nodes + 1):
        scene.attach(number)
    for names, times in (("abc", 5), ("de", 2), ("o", 9)):
        for _ in range(times):
            read = [rpc.FetchEvent(key=key(name), source=rpc.SOURCE_LOCAL) for name in names]
            scene.say(1, usage=rpc.Usage(fetches=read))
    return scene


def wish(scene: Scene, node: int, size_bytes: int = PLENTY, nodes: int = 1, wait_ms: int = 100, **more: str) -> None:
    asked = rpc.WarmWish(**{"namespace": MODEL, **more}, bytes=size_bytes, nodes=nodes, wait_ms=wait_ms)  # type: ignore[arg-type]
    scene.say(node, usage=rpc.Usage(warms=[asked]))


def brought(scene: Scene, node: int) -> list[bytes]:
    tasks = scene.tasks(node, "fetch")
    assert all(task.fetch.reason == rpc.Fetch.WARM and not task.foreground for task in tasks)
    return [one for task in tasks for one in task.fetch.keys]


def keys(names: str) -> list[bytes]:
    return [key(name) for name in names]


def test_the_hottest_prefixes_of_the_model_come_parents_first() -> None:
    scene = scene_with_hot_prefixes()
    wish(scene, 2)
    assert brought(scene, 2) == keys("abcde")
    assert brought(scene, 3) == []


def test_no_more_than_was_asked_for() -> None:
    scene = scene_with_hot_prefixes()
    wish(scene, 2, size_bytes=4 * CHUNK - 1)
    assert brought(scene, 2) == keys("abc")


def test_no_more_than_there_is_room_for() -> None:
    scene = scene_with_hot_prefixes()
    scene.say(2, heartbeat=rpc.Heartbeat(pool_used_bytes=(1 << 30) - 2 * CHUNK))
    wish(scene, 2)
    assert brought(scene, 2) == keys("ab")


def test_all_who_start_together_get_it_at_once() -> None:
    scene = scene_with_hot_prefixes()
    wish(scene, 2, nodes=3)
    wish(scene, 3, nodes=3, size_bytes=2 * CHUNK)
    assert brought(scene, 2) == brought(scene, 3) == []
    wish(scene, 4, nodes=3)
    assert brought(scene, 2) == brought(scene, 4) == keys("abcde")
    assert brought(scene, 3) == keys("ab")


def test_nobody_waits_for_ever() -> None:
    scene = scene_with_hot_prefixes()
    wish(scene, 2, nodes=3)
    wish(scene, 3, nodes=0)
    scene.now += 99 * MILLISECOND
    scene.advance()
    assert brought(scene, 2) == []
    scene.now += 2 * MILLISECOND
    scene.advance()
    assert brought(scene, 2) == brought(scene, 3) == keys("abcde")


def test_what_a_node_has_it_is_not_told_to_fetch() -> None:
    scene = scene_with_hot_prefixes()
    scene.announce(2, [record("a"), record("b", "a", 1)], namespaces=[MODEL])
    wish(scene, 2)
    assert brought(scene, 2) == keys("cde")
    wish(scene, 1)
    assert brought(scene, 1) == []


def test_a_prefix_with_a_gap_is_of_no_use() -> None:
    scene = scene_with_hot_prefixes()
    scene.announce(1, removed=[key("b")])
    wish(scene, 2)
    assert brought(scene, 2) == keys("ade")


def test_a_node_that_is_emptied_gets_nothing() -> None:
    scene = scene_with_hot_prefixes()
    scene.ask(Requested("drain", rpc.DrainRequest(node="n2")))
    wish(scene, 2)
    assert scene.tasks(2, "fetch") == []


def test_nobody_hears_of_chunks_that_are_withheld_from_it() -> None:
    scene = scene_with_hot_prefixes(namespaces={MODEL: ("n1", "n3")})
    for number in (2, 3):
        wish(scene, number, nodes=2)
    assert brought(scene, 2) == []
    assert brought(scene, 3) == keys("abcde")


def test_too_many_wishes_are_refused() -> None:
    scene = scene_with_hot_prefixes()
    scene.say(2, usage=rpc.Usage(warms=[rpc.WarmWish(namespace=MODEL)] * (WARM_WISHES_MAX + 1)))
    (refusal,) = scene.refusals(2)
    assert (refusal.what, 2 in scene.closed) == ("message", False)
    for number in range(1000):
        wish(scene, 3, nodes=2, namespace=f"model {number}")
    assert scene.core.decisions["warm_refused"] == 1000 - 256
