"""Copies on disk, last copies that are about to be lost, and pushes: what the controller does about them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from controlplane.config import parse
from controlplane.core.directory import AddOutcome, Directory
from controlplane.core.events import StreamEnded
from controlplane.core.ids import NodeIndex
from controlplane.core.spill import Endangered, Host, Replication, plan_recovery, plan_replications
from kvdaemon.errors import ConfigError
from kvpolicy.tiers.push import PushParameters
from kvpolicy.value import Tier
from kvproto.rpc import control_pb2 as rpc
from tests.digests import digest
from tests.unit.controlplane.helpers import CHUNK, SECOND, Scene, facts, key, record

GIB = 1 << 30
ONE, TWO, THREE = NodeIndex(0), NodeIndex(1), NodeIndex(2)


def on_disk(name: object, parent: object | None = None, position: int = 0) -> rpc.ChunkRecord:
    made = record(name, parent, position)
    made.on_disk = True
    return made


# ---------------------------------------------------------------------- copies on disk


def test_a_copy_on_disk_keeps_a_chunk_in_the_directory() -> None:
    scene = Scene()
    scene.attach(1, [record("a"), on_disk("a"), on_disk("b", "a", 1)])
    scene.attach(2)
    entry = scene.replica(2)[key("a")]
    assert (list(entry.holders), list(entry.disk_holders)) == ([0], [0])
    assert (list(scene.replica(2)[key("b")].holders), list(scene.replica(2)[key("b")].disk_holders)) == ([], [0])
    scene.announce(1, removed=[key("a")])
    assert list(scene.replica(2)[key("a")].disk_holders) == [0]
    scene.announce(1, removed_from_disk=[key("a"), key("b")])
    assert scene.replica(2) == {}


def test_a_snapshot_that_does_not_name_a_copy_on_disk_ends_it() -> None:
    scene = Scene()
    scene.attach(1, [record("a"), on_disk("a"), on_disk("b")])
    scene.attach(2)
    scene.announce(1, [on_disk("a")], snapshot=True, snapshot_end=True)
    scene.handle(StreamEnded(1))
    scene.sent.pop(1)
    scene.attach(1, [on_disk("a")], incarnation=2)
    replica = scene.replica(2)
    assert set(replica) == {key("a")}
    assert (list(replica[key("a")].holders), list(replica[key("a")].disk_holders)) == ([], [0])


def test_a_node_that_goes_takes_its_disk_with_it() -> None:
    scene = Scene()
    scene.attach(1, [on_disk("a")])
    scene.attach(2)
    scene.say(1, leaving=rpc.Leaving())
    assert scene.replica(2) == {}


def test_a_copy_on_disk_with_other_bytes_is_not_offered() -> None:
    directory = Directory()
    directory.add_copy(ONE, facts("a"))
    other = facts("a", size=2 * CHUNK)
    assert directory.add_disk_copy(TWO, other) is AddOutcome.CONFLICT
    assert directory.get(key("a")).disk_holders == set()
    assert directory.add_disk_copy(TWO, facts("a")) is AddOutcome.NEW_COPY
    assert directory.add_disk_copy(TWO, facts("a")) is AddOutcome.KNOWN
    assert directory.add_disk_copy(TWO, other) is AddOutcome.CONFLICT
    assert directory.get(key("a")).disk_holders == set(), "what was there has been replaced"


def test_last_copies_are_those_that_nobody_else_has_anywhere() -> None:
    directory = Directory()
    for name in ("a", "b", "c"):
        directory.add_copy(ONE, facts(name))
    directory.add_disk_copy(ONE, facts("a"))
    directory.add_disk_copy(TWO, facts("b"))
    directory.add_disk_copy(ONE, facts("d"))
    assert set(directory.last_copies(ONE)) == {key("a"), key("c"), key("d")}


def test_a_holder_that_is_said_to_be_bad_keeps_its_copies_until_it_says_otherwise() -> None:
    scene = Scene()
    scene.attach(1, [record("a"), on_disk("a")])
    scene.attach(2, [record("a")])
    chunk = scene.core.directory.get(key("a"))
    assert chunk is not None
    scene.say(2, bad_copy=rpc.BadCopy(key=key("a"), holder=0, expected=chunk.facts.digest, found=digest(1)))
    assert (chunk.holders, chunk.disk_holders) == ({ONE, TWO}, {ONE})
    assert [list(task.recheck.keys) for task in scene.tasks(1, "recheck")] == [[key("a")]]
    scene.say(1, announce=rpc.Announce(removed=[key("a")], removed_from_disk=[key("a")]))
    chunk = scene.core.directory.get(key("a"))
    assert chunk is not None
    assert (chunk.holders, chunk.disk_holders) == ({TWO}, set())


# ---------------------------------------------------------------------- spill


def test_the_switch_does_not_save_what_a_disk_has() -> None:
    scene = Scene()
    scene.attach(1, [record("a")])
    scene.attach(2)
    scene.up()
    scene.fill("a")
    assert scene.served() == {key("a")}
    scene.announce(2, [on_disk("a")])
    scene.announce(1, removed=[key("a")])
    scene.core.switch_cache.evict(key("a"))
    scene.advance()
    assert scene.tasks(2, "fetch") == []
    assert scene.served() == set()


def test_recovery_prefers_free_dram_then_disk_then_the_least_loss() -> None:
    free = Host(ONE, free_bytes=GIB)
    with_disk = Host(TWO, 0, cheapest_value=5.0, disk_free_bytes=GIB)
    full = Host(THREE, 0, cheapest_value=1.0)
    assert plan_recovery(CHUNK, 2.0, False, [full, with_disk, free]) == ONE
    assert plan_recovery(CHUNK, 2.0, False, [full, with_disk]) == TWO
    assert plan_recovery(CHUNK, 2.0, False, [full]) == THREE
    assert plan_recovery(CHUNK, 0.5, False, [full]) is None
    assert plan_recovery(CHUNK, 0.5, True, [full]) == THREE
    assert plan_recovery(CHUNK, 0.0, False, [free]) is None


def test_replications_use_half_of_free_rooms_and_displace_only_what_is_worth_less() -> None:
    chunks = [Endangered(key(number), 100, value) for number, value in enumerate((3.0, 2.0, 0.0, 1.05, 1.2))]
    hosts = [Host(ONE, 300), Host(TWO, 0, cheapest_value=1.0)]
    assert plan_replications(chunks, hosts, 9) == (Replication(key(0), ONE), Replication(key(1), TWO))
    assert plan_replications(chunks[3:], [Host(TWO, 0, cheapest_value=1.0)], 9) == (Replication(key(4), TWO),)
    assert plan_replications(chunks, hosts, 1) == (Replication(key(0), ONE),)
    assert plan_replications(chunks, [], 9) == ()


def use(scene: Scene, session: int, *names: object, source: rpc.Source.ValueType = rpc.SOURCE_LOCAL) -> None:
    events = [rpc.FetchEvent(key=key(name), source=source, bytes=CHUNK) for name in names]
    scene.say(session, usage=rpc.Usage(fetches=events))


def full(scene: Scene, session: int, victims: Iterable[object], **more: int) -> None:
    names = [key(name) for name in victims]
    scene.say(session, heartbeat=rpc.Heartbeat(pool_used_bytes=1 << 30, next_victims=names, **more))


def test_a_last_copy_of_a_full_pool_goes_to_another() -> None:
    scene = Scene()
    scene.attach(1, [record("a"), record("b"), record("c")])
    scene.attach(2, [record("b")])
    use(scene, 1, "a", "b", "c")
    full(scene, 1, ["a", "b"])
    (task,) = scene.tasks(2, "fetch")
    assert (list(task.fetch.keys), task.fetch.reason, task.foreground) == ([key("a")], rpc.Fetch.SPILL, False)
    full(scene, 1, ["a", "b"])
    assert len(scene.tasks(2, "fetch")) == 1, "it is under way"
    scene.finish(2, task)
    assert scene.core.accounting.decisions["last_copies_replicated"] == 1


def test_nothing_is_replicated_needlessly() -> None:
    scene = Scene()
    scene.attach(1, [record("a"), record("b"), on_disk("b"), record("never used")], disk_bytes=0)
    scene.attach(2)
    use(scene, 1, "a", "b")
    scene.say(1, heartbeat=rpc.Heartbeat(pool_used_bytes=1 << 29, next_victims=[key("a")]))
    full(scene, 1, ["b", "never used", "unknown"])
    assert scene.tasks(2, "fetch") == []
    with_disk = Scene()
    with_disk.attach(1, [record("a")], disk_bytes=GIB)
    with_disk.attach(2)
    use(with_disk, 1, "a")
    full(with_disk, 1, ["a"])
    assert with_disk.tasks(2, "fetch") == [], "its own disk takes it"
    full(with_disk, 1, ["a"], disk_used_bytes=GIB)
    assert len(with_disk.tasks(2, "fetch")) == 1


def test_nothing_is_replicated_that_is_computed_as_soon_as_read() -> None:
    scene = Scene()
    scene.attach(1, [record("a")])
    scene.attach(2)
    use(scene, 1, "a")
    costs = scene.core.values.costs
    for _ in range(30):
        costs.measured(Tier.REMOTE_DRAM, CHUNK, 0.011)
        costs.measured(Tier.RECOMPUTE, CHUNK, 0.010)
    full(scene, 1, ["a"])
    assert scene.tasks(2, "fetch") == []
    for _ in range(30):
        costs.measured(Tier.REMOTE_DRAM, CHUNK, 0.001)
    full(scene, 1, ["a"])
    assert len(scene.tasks(2, "fetch")) == 1


def test_the_cheapest_value_of_a_full_pool_is_that_of_its_next_victim() -> None:
    scene = Scene()
    scene.attach(1, [record("hot"), record("cold"), record("saved"), on_disk("saved")])
    use(scene, 1, "hot", "hot", "cold", "saved")
    node = scene.core.nodes.named("n1")
    assert node is not None
    worth = {}
    for name in ("hot", "cold", "saved", "unknown"):
        full(scene, 1, [name])
        worth[name] = scene.core.last_copies.cheapest_value(node)
    assert worth["hot"] > worth["cold"] > 0.0
    assert worth["saved"] == worth["unknown"] == 0.0
    full(scene, 1, [])
    assert scene.core.last_copies.cheapest_value(node) == float("inf"), "all of it is in use or pinned"


# ---------------------------------------------------------------------- pushes

EAGER = PushParameters(evidence_min=1, use_min=0.0)


def pushed(scene: Scene, session: int) -> list[bytes]:
    tasks = [task for task in scene.tasks(session, "fetch") if task.fetch.reason == rpc.Fetch.PUSH]
    assert not any(task.foreground for task in tasks)
    return [one for task in tasks for one in task.fetch.keys]


def warmed(scene: Scene) -> None:
    """Make the gate see that pushes pay."""
    use(scene, 2, "seed", "below seed", source=rpc.SOURCE_HOLDER)
    use(scene, 3, "seed", "below seed", source=rpc.SOURCE_HOLDER)


def test_the_second_remote_fetch_pushes_the_prefix_to_all_others_at_once() -> None:
    scene = Scene(pushes=EAGER)
    scene.attach(1, [record("seed"), record("below seed", "seed", 1), record("a"), record("b", "a", 1)])
    for number in (2, 3, 4, 5):
        scene.attach(number)
    warmed(scene)
    use(scene, 2, "a", "b", source=rpc.SOURCE_HOLDER)
    assert pushed(scene, 4) == pushed(scene, 5) == []
    use(scene, 3, "a", "b", source=rpc.SOURCE_CAST)
    assert pushed(scene, 4) == pushed(scene, 5) == [key("a"), key("b")]
    assert pushed(scene, 1) == pushed(scene, 2) == pushed(scene, 3) == []
    (task,) = scene.tasks(4, "fetch")
    scene.finish(4, task)
    assert scene.core.accounting.decisions["push_done_chunks"] == 1


def test_where_nothing_is_cast_nodes_take_turns() -> None:
    """Each copy crosses its holder's uplink by itself: engines' reads queue behind no more than one at a time."""
    scene = Scene(pushes=PushParameters(evidence_min=1, use_min=0.0, nodes_at_once=1))
    scene.attach(1, [record("seed"), record("below seed", "seed", 1), record("a"), record("b", "a", 1)])
    for number in (2, 3, 4, 5, 6):
        scene.attach(number)
    warmed(scene)
    for number in (2, 3):
        use(scene, number, "a", "b", source=rpc.SOURCE_HOLDER)
    assert (pushed(scene, 4), pushed(scene, 5), pushed(scene, 6)) == ([key("a"), key("b")], [], [])
    scene.announce(5, [record("a")])  # it has fetched that by itself while it waited
    (task,) = scene.tasks(4, "fetch")
    scene.finish(4, task)
    assert (pushed(scene, 5), pushed(scene, 6)) == ([key("b")], [])
    scene.say(5, leaving=rpc.Leaving())
    assert pushed(scene, 6) == [key("a"), key("b")]


def test_a_closed_gate_pushes_nothing() -> None:
    scene = Scene(pushes=PushParameters(enabled=False))
    scene.attach(1, [record("seed"), record("a")])
    for number in (2, 3, 4):
        scene.attach(number)
    warmed(scene)
    for number in (2, 3):
        use(scene, number, "a", source=rpc.SOURCE_HOLDER)
    assert pushed(scene, 4) == []


def test_who_is_behind_full_or_leaving_is_left_out() -> None:
    scene = Scene(pushes=EAGER)
    scene.attach(1, [record("seed"), *(record(number) for number in range(4)), record("dear")])
    for number in (2, 3, 4, 5):
        scene.attach(number)
    warmed(scene)
    use(scene, 5, *["dear"] * 50)
    scene.announce(5, [record("dear")])
    full(scene, 5, ["dear"])
    scene.core.nodes.named("n1").draining = True
    for number in range(4):
        for reader in (2, 3):
            use(scene, reader, number, source=rpc.SOURCE_HOLDER)
    assert pushed(scene, 4) == [key(0), key(1)], "two unfinished pushes are enough"
    assert pushed(scene, 5) == [], "what it has is dearer"
    decisions = scene.core.accounting.decisions
    assert (decisions["push_skipped_behind"], decisions["push_skipped_full"]) == (2, 4)
    assert scene.core.pushes.policy.counts.pushed_copies == decisions["pushed_chunks"] == 2


def test_a_node_that_joins_is_offered_what_is_hot_once() -> None:
    scene = Scene(pushes=PushParameters(evidence_min=1, use_min=0.5))
    scene.attach(1, [record("a"), record("b", "a", 1)])
    for number in (2, 3):
        scene.attach(number)
    for number in (2, 3):
        use(scene, number, "a", "b", source=rpc.SOURCE_HOLDER)
    scene.attach(4)
    assert pushed(scene, 4) == [], "nobody knows yet whether joining nodes want it"
    use(scene, 4, "a", "b", source=rpc.SOURCE_HOLDER)
    scene.attach(5)
    assert pushed(scene, 5) == [key("a"), key("b")]
    scene.announce(5, snapshot=True, snapshot_end=True)
    assert len(pushed(scene, 5)) == 2


def test_what_an_operator_may_say_of_pushes(tmp_path) -> None:  # type: ignore[no-untyped-def]
    config = parse({"push": {"enabled": False, "use_min": 0.5, "window_ms": 1000}}, tmp_path)
    assert (config.core.pushes.enabled, config.core.pushes.use_min, config.core.pushes.window_ns) == (
        False,
        0.5,
        SECOND,
    )
    with pytest.raises(ConfigError, match=r"push\.use_min: 2 is not a number from 0 to 1"):
        parse({"push": {"use_min": 2}}, tmp_path)
