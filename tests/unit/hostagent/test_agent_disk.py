"""An agent with a disk: what engines and peers get from it, what survives, and who has to wait for whom."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from hostagent.core.chunk_entry import ChunkEntry
from hostagent.core.disk_index import DiskState
from hostagent.disk.disk_options import DiskConfig
from kvclient.client import AgentClient, ChunkSource, Status, Where
from tests.unit.hostagent.agent_harness import MIB, Cluster, cluster, key
from tests.unit.hostagent.disk_harness import SLAB_NAME, content, flip

SIZE = 64 * 1024 + 12
KEYS = [key(number + 1) for number in range(8)]


@pytest.fixture
def disk(tmp_path: Path) -> DiskConfig:
    return DiskConfig(str(tmp_path / "disk"), 4 * MIB, direct=False, promote=False)


@pytest.fixture
def made(disk: DiskConfig) -> Iterator[Cluster]:
    with cluster(1, disk=disk) as made:
        yield made


def put(client: AgentClient, count: int = len(KEYS)) -> None:
    for number in range(count):
        client.put(KEYS[number], KEYS[number - 1] if number else None, content(number, SIZE), namespace="m")


def saved(made: Cluster, count: int = len(KEYS)) -> None:
    store = made.agents[0].store
    assert store is not None
    made.until(lambda: len(store.stored_chunks()) == count and not store.counters.writing)


def test_what_was_put_is_on_disk_soon_and_back_after_a_restart(made: Cluster, disk: DiskConfig) -> None:
    put(made.client(0))
    saved(made)
    assert made.agents[0].core.tiering.unsaved_count == 0
    agent = made.replace(0, disk=disk)
    assert agent.core.pool.ready_chunks() == []
    client = made.client(0)
    assert client.contains(KEYS) == [Where.LOCAL] * len(KEYS)
    with client.fetch(KEYS, deadline_s=10) as got:
        assert got.outcome is Status.OK
        assert list(got.sources) == [ChunkSource.DISK] * len(KEYS)
        assert [bytes(view) for view in got.views] == [content(number, SIZE) for number in range(len(KEYS))]
    with client.fetch(KEYS, deadline_s=10) as got:
        assert list(got.sources) == [ChunkSource.LOCAL] * len(KEYS)
    stats = client.stats()
    assert stats["disk_restored_chunks"] == len(KEYS)
    assert stats["disk_read_bytes_total"] == len(KEYS) * SIZE
    assert stats["gate_decisions_total{disk}"] == 1
    assert [chunk.parent for chunk in agent.core.pool.ready_chunks()] == [None, *KEYS[:-1]]


def test_an_orderly_stop_writes_what_is_not_on_disk_yet(made: Cluster, disk: DiskConfig) -> None:
    made.call(lambda: made.agents[0].core.tiering.close())  # no background writes
    put(made.client(0))
    agent = made.replace(0, disk=disk)
    assert len(agent.store.stored_chunks()) == len(KEYS)


def test_free_dram_is_filled_again_from_disk(made: Cluster, disk: DiskConfig) -> None:
    put(made.client(0))
    saved(made)
    agent = made.replace(0, disk=dataclasses.replace(disk, promote=True))
    made.until(lambda: len(agent.core.pool.ready_chunks()) == len(KEYS))
    made.until(lambda: agent.core.idle)
    assert agent.core.tiering.promotions.counts.taken == len(KEYS)


def test_promotions_leave_half_of_the_pool_free(made: Cluster, disk: DiskConfig) -> None:
    put(made.client(0))
    saved(made)
    agent = made.replace(0, disk=dataclasses.replace(disk, promote=True), pool_bytes=MIB)
    made.until(lambda: len(agent.core.pool.ready_chunks()) == 7)
    usage = made.call(agent.core.pool.usage)
    assert usage.free_bytes >= usage.size_bytes // 2
    assert [chunk.position for chunk in agent.core.pool.ready_chunks()] == list(range(7)), "ancestors first"


def test_evicted_from_dram_is_not_lost(disk: DiskConfig) -> None:
    with cluster(1, disk=disk, pool_bytes=MIB) as made:
        client = made.client(0)
        for number in range(40):
            client.put(key(100 + number), None, content(number, SIZE))
            made.until(lambda: made.agents[0].core.tiering.unsaved_count == 0)
        assert client.stats()["pool_evictions_total"] > 20
        for number in range(40):
            with client.fetch([key(100 + number)], deadline_s=10) as got:
                assert got.outcome is Status.OK
                assert bytes(got.views[0]) == content(number, SIZE)


def damage(made: Cluster, number: int) -> None:
    stored = made.agents[0].store.find(KEYS[number])
    with (Path(made.agents[0].store.config.path) / SLAB_NAME).open("r+b") as file:
        file.seek(stored.offset + 5)
        before = file.read(1)
        file.seek(stored.offset + 5)
        file.write(flip(before))


def test_a_damaged_copy_is_a_miss_and_never_wrong(made: Cluster, disk: DiskConfig) -> None:
    put(made.client(0))
    saved(made)
    made.replace(0, disk=disk)
    damage(made, 3)
    client = made.client(0)
    with client.fetch(KEYS, deadline_s=10) as got:
        assert (got.count, got.outcome) == (3, Status.UNAVAILABLE)
        assert [bytes(view) for view in got.views] == [content(number, SIZE) for number in range(3)]
    assert client.stats()["disk_damaged_total{chunk}"] == 1
    assert client.contains(KEYS[2:5]) == [Where.LOCAL, Where.NOWHERE, Where.LOCAL]


def test_a_damaged_copy_is_read_from_another_node(disk: DiskConfig) -> None:
    with cluster(2, disk=disk) as made:
        # Both were given one folder: the first agent has it, the second one goes on without a disk.
        assert [agent.store.state for agent in made.agents] == [DiskState.ON, DiskState.OFF]
        put(made.client(0))
        put(made.client(1))
        saved(made)
        made.replace(0, disk=disk)
        for number in range(len(KEYS)):
            made.publish(number + 1, 1, parent=number or None)
        damage(made, 3)
        with made.client(0).fetch(KEYS, deadline_s=10) as got:
            assert got.outcome is Status.OK
            assert [bytes(view) for view in got.views] == [content(number, SIZE) for number in range(len(KEYS))]
            assert got.sources[3] is ChunkSource.HOLDER


def on_disk_of(made: Cluster, *numbers: int) -> None:
    """Every replica learns that node 0 has these on disk, and nobody in DRAM."""
    store = made.agents[0].store
    entries = []
    for number in numbers:
        found = store.find(KEYS[number])
        entries.append(
            ChunkEntry(KEYS[number], found.parent, found.size_bytes, found.digest, number, (), disk_holders=(0,))
        )
    made.tell(chunks=tuple(entries))


def test_a_peer_gets_what_lies_on_a_disk_only(made: Cluster, disk: DiskConfig) -> None:
    put(made.client(0))
    saved(made)
    agent = made.replace(0, disk=disk)
    made.add()
    on_disk_of(made, *range(len(KEYS)))
    reader = made.client(1)
    assert reader.contains(KEYS[:1]) == [Where.REMOTE]
    with reader.fetch(KEYS, deadline_s=10) as got:
        assert got.outcome is Status.OK
        assert list(got.sources) == [ChunkSource.HOLDER] * len(KEYS)
        assert [bytes(view) for view in got.views] == [content(number, SIZE) for number in range(len(KEYS))]
    assert len(agent.core.pool.ready_chunks()) == len(KEYS), "it is in the holder's DRAM now"
    made.until(lambda: agent.core.idle)


def test_a_peer_is_told_when_the_disk_cannot_deliver(made: Cluster, disk: DiskConfig) -> None:
    put(made.client(0))
    saved(made)
    made.replace(0, disk=disk)
    made.add()
    on_disk_of(made, 0, 1)
    damage(made, 1)
    with made.client(1).fetch(KEYS[:2], deadline_s=10) as got:
        assert (got.count, got.outcome) == (1, Status.UNAVAILABLE)


def test_a_drop_takes_it_from_the_disk_too(made: Cluster) -> None:
    client = made.client(0)
    put(client)
    saved(made)
    assert client.drop(KEYS[:2]) == [True, True]
    assert client.contains(KEYS[:3]) == [Where.NOWHERE, Where.NOWHERE, Where.LOCAL]
    made.until(lambda: len(made.agents[0].store.stored_chunks()) == len(KEYS) - 2)


def test_a_disk_that_cannot_be_used_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with cluster(1, disk=DiskConfig(str(tmp_path / "file" / "disk"), MIB)) as made:
        client = made.client(0)
        put(client)
        with client.fetch(KEYS, deadline_s=5) as got:
            assert got.outcome is Status.OK
        assert made.call(made.agents[0].health).facts["disk"]["state"] == "off"
        assert client.stats()["disk_state{off}"] == 1
    lines = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(lines) == 1
    assert lines[0].startswith("disk tier off: ")
