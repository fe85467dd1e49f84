"""What an agent tells its controller of its disk and its full pool, and background work that the controller gives it.

The scripted controller is that of test_controller_channel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hostagent.disk.disk_options import DiskConfig
from kvproto.rpc import control_pb2 as pb
from tests.unit.hostagent.agent_harness import MIB, key
from tests.unit.hostagent.channel_script import Stage, delta, staged, task
from tests.unit.hostagent.disk_harness import content

SIZE = 100_000


@pytest.fixture
def stage() -> Iterator[Stage]:
    with staged() as found:
        yield found


def disk(tmp_path: Path, size: int = 4 * MIB) -> DiskConfig:
    return DiskConfig(str(tmp_path / "disk"), size, direct=False, promote=False)


def announced(stage: Stage, node: str, count: int) -> dict[tuple[bytes, bool], bool]:
    """(key, on disk) -> held, out of as many records as come until `count` are known."""
    held: dict[tuple[bytes, bool], bool] = {}
    while len(held) < count:
        announce = stage.script.hear(node, "announce")
        held |= {(record.key, record.on_disk): True for record in announce.added}
        held |= {(raw, False): False for raw in announce.removed}
        held |= {(raw, True): False for raw in announce.removed_from_disk}
    return held


def test_what_comes_to_the_disk_and_leaves_it_is_announced(stage: Stage, tmp_path: Path) -> None:
    stage.made.add(controllers=[stage.address], disk=disk(tmp_path))
    hello = stage.script.attach("n0", 0)
    assert hello.disk_bytes == 4 * MIB
    client = stage.made.client(0)
    client.put(key(1), None, content(1, SIZE))
    assert announced(stage, "n0", 2) == {(key(1), False): True, (key(1), True): True}
    stage.script.say("n0", task(1, drop=pb.Drop(keys=[key(1)])))
    assert announced(stage, "n0", 2) == {(key(1), False): False, (key(1), True): False}


def test_a_restarted_agent_announces_the_warm_part(stage: Stage, tmp_path: Path) -> None:
    stage.made.add(controllers=[stage.address], disk=disk(tmp_path))
    stage.script.attach("n0", 0)
    for number in (1, 2):
        stage.made.client(0).put(key(number), None, content(number, SIZE), namespace="label")
    announced(stage, "n0", 4)
    del stage.script.heard["n0"]
    for _, client in stage.made.clients:
        client.close()
    stage.made.do(stage.made.agents[0].stop())
    stage.made.agents.clear()
    stage.made.add(controllers=[stage.address], disk=disk(tmp_path))
    stage.script.attach("n0", 0)
    records = {}
    while True:
        announce = stage.script.hear("n0", "announce")
        assert announce.snapshot
        records |= {
            (record.key, record.on_disk): announce.namespaces[record.namespace_index] for record in announce.added
        }
        if announce.snapshot_end:
            break
    assert records == {(key(1), True): "label", (key(2), True): "label"}


def test_a_heartbeat_names_what_would_go_first(stage: Stage, tmp_path: Path) -> None:
    stage.made.add(controllers=[stage.address], disk=disk(tmp_path))
    stage.script.attach("n0", 0)
    client = stage.made.client(0)
    for number in (1, 2, 3):
        client.put(key(number), None, content(number, SIZE))
    client.pin([key(1)])
    while True:
        beat = stage.script.hear("n0", "heartbeat")
        if list(beat.next_victims) == [key(2), key(3)] and beat.disk_used_bytes == 3 * 102_400:
            break


def test_background_fetches_go_in_steps_and_after_what_engines_wait_for(stage: Stage) -> None:
    for number in range(2):
        stage.made.add(controllers=[stage.address])
        stage.script.attach(f"n{number}", number)
    holder, taker = stage.made.agents
    client = stage.made.client(0)
    for number in range(20):
        client.put(key(number + 1), None, content(number, 4096))
    nodes = [
        pb.Node(
            node=index,
            name=agent.config.node,
            data_ip=agent.facts.address.to_bytes(4, "big"),
            read_endpoint=agent.facts.read_endpoint,
        )
        for index, agent in enumerate((holder, taker))
    ]
    chunks = [
        pb.ChunkEntry(key=chunk.key, size_bytes=chunk.size_bytes, digest=chunk.digest, holders=[0])
        for chunk in holder.core.pool.ready_chunks()
    ]
    stage.script.say("n1", delta(1, nodes=nodes, chunks=chunks))
    keys = [key(number + 1) for number in range(20)]
    stage.script.say("n1", task(7, fetch=pb.Fetch(keys=keys, reason=pb.Fetch.PUSH)))
    result = stage.script.hear("n1", "task_result")
    assert (result.task, result.status, result.done, result.bytes) == (7, pb.TaskResult.DONE, 20, 20 * 4096)
    lane = taker.core.lanes["fetch"]
    assert (lane.counts.taken, lane.running_count, len(lane)) == (3, 0, 0), "eight, eight and four"
