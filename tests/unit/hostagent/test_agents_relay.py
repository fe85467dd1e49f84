"""Agents that relay: readers pass on what they have proven, over real sockets; only the liar is blamed."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from kvclient.client import ChunkSource, Status
from kvproto.fanout import Fanout
from tests.unit.hostagent.agent_harness import MIB, Cluster, cluster, key
from tests.unit.hostagent.test_agents_fetch import keys, put_prefix


@pytest.fixture
def relays() -> Iterator[Cluster]:
    with cluster(5, fanout=Fanout.RELAY, pool_bytes=32 * MIB) as made:
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


def test_they_do_so_over_ipv6() -> None:
    with cluster(4, fanout=Fanout.RELAY, pool_bytes=32 * MIB, address="::1") as made:
        bodies = put_prefix(made, 0, 8, 2 * MIB)
        assert fetch_at_once(made, [1, 2, 3], 8) == [(Status.OK, bodies)] * 3
        sent = [agent.transport.counters.read_bytes_sent for agent in made.agents]
        assert sent[0] < 2 * 16 * MIB, sent
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


def test_only_the_parent_that_lies_is_blamed(relays: Cluster) -> None:
    bodies = put_prefix(relays, 0, 4, 2 * MIB)
    put_prefix(relays, 1, 4, 2 * MIB)
    for number in range(1, 5):
        relays.publish(number, 0, 1, parent=number - 1 if number > 1 else None)
    liar = relays.agents[1]
    for number in range(1, 5):
        chunk = liar.core.pool.find(key(number))
        assert chunk is not None
        liar.memory.view(chunk.offset, chunk.size_bytes)[:] = bytes(chunk.size_bytes)
    results = fetch_at_once(relays, [2, 3], 4)
    assert results == [(Status.OK, bodies)] * 2
    failures = [relays.call(agent.stats)["checksum_failures_total"] for agent in relays.agents]
    assert sum(failures) > 0, "nobody asked the liar"


def test_a_holder_without_relays_is_read_as_ever() -> None:
    with cluster(2) as made:
        made.add(fanout=Fanout.RELAY)
        (body,) = put_prefix(made, 0, 1, MIB)
        with made.client(2).fetch(keys(1), deadline_s=10) as got:
            assert (got.outcome, [bytes(view) for view in got.views]) == (Status.OK, [body])


def test_a_reader_that_gives_up_gives_its_memory_back(relays: Cluster) -> None:
    put_prefix(relays, 0, 8, 2 * MIB)
    client = relays.client(1)
    with client.fetch(keys(8), deadline_s=0.001) as got:
        assert got.outcome in (Status.OK, Status.DEADLINE, Status.GATE)
    relays.until(lambda: not relays.agents[1].core.fetches.arrivals.under_way)
    relays.until(lambda: relays.agents[1].core.pool.usage().pinned_bytes == 0)


def test_what_has_no_tree_comes_whole(relays: Cluster) -> None:
    (body,) = put_prefix(relays, 0, 1, 100)
    with relays.client(1).fetch(keys(1), deadline_s=10) as got:
        assert [bytes(view) for view in got.views] == [body]
    assert key(1) not in relays.agents[1].core.relays.coming
