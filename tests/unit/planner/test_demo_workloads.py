"""The demo's workloads: what they are made of, and what the planner expects of them."""

from __future__ import annotations

import pytest

from planner.workloads.prediction import Prediction, predict
from planner.workloads.scaled_terms import terms_of
from planner.workloads.workload_catalog import NODES, Mode, Name, Workload, workload

TESTBED_BIT_S = 100_000_000


def expected(name: Name, mode: Mode) -> Prediction:
    made = workload(name)
    return predict(made, mode, terms_of(made, TESTBED_BIT_S))


@pytest.mark.parametrize("name", Name)
def test_a_workload_is_drawn_from_its_seed(name: Name) -> None:
    made = workload(name, 3)
    assert made == workload(name, 3) != workload(name, 4)
    assert [prompt.at_s for prompt in made.prompts] == sorted(prompt.at_s for prompt in made.prompts)
    assert {prompt.node for prompt in made.prompts} == set(range(NODES))
    assert made.length_s < 7


@pytest.mark.parametrize("name", Name)
def test_a_block_id_stands_for_its_whole_prefix(name: Name) -> None:
    made = workload(name)
    parents: dict[int, int | None] = {}
    held = [prefix for prefixes in made.held.values() for prefix in prefixes]
    for blocks in [*(prompt.blocks for prompt in made.prompts), *held]:
        for parent, block in zip((None, *blocks), blocks, strict=False):
            assert parents.setdefault(block, parent) == parent


def test_blocks_and_links_shrink_alike() -> None:
    for name in Name:
        made = workload(name)
        terms = terms_of(made, TESTBED_BIT_S)
        real_s = 256 * 2**20 * 8 / made.link_bit_s
        assert terms.block_bytes * 8 / terms.link_bit_s == pytest.approx(real_s)
        assert terms.block_bytes % 4096 == 0
        # An H100 computes a block of Llama 3 8B in 68 ms, whatever the links are.
        assert terms.recompute_s(0, 1) == pytest.approx(0.068, rel=0.02)
        assert terms.recompute_s(4, 4) == 0


def loss(made: Workload, mode: Mode) -> float:
    """How much slower than without a pool, as a share."""
    return expected(made.name, mode).mean_s / expected(made.name, Mode.NONE).mean_s - 1


def test_where_many_want_the_same_casts_pay_and_reading_alone_does_not() -> None:
    scale_out = workload(Name.SCALE_OUT)
    assert loss(scale_out, Mode.UNICAST) > 0.1
    assert loss(scale_out, Mode.CAST) < -0.8
    assert loss(workload(Name.DOCUMENTS), Mode.CAST) < -0.7


def test_merging_pays_where_nobody_has_the_prompt() -> None:
    none, cast, merged = (expected(Name.ROLLOUTS, mode) for mode in (Mode.NONE, Mode.CAST, Mode.MERGED))
    assert merged.mean_s < 0.7 * cast.mean_s < 0.7 * none.mean_s
    assert merged.computed_blocks < 0.6 * cast.computed_blocks


@pytest.mark.parametrize("name", [Name.CHATS, Name.SLOW_LINK])
def test_the_gate_leaves_alone_what_has_nothing_to_gain(name: Name) -> None:
    assert abs(loss(workload(name), Mode.MERGED)) < 0.02
