"""A rack that starts cold: bursts wider than one transfer, a busy holder. Does a cache in the switch pay there?"""

from __future__ import annotations

import random

import pytest

from planner.workloads.prediction import predict
from planner.workloads.scaled_terms import terms_of
from planner.workloads.workload_catalog import NODES, Mode, Name, Prompt, Workload

PROMPTS, BLOCKS = 6, 15
TESTBED_BIT_S = 100_000_000


def cold_rack(within_s: float) -> Workload:
    """One node has all prompts, 30k tokens each; every other one asks for each of them once, within some seconds."""
    rng = random.Random(1)
    prompts = [tuple(range(first, first + BLOCKS)) for first in range(0, PROMPTS * BLOCKS, BLOCKS)]
    asked = [
        Prompt(rng.random() * within_s, node, prompts[number])
        for node in range(1, NODES)
        for number in rng.sample(range(PROMPTS), PROMPTS)
    ]
    asked.sort(key=lambda prompt: (prompt.at_s, prompt.node))
    return Workload(Name.DOCUMENTS, "a rack that starts cold", tuple(asked), {0: tuple(prompts)})


@pytest.mark.parametrize("within_s", [0.5, 6.0])
def test_casts_alone_are_as_soon_as_with_a_cache_in_the_switch(within_s: float) -> None:
    """docs/research/planner.md says so. Should it change, README and that page want another sentence."""
    workload = cold_rack(within_s)
    terms = terms_of(workload, TESTBED_BIT_S)
    cast = predict(workload, Mode.CAST, terms)
    with_switch = predict(workload, Mode.CAST_SWITCH, terms, 2 * PROMPTS * BLOCKS * terms.block_bytes)
    unicast = predict(workload, Mode.UNICAST, terms)
    assert cast.mean_s < 0.8 * unicast.mean_s
    assert 0.98 * cast.mean_s < with_switch.mean_s < 1.2 * cast.mean_s
