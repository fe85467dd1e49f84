"""The index by class and age says what the stream says, and the policy on it keeps what will be fetched."""

from __future__ import annotations

import numpy as np
import pytest

from bmv2_testbed.bench.policy.replay import replay_lru, replay_ours
from bmv2_testbed.bench.policy.trees import forest
from kvpolicy.value import POLICIES
from kvpolicy.value.reuse import AGE_EDGES_S, FINISHED_SCORE, NEVER, ReuseAges
from tests.unit.value.tuning_loads import MADE

AGE_ONLY = tuple(one for one in POLICIES if one.name == "age")


def learned(hits: list[tuple[int, float]], never: list[tuple[int, int]], life_s: float = 10_000.0) -> ReuseAges:
    """After chunks were fetched again, by class and age, and others, by class and number, were not."""
    ages = ReuseAges(4.0, 1_000_000)
    ages.work_out(0.0)
    for group, age_s in hits:
        ages.entered(group, 1)
        ages.left(group, age_s, 1)
    for group, chunks in never:
        ages.entered(group, chunks)
    assert ages.work_out(life_s)
    return ages


def test_a_burst_that_is_over_is_worth_little() -> None:
    ages = learned([(3, 0.5)] * 300 + [(4, 50.0)] * 300, [(3, 300), (4, 300)])
    assert ages.score(3, 0.0) > ages.score(4, 0.0)
    assert ages.score(3, 5.0) < ages.score(4, 5.0), "of a burst there is nothing left after seconds"
    assert ages.score(4, 40.0) > ages.score(4, 0.0), "what comes back after a minute is nearer to it now"


def test_many_scores_are_those_of_one() -> None:
    rng = np.random.default_rng(1)
    hits = [
        (int(group), float(age_s))
        for group, age_s in zip(rng.integers(0, 9, 500), rng.exponential(30, 500), strict=True)
    ]
    ages = learned(hits, [(group, 40) for group in range(9)])
    groups, ages_s = rng.integers(0, 9, 200), np.concatenate([rng.exponential(60, 190), [-1, 0, *AGE_EDGES_S[:8]]])
    assert ages.scores(groups, ages_s).tolist() == [
        ages.score(int(group), float(age_s)) for group, age_s in zip(groups, ages_s, strict=True)
    ]
    assert [ages.fresh[group] for group in range(9)] == [ages.score(group, 0.0) for group in range(9)]
    assert ages.score(NEVER, 0.0) == FINISHED_SCORE


def test_where_nothing_comes_back_the_oldest_goes_first() -> None:
    ages = learned([], [(1, 200), (2, 200)])
    assert ages.score(1, 1.0) == ages.score(2, 1.0) > ages.score(1, 2.0)


@pytest.mark.parametrize(("name", "share", "gain"), [("samples", 0.02, 0.02), ("tree_search", 0.05, 0.0)])
def test_it_beats_lru_where_sessions_end(name: str, share: float, gain: float) -> None:
    trees = forest(MADE[name](2, 900.0))
    capacity = int(trees.count * share)
    age, lru = replay_ours(trees, capacity, policies=AGE_ONLY), replay_lru(trees, capacity)
    assert age > lru + gain, (name, age, lru)
