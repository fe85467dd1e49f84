"""A member against the directory: it is told of no chunk of another tenant's, whatever happens to that chunk."""

from __future__ import annotations

import pytest

from controlplane.core.events import Requested, StreamEnded
from controlplane.core.views import list_chunks
from kvproto.rpc import control_pb2 as rpc
from tests.unit.controlplane.helpers import CHUNK, Scene, key, record

pytestmark = pytest.mark.security

OWNERS = {"acme/*": ("n1", "n2"), "globex": ("n3",)}


def labelled(scene: Scene, session: int, label: str, *chunks: rpc.ChunkRecord, **changes: object) -> None:
    scene.announce(session, chunks, namespaces=[label], **changes)


def holders(scene: Scene, session: int, name: object) -> list[int]:
    entry = scene.replica(session).get(key(name))
    return list(entry.holders) if entry else []


def known(scene: Scene, session: int) -> set[bytes]:
    return set(scene.replica(session))


def mentions(scene: Scene, session: int, name: object) -> bool:
    """Whether anything that was ever sent to an agent names a key."""
    return any(key(name) in message.SerializeToString() for message in scene.sent[session])


def tenants_scene(**changes: object) -> Scene:
    scene = Scene(namespaces=OWNERS, **changes)
    for number in (1, 2, 3):
        scene.attach(number)
    labelled(scene, 1, "acme/llama", record("a"))
    labelled(scene, 3, "globex", record("g"))
    labelled(scene, 2, "of all", record("o"))
    return scene


def test_a_node_never_hears_of_another_tenants_chunks() -> None:
    scene = tenants_scene()
    assert known(scene, 1) == known(scene, 2) == {key("a"), key("o")}
    assert known(scene, 3) == {key("g"), key("o")}
    scene.say(1, claims=rpc.Claims(made=[rpc.Claim(keys=[key("c")], size_bytes=CHUNK, eta_ms=[9])]))
    scene.ask(Requested("pin", rpc.PinRequest(key_hex=key("a").hex(), in_switch=True)))
    scene.advance()
    scene.announce(1, removed=[key("a")])
    assert mentions(scene, 2, "c")
    for secret in ("a", "c"):
        assert not mentions(scene, 3, secret), "not when it comes, changes, is computed, is pinned or goes"
    assert known(scene, 2) == {key("o")}


def test_who_attaches_later_gets_a_snapshot_of_its_own_only() -> None:
    scene = tenants_scene()
    scene.handle(StreamEnded(3))
    scene.attach(3, incarnation=2)
    labelled(scene, 3, "globex", record("g"))
    assert known(scene, 3) == {key("g"), key("o")}
    assert not mentions(scene, 3, "a")


def test_a_copy_that_a_node_may_not_have_is_not_taken_from_it() -> None:
    scene = tenants_scene()
    labelled(scene, 3, "acme/llama", record("forged"), record("a"))
    assert key("forged") not in known(scene, 1)
    assert holders(scene, 1, "a") == [0]
    assert scene.core.decisions["foreign_copy"] == 2


def test_the_same_key_under_anothers_name_hides_nothing() -> None:
    scene = tenants_scene()
    labelled(scene, 3, "of all", record("late"))
    labelled(scene, 1, "acme/llama", record("late"))
    assert holders(scene, 3, "late") == [2]
    assert list(scene.replica(2)[key("late")].others[0].holders) == [0], "kept apart, and offered"
    labelled(scene, 3, "globex", record("late"))
    assert holders(scene, 2, "late") == [0]
    scene.announce(3, removed=[key("late")])
    assert key("late") not in known(scene, 3)


def test_operators_see_everything() -> None:
    scene = tenants_scene()
    shown = {bytes(view.key) for view in list_chunks(scene.core, rpc.ListRequest(), scene.now)}
    assert shown == {key("a"), key("g"), key("o")}


def test_the_directory_follows_what_engines_use() -> None:
    scene = tenants_scene()
    scene.say(2, interests=rpc.Interests(namespaces=["of all"]))
    scene.wait(0.5)
    assert known(scene, 2) == {key("o")}
    labelled(scene, 1, "acme/qwen", record("q"))
    assert key("q") not in known(scene, 2)
    scene.say(2, interests=rpc.Interests(namespaces=["acme/qwen", "globex"]))
    scene.wait(0.5)
    assert known(scene, 2) == {key("q")}, "and only what it may have"
    scene.say(2, interests=rpc.Interests(all=True))
    scene.wait(0.5)
    assert known(scene, 2) == {key("a"), key("o"), key("q")}


def test_interests_survive_the_controller() -> None:
    scene = Scene(namespaces=OWNERS, incarnation=2000)
    scene.attach(1)
    labelled(scene, 1, "acme/llama", record("a"))
    labelled(scene, 1, "of all", record("o"))
    scene.attach(2, interests=rpc.Interests(namespaces=["of all"]))
    assert known(scene, 2) == {key("o")}
    assert not mentions(scene, 2, "a")


def test_no_task_names_a_chunk_that_its_node_may_not_have() -> None:
    scene = tenants_scene()
    scene.ask(Requested("warm", rpc.WarmRequest(key_hex=key("a").hex())))
    scene.advance()
    assert scene.tasks(2, "fetch")
    assert not scene.tasks(3)


def test_a_warm_up_names_nothing_of_another_tenants() -> None:
    scene = tenants_scene()
    scene.say(3, usage=rpc.Usage(warms=[rpc.WarmWish(namespace="acme/llama", bytes=1 << 30, nodes=1)]))
    scene.wait(1.0)
    assert not scene.tasks(3)
    assert not mentions(scene, 3, "a")


def test_a_last_copy_in_the_switch_is_saved_by_who_may_have_it() -> None:
    """Node 3 has the most room, and may not have the chunk: its task would be dropped, and the last copy with it."""
    scene = Scene(slots=64, namespaces={"acme/*": ("n1", "n2")})
    for number, pool_bytes in ((1, 1 << 30), (2, 1 << 30), (3, 1 << 40)):
        scene.attach(number, pool_bytes=pool_bytes)
    scene.up()
    labelled(scene, 1, "acme/llama", record("a"))
    scene.fill("a")
    scene.say(2, usage=rpc.Usage(fetches=[rpc.FetchEvent(key=key("a"), bytes=1)] * 3))
    scene.announce(1, removed=[key("a")])
    scene.core.switch_cache.evict(key("a"))
    scene.advance()
    assert [bytes(one.fetch.keys[0]) for one in scene.tasks(2, "fetch")] == [key("a")]
    assert not scene.tasks(3, "fetch")
    assert not mentions(scene, 3, "a")


def test_a_drained_nodes_last_copies_go_to_who_may_have_them() -> None:
    scene = Scene(namespaces={"acme/*": ("n1", "n2"), "globex": ("n1",)})
    for number, pool_bytes in ((1, 1 << 30), (2, 1 << 30), (3, 1 << 40)):
        scene.attach(number, pool_bytes=pool_bytes)
    labelled(scene, 1, "acme/llama", record("a"))
    labelled(scene, 1, "of all", record("o"))
    labelled(scene, 1, "globex", record("g"))
    scene.ask(Requested("drain", rpc.DrainRequest(node="n1")))
    scene.advance()
    taken = {session: {one for task in scene.tasks(session, "fetch") for one in task.fetch.keys} for session in (2, 3)}
    assert key("a") in taken[2]
    assert taken[2] | taken[3] == {key("a"), key("o")}
    assert not mentions(scene, 3, "a")
    for session in (2, 3):
        for task in scene.tasks(session, "fetch"):
            scene.finish(session, task)
    assert scene.progress[-1].last
    assert scene.progress[-1].progress.problem.startswith("1 chunks fit"), "nobody else may have globex's"
