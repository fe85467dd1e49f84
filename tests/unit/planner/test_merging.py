"""Serial GPUs and merging of what is being computed: rollouts win, and a quiet cluster does not lose."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cluster.figures import ReplayFigures
from planner.cluster.options import Cluster, Merging, Scenario, Sharing
from planner.cluster.replay import Replay
from planner.cluster.requests import requests_of
from planner.cluster.serial import computed_chunks
from planner.hardware import engine_of, find_model
from planner.traces import TraceRequest

ENGINE = engine_of(find_model("llama-3-8b"))
CHUNK = ENGINE.model.chunk_bytes(512)
CLUSTER = Cluster(ENGINE, nodes=8, local_dram_bytes=2000 * CHUNK)


def groups(count: int, samples: int, blocks: int, every_s: float, within_s: float) -> list[TraceRequest]:
    """Groups of samples of one prompt each, which nobody has; a group's samples come evenly `within_s`."""
    return [
        TraceRequest(
            (group * every_s + sample * within_s / samples) * 1000,
            512 * blocks,
            1,
            tuple(range(group * blocks, (group + 1) * blocks)),
        )
        for group in range(count)
        for sample in range(samples)
    ]


def run(trace: list[TraceRequest], sharing: Sharing, merging: Merging = Merging.OFF) -> tuple[Replay, ReplayFigures]:
    made = Replay(Scenario(CLUSTER, sharing, look_up_again=True, merging=merging))
    return made, made.run(requests_of(sorted(trace, key=lambda one: one.arrival_ms)))


ROLLOUTS = groups(count=10, samples=16, blocks=24, every_s=0.4, within_s=1.0)


def test_merging_wins_on_rollouts_over_loaded_nodes() -> None:
    none = run(ROLLOUTS, Sharing.NONE)[1].ttft_mean_s
    alone, casts = run(ROLLOUTS, Sharing.CAST)
    cast = casts.ttft_mean_s
    whole = run(ROLLOUTS, Sharing.CAST, Merging.WHOLE)[1].ttft_mean_s
    replay, figures = run(ROLLOUTS, Sharing.CAST, Merging.CHUNKS)
    assert figures.ttft_mean_s < 0.75 * cast < 0.75 * none
    assert figures.ttft_mean_s < 1.05 * whole
    least = len({key for request in requests_of(ROLLOUTS) for key in request.keys})
    assert least < computed_chunks(replay.gpus) < 0.6 * computed_chunks(alone.gpus)
    assert sum(agent.core.waits.counts.begun for agent in replay.agents) > 20


def test_what_is_computed_is_put_chunk_by_chunk() -> None:
    """The second node gets the first one's chunks while these are computed, and has all of them soon after."""
    trace = [TraceRequest(0, 512 * 24, 1, tuple(range(24))), TraceRequest(20, 512 * 24, 1, tuple(range(24)))]
    replay, figures = run(trace, Sharing.CAST, Merging.CHUNKS)
    alone_s = ENGINE.prefill_s(0, 512 * 24) + ENGINE.step_s
    assert figures.ttft_p99_s < 1.15 * alone_s
    assert sum(agent.core.claims.counts.kept for agent in replay.agents) >= 24
    assert not any(agent.core.claims.counts.ended for agent in replay.agents)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_quiet_cluster_does_not_get_slower(seed: int) -> None:
    trace = groups(count=12, samples=2, blocks=16, every_s=4.0, within_s=0.2 * seed)
    cast = run(trace, Sharing.CAST)[1]
    merged = run(trace, Sharing.CAST, Merging.CHUNKS)[1]
    assert merged.ttft_mean_s <= 1.02 * cast.ttft_mean_s
    assert merged.ttft_p99_s <= 1.02 * cast.ttft_p99_s


def test_without_looking_again_loaded_nodes_compute_more() -> None:
    once = Replay(Scenario(CLUSTER, Sharing.CAST)).run(requests_of(ROLLOUTS))
    assert once.ttft_mean_s > run(ROLLOUTS, Sharing.CAST)[1].ttft_mean_s


def test_the_same_scenario_gives_the_same_figures() -> None:
    first, second = (run(ROLLOUTS[:48], Sharing.CAST, Merging.CHUNKS)[1] for _ in range(2))
    assert replace(first, core_cpu_s=0.0) == replace(second, core_cpu_s=0.0)
