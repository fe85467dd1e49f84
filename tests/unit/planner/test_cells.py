"""Clusters beyond one switch: who goes to which cell, and the figures of all cells together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cells import cell_sizes, divide, replay_cells
from planner.cluster.options import Cluster, Scenario, Sharing
from planner.cluster.replay import Replay
from planner.cluster.requests import Request, key_of
from planner.hardware import engine_of, find_model

CLUSTER = Cluster(engine_of(find_model("llama-3-8b")), nodes=130)


def request(at_s: float, *blocks: int) -> Request:
    return Request(at_s, 512 * len(blocks) + 1, tuple(key_of(block) for block in blocks))


def sessions(count: int, turns: int) -> list[Request]:
    """They share a system prompt, and each its own first block; a new turn every 3 s."""
    return [
        request(3.0 * turn + 0.02 * session, 0, *(1000 * session + place + 1 for place in range(8 + turn)))
        for turn in range(turns)
        for session in range(count)
    ]


@pytest.mark.parametrize(
    ("nodes", "sizes"), [(2, [2]), (64, [64]), (65, [33, 32]), (130, [44, 43, 43]), (1024, [64] * 16)]
)
def test_cells_are_as_few_and_as_even_as_switches_allow(nodes: int, sizes: list[int]) -> None:
    assert cell_sizes(nodes) == sizes


def test_sessions_stay_in_their_cell_and_cells_get_the_same_work() -> None:
    requests = sessions(12, 3)
    cells = divide(requests, [44, 43, 43], by_session=True)
    assert sorted(one.at_s for cell in cells for one in cell) == [one.at_s for one in requests]
    homes = [{one.keys[1] for one in cell} for cell in cells]
    assert [len(home) for home in homes] == [4, 4, 4]
    assert len(set.union(*homes)) == 12, "nobody has two homes"
    anywhere = divide(requests, [44, 43, 43], by_session=False)
    assert [len(cell) for cell in anywhere] == [12, 12, 12]


def test_one_cell_is_what_a_replay_says() -> None:
    cluster = replace(CLUSTER, nodes=4)
    requests = sessions(4, 2)
    scenario = Scenario(cluster, Sharing.CAST)
    figures, same = Replay(scenario).run(requests), replay_cells(scenario, requests)
    assert replace(same, core_cpu_s=0) == replace(figures, core_cpu_s=0)


def test_a_pool_finds_what_its_own_cell_has() -> None:
    requests = sessions(10, 4)
    here, anywhere, alone = (
        replay_cells(Scenario(replace(CLUSTER, sessions_in_cells=by_session), sharing), requests)
        for by_session, sharing in ((True, Sharing.CAST), (False, Sharing.CAST), (True, Sharing.NONE))
    )
    assert here.requests == anywhere.requests == alone.requests == len(requests)
    assert here.hit > anywhere.hit
    assert here.ttft_mean_s < alone.ttft_mean_s
    assert sum(here.hits.values()) == pytest.approx(1.0)
