"""Agents that relay: readers pass on what they have proven, over real sockets; only the liar is blamed."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from kvclient.client import ChunkSource, Fetched, Status
from tests.unit.hostagent.agent_harness import MIB, Cluster, cluster, key
from tests.unit.hostagent.test_agents_fetch import keys, put_prefix


@pytest.fixture
def relays() -> Iterator[Cluster]:
    with cluster(5, relay_share=1.0, pool_bytes=32 * MIB) as made:
        yield made


def fetch_at_once(made: Cluster, readers: list[int], count: int) -> list[tuple[Status, list[bytes]]]:
    """What each reader's engine got."""
    got: dict[int, tuple[Status, list[bytes]]] = {}
    clients = [(reader, made.client(reader)) for reader in readers]
    start = threading.Barrier(len(readers))

    def run(reader: int, client) -> None:  # type: ignore[no-untyped-def]
        start.wait()
        with client.fetch(keys(count), deadline_s=20) as fetched:
            got[reader] = fetched.outcome, [bytes(view) for view in fetched.views]

    threads = [threading.Thread(target=run, args=one) for one in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [got[reader] for reader in readers]


def test_readers_pass_on_what_they_have_proven(relays: Cluster) -> None:
    bodies = put_prefix(relays, 0, 8, 2 * MIB)
    results = fetch_at_once(relays, [1, 2, 3, 4], 8)
    assert results == [(Status.OK, bodies)] * 4
    sent = [agent.transport.counters.read_bytes_sent for agent in relays.agents]
    assert sent[0] < 2.5 * 16 * MIB, sent
    assert sum(sent[1:]) > 16 * MIB, "readers gave nothing to each other"


def test_one_reader_alone_has_it_from_the_holder(relays: Cluster) -> None:
    bodies = put_prefix(relays, 0, 3, MIB + 1000)
    with relays.client(1).fetch(keys(3), deadline_s=10) as got:
        assert (got.outcome, [bytes(view) for view in got.views]) == (Status.OK, bodies)
        assert set(got.sources) == {ChunkSource.HOLDER}
    sent = relays.agents[0].transport.counters
    relays.until(lambda: sent.read_bytes_sent >= 3 * (MIB + 1000))
    assert sent.read_bytes_sent == 3 * (MIB + 1000)
    chunk = relays.agents[1].core.pool.find(key(2))
    assert chunk is not None and chunk.leaves == relays.agents[0].core.pool.find(key(2)).leaves  # type: ignore[union-attr]


__all__ = ["Fetched"]
