"""Agents with a cold store: what leaves the pool comes back, here and elsewhere, and nothing waits for an outage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hostagent.agent import Agent
from hostagent.cold.cold_options import ColdConfig
from hostagent.cold.objects import object_name
from hostagent.core.events import ColdState
from kvclient.client import ChunkSource, Status, Where
from kvdaemon.errors import CannotRunError
from kvpolicy.value.costs import Tier
from tests.unit.hostagent.agent_harness import MIB, Cluster, cluster, key
from tests.unit.hostagent.cold_harness import content, silent_server

pytest.importorskip("opendal", reason="no opendal here: pip install 'kvcast[cold]'")

SIZE = 64 * 1024
POOL_BYTES = 2 * MIB
WAIT_S = 5.0
"""However slow this machine is at the moment, a look is answered by then."""
CHUNKS = 48
"""One and a half times what the pool holds."""


@pytest.fixture
def fs(tmp_path: Path) -> ColdConfig:
    return ColdConfig("fs", {"root": str(tmp_path / "store")}, lookup_wait_s=WAIT_S)


@pytest.fixture
def made(fs: ColdConfig) -> Iterator[Cluster]:
    with cluster(1, cold=fs, pool_bytes=POOL_BYTES) as made:
        until_on(made, 0)
        yield made


def until_on(made: Cluster, index: int) -> None:
    cold = made.agents[index].cold
    assert cold is not None
    made.until(lambda: cold.state is ColdState.ON)
    # However slow the store seems to be at the moment, computing is slower.
    core = made.agents[index].core
    made.call(lambda: core.gate.measured(Tier.RECOMPUTE, MIB, 1000.0, 1))


def written_behind(made: Cluster) -> list[int]:
    """Put more than the pool holds, in prefixes of four chunks; the numbers of what has left the pool since."""
    client, core = made.client(0), made.agents[0].core
    for number in range(CHUNKS):
        client.put(key(number), key(number - 1) if number % 4 else None, content(number, SIZE), namespace="m")
        # An engine computes for milliseconds between puts.
        if number >= 30:
            made.until(lambda: all(core.cold.knows(one) for one in core.pool.next_victims(8)))
    gone = [number for number in range(CHUNKS) if core.pool.find(key(number)) is None]
    assert gone
    assert all(core.cold.knows(key(number)) for number in gone)
    return gone


def test_what_the_pool_evicted_comes_back_from_the_store(made: Cluster) -> None:
    gone = written_behind(made)
    client = made.client(0)
    assert client.contains([key(gone[0])]) == [Where.REMOTE]
    for number in gone[:3]:
        with client.fetch([key(number)], deadline_s=10) as got:
            assert (got.outcome, list(got.sources)) == (Status.OK, [ChunkSource.COLD])
            assert bytes(got.views[0]) == content(number, SIZE)
    stats = client.stats()
    assert stats["cold_read_bytes_total"] == 3 * SIZE
    assert stats["cold_state{on}"] == 1
    assert stats["fetch_chunks_total{cold}"] == 3
    assert made.agents[0].health().facts["cold"] == {"state": "on", "reason": "", "service": "fs"}


def test_another_node_and_a_restarted_one_find_it_by_looking(made: Cluster, fs: ColdConfig) -> None:
    gone = written_behind(made)
    made.add(cold=fs, pool_bytes=POOL_BYTES)
    made.replace(0, cold=fs, pool_bytes=POOL_BYTES)
    for index in (0, 1):
        until_on(made, index)
        keys = [key(number) for number in gone[:4]]
        with made.client(index).fetch(keys, deadline_s=25) as got:
            assert [bytes(view) for view in got.views] == [content(number, SIZE) for number in gone[:4]]
            assert set(got.sources) == {ChunkSource.COLD}


def test_garbage_in_the_store_is_a_miss(made: Cluster, fs: ColdConfig) -> None:
    (number, *_) = written_behind(made)
    path = Path(fs.options["root"]) / object_name(key(number))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    client = made.client(0)
    for _ in range(2):
        with client.fetch([key(number)], deadline_s=5) as got:
            assert not got.views
    assert client.stats()["cold_damaged_total"] == 1


def test_a_dropped_chunk_leaves_the_store(made: Cluster, fs: ColdConfig) -> None:
    (number, *_) = written_behind(made)
    path = Path(fs.options["root"]) / object_name(key(number))
    assert path.exists()
    made.client(0).drop([key(number)])
    made.until(lambda: not path.exists())


def test_an_agent_whose_store_never_answers_works_as_without() -> None:
    with silent_server() as port:
        silent = ColdConfig("redis", {"endpoint": f"tcp://127.0.0.1:{port}"})
        with cluster(1, cold=silent) as made:
            client = made.client(0)
            client.put(key(1), None, content(1, SIZE))
            with client.fetch([key(1), key(2)], deadline_s=5) as got:
                assert (got.outcome, list(got.sources)) == (Status.NOT_FOUND, [ChunkSource.LOCAL])
            assert not made.agents[0].health().missing


def test_a_store_that_cannot_be_opened_is_refused_at_start(tmp_path: Path) -> None:
    with cluster(0) as made:
        agent = Agent(made.config(0, cold=ColdConfig("s3")))
        with pytest.raises(CannotRunError, match=r"cold\.options: s3"):
            made.do(agent.start())
