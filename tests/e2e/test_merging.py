"""What one node's engine computes while engines on other nodes wait for it: real agents, controller and switch."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pytest

from bmv2_testbed import client
from bmv2_testbed.client import Testbed
from bmv2_testbed.content import Prefix
from bmv2_testbed.spec import TestbedSpec
from kvclient.client import AgentClient, FetchStream, Status, Where
from tests.leftovers import leftovers

pytestmark = pytest.mark.root

DEADLINE_S = 20.0
CHUNK_BYTES = 256 * 1024
HOSTS = 3


@pytest.fixture(scope="module")
def testbed() -> Iterator[Testbed]:
    with client.running(TestbedSpec(hosts=HOSTS, rate_bit_s=200_000_000, pool_bytes=32 * 2**20)) as running:
        yield running


@pytest.fixture
def engines(testbed: Testbed) -> Iterator[list[AgentClient]]:
    """One on each node."""
    made = [AgentClient(testbed.directory / f"h{host}.sock") for host in range(HOSTS)]
    yield made
    for one in made:
        one.close()


def prefix(seed: int, chunks: int = 6) -> Prefix:
    return Prefix(seed=seed, size_bytes=chunks * CHUNK_BYTES, chunk_bytes=CHUNK_BYTES)


def contents(number: int) -> bytes:
    return bytes([number + 1]) * CHUNK_BYTES


def put(engine: AgentClient, keys: Sequence[bytes], place: int) -> None:
    engine.put(keys[place], keys[place - 1] if place else None, contents(place))


def await_place(engine: AgentClient, keys: Sequence[bytes], place: Where) -> None:
    until_s = time.monotonic() + DEADLINE_S
    while set(engine.contains(keys)) != {place}:
        assert time.monotonic() < until_s, f"not {place}: {engine.contains(keys)}"


def waiting(engines: Sequence[AgentClient], keys: Sequence[bytes], compute_s: float) -> list[FetchStream]:
    """All of them ask, and all of their agents have begun to wait."""
    for engine in engines:
        await_place(engine, keys, Where.COMPUTING)
    begun = [engine.stats()["waits_total"] for engine in engines]
    fetches = [engine.fetch_stream(keys, deadline_s=DEADLINE_S, recompute_s=compute_s) for engine in engines]
    assert [engine.stats()["waits_total"] for engine in engines] == [count + 1 for count in begun]
    return fetches


def whole(fetch: FetchStream) -> FetchStream:
    """Wait until nothing more is to come."""
    for _ in fetch:
        continue
    return fetch


def right(got: FetchStream) -> bool:
    return all(bytes(view) == contents(place) for place, view in enumerate(got.views))


def test_chunks_reach_those_who_wait_as_they_are_computed(engines: list[AgentClient]) -> None:
    keys = prefix(1).chunk_keys()
    engines[0].claim(keys, CHUNK_BYTES, [10.0] * len(keys))
    fetches = waiting(engines[1:], keys, compute_s=60.0)
    for place in range(len(keys)):
        put(engines[0], keys, place)
        await_place(engines[1], [keys[place]], Where.LOCAL)  # before the next one is computed
    for fetch in fetches:
        with whole(fetch) as got:
            assert got.outcome is Status.OK
            assert right(got)


def test_a_second_engine_on_the_node_waits_for_the_first(testbed: Testbed, engines: list[AgentClient]) -> None:
    keys = prefix(2).chunk_keys()
    with AgentClient(testbed.directory / "h0.sock") as second:
        engines[0].claim(keys, CHUNK_BYTES, [10.0] * len(keys))
        (fetch,) = waiting([second], keys, compute_s=60.0)
        for place in range(len(keys)):
            put(engines[0], keys, place)
        with whole(fetch) as got:
            assert got.outcome is Status.OK
            assert right(got)
            assert {source.name for source in got.sources} == {"LOCAL"}


@pytest.mark.parametrize("how", ["withdraws", "dies"])
def test_an_engine_that_ends_frees_those_who_wait(how: str, testbed: Testbed, engines: list[AgentClient]) -> None:
    keys = prefix(3 + (how == "dies")).chunk_keys()
    computing = AgentClient(testbed.directory / "h0.sock")
    computing.claim(keys, CHUNK_BYTES, [30.0] * len(keys))
    fetches = waiting(engines[1:], keys, compute_s=60.0)
    put(computing, keys, 0)
    for engine in engines[1:]:
        await_place(engine, keys[:1], Where.LOCAL)
    if how == "withdraws":
        computing.disclaim()
    else:
        computing.close()
    for fetch in fetches:
        with whole(fetch) as got:
            assert got.outcome is Status.ABANDONED
            assert got.count == 1
            assert right(got)
    computing.close()


def test_expected_chunks_are_there_when_their_prefill_begins_later(engines: list[AgentClient]) -> None:
    keys = prefix(5).chunk_keys()
    fetch = engines[1].fetch_stream(keys, deadline_s=DEADLINE_S, expected_s=DEADLINE_S)
    assert engines[1].contains(keys[:1]) == [Where.NOWHERE]
    for place in range(len(keys)):
        put(engines[0], keys, place)
    with whole(fetch) as got:
        assert got.outcome is Status.OK
        assert right(got)


def test_kill_9_of_the_agent_that_computes_frees_those_who_wait(testbed: Testbed, engines: list[AgentClient]) -> None:
    keys = prefix(6).chunk_keys()
    engines[0].claim(keys, CHUNK_BYTES, [30.0] * len(keys))
    fetches = waiting(engines[1:], keys, compute_s=60.0)
    testbed.kill("agent0")
    for fetch in fetches:
        with whole(fetch) as got:
            assert got.outcome is Status.ABANDONED
            assert not got.count
    testbed.restart("agent0")
    testbed.await_ready("agent0")
    testbed.await_cluster()


def test_nothing_is_left(testbed: Testbed) -> None:
    assert leftovers(testbed) == []
