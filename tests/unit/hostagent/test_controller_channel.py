"""The agent's side of the control channel, against a coordinator that follows a script over real gRPC."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kvclient.client import Status, Where
from kvpolicy.value import Tier
from kvproto.rpc import control_pb2 as pb
from tests.digests import digest
from tests.unit.hostagent.agent_harness import MIB, key
from tests.unit.hostagent.channel_script import Script, Stage, delta, staged, task


@pytest.fixture
def stage() -> Iterator[Stage]:
    with staged() as found:
        yield found


def test_hello_snapshot_changes_and_heartbeat(stage: Stage) -> None:
    stage.made.add(controllers=[stage.address])
    client = stage.made.client(0)
    client.put(key(1), None, b"x" * 1000, namespace="tiny/bf16")
    client.put(key(2), key(1), b"y" * 1000, namespace="tiny/bf16")
    hello = stage.script.attach("n0", 3, member=5)
    assert hello.data_ip == bytes((127, 79, 0, 1))
    assert hello.pool_bytes == 8 * MIB
    full = stage.script.hear("n0", "announce")
    assert full.snapshot
    assert [(record.key, record.parent, record.position) for record in full.added] == [
        (key(1), b"", 0),
        (key(2), key(1), 1),
    ]
    assert [full.namespaces[record.namespace_index] for record in full.added] == ["tiny/bf16"] * 2
    assert stage.script.hear("n0", "announce").snapshot_end
    client.put(key(3), None, b"z")
    client.drop([key(2)])
    change = stage.script.hear("n0", "announce")
    removed = list(change.removed)
    if not removed:
        removed = list(stage.script.hear("n0", "announce").removed)
    assert [record.key for record in change.added] == [key(3)]
    assert removed == [key(2)]
    assert stage.script.hear("n0", "heartbeat").chunks in (1, 2, 3)
    stage.made.until(lambda: stage.made.agents[0].health().facts["member"] == 5)
    agent = stage.made.agents[0]
    stage.made.call(lambda: agent.core.gate.measured(Tier.LOCAL_DISK, 4 * MIB, 0.25, time.monotonic_ns()))
    client.fetch([key(1)], deadline_s=1).release()
    client.session_end([key(1)])
    usage = stage.script.hear("n0", "usage")
    assert usage.fetches[0].source == pb.SOURCE_LOCAL
    assert list(usage.measurements) == [
        pb.SourceMeasurement(source=pb.SourceMeasurement.FROM_LOCAL_DISK, bytes=4 * MIB, took_us=250_000)
    ]
    if not usage.hints:
        usage = stage.script.hear("n0", "usage")
    assert usage.hints[0].kind == pb.ReuseHint.SESSION_ENDED


def test_tasks_pin_drop_unpin_and_unknown(stage: Stage) -> None:
    stage.made.add(controllers=[stage.address])
    client = stage.made.client(0)
    stage.script.attach("n0", 0)
    client.put(key(1), None, bytes(MIB))
    stage.script.say("n0", task(1, pin=pb.PinChunks(keys=[key(1), key(9)])))
    result = stage.script.hear("n0", "task_result")
    assert (result.task, result.status, result.failed_keys) == (1, pb.TaskResult.PARTIAL, [key(9)])
    for number in range(10, 20):
        client.put(key(number), None, bytes(MIB))
    assert client.contains([key(1)]) == [Where.LOCAL], "pinned by the controller, so never evicted"
    stage.script.say("n0", task(2, drop=pb.Drop(keys=[key(1)])))
    assert stage.script.hear("n0", "task_result").status == pb.TaskResult.FAILED
    stage.script.say("n0", task(3, unpin=pb.UnpinChunks(keys=[key(1)])))
    assert stage.script.hear("n0", "task_result").status == pb.TaskResult.DONE
    with client.fetch([key(1)], deadline_s=1):
        stage.script.say("n0", task(4, drop=pb.Drop(keys=[key(1)])))
        assert stage.script.hear("n0", "task_result").status == pb.TaskResult.FAILED, "an engine is reading it"
    stage.made.until(lambda: stage.made.agents[0].core.pool.pins_count == 0)
    stage.script.say("n0", task(5, drop=pb.Drop(keys=[key(1)])))
    assert stage.script.hear("n0", "task_result").status == pb.TaskResult.DONE
    assert client.contains([key(1)]) == [Where.NOWHERE]
    stage.script.say("n0", pb.ToAgent(task=pb.Task(task=6)))
    assert stage.script.hear("n0", "task_result").status == pb.TaskResult.REFUSED


def tell_both(stage: Stage, sequence: int, number: int) -> None:
    """Both replicas learn the nodes, and that n0 holds a chunk."""
    first, second = stage.made.agents
    nodes = [
        pb.Node(
            node=index,
            name=agent.config.node,
            data_ip=agent.facts.address.to_bytes(4, "big"),
            read_endpoint=agent.facts.read_endpoint,
        )
        for index, agent in enumerate((first, second))
    ]
    chunk = first.core.pool.find(key(number))
    assert chunk is not None
    entry = pb.ChunkEntry(key=key(number), size_bytes=chunk.size_bytes, digest=chunk.digest, holders=[0], value=1.0)
    stage.script.say("n1", delta(sequence, nodes=nodes, chunks=[entry]))
    stage.made.until(lambda: second.core.directory.find(key(number)) is not None)


def two(stage: Stage) -> None:
    for index in range(2):
        stage.made.add(controllers=[stage.address])
        stage.script.attach(f"n{index}", index)
    stage.made.until(lambda: all(agent.core.connected for agent in stage.made.agents))


def test_what_operators_set_is_kept_for_the_next_controller(stage: Stage) -> None:
    stage.made.add(controllers=[stage.address])
    assert not stage.script.attach("n0", 0).HasField("operator_state")
    state = pb.OperatorState(revision=7, drained=["n5"], switch_pins=[key(3)])
    stage.script.say("n0", pb.ToAgent(operator_state=state))
    stage.script.hang_up("n0")
    assert stage.script.attach("n0", 0, controller=2).operator_state == state


def test_fetch_task_brings_pins_and_announces_at_once(stage: Stage) -> None:
    two(stage)
    stage.made.client(0).put(key(1), None, b"k" * 50_000)
    tell_both(stage, 1, 1)
    stage.script.say("n1", task(7, fetch=pb.Fetch(keys=[key(1), key(2)], reason=pb.Fetch.WARM, pin=True)))
    result = stage.script.hear("n1", "task_result")
    assert (result.status, result.done, result.bytes) == (pb.TaskResult.PARTIAL, 1, 50_000)
    assert result.failed_keys == [key(2)]
    chunk = stage.made.agents[1].core.pool.find(key(1))
    assert chunk is not None
    assert (chunk.holds, chunk.pins) == (1, 0)
    while not (announced := stage.script.hear("n1", "announce")).added:
        pass
    assert (announced.added[0].key, announced.added[0].pinned) == (key(1), True)
    stage.script.say("n1", task(8, unpin=pb.UnpinChunks(keys=[key(1)])))
    assert stage.script.hear("n1", "task_result").status == pb.TaskResult.DONE
    assert chunk.holds == 0


def test_fill_of_what_is_not_here_or_has_another_size_is_told(stage: Stage) -> None:
    stage.made.add(controllers=[stage.address])
    stage.script.attach("n0", 0)
    stage.made.client(0).put(key(1), None, bytes(10_000))
    stage.script.say("n0", task(1, fill=pb.Fill(key=key(2), segments=3)))
    assert stage.script.hear("n0", "task_result").status == pb.TaskResult.FAILED
    stage.script.say("n0", task(2, fill=pb.Fill(key=key(1), segments=4)))
    refused = stage.script.hear("n0", "task_result")
    assert (refused.status, "the chunk has 3" in refused.detail) == (pb.TaskResult.REFUSED, True)
    # Nobody acknowledges: the fill ends by its own deadline, with nothing left pinned.
    stage.script.say("n0", pb.ToAgent(task=pb.Task(task=3, timeout_ms=200, fill=pb.Fill(key=key(1), segments=3))))
    assert stage.script.hear("n0", "task_result").status == pb.TaskResult.FAILED
    stage.made.until(lambda: stage.made.agents[0].core.pool.pins_count == 0)


def test_wrong_copy_is_reported(stage: Stage) -> None:
    two(stage)
    stage.made.client(0).put(key(1), None, b"k" * 50_000)
    tell_both(stage, 1, 1)
    chunk = stage.made.agents[0].core.pool.find(key(1))
    assert chunk is not None
    stage.made.agents[0].memory.view(chunk.offset, 1)[0] ^= 1
    with stage.made.client(1).fetch([key(1)], deadline_s=5) as got:
        assert (got.count, got.outcome) == (0, Status.UNAVAILABLE)
    bad = stage.script.hear("n1", "bad_copy")
    assert (bad.key, bad.holder, bad.expected) == (key(1), 0, chunk.digest)
    assert bad.found != bad.expected


def test_controller_away_costs_nothing_and_it_is_greeted_again(stage: Stage) -> None:
    two(stage)
    stage.made.client(0).put(key(1), None, b"k" * 50_000)
    tell_both(stage, 1, 1)
    stage.close()
    stage.made.until(lambda: not any(agent.core.connected for agent in stage.made.agents))
    client = stage.made.client(1)
    with client.fetch([key(1)], deadline_s=5) as got:
        assert got.count == 1, "the replica outlives the controller"
    client.drop([key(1)])
    stage.script = Script(stage.made)
    stage.open()
    for index in range(2):
        stage.script.attach(f"n{index}", index, controller=2)
    stage.made.until(lambda: all(agent.core.connected for agent in stage.made.agents))
    with client.fetch([key(1)], deadline_s=5) as got:
        assert got.count == 1, "an empty snapshot of a fresh controller is not the whole truth"


def test_of_two_controllers_the_one_that_takes_it_is_found(stage: Stage) -> None:
    other = Stage(stage.made)
    stage.made.add(controllers=[other.address, stage.address])
    stage.script.attach("n0", 0)
    stage.made.until(lambda: stage.made.agents[0].core.connected)
    other.open()
    try:
        stage.close()
        other.script.attach("n0", 0, controller=2)
        stage.made.until(lambda: stage.made.agents[0].core.connected)
    finally:
        stage.made.do(stage.made.agents.pop().stop())
        other.close()


def test_a_name_that_stands_for_several_leads_to_the_one_that_takes_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first address of a name takes connections and refuses the stream, as a controller on standby does."""
    leader = Stage(stage.made, "127.0.0.2", stage.port)
    stage.script.on_standby = True
    leader.open()
    real = socket.getaddrinfo

    def several(host: str, port: int, *args: Any, **options: Any) -> Any:
        if host != "localhost":
            return real(host, port, *args, **options)
        return [one for name in ("127.0.0.1", "127.0.0.2") for one in real(name, port, *args, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", several)
    stage.made.add(controllers=[f"localhost:{stage.port}"])
    try:
        leader.script.attach("n0", 0)
        stage.made.until(lambda: stage.made.agents[0].core.connected)
        assert stage.script.refused_count >= 1
    finally:
        stage.made.do(stage.made.agents.pop().stop())
        leader.close()


@pytest.mark.parametrize(
    "nonsense",
    [
        delta(17),
        pb.ToAgent(welcome=pb.Welcome(fabric=pb.Fabric(segment_bytes=5, integrity=pb.INTEGRITY_BLAKE3))),
    ],
    ids=["gap", "segment size"],
)
def test_nonsense_ends_the_stream_and_the_agent_comes_back(stage: Stage, nonsense: pb.ToAgent) -> None:
    stage.made.add(controllers=[stage.address])
    stage.script.attach("n0", 0)
    stage.made.until(lambda: stage.made.agents[0].core.connected)
    stage.script.say("n0", nonsense)
    stage.script.attach("n0", 0)
    stage.made.until(lambda: stage.made.agents[0].core.connected)
    client = stage.made.client(0)
    client.put(key(1), None, b"x")
    assert client.contains([key(1)]) == [Where.LOCAL]


def test_a_bad_record_of_the_controller_costs_that_record(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.made.add(controllers=[stage.address])
    agent = stage.made.agents[0]
    stage.script.attach("n0", 0)
    stage.made.until(lambda: agent.core.connected)
    bad = [pb.ChunkEntry(key=b"short", size_bytes=1), pb.ChunkEntry(key=bytes(16)), pb.ChunkEntry(key=key(8))]
    good = pb.ChunkEntry(key=key(9), size_bytes=1, digest=digest(9), holders=[1])
    with caplog.at_level(logging.WARNING):
        stage.script.say("n0", delta(1, chunks=[*bad, good]))
        stage.script.say("n0", delta(2, chunks=bad))
        stage.script.say("n0", task(1, pin=pb.PinChunks(keys=[b"x"])))
        stage.script.say("n0", pb.ToAgent(read_access=pb.ReadAccess(verify_key=b"no key")))
        result = stage.script.hear("n0", "task_result")
    assert (result.task, result.status, result.detail) == (1, pb.TaskResult.REFUSED, "key has 1 bytes, not 16")
    stage.made.until(lambda: agent.attachment.refusals.counts["read_key"] == 1)
    assert agent.attachment.refusals.counts == {"chunk": 6, "task": 1, "read_key": 1}
    assert agent.metrics.flat()["refused_of_controller_total{chunk}"] == 6
    assert agent.core.directory.find(key(9)) is not None
    said = [one.getMessage() for one in caplog.records if "that the controller sent is refused" in one.getMessage()]
    assert [one.split()[1] for one in said] == ["chunk", "task", "read_key"], "one line of a kind"
    assert "hello" not in [one.WhichOneof("message") for one in list(stage.script.heard["n0"].queue)]
    assert agent.core.connected, "the stream goes on"
