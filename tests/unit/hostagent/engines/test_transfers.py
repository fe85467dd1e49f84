"""A worker's copies against a real agent: right bytes in the right blocks, and failures that are told, not raised."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvclient.client import AgentClient, AgentUnavailableError
from kvclient.engines.core.requests import Load
from kvclient.engines.core.saves import Save
from kvclient.engines.core.states import StatePart
from kvclient.engines.link import AgentLink
from kvclient.engines.paged import Buffer, HostLayers, StateLayers
from kvclient.engines.transfers import CopyRules, LayerGate, TransferResults, Transfers
from tests.unit.hostagent.agent_harness import Cluster, key

BLOCKS_IN_CHUNK = 4
PAGES = (256, 64, 1000)
PATIENCE_S = 30.0
log = logging.getLogger("test")


@pytest.fixture
def link(cluster: Cluster) -> Iterator[AgentLink[AgentClient]]:
    made = AgentLink(AgentClient, cluster.agents[0].config.api_socket, log)
    yield made
    made.close()


def random_layers(seed: int) -> list[np.ndarray]:
    chance = np.random.default_rng(seed)
    return [chance.integers(0, 256, (32, size), dtype=np.uint8) for size in PAGES]


def transfers_of(
    link: AgentLink[AgentClient],
    layers: list[np.ndarray] | HostLayers,
    *,
    writes: bool = True,
    states: StateLayers | None = None,
) -> Transfers:
    return Transfers(
        link,
        [layers if isinstance(layers, HostLayers) else HostLayers(layers)],
        states,
        CopyRules(shards=(0,), writes=writes, blocks_in_chunk=BLOCKS_IN_CHUNK, deadline_s=5.0, threads=2),
        log,
        time.monotonic,
    )


def finish(transfers: Transfers, *, loads: int = 0, saves: int = 0) -> TransferResults:
    """What ended, once all of it has: at most one load."""
    if loads:
        transfers.await_load(PATIENCE_S)
    transfers.await_saves(PATIENCE_S)
    transfers.close()
    results = transfers.take_results()
    assert (len(results.loads), len(results.saves)) == (loads, saves)
    return results


def save(number: int, blocks: tuple[int, ...]) -> Save:
    return Save(number, (key(number),), (key(number - 1) if number > 1 else None,), number - 1, blocks)


def saved(link: AgentLink[AgentClient], layers: list[np.ndarray], *saves: Save) -> None:
    transfers = transfers_of(link, layers)
    transfers.save(saves, "test")
    results = finish(transfers, saves=len(saves))
    assert all(results.saves.values())


def load(count: int, blocks: tuple[int, ...], skip: int = 0) -> Load:
    return Load("r", tuple((key(number),) for number in range(1, count + 1)), skip, blocks)


@pytest.mark.parametrize("layerwise", [False, True])
@pytest.mark.parametrize("skip", [0, 3])
def test_saved_blocks_are_loaded_elsewhere(link: AgentLink[AgentClient], layerwise: bool, skip: int) -> None:
    source, target = random_layers(1), random_layers(2)
    before = [layer.copy() for layer in target]
    saved(link, source, save(1, (3, 1, 4, 30)), save(2, (5, 9, 2, 6)))
    gate = LayerGate(len(PAGES)) if layerwise else None
    if gate is not None:
        gate.expect()
    blocks = (20, 11, 12, 13, 14, 15, 16, 17)[skip:]
    transfers = transfers_of(link, target)
    transfers.load(load(2, blocks, skip), gate)
    if gate is not None:
        for layer in range(len(PAGES)):
            gate.wait(layer)
        gate.wait_all()
    results = finish(transfers, loads=1)
    assert (results.loads, results.failed_blocks) == ({"r": True}, set())
    came_from = (3, 1, 4, 30, 5, 9, 2, 6)[skip:]
    for new, old, there in zip(target, before, source, strict=True):
        assert (new[list(blocks)] == there[list(came_from)]).all()
        untouched = [block for block in range(32) if block not in blocks]
        assert (new[untouched] == old[untouched]).all()


def test_what_is_missing_is_told_block_by_block(link: AgentLink[AgentClient]) -> None:
    layers = random_layers(1)
    saved(link, layers, save(1, (0, 1, 2, 3)))
    transfers = transfers_of(link, layers)
    transfers.load(load(2, (10, 11, 12, 13, 14, 15, 16)[:7], skip=1))
    results = finish(transfers, loads=1)
    assert results.loads == {"r": False}
    assert results.failed_blocks == {13, 14, 15, 16}
    figures = transfers.take_figures()
    assert (figures.loaded_chunks, figures.failed_blocks) == (1, 4)


def test_chunks_of_another_size_are_not_loaded(cluster: Cluster, link: AgentLink[AgentClient]) -> None:
    cluster.client(0).put(key(1), None, b"x" * 100)
    transfers = transfers_of(link, random_layers(1))
    transfers.load(load(1, (1, 2, 3, 4)))
    results = finish(transfers, loads=1)
    assert results.failed_blocks == {1, 2, 3, 4}


@pytest.mark.parametrize("layerwise", [False, True])
def test_without_an_agent_everything_fails_at_once(tmp_path: Path, layerwise: bool) -> None:
    link = AgentLink(AgentClient, str(tmp_path / "nobody.sock"), log)
    gate = LayerGate(len(PAGES)) if layerwise else None
    if gate is not None:
        gate.expect()
    transfers = transfers_of(link, random_layers(1))
    transfers.load(load(1, (1, 2, 3, 4)), gate)
    transfers.save([save(1, (1, 2, 3, 4))], "test")
    results = finish(transfers, loads=1, saves=1)
    assert (results.loads, results.saves) == ({"r": False}, {1: False})
    assert transfers.take_figures().saves_failed == {"away": 1}
    assert link.outages_count == 1
    link.close()


def test_a_lease_lost_during_the_copy_spoils_it(link: AgentLink[AgentClient]) -> None:
    layers = random_layers(1)
    saved(link, layers, save(1, (0, 1, 2, 3)))
    client = link.client
    assert client is not None

    class Interrupted(HostLayers):
        def scatter(self, *arguments: object, **named: object) -> None:
            super().scatter(*arguments, **named)  # type: ignore[arg-type]
            client.close()

    transfers = transfers_of(link, Interrupted(layers))
    transfers.load(load(1, (4, 5, 6, 7)))
    results = finish(transfers, loads=1)
    assert results.failed_blocks == {4, 5, 6, 7}


def test_a_bug_at_the_beginning_is_told_not_raised(link: AgentLink[AgentClient]) -> None:
    class Broken(HostLayers):
        def mark(self) -> None:
            raise ZeroDivisionError

    transfers = transfers_of(link, Broken(random_layers(1)))
    gate = LayerGate(len(PAGES))
    gate.expect()
    transfers.load(load(1, (1, 2, 3, 4)), gate)
    gate.wait_all()
    transfers.save([save(1, (1, 2, 3, 4)), save(2, (5, 6, 7, 8))], "test")
    transfers.save([], "test")
    results = finish(transfers, loads=1, saves=2)
    assert (results.loads, results.failed_blocks, results.saves) == ({"r": False}, {1, 2, 3, 4}, {1: False, 2: False})
    figures = transfers.take_figures()
    assert (figures.errors_count, figures.saves_failed) == (2, {"error": 2})


def test_what_an_abandoned_save_reads_afterwards_is_no_chunk(cluster: Cluster, link: AgentLink[AgentClient]) -> None:
    """The engine gives its blocks back and computes on: what is in them may be anything."""

    class Overtaken(HostLayers):
        def gather(self, *arguments: object, **named: object) -> None:
            transfers.abandon_saves()
            super().gather(*arguments, **named)  # type: ignore[arg-type]

    transfers = transfers_of(link, Overtaken(random_layers(1)))
    transfers.save([save(1, (0, 1, 2, 3)), save(2, (4, 5, 6, 7))], "test")
    assert finish(transfers, saves=2).saves == {1: False, 2: False}
    assert transfers.take_figures().saves_failed == {"refused": 2}
    assert cluster.call(lambda: [cluster.agents[0].core.pool.find(key(number)) for number in (1, 2)]) == [None, None]
    transfers = transfers_of(link, random_layers(1))
    transfers.abandon_saves()
    transfers.save([save(1, (0, 1, 2, 3))], "test")
    assert finish(transfers, saves=1).saves == {1: True}


def test_a_full_pool_is_told(link: AgentLink[AgentClient]) -> None:
    layers = [np.zeros((32, 65536), dtype=np.uint8)]
    client = link.client
    assert client is not None
    keys = [key(100 + number) for number in range(4)]
    for held in keys:
        client.put(held, None, bytes(240 * 1024))
    client.pin(keys)
    transfers = transfers_of(link, layers)
    transfers.save([save(1, (0, 1, 2, 3))], "test")
    assert finish(transfers, saves=1).saves == {1: False}
    assert transfers.take_figures().saves_failed == {"pool_full": 1}


def test_who_does_not_write_only_answers(cluster: Cluster, link: AgentLink[AgentClient]) -> None:
    transfers = transfers_of(link, random_layers(1), writes=False)
    transfers.save([save(1, (0, 1, 2, 3))], "test")
    assert finish(transfers, saves=1).saves == {1: True}
    assert cluster.call(lambda: cluster.agents[0].core.pool.find(key(1))) is None


def test_an_agent_that_comes_later_is_found(cluster: Cluster, tmp_path: Path) -> None:
    path = str(tmp_path / "later.sock")
    attempts = []

    def connect(target: str, *, answer_timeout_s: float) -> AgentClient:
        attempts.append((target, answer_timeout_s))
        if len(attempts) < 3:
            raise AgentUnavailableError("not yet")
        return cluster.client(0)

    link = AgentLink(connect, path, log, answer_timeout_s=7.0)
    assert link.away
    cluster.until(lambda: not link.away)
    assert attempts == [(path, 7.0)] * 3
    link.close()


def state_save(number: int, key_number: int, blocks: tuple[int, ...]) -> Save:
    return Save(number, (key(key_number),), (key(1),), 0, blocks, is_state=True)


def test_a_state_is_saved_and_loaded_beside_the_chunks_before_it(link: AgentLink[AgentClient]) -> None:
    chance = np.random.default_rng(5)
    layers, states = random_layers(1), [chance.integers(0, 256, (8, size), dtype=np.uint8) for size in (48, 7)]
    groups = StateLayers([HostLayers(states[:1]), HostLayers(states[1:])])
    transfers = transfers_of(link, layers, states=groups)
    transfers.save([save(1, (3, 1, 4, 30)), state_save(2, 100, (6, 2))], "test")
    results = finish(transfers, saves=2)
    assert all(results.saves.values())
    kept = [layer.copy() for layer in states]
    for layer in (*layers, *states):
        layer[:3] = 0
    transfers = transfers_of(link, layers, states=groups)
    transfers.load(Load("r", ((key(1),),), 0, (20, 11, 12, 13), state=StatePart((key(100),), (0, 1))))
    results = finish(transfers, loads=1)
    assert (results.loads, results.failed_blocks) == ({"r": True}, set())
    assert (states[0][0] == kept[0][6]).all()
    assert (states[1][1] == kept[1][2]).all()
    assert not states[0][1:3].any()
    assert transfers.take_figures().loaded_bytes == 4 * sum(PAGES) + 48 + 7


@pytest.mark.parametrize("there", ["nothing", "another size"])
def test_without_the_state_nothing_of_a_load_counts(cluster: Cluster, link: AgentLink[AgentClient], there: str) -> None:
    layers = random_layers(1)
    saved(link, layers, save(1, (0, 1, 2, 3)))
    if there == "another size":
        cluster.client(0).put(key(100), key(1), b"x" * 49)
    state = np.zeros((8, 48), np.uint8)
    transfers = transfers_of(link, layers, states=StateLayers([HostLayers([state])]))
    transfers.load(Load("r", ((key(1),),), 0, (10, 11, 12, 13), state=StatePart((key(100),), (5,))))
    results = finish(transfers, loads=1)
    assert (results.loads, results.failed_blocks) == ({"r": False}, {10, 11, 12, 13})
    assert not state.any()


def test_whoever_takes_the_memory_away_waits_for_copies(link: AgentLink[AgentClient]) -> None:
    layers = random_layers(21)
    begun, goes_on = threading.Event(), threading.Event()

    class Slow(HostLayers):
        """Copies when it is told to."""

        def gather(self, block_ids: Sequence[int], chunk: Buffer, after: Any = None) -> None:
            """See PagedLayers."""
            begun.set()
            assert goes_on.wait(PATIENCE_S)
            super().gather(block_ids, chunk, after)

    transfers = transfers_of(link, Slow(layers))
    assert transfers.await_copies(0)
    transfers.save([save(91, (1, 2, 3, 4))], "test")
    assert begun.wait(PATIENCE_S)
    assert not transfers.await_copies(0)
    goes_on.set()
    assert transfers.await_copies(PATIENCE_S)
    transfers.load(Load("r", ((key(91),),), 0, (5, 6, 7, 8)))
    assert transfers.await_copies(PATIENCE_S)
    assert finish(transfers, loads=1, saves=1).loads == {"r": True}
