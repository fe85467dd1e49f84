"""Goodput with and without early refusal, at the load that fits and at twice that: the daemons' cores, simulated."""

from __future__ import annotations

import random

import pytest

from planner.cluster.options import Cluster, Scenario, Sharing
from planner.cluster.requests import Request, key_of
from planner.hardware import engine_of, find_model
from tests.unit.planner.early_refusal import Goodput, JudgedReplay

NODES, PROMPTS, WITHIN_S, CHUNK_TOKENS = 4, 240, 2.0, 512
DOCUMENTS, SHARED_CHUNKS, OWN_CHUNKS = 24, 12, 4
"""Half of the requests ask about one of the documents, the others bring a prompt of their own."""
ENGINE = engine_of(find_model("llama-3-8b"))


def requests(load: float, seed: int = 1) -> list[Request]:
    """`load`: 1 is what four engines can compute if nothing is shared but what a node has had itself."""
    rng = random.Random(f"early refusal/{seed}")
    tokens = CHUNK_TOKENS * (SHARED_CHUNKS + OWN_CHUNKS)
    whole_s, rest_s = ENGINE.prefill_s(0, tokens), ENGINE.prefill_s(CHUNK_TOKENS * SHARED_CHUNKS, tokens)
    gap_s = (whole_s + rest_s) / 2 / NODES / load
    made, at_s = [], 0.0
    for number in range(PROMPTS):
        at_s += rng.expovariate(1 / gap_s)
        first = rng.randrange(DOCUMENTS) if rng.random() < 0.5 else 1000 + number
        blocks = [first * 100 + place for place in range(SHARED_CHUNKS)]
        blocks += [10**6 + number * 100 + place for place in range(OWN_CHUNKS)]
        made.append(Request(at_s, tokens, tuple(map(key_of, blocks)), None, CHUNK_TOKENS))
    return made


def goodput(load: float, *, refuses: bool) -> Goodput:
    cluster = Cluster(ENGINE, nodes=NODES, chunk_tokens=CHUNK_TOKENS)
    return JudgedReplay(Scenario(cluster, Sharing.CAST), WITHIN_S, refuses=refuses).goodput(requests(load))


def test_at_twice_the_load_that_fits_early_refusal_gives_half_as_many_more_in_time() -> None:
    without, with_it = goodput(2.0, refuses=False), goodput(2.0, refuses=True)
    assert without.refused == 0
    assert with_it.in_time > 1.5 * without.in_time
    assert with_it.late < without.late / 2


def test_where_the_load_fits_hardly_anybody_is_refused() -> None:
    found = goodput(0.6, refuses=True)
    assert found.refused < 0.05 * PROMPTS
    assert found.in_time > 0.95 * PROMPTS


def test_a_verdict_needs_a_controller() -> None:
    alone = JudgedReplay(Scenario(Cluster(ENGINE, nodes=2), Sharing.NONE), 1.0, refuses=True)
    with pytest.raises(ValueError, match="a verdict needs a controller"):
        alone.goodput([])
