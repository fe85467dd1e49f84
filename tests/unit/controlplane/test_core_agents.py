"""The core towards agents: attach, announce, publish, faults of agents."""

from __future__ import annotations

import pytest

from controlplane.core.events import HelloReceived, StreamEnded, TimerFired
from controlplane.core.ids import SwitchPort
from controlplane.core.limits import CHUNK_BYTES_MAX, NAMESPACE_BYTES_MAX, PREFIX_CHUNKS_MAX
from controlplane.core.nodes import NodeState
from kvpolicy.value import Tier
from kvproto.rpc import control_pb2 as rpc
from tests.digests import digest
from tests.unit.controlplane.helpers import SECOND, Scene, key, record


def member(scene: Scene, number: int) -> int | None:
    node = scene.core.nodes.named(f"n{number}")
    return None if node is None else node.member


def holders(scene: Scene, session: int, name: object) -> list[int]:
    entry = scene.replica(session).get(key(name))
    return list(entry.holders) if entry else []


def test_welcome_comes_first_then_a_snapshot() -> None:
    scene = Scene()
    scene.attach(1, [record("a"), record("b", "a", 1)])
    scene.attach(2)
    kinds = [message.WhichOneof("message") for message in scene.sent[2]]
    assert kinds[:3] == ["welcome", "read_access", "directory"]
    welcome = scene.sent[2][0].welcome
    assert (welcome.node, welcome.fabric.segment_bytes) == (1, 4096)
    assert not welcome.HasField("member"), "nothing was seen of it yet"
    assert welcome.fabric.group_mac == bytes.fromhex("01005e4b5601")
    first = scene.sent[2][2].directory
    assert first.snapshot
    assert first.snapshot_end
    assert {node.name for node in first.nodes} == {"n1", "n2"}
    assert scene.replica(2) == scene.replica(1)
    assert holders(scene, 2, "b") == [0]


def test_changes_reach_everybody_in_sequence() -> None:
    scene = Scene()
    for number in (1, 2, 3):
        scene.attach(number)
    scene.announce(1, [record("a")])
    scene.announce(2, [record("a"), record("b", "a", 1)])
    scene.announce(1, removed=[key("a")])
    for number in (1, 2, 3):
        assert holders(scene, number, "a") == [1]
        assert holders(scene, number, "b") == [1]
    scene.announce(2, removed=[key("a"), key("b")])
    assert scene.replica(3) == {}


def test_a_large_directory_comes_in_parts() -> None:
    scene = Scene()
    scene.attach(1)
    for batch in range(3):
        scene.announce(1, [record((batch, at)) for at in range(4000)])
    scene.attach(2)
    parts = [m.directory for m in scene.sent[2] if m.WhichOneof("message") == "directory" and m.directory.snapshot]
    assert [part.snapshot_end for part in parts] == [False, False, True]
    assert len(scene.replica(2)) == len(scene.replica(1)) == 12000


def test_reconnecting_keeps_index_and_member_and_replaces_what_was_held() -> None:
    scene = Scene()
    scene.attach(1, [record("a"), record("b", "a", 1)])
    scene.attach(2)
    scene.handle(StreamEnded(1))
    scene.sent[11] = []
    scene.handle(HelloReceived(11, rpc.Hello.FromString(_hello_bytes(1, incarnation=2))))
    scene.announce(11, [record("b", "a", 1)], snapshot=True)
    assert holders(scene, 2, "a") == [0], "until the snapshot ends the old picture stands"
    scene.announce(11, snapshot=True, snapshot_end=True)
    welcome = scene.sent[11][0].welcome
    assert (welcome.node, welcome.member) == (0, 0)
    assert holders(scene, 2, "a") == []
    assert holders(scene, 2, "b") == [0]


def _hello_bytes(number: int, **changes: object) -> bytes:
    from tests.unit.controlplane.helpers import hello

    return hello(number, **changes).SerializeToString()


def test_a_second_stream_of_a_node_ends_the_first() -> None:
    scene = Scene()
    scene.attach(1)
    scene.handle(HelloReceived(7, rpc.Hello.FromString(_hello_bytes(1, incarnation=2))))
    scene.advance()
    assert scene.closed[1].code == "ABORTED"
    node = scene.core.nodes.named("n1")
    assert node is not None
    assert (node.session, node.state) == (7, NodeState.ATTACHED)


def test_an_older_incarnation_is_refused() -> None:
    scene = Scene()
    scene.attach(1, incarnation=5)
    scene.handle(HelloReceived(9, rpc.Hello.FromString(_hello_bytes(1, incarnation=4))))
    scene.advance()
    assert scene.closed[9].code == "ALREADY_EXISTS"
    assert 1 not in scene.closed


def test_copies_go_after_a_grace_and_the_member_after_a_longer_one() -> None:
    scene = Scene()
    scene.attach(1, [record("a")])
    scene.attach(2)
    scene.up()
    scene.handle(StreamEnded(1))
    scene.wait(1)
    assert holders(scene, 2, "a") == [0]
    scene.wait(2)
    assert holders(scene, 2, "a") == []
    assert ("port_member", SwitchPort(1)) in scene.switch.contents
    scene.wait(60)
    assert ("port_member", SwitchPort(1)) not in scene.switch.contents
    assert ("dmac", bytes([2, 0x4B, 0x56, 0, 0, 1])) not in scene.switch.contents
    scene.attach(70, switch_port=100)
    assert member(scene, 70) == 0, "a port beyond the last bit gets one that is free again"


def test_an_orderly_goodbye_forgets_copies_at_once() -> None:
    scene = Scene()
    scene.attach(1, [record("a")])
    scene.attach(2)
    scene.say(1, leaving=rpc.Leaving(reason="stop"))
    assert holders(scene, 2, "a") == []
    assert scene.closed[1].code == "OK"


def test_silence_makes_a_node_suspect_and_any_word_clears_it() -> None:
    scene = Scene()
    scene.attach(1)
    scene.now += 4 * SECOND
    scene.advance()
    node = scene.core.nodes.named("n1")
    assert node.state is NodeState.SUSPECT
    scene.say(1, heartbeat=rpc.Heartbeat(pool_used_bytes=5))
    assert node.state is NodeState.ATTACHED
    assert node.pool_used_bytes == 5


def test_a_node_that_replaces_a_dead_one_gets_its_port() -> None:
    scene = Scene()
    scene.attach(1, [record("a")])
    scene.up()
    scene.handle(StreamEnded(1))
    scene.attach(2, switch_port=1)
    assert scene.core.nodes.named("n1") is None
    assert scene.replica(2) == {}
    assert scene.switch.contents["dmac", bytes([2, 0x4B, 0x56, 0, 0, 2])].port == 1
    assert ("dmac", bytes([2, 0x4B, 0x56, 0, 0, 1])) not in scene.switch.contents


@pytest.mark.parametrize(
    ("message", "word"),
    [
        ({"announce": rpc.Announce(added=[rpc.ChunkRecord(key=b"short", size_bytes=1)])}, "key"),
        ({"announce": rpc.Announce(added=[rpc.ChunkRecord(key=bytes(16), size_bytes=0)])}, "size_bytes"),
        ({"announce": rpc.Announce(added=[rpc.ChunkRecord(key=b"1" * 16, parent=b"1" * 16, size_bytes=1)])}, "parent"),
        ({"announce": rpc.Announce(removed=[b"x"])}, "removed"),
        ({"usage": rpc.Usage(fetches=[rpc.FetchEvent(key=b"x")])}, "key"),
        ({"usage": rpc.Usage(past=[rpc.PastFetches(key=b"x", touches=1, weight=1)])}, "past"),
        ({"usage": rpc.Usage(past=[rpc.PastFetches(key=bytes(16), touches=1, weight=2)])}, "weight"),
        ({"usage": rpc.Usage(past=[rpc.PastFetches(key=bytes(16), touches=1, weight=float("nan"))])}, "weight"),
        ({"usage": rpc.Usage(past=[rpc.PastFetches(key=bytes(16), touches=1, weight=1)] * 1001)}, "1000"),
        ({"hello": rpc.Hello()}, "second Hello"),
        ({}, "empty"),
    ],
)
def test_what_is_malformed_is_refused_by_itself(message: dict[str, object], word: str) -> None:
    scene = Scene()
    scene.attach(1, [record("a")])
    scene.attach(2)
    scene.say(1, **message)
    (refusal,) = scene.refusals(1)
    assert word in refusal.reason
    assert len(scene.warned) == 1
    assert word in scene.warned[0]
    scene.say(1, **message)
    assert len(scene.warned) == 1, "said once"
    assert len(scene.refusals(1)) == 2
    assert not scene.closed
    scene.announce(1, [record("b")])
    assert holders(scene, 2, "a") == holders(scene, 2, "b") == [0]


def test_a_bad_record_costs_that_record() -> None:
    scene = Scene()
    scene.attach(1)
    scene.attach(2)
    bad = [record("b"), record("c"), record("d")]
    bad[0].parent, bad[1].position, bad[2].size_bytes = bad[0].key, PREFIX_CHUNKS_MAX, CHUNK_BYTES_MAX + 1
    scene.announce(1, [record("a"), *bad, record("e")], namespaces=["n" * (NAMESPACE_BYTES_MAX)])
    assert set(scene.replica(2)) == {key("a"), key("e")}
    (refusal,) = scene.refusals(1)
    assert (refusal.what, refusal.count) == ("copy", 3)
    assert list(refusal.keys) == [one.key for one in bad]
    assert "its own parent" in refusal.reason
    assert scene.core.decisions["record_refused_copy"] == 3
    fetched = [rpc.FetchEvent(key=b"x"), rpc.FetchEvent(key=key("a"), source=rpc.SOURCE_HOLDER, bytes=1)]
    scene.say(1, usage=rpc.Usage(fetches=fetched))
    assert scene.core.accounting.fetched_chunks.total() == 1
    assert not scene.closed


@pytest.mark.parametrize(
    "changes", [{"node": ""}, {"node": "a b"}, {"data_ip": b"123"}, {"data_mac": b""}, {"segment_bytes": [512]}]
)
def test_a_bad_hello_is_refused(changes: dict[str, object]) -> None:
    scene = Scene()
    from tests.unit.controlplane.helpers import hello

    message = hello(1)
    if "segment_bytes" in changes:
        message.ClearField("segment_bytes")
        message.segment_bytes.extend(changes["segment_bytes"])
    else:
        for name, value in changes.items():
            setattr(message, name, value)
    scene.handle(HelloReceived(1, message))
    scene.advance()
    assert scene.closed[1].code in ("INVALID_ARGUMENT", "FAILED_PRECONDITION")
    assert len(scene.core.nodes) == 0


def test_a_bad_copy_is_compared_at_its_holder_and_stays_for_everybody() -> None:
    scene = Scene()
    for number in (1, 2, 3):
        scene.attach(number, [record("a")] if number < 3 else [])
    right = record("a").digest
    scene.say(3, bad_copy=rpc.BadCopy(key=key("a"), holder=0, expected=right, found=digest(7)))
    assert holders(scene, 3, "a") == [0, 1], "nobody's word drops another's copy"
    (task,) = scene.tasks(1, "recheck")
    assert list(task.recheck.keys) == [key("a")]
    assert not scene.tasks(2)
    scene.say(2, bad_copy=rpc.BadCopy(key=key("a"), holder=0, expected=right, found=digest(7)))
    assert len(scene.tasks(1, "recheck")) == 1, "asked once a while, whoever says it"
    scene.say(3, bad_copy=rpc.BadCopy(key=key("a"), holder=1, expected=digest(6), found=digest(7)))
    assert holders(scene, 3, "a") == [0, 1], "a report about other bytes says nothing about these"
    scene.say(3, bad_copy=rpc.BadCopy(key=key("unknown"), holder=1, expected=digest(1), found=digest(7)))


def test_values_are_published_when_they_change_much() -> None:
    scene = Scene()
    scene.attach(1, [record("a"), record("b")])
    before = {name: scene.replica(1)[key(name)].value for name in "ab"}
    assert before["a"] == before["b"]
    fetch = rpc.FetchEvent(key=key("a"), source=rpc.SOURCE_HOLDER, bytes=10)
    scene.say(1, usage=rpc.Usage(fetches=[fetch]))
    assert scene.replica(1)[key("a")].value > scene.replica(1)[key("b")].value
    messages = len(scene.sent[1])
    for _ in range(3):
        scene.say(1, usage=rpc.Usage(fetches=[fetch] * 4))
    assert len(scene.sent[1]) - messages <= 3
    scene.say(1, usage=rpc.Usage(hints=[rpc.ReuseHint(key=key("a"), kind=rpc.ReuseHint.SESSION_ENDED)]))
    assert scene.replica(1)[key("a")].value == before["a"]


def test_what_casts_and_the_switch_saved_is_counted() -> None:
    scene = Scene()
    scene.attach(1, [record("a")])
    fetch = rpc.FetchEvent(key=key("a"), source=rpc.SOURCE_CAST, bytes=100)
    scene.say(1, usage=rpc.Usage(fetches=[fetch] * 8))
    assert scene.core.accounting.bytes_kept_off_uplinks == 700, "the first arrival of a cast was paid for"
    scene.say(1, usage=rpc.Usage(fetches=[rpc.FetchEvent(key=key("a"), source=rpc.SOURCE_SWITCH, bytes=50)]))
    assert scene.core.accounting.bytes_kept_off_uplinks == 750
    assert scene.core.accounting.fetched_chunks == {"cast": 8, "switch": 1}


def test_a_directory_without_a_switch_gives_nobody_a_member() -> None:
    scene = Scene(with_switch=False)
    scene.attach(1, [record("a")])
    welcome = scene.sent[1][0].welcome
    assert not welcome.HasField("member")
    assert not welcome.switch_state.present
    assert scene.handle(TimerFired()) == []


# -- a controller that has just restarted


def directories(scene: Scene, session: int) -> int:
    return sum(message.WhichOneof("message") == "directory" for message in scene.sent[session])


def test_old_directories_stand_until_as_many_nodes_have_announced() -> None:
    scene = Scene()
    scene.sent[1] = []
    scene.handle(HelloReceived(1, rpc.Hello.FromString(_hello_bytes(1, replica_of=7, replica_nodes=3))))
    scene.announce(1, [record("a")], snapshot=True, snapshot_end=True)
    scene.attach(2, [record("b")], replica_of=7, replica_nodes=3)
    scene.advance()
    assert scene.sent[1][0].WhichOneof("message") == "welcome"
    assert directories(scene, 1) == directories(scene, 2) == 0
    scene.attach(3, [record("c")], replica_of=7, replica_nodes=3)
    for number in (1, 2, 3):
        assert set(scene.replica(number)) == {key("a"), key("b"), key("c")}


def test_old_directories_go_after_the_grace_at_the_latest() -> None:
    scene = Scene()
    scene.attach(1, [record("a")], replica_of=7, replica_nodes=9)
    scene.wait(2)
    assert directories(scene, 1) == 0
    scene.wait(2)
    assert set(scene.replica(1)) == {key("a")}
    scene.attach(2, replica_of=7, replica_nodes=9)
    assert set(scene.replica(2)) == {key("a")}, "nobody waits any more"


def test_an_agent_without_a_directory_gets_what_there_is_at_once() -> None:
    scene = Scene()
    scene.attach(1, [record("a")], replica_of=7, replica_nodes=9)
    scene.attach(2)
    assert set(scene.replica(2)) == {key("a")}
    scene.announce(2, [record("b")])
    assert set(scene.replica(2)) == {key("a"), key("b")}
    assert directories(scene, 1) == 0
    scene.attach(3, replica_of=1000, replica_nodes=9)
    assert set(scene.replica(3)) == {key("a"), key("b")}, "ours, so nothing of it can be missing here"


def test_what_agents_measure_is_what_a_copy_saves() -> None:
    scene = Scene()
    scene.attach(1, [record("a")])
    costs, believed_s = scene.core.values.costs, scene.core.values.saved_s(key("a"), 10**8)
    slow = rpc.SourceMeasurement(source=rpc.SourceMeasurement.FROM_REMOTE_DRAM, bytes=10**8, took_us=150_000)
    scene.say(1, usage=rpc.Usage(measurements=[slow] * 4))
    assert costs.cost_s(Tier.REMOTE_DRAM, 10**8) == pytest.approx(0.15)
    assert scene.core.values.saved_s(key("a"), 10**8) == pytest.approx(0.15)
    assert believed_s < 0.15
    engine = rpc.SourceMeasurement(source=rpc.SourceMeasurement.FROM_RECOMPUTE, bytes=10**8, took_us=20_000)
    unknown = rpc.SourceMeasurement(source=99, bytes=1, took_us=1)
    scene.say(1, usage=rpc.Usage(measurements=[engine, unknown]))
    assert scene.core.values.saved_s(key("a"), 10**8) == pytest.approx(0.02)
    scene.say(1, usage=rpc.Usage(measurements=[rpc.SourceMeasurement(source=engine.source)]))
    assert scene.core.values.saved_s(key("a"), 10**8) == pytest.approx(0.02)


def test_nics_that_cannot_carry_the_fabrics_segments_are_said_once_each() -> None:
    scene = Scene()
    scene.attach(1)
    scene.attach(2, rdma_mtu=4096)
    scene.attach(3, rdma_mtu=1024)
    assert [text.partition(":")[0] for text in scene.warned] == ["n2", "n3"]
    assert "takes segments of 3840 at most, the fabric's have 4096" in scene.warned[0]
    assert "SEGMENT_BYTES=768" in scene.warned[1]
    scene.attach(2, rdma_mtu=4096, incarnation=2)
    assert len(scene.warned) == 2
    # Once all have what fits, there is nothing to say; and it is said again when it is so again.
    scene.attach(2, rdma_mtu=8192, incarnation=3)
    scene.attach(2, rdma_mtu=4096, incarnation=4)
    assert len(scene.warned) == 3
