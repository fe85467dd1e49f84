"""Replays: clusters small enough to follow by hand, conservation, determinism, a small trace that stays as it is."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.cluster.figures import ReplayFigures
from planner.cluster.options import Cluster, Routing, Scenario, Sharing
from planner.cluster.replay import Replay
from planner.cluster.requests import key_of, requests_of
from planner.hardware import engine_of, find_model
from planner.traces import TraceRequest, dequantise, read_trace
from planner.traces.catalog import CARRIED

ENGINE = engine_of(find_model("llama-3-8b"))
CHUNK = ENGINE.model.chunk_bytes(512)
CLUSTER = Cluster(ENGINE, nodes=4, local_dram_bytes=200 * CHUNK, switch_bytes=40 * CHUNK)
GOLDEN = Path(__file__).with_name("golden_chat_small.json")


def replay(
    requests: list[TraceRequest], sharing: Sharing, cluster: Cluster = CLUSTER, speed: float = 1.0
) -> ReplayFigures:
    return Replay(Scenario(cluster, sharing, speed)).run(requests_of(requests, speed))


def request(at_s: float, *blocks: int) -> TraceRequest:
    return TraceRequest(at_s * 1000, 512 * len(blocks), 1, blocks)


def prompt(first: int, blocks: int) -> tuple[int, ...]:
    return tuple(range(first, first + blocks))


def test_without_a_pool_every_node_computes_for_itself() -> None:
    figures = replay([request(0, *prompt(0, 4)), request(10, *prompt(0, 4))], Sharing.NONE)
    assert figures.hits["computed"] == 1.0
    assert figures.prefill_s == pytest.approx(2 * ENGINE.prefill_s(0, 2048))
    assert figures.management.messages == 0


def test_a_pool_spares_the_second_node_the_computation() -> None:
    figures = replay([request(0, *prompt(0, 4)), request(10, *prompt(0, 4))], Sharing.UNICAST)
    # The last token of a prompt is always computed.
    assert figures.hits["holder"] == pytest.approx(2047 / 4096)
    assert figures.fetches == 1
    assert figures.uplink_bytes == pytest.approx(4 * CHUNK * 1.0074, rel=1e-3)
    assert figures.fetch_p50_s == pytest.approx(4 * CHUNK * 1.0074 / 12.5e9 + CHUNK / 10e9, rel=0.1)
    assert figures.management.messages > 0


def test_a_node_keeps_what_it_computed_and_what_it_fetched() -> None:
    cluster = replace(CLUSTER, nodes=2)
    requests = [request(0, *prompt(0, 4)), request(10, *prompt(0, 4)), request(20, *prompt(0, 4))]
    requests.append(request(30, *prompt(0, 4)))
    figures = replay(requests, Sharing.UNICAST, cluster)
    assert figures.hits["local"] == pytest.approx(2 * 2047 / 8192)
    assert figures.fetches == 1


def burst(nodes: int, blocks: int = 16) -> list[TraceRequest]:
    """One node computes a prompt, later all others ask for it within a millisecond."""
    wanted = prompt(0, blocks)
    return [request(0, *wanted)] + [request(30 + 1e-4 * node, *wanted) for node in range(1, nodes)]


def test_in_a_burst_unicast_shares_the_uplink_and_a_cast_does_not() -> None:
    cluster = replace(CLUSTER, nodes=8)
    unicast, cast = (replay(burst(8), sharing, cluster) for sharing in (Sharing.UNICAST, Sharing.CAST))
    assert cast.hits["cast"] > 0.8
    assert cast.fetch_p99_s < unicast.fetch_p99_s / 2
    assert cast.uplink_bytes < 1.1 * 16 * CHUNK
    assert cast.ttft_mean_s < unicast.ttft_mean_s


def test_copies_serve_later_readers_where_they_may() -> None:
    cluster = replace(CLUSTER, nodes=6)
    requests = burst(3) + [request(60, *prompt(0, 16)) for _ in range(3)]
    busiest = {}
    for sharing in (Sharing.UNICAST, Sharing.REPLICAS, Sharing.RELAY):
        busiest[sharing] = replay(requests, sharing, cluster).fetch_p99_s
    assert busiest[Sharing.RELAY] < busiest[Sharing.UNICAST]
    assert busiest[Sharing.REPLICAS] < busiest[Sharing.UNICAST]


def test_the_switch_serves_what_is_asked_for_again_and_again() -> None:
    cluster = replace(CLUSTER, nodes=8, local_dram_bytes=40 * CHUNK)
    requests = []
    for round_ in range(8):
        requests += [request(20 * round_ + 1e-4 * node, *prompt(0, 4)) for node in range(8)]
        # Node 0 keeps its copy; the others need their room for something else in between.
        requests += [
            request(20 * round_ + 5 + node, *prompt(1000 * (round_ * 8 + node + 1), 38 if node else 1))
            for node in range(8)
        ]
    figures = replay(requests, Sharing.CAST_SWITCH, cluster)
    assert figures.hits["switch"] > 0
    assert figures.management.switch_updates > 0


def test_over_a_slow_link_the_gate_leaves_it_to_the_engine() -> None:
    figures = replay(burst(4), Sharing.CAST, replace(CLUSTER, link_rate=0.5e9))
    assert figures.fetches == 0
    assert figures.refused > 0.5
    assert figures.hits["computed"] == 1.0


def test_routing_by_prefix_finds_the_node_that_has_it() -> None:
    requests = [request(10 * turn, *prompt(0, 4 + turn)) for turn in range(6)]
    scattered = replay(requests, Sharing.NONE)
    together = replay(requests, Sharing.NONE, replace(CLUSTER, routing=Routing.PREFIX))
    assert together.hits["local"] > scattered.hits["local"]


def test_a_short_prefix_that_all_prompts_share_does_not_draw_them_to_one_node() -> None:
    """The first block of eight: far from half of the prompt. The rest is each prompt's own."""
    requests = [request(3.0 * turn, 0, *prompt(100 * (turn + 1), 7)) for turn in range(8)]
    cluster = replace(CLUSTER, routing=Routing.PREFIX)
    replayed = Replay(Scenario(cluster, Sharing.NONE))
    replayed.run(requests_of(requests))
    served = [sum(agent.find(key_of(100 * (turn + 1))) is not None for turn in range(8)) for agent in replayed.agents]
    assert served == [2, 2, 2, 2]


@pytest.fixture(scope="module")
def chat() -> list[TraceRequest]:
    return read_trace(CARRIED / "chat_small.jsonl").requests[:120]


@pytest.fixture(scope="module")
def replayed(chat: list[TraceRequest]) -> Callable[[Sharing], ReplayFigures]:
    """What comes of it, replayed once."""
    return functools.cache(lambda sharing: replay(chat, sharing))


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items() if name != "core_cpu_s"}
    return value


@pytest.mark.parametrize("sharing", Sharing)
def test_every_token_is_accounted_for_and_the_same_comes_out_again(
    sharing: Sharing, chat: list[TraceRequest], replayed: Callable[[Sharing], ReplayFigures]
) -> None:
    first, second = replayed(sharing), replay(chat, sharing)
    assert rounded(first.to_json()) == rounded(second.to_json())
    assert sum(first.hits.values()) == pytest.approx(1.0)
    assert all(-1e-9 <= share <= 1 for share in first.hits.values())
    assert first.tokens == sum(one.input_tokens for one in chat)
    assert first.uplink_peak <= 1 + 1e-6


def test_nothing_stays_pinned_and_nothing_under_way(chat: list[TraceRequest]) -> None:
    run = Replay(Scenario(CLUSTER, Sharing.CAST_SWITCH))
    run.run(requests_of(chat))
    while not run.delivery.idle:
        run.step()
    assert [agent.core.pool.pins_count for agent in run.agents] == [0] * len(run.agents)
    assert [agent.core.pool.usage().filling_bytes for agent in run.agents] == [0] * len(run.agents)


def test_the_seed_decides_on_arrivals_within_a_tick() -> None:
    ticks = [request(3.0 * (index // 4), index) for index in range(40)]
    one, same, other = (dequantise(ticks, seed) for seed in (1, 1, 2))
    assert one == same != other


def test_small_trace_as_before(replayed: Callable[[Sharing], ReplayFigures]) -> None:
    """Whoever changes policies, protocol or model sees here what that does. To accept: delete the file, run again."""
    found = {sharing.value: rounded(replayed(sharing).to_json()) for sharing in Sharing}
    for figures in found.values():
        del figures["management"]
    if not GOLDEN.exists():
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
        pytest.fail(f"{GOLDEN.name} was missing and has been written: look at it, commit it")
    golden = json.loads(GOLDEN.read_text())
    assert found.keys() == golden.keys()
    for name, figures in found.items():
        for figure, value in figures.items():
            if isinstance(value, float | dict):
                assert value == pytest.approx(golden[name][figure], rel=1e-3, abs=1e-6), (name, figure)
            else:
                assert value == golden[name][figure], (name, figure)


def test_what_dram_loses_the_disk_gives_back() -> None:
    """One node in turn asks for more than its DRAM holds, twice; with a disk the second round is not computed."""
    cluster = replace(CLUSTER, nodes=2, local_dram_bytes=12 * CHUNK, routing=Routing.PREFIX)
    rounds = [request(20.0 * turn, *prompt(100 * (turn % 8), 8)) for turn in range(16)]
    for sharing in (Sharing.NONE, Sharing.CAST):
        without = replay(rounds, sharing, cluster)
        with_disk = replay(rounds, sharing, replace(cluster, local_disk_bytes=400 * CHUNK))
        assert without.hits["disk"] == 0.0
        assert with_disk.hits["disk"] > 0.1
        assert with_disk.hit > without.hit
        assert with_disk.ttft_mean_s < without.ttft_mean_s


def test_a_chunk_on_another_nodes_disk_comes_by_way_of_its_dram() -> None:
    cluster = replace(CLUSTER, nodes=2, local_dram_bytes=24 * CHUNK, local_disk_bytes=400 * CHUNK)
    # Round robin: node 0 computes, and is then given other things until DRAM has forgotten; node 1 is idle between.
    requests = [request(0, *prompt(0, 8)), request(10, *prompt(5000, 1))]
    for turn in range(1, 7):
        requests += [request(20.0 * turn, *prompt(100 * turn, 8)), request(20.0 * turn + 10, *prompt(5000, 1))]
    requests += [request(200, *prompt(5000, 1)), request(210, *prompt(0, 8))]
    run = Replay(Scenario(cluster, Sharing.UNICAST))
    figures = run.run(requests_of(requests))
    assert run.agents[0].disk is not None
    assert run.agents[0].core.gate.counts.decisions.total() > 0
    assert figures.hits["holder"] > 0, "node 1 got what only the disk of node 0 had"
    run.clock.advance(run.clock.now_s + 60)  # what is being written is pinned
    assert [agent.core.pool.pins_count for agent in run.agents] == [0, 0]


def test_a_slow_disk_is_left_alone() -> None:
    cluster = replace(CLUSTER, nodes=2, local_dram_bytes=24 * CHUNK, routing=Routing.PREFIX)
    rounds = [request(20.0 * turn, *prompt(100 * (turn % 8), 8)) for turn in range(16)]
    figures = replay(rounds, Sharing.NONE, replace(cluster, local_disk_bytes=400 * CHUNK, disk_rate=0.05e9))
    assert figures.hits["disk"] == 0.0
    assert figures.refused > 0.1


@pytest.mark.parametrize("gbit", [25, 100])
def test_the_switchs_cache_makes_chat_no_slower(gbit: int, chat: list[TraceRequest]) -> None:
    """Its fills share the holders' uplinks; where they bring nothing, none are made."""
    cluster = replace(CLUSTER, nodes=8, link_rate=gbit / 8 * 1e9)
    without, with_cache = (replay(chat, sharing, cluster) for sharing in (Sharing.CAST, Sharing.CAST_SWITCH))
    assert with_cache.ttft_mean_s <= 1.01 * without.ttft_mean_s


@pytest.mark.parametrize("gbit", [25, 50, 100])
def test_unicast_readers_of_one_holder_are_never_much_slower_than_without_a_pool(gbit: int) -> None:
    """A document of 20,000 tokens comes to one node, and two questions to each of eight within 0.2 s."""
    cluster = replace(CLUSTER, nodes=8, link_rate=gbit / 8 * 1e9, local_dram_bytes=4000 * CHUNK)
    requests = []
    for turn in range(2):
        document = prompt(1000 * turn, 40)
        requests.append(request(4.0 * turn, *document))
        requests += [request(4.0 * turn + 2.5 + 0.01 * one, *document, 10**6 + 100 * turn + one) for one in range(16)]
    without, unicast, cast = (replay(requests, one, cluster) for one in (Sharing.NONE, Sharing.UNICAST, Sharing.CAST))
    assert unicast.ttft_mean_s < 1.02 * without.ttft_mean_s
    assert cast.ttft_mean_s < unicast.ttft_mean_s
    assert cast.regret_s < 0.1 * cast.saved_s
