"""Scores by age that are worked out only where they change are those that a look at every chunk gives."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kvpolicy.value.lowest import LowestFirst
from kvpolicy.value.reuse import AGE_EDGES_S, FINISHED_SCORE, NEVER, RECENCY, AgingScores, ReuseAges

GROUPS = 5


def learned(seed: int) -> ReuseAges:
    ages = ReuseAges(4.0, 1_000_000)
    ages.work_out(0.0)
    teach(ages, seed, 1_000.0)
    return ages


def teach(ages: ReuseAges, seed: int, now_s: float) -> None:
    """Enough for the index to be worked out again."""
    rng = random.Random(seed)
    for group in range(GROUPS):
        mean_s = rng.choice((0.5, 5.0, 50.0, 500.0))
        for _ in range(300):
            ages.entered(group, 2)
            ages.left(group, rng.expovariate(1 / mean_s), 1)
    assert ages.work_out(now_s)


@pytest.mark.parametrize("seed", range(10))
def test_scores_are_those_of_every_chunk_at_every_pass(seed: int) -> None:
    rng, ages = random.Random(seed), learned(seed)
    aging, now_s, before = AgingScores(ages), 2_000.0, dict[int, float]()
    known: dict[int, tuple[float, int, float]] = {}
    for at in range(120):
        now_s += rng.choice((0.01, 1.0, 30.0))
        for _ in range(rng.randrange(12)):
            chunk = rng.randrange(300)
            known[chunk] = rng.random(), rng.randrange(GROUPS), now_s - rng.choice((0.0, 0.1, 10.0))
            aging.put(chunk, *known[chunk])
            before.pop(chunk, None)
        for chunk in rng.sample(range(300), rng.choice((0, 3, 40))):
            aging.drop(chunk)
            known.pop(chunk, None)
        if at == 60:
            teach(ages, seed + 100, now_s)
            aging.ages_changed()
            before.clear()
        changed = dict(zip(*aging.grow_older(now_s), strict=True))
        expected = {
            chunk: base + (ages.log_index(group, now_s - last_s) + RECENCY * last_s)
            for chunk, (base, group, last_s) in known.items()
        }
        scores, chunks = aging.all()
        assert dict(zip(chunks.tolist(), scores.tolist(), strict=True)) == expected
        assert len(aging) == len(chunks) == len(known)
        assert changed.items() <= expected.items()
        assert {chunk for chunk in known if before.get(chunk) != expected[chunk]} <= changed.keys()
        before = expected
    aging.clear()
    assert not len(aging) and not len(aging.all()[0]) and aging.grow_older(now_s) == ([], [])


def test_only_what_passes_from_one_bin_of_age_to_the_next_is_worked_out() -> None:
    aging = AgingScores(learned(1))
    for chunk, last_s in enumerate((0.0, 1.0, 1.5)):
        aging.put(chunk, 0.0, chunk, last_s)
    assert aging.grow_older(2.0)[0] == [0, 1, 2], "all are new"
    assert aging.grow_older(2.4)[0] == []
    assert aging.grow_older(2.5)[0] == [2], "a second old"
    assert aging.grow_older(4.0)[0] == [0, 1, 2]
    aging.grow_older(2 * AGE_EDGES_S[-1])
    assert aging.grow_older(4 * AGE_EDGES_S[-1])[0] == [], "as old as can be"


def test_the_order_is_that_of_the_scores_now() -> None:
    """They leave out what all lose alike, and nothing else."""
    ages, rng = learned(2), random.Random(2)
    aging, now_s = AgingScores(ages), 3_000.0
    known = {chunk: (rng.random(), rng.randrange(GROUPS), now_s - rng.expovariate(0.01)) for chunk in range(100)}
    for chunk, one in known.items():
        aging.put(chunk, *one)
    aging.grow_older(now_s)
    scores, chunks = aging.all()
    exact = [base + ages.score(group, now_s - last_s) for base, group, last_s in known.values()]
    assert chunks[np.argsort(scores)].tolist() == sorted(known, key=exact.__getitem__)
    assert np.allclose(scores[np.argsort(chunks)] - RECENCY * now_s, exact)


def test_what_is_finished_stays_below_all_others() -> None:
    aging = AgingScores(learned(3))
    aging.put(1, FINISHED_SCORE, NEVER, 0.0)
    aging.put(2, 0.0, 0, 0.0)
    aging.grow_older(1.0)
    scores, chunks = aging.all()
    assert chunks[np.argmin(scores)] == 1 and scores.min() <= FINISHED_SCORE


def test_a_new_member_precedes_only_what_no_entry_is_before() -> None:
    members = {place: float(place) for place in range(1, 101)}
    order = LowestFirst(lambda score, place: members.get(place) == score, 10, 50)
    places = np.arange(1, 101)
    order.fill(places.astype(np.float64), places, places)
    assert order.precedes((0.5, 7, 7)) and not order.precedes((1.5, 7, 7))
    assert not order.precedes((1.0, 2, 2)) and order.precedes((1.0, 0, 0)), "the rank among equals counts"
    order.changed(0.2, 3, 3)
    assert not order.precedes((0.5, 7, 7)), "though the entry is outdated"
    assert order.first() == (1.0, 1, 1)
    assert order.precedes((0.5, 7, 7))
