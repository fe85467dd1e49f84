"""Costs of sources are learned from what things took."""

from __future__ import annotations

import copy
import pickle

import pytest

from kvpolicy.value.costs import EVICTION_COST_MIN_SHARE, PRIORS, SourceCosts, Tier

MIB = 1 << 20


def learned(overhead_s: float, rate: float, sizes: list[int], rounds: int = 12) -> SourceCosts:
    costs = SourceCosts()
    for _ in range(rounds):
        for size in sizes:
            costs.measured(Tier.REMOTE_DRAM, size, overhead_s + size / rate)
    return costs


@pytest.mark.parametrize("rate", [50e6, 1e9, 40e9])
@pytest.mark.parametrize("overhead_s", [0.0, 0.0003, 0.02])
def test_overhead_and_rate_are_told_apart_by_different_sizes(overhead_s: float, rate: float) -> None:
    costs = learned(overhead_s, rate, [4096, MIB, 64 * MIB])
    for size in (4096, 16 * MIB, 256 * MIB):
        assert costs.cost_s(Tier.REMOTE_DRAM, size) == pytest.approx(overhead_s + size / rate, rel=0.01, abs=1e-6)


def test_one_size_only_is_predicted_right_at_that_size() -> None:
    costs = learned(0.005, 1e9, [16 * MIB])
    assert costs.cost_s(Tier.REMOTE_DRAM, 16 * MIB) == pytest.approx(0.005 + 16 * MIB / 1e9, rel=0.01)


def test_ten_measurements_forget_an_old_network() -> None:
    costs = learned(0.001, 10e9, [MIB, 32 * MIB])
    for _ in range(5):
        for size in (MIB, 32 * MIB):
            costs.measured(Tier.REMOTE_DRAM, size, 0.001 + size / 1e9)
    assert costs.cost_s(Tier.REMOTE_DRAM, 32 * MIB) == pytest.approx(0.001 + 32 * MIB / 1e9, rel=0.15)


def test_what_makes_no_sense_is_survived() -> None:
    costs = SourceCosts()
    costs.measured(Tier.SWITCH, 0, 1.0)
    costs.measured(Tier.SWITCH, MIB, 0.0)
    assert costs.cost(Tier.SWITCH) == PRIORS[Tier.SWITCH]
    # Larger was faster: no line with a positive slope fits.
    for size, seconds in ((MIB, 1.0), (64 * MIB, 0.1), (MIB, 1.0), (64 * MIB, 0.1)):
        costs.measured(Tier.SWITCH, size, seconds)
    assert 0 < costs.cost_s(Tier.SWITCH, MIB) < 2.0


def test_a_loss_is_against_the_next_cheaper_and_always_above_zero() -> None:
    costs = SourceCosts()
    one_gb = 10**9
    here, remote, again = Tier.LOCAL_DRAM, Tier.REMOTE_DRAM, Tier.RECOMPUTE
    expected = costs.cost_s(remote, one_gb) - costs.cost_s(here, one_gb)
    assert costs.eviction_cost_s(one_gb, here, [remote]) == pytest.approx(expected)
    assert costs.eviction_cost_s(one_gb, here, []) == pytest.approx(
        costs.cost_s(again, one_gb) - costs.cost_s(here, one_gb)
    )
    assert costs.eviction_cost_s(one_gb, remote, [here]) == pytest.approx(
        EVICTION_COST_MIN_SHARE * costs.cost_s(again, one_gb)
    )
    for _ in range(20):
        costs.measured(again, one_gb, 0.001)
    assert 0 < costs.eviction_cost_s(one_gb, here, [remote]) < 0.001, (
        "who recomputes faster than all others loses little"
    )


def test_tiers_that_were_copied_or_sent_to_another_process_are_found_in_tables() -> None:
    """They are hashed by identity."""
    for tier in Tier:
        assert PRIORS[pickle.loads(pickle.dumps(tier))] is PRIORS[copy.deepcopy(tier)] is PRIORS[Tier(tier.value)]
