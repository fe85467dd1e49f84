"""Several agents without a switch: fetches over real sockets, and every fault ends in right bytes or a typed miss."""

from __future__ import annotations

import dataclasses
import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from hostagent.tree import hashed
from kvclient import messages
from kvclient.attach import attach
from kvclient.client import ChunkSource, Fetched, PoolFullError, PutOutcome, Status, Where
from kvproto.ids import format_address
from kvproto.integrity import Integrity
from kvproto.wire.control import Control, Op
from tests.unit.hostagent.agent_harness import MIB, Cluster, cluster, key


@pytest.fixture
def pair() -> Iterator[Cluster]:
    with cluster(2) as made:
        yield made


@pytest.fixture
def trio() -> Iterator[Cluster]:
    with cluster(3) as made:
        yield made


def put_prefix(made: Cluster, holder: int, count: int, size: int, *also: int) -> list[bytes]:
    """Chunks 1..count, chained, at `holder` (and `also`), known to everybody; their bytes."""
    bodies = [random.Random(number).randbytes(size) for number in range(1, count + 1)]
    for place in (holder, *also):
        client = made.client(place)
        for number, body in enumerate(bodies, 1):
            client.put(key(number), key(number - 1) if number > 1 else None, body)
    for number in range(1, count + 1):
        made.publish(number, holder, *also, parent=number - 1 if number > 1 else None)
    return bodies


def keys(count: int) -> list[bytes]:
    return [key(number) for number in range(1, count + 1)]


@pytest.mark.parametrize("size", [1, 4096, 4097, 200_000, 2 * MIB])
def test_fetch_brings_verified_bytes_and_keeps_a_copy(pair: Cluster, size: int) -> None:
    bodies = put_prefix(pair, 0, 3, size)
    client = pair.client(1)
    assert client.contains(keys(3)) == [Where.REMOTE] * 3
    with client.fetch(keys(3), deadline_s=10) as got:
        assert (got.count, got.outcome) == (3, Status.OK)
        assert f"{got} {got.outcome}" == "<Fetched: 3 chunks, OK> OK"
        assert [bytes(view) for view in got.views] == bodies
        assert set(got.sources) == {ChunkSource.HOLDER}
    with client.fetch(keys(3), deadline_s=10) as again:
        assert set(again.sources) == {ChunkSource.LOCAL}
    chunk = pair.agents[1].core.pool.find(key(2))
    assert chunk is not None
    assert chunk.digest == hashed(memoryview(bodies[1]), Integrity.BLAKE3).digest
    assert (chunk.parent, chunk.position) == (key(1), 1)


def test_leading_chunks_only(pair: Cluster) -> None:
    put_prefix(pair, 0, 3, 1000)
    pair.tell(chunks_gone=(key(2),))
    with pair.client(1).fetch(keys(3), deadline_s=10) as got:
        assert (got.count, got.outcome) == (1, Status.NOT_FOUND)


def test_several_fetches_of_one_chunk_share_it(pair: Cluster) -> None:
    (body,) = put_prefix(pair, 0, 1, 3 * MIB)
    client = pair.client(1)
    got: list[Fetched] = []

    def fetch() -> None:
        got.append(client.fetch([key(1)], deadline_s=10))

    threads = [threading.Thread(target=fetch) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [bytes(lease.views[0]) == body for lease in got] == [True] * 6
    assert pair.agents[1].transport.counters.read_bytes_received == 3 * MIB
    for lease in got:
        lease.release()


def test_gate_says_no_at_once_when_recomputing_is_faster(pair: Cluster) -> None:
    put_prefix(pair, 0, 1, MIB)
    client = pair.client(1)
    with client.fetch([key(1)], deadline_s=10, recompute_s=0.000001) as got:
        assert (got.count, got.outcome) == (0, Status.GATE)
    with client.fetch([key(1)], deadline_s=10, recompute_s=10) as got:
        assert (got.count, got.outcome) == (1, Status.OK)


def test_chunk_evicted_at_its_holder_is_a_miss(pair: Cluster) -> None:
    put_prefix(pair, 0, 2, 1000)
    pair.client(0).drop([key(2)])
    started = time.monotonic()
    with pair.client(1).fetch(keys(2), deadline_s=10) as got:
        assert (got.count, got.outcome) == (1, Status.UNAVAILABLE)
    assert time.monotonic() - started < 5, "a miss is told well before the deadline"


def test_next_holder_is_tried_when_one_has_lost_the_chunk(trio: Cluster) -> None:
    bodies = put_prefix(trio, 0, 2, 100_000, 1)
    trio.client(0).drop(keys(2))
    with trio.client(2).fetch(keys(2), deadline_s=10) as got:
        assert [bytes(view) for view in got.views] == bodies


def test_wrong_copy_is_never_delivered_and_the_next_holder_serves(trio: Cluster) -> None:
    bodies = put_prefix(trio, 0, 1, 300_000, 1)
    chunk = trio.agents[0].core.pool.find(key(1))
    assert chunk is not None
    trio.agents[0].memory.view(chunk.offset + 1234, 1)[0] ^= 1
    # The good copy's node is leaving, so the wrong one is asked first.
    trio.tell(nodes=(dataclasses.replace(trio.node(1), draining=True),))
    client = trio.client(2)
    with client.fetch([key(1)], deadline_s=10) as got:
        assert got.count == 1
        assert got.views[0] == bodies[0]
    assert client.stats()["checksum_failures_total"] == 1


def test_only_copy_being_wrong_is_a_miss(pair: Cluster) -> None:
    put_prefix(pair, 0, 1, 300_000)
    chunk = pair.agents[0].core.pool.find(key(1))
    assert chunk is not None
    pair.agents[0].memory.view(chunk.offset, 1)[0] ^= 0xFF
    client = pair.client(1)
    with client.fetch([key(1)], deadline_s=5) as got:
        assert (got.count, got.outcome) == (0, Status.UNAVAILABLE)
    assert client.stats()["checksum_failures_total"] == 1
    assert client.contains([key(1)]) == [Where.REMOTE]
    assert pair.agents[1].core.pool.usage().chunks_count == 0


def test_holder_that_stops_mid_fetch_costs_time_or_the_rest(pair: Cluster) -> None:
    bodies = put_prefix(pair, 0, 7, MIB)
    client = pair.client(1)
    got: list[Fetched] = []
    thread = threading.Thread(target=lambda: got.append(client.fetch(keys(7), deadline_s=4)))
    thread.start()
    pair.until(lambda: pair.agents[1].transport.counters.read_bytes_received > 0)
    stopped = pair.agents.pop(0)
    pair.do(stopped.stop())
    thread.join(30)
    with got[0] as lease:
        assert [bytes(view) for view in lease.views] == bodies[: lease.count]
        assert lease.outcome in (Status.OK, Status.UNAVAILABLE, Status.DEADLINE)


def test_other_holder_takes_over_when_one_stops_mid_fetch(trio: Cluster) -> None:
    bodies = put_prefix(trio, 0, 7, MIB, 1)
    client = trio.client(2)
    got: list[Fetched] = []
    thread = threading.Thread(target=lambda: got.append(client.fetch(keys(7), deadline_s=15)))
    thread.start()
    trio.until(lambda: trio.agents[2].transport.counters.read_bytes_received > 0)
    trio.do(trio.agents.pop(0).stop())
    thread.join(30)
    with got[0] as lease:
        assert lease.outcome is Status.OK
        assert [bytes(view) for view in lease.views] == bodies


def test_silent_holder_is_a_miss_by_the_deadline(pair: Cluster) -> None:
    put_prefix(pair, 0, 1, 1000)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = "{}:{}".format(*listener.getsockname())
        pair.tell(nodes=(dataclasses.replace(pair.node(0), read_endpoint=endpoint),))
        started = time.monotonic()
        with pair.client(1).fetch([key(1)], deadline_s=0.5) as got:
            assert got.count == 0
            assert got.outcome in (Status.DEADLINE, Status.UNAVAILABLE)
        assert 0.4 < time.monotonic() - started < 1.5


def test_chunk_larger_than_the_room_is_pool_full_and_earlier_ones_are_delivered(pair: Cluster) -> None:
    put_prefix(pair, 0, 7, MIB)
    client = pair.client(1)
    for number in range(100, 105):
        client.put(key(number), None, bytes(MIB))
        client.pin([key(number)])
    with client.fetch(keys(7), deadline_s=10) as got:
        assert (got.count, got.outcome) == (2, Status.POOL_FULL)


def test_chunk_dropped_while_a_peer_reads_it_is_right_or_a_miss(pair: Cluster) -> None:
    bodies = put_prefix(pair, 0, 7, MIB)
    client, holder = pair.client(1), pair.client(0)
    got: list[Fetched] = []
    thread = threading.Thread(target=lambda: got.append(client.fetch(keys(7), deadline_s=10)))
    thread.start()
    pair.until(lambda: pair.agents[1].transport.counters.read_bytes_received > 0)
    holder.drop(keys(7))
    for number in range(50, 57):
        with suppress(PoolFullError):  # The bytes that the peer still reads are given to nobody else.
            holder.put(key(number), None, os.urandom(MIB))
    thread.join(30)
    with got[0] as lease:
        assert [bytes(view) for view in lease.views] == bodies[: lease.count]


def test_chunk_dropped_here_while_a_fetch_still_has_it_is_had_again(pair: Cluster) -> None:
    """The first fetch keeps the chunk's bytes until it ends; a second one that wants it gets them."""
    bodies = put_prefix(pair, 0, 2, 1000)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        silent = dataclasses.replace(
            pair.node(0), node=9, name="silent", read_endpoint="{}:{}".format(*listener.getsockname())
        )
        pair.tell(nodes=(silent,))
        pair.publish(2, 0, parent=1, holders=(9,))
        client, got = pair.client(1), []
        first = threading.Thread(target=lambda: got.append(client.fetch(keys(2), deadline_s=1.0)))
        first.start()
        pair.until(lambda: pair.agents[1].core.pool.find(key(1)) is not None)
        assert client.drop([key(1)]) == [True]
        assert pair.agents[1].core.pool.find(key(1)) is None
        with pair.client(1).fetch([key(1)], deadline_s=5) as again:
            assert (again.count, again.outcome) == (1, Status.OK)
            assert bytes(again.views[0]) == bodies[0]
        first.join(30)
    with got[0] as lease:
        assert [bytes(view) for view in lease.views] == bodies[:1]


def test_what_an_engine_puts_ends_a_fetch_that_does_not_come(pair: Cluster) -> None:
    """Its bytes are kept, and who waits for the holder has them at once."""
    (body,) = put_prefix(pair, 0, 1, MIB)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = "{}:{}".format(*listener.getsockname())
        pair.tell(nodes=(dataclasses.replace(pair.node(0), read_endpoint=endpoint),))
        core, got = pair.agents[1].core, []
        waiting = threading.Thread(target=lambda: got.append(pair.client(1).fetch([key(1)], deadline_s=20)))
        waiting.start()
        pair.until(lambda: core.fetches.under_way_count == 1)
        started = time.monotonic()
        assert pair.client(1).put(key(1), None, body) is PutOutcome.STORED
        waiting.join(30)
        assert time.monotonic() - started < 5
    with got[0] as lease:
        assert (lease.outcome, lease.sources, bytes(lease.views[0])) == (Status.OK, [ChunkSource.LOCAL], body)
    assert pair.client(1).contains([key(1)]) == [Where.LOCAL]


def test_client_that_dies_mid_fetch_leaves_nothing_behind(pair: Cluster) -> None:
    put_prefix(pair, 0, 7, MIB)
    attached = attach(pair.agents[1].config.api_socket)
    os.close(attached.memory)
    os.close(attached.region)
    body = messages.pack_fetch(keys(7), 10.0, {})
    core = pair.agents[1].core
    with attached.sock as engine:
        engine.sendall(messages.pack(messages.Kind.FETCH, 1, body, count=7))
        pair.until(lambda: core.fetches.under_way_count == 1 or bool(core.pool.ready_chunks()))
    pair.until(lambda: pair.agents[1].core.fetches.under_way_count == 0)
    pair.until(lambda: pair.agents[1].core.pool.pins_count == 0)


@pytest.mark.parametrize("seed", range(8))
def test_random_and_truncated_datagrams_are_dropped_and_counted(pair: Cluster, seed: int) -> None:
    chooser = random.Random(seed)
    bodies = put_prefix(pair, 0, 3, 50_000)
    target = format_address(pair.agents[1].facts.address)
    whole = Control(Op.NOTICE, key(1), segments=13, members=3).encode()
    sent = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as raw:
        raw.bind(("127.79.0.99", 0))
        for _ in range(200):
            choice = chooser.randrange(3)
            if choice == 0:
                packet = chooser.randbytes(chooser.randrange(0, 200))
            elif choice == 1:
                packet = whole[: chooser.randrange(0, 40)]
            else:
                broken = bytearray(whole)
                broken[chooser.randrange(40)] = chooser.randrange(256)
                packet = bytes(broken)
            raw.sendto(packet, (target, pair.control_port))
            raw.sendto(packet, ("239.75.86.1", pair.cast_port))
            sent += 1
        pair.until(
            lambda: (
                pair.agents[1].transport.counters.control_received
                + sum(
                    count
                    for reason, count in pair.agents[1].transport.counters.dropped.items()
                    if reason.startswith("control_")
                )
                >= sent
            )
        )
    with pair.client(1).fetch(keys(3), deadline_s=10) as got:
        assert [bytes(view) for view in got.views] == bodies
