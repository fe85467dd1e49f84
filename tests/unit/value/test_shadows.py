"""A shadow is a pool: it hits what a real one of its size hits, and stays sound whatever is fetched or sampled out."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bmv2_testbed.bench.policy.replay import replay_into
from bmv2_testbed.bench.policy.trees import Forest, forest
from kvpolicy.value import POLICIES, CacheValues, Policy, Rule, ValueParameters
from kvpolicy.value.reuse import RECENCY, AgingScores, ReuseAges
from kvpolicy.value.shadows import NOBODY, ShadowCache, ShadowCaches, ShownChunk
from planner.traces import TraceRequest
from tests.unit.value.tuning_loads import MADE

UNFADED = ValueParameters(selector_half_touches=10**12)
PLAIN = (POLICIES[0],)
FACTS = (0.0, 0.0, 0, 0, 0.0, 0.0)


class Fixed(CacheValues):
    """A pool that its last policy decides."""

    def __init__(self, capacity: int, policies: tuple[Policy, ...]) -> None:
        super().__init__(capacity, UNFADED, policies)
        self.selector.active = len(policies) - 1
        self._active = policies[-1]


def replayed(trees: Forest, capacity: int, policies: tuple[Policy, ...]) -> tuple[float, float]:
    """Hit ratio of a pool by the last policy, and of that policy's shadow."""
    values = Fixed(capacity, policies)
    hit = replay_into(values, trees)
    return hit, values.selector.shares()[policies[-1].name]


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 200), st.floats(0.0, 90.0)), min_size=1, max_size=80),
    st.integers(1, 12),
    st.sampled_from(POLICIES),
)
def test_a_shadow_hits_what_a_pool_of_its_policy_hits(
    fetches: list[tuple[int, float]], capacity: int, policy: Policy
) -> None:
    """Requests are paths in a small tree: node n hangs on n // 3."""
    requests, at_s = [], 0.0
    for leaf, gap_s in fetches:
        at_s += gap_s
        path = []
        while leaf:
            path.append(leaf)
            leaf //= 3
        requests.append(TraceRequest(round(1000 * at_s), 512 * len(path), 1, tuple(reversed(path))))
    hit, shadow = replayed(forest(requests), capacity, (policy,))
    assert shadow == pytest.approx(hit, abs=1e-9)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda one: one.name)
@pytest.mark.parametrize(("name", "share"), [("growing_groups", 0.01), ("samples", 0.1), ("scans", 0.05)])
def test_a_shadow_among_others_hits_what_a_pool_hits_that_its_policy_decides(
    policy: Policy, name: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvpolicy.value.shadows.MARGIN", math.inf)
    trees = forest(MADE[name](3, 150.0))
    capacity = int(trees.count * share)
    others = tuple(one for one in POLICIES if one != policy)
    hit, shadow = replayed(trees, capacity, (*others, policy))
    assert shadow == pytest.approx(hit, abs=1e-9)


def plain_replay(trees: Forest, capacity: int) -> float:
    """The hit ratio of `turnover`, said in the plainest way: sets, and a look at every leaf for each that goes."""
    pools: dict[str, set[int]] = {"lru": set(), "turnover": set()}
    scores: dict[str, dict[int, float]] = {"lru": {}, "turnover": {}}
    touches = Counter[int]()
    turn, hit = 0.0, 0
    for at, step in enumerate(trees.steps):
        touches.update(step.path)
        for chunk in step.path:
            scores["lru"][chunk] = at
            scores["turnover"][chunk] = math.log2(touches[chunk]) + turn + 1e-9 * at
        for name, pool in pools.items():
            score = scores[name]
            leading = next((here for here, chunk in enumerate(step.path) if chunk not in pool), len(step.path))
            if name == "lru":
                turn += (len(step.path) - leading) / capacity
            else:
                hit += step.hit_tokens(leading)
            for chunk in step.path[leading:]:
                if len(pool) == capacity:
                    inner = {trees.parents[one] for one in pool}
                    leaves = [one for one in pool if one not in inner and one not in step.path]
                    first = min(leaves, key=lambda one, score=score: score[one], default=None)  # type: ignore[misc]
                    if first is None or score[first] >= score[chunk]:
                        break
                    pool.remove(first)
                pool.add(chunk)
    return hit / trees.tokens


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=120), st.integers(1, 12))
def test_counting_by_turns_is_what_it_says(leaves: list[int], capacity: int) -> None:
    requests = []
    for at, leaf in enumerate(leaves):
        path = []
        while leaf:
            path.append(leaf)
            leaf //= 3
        requests.append(TraceRequest(1000 * at, 512 * len(path), 1, tuple(reversed(path))))
    trees = forest(requests)
    turnover = tuple(one for one in POLICIES if one.rule is Rule.TURNOVER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvpolicy.value.shadows.MARGIN", math.inf)
        hit, _ = replayed(trees, capacity, (POLICIES[0], *turnover))
    assert hit == pytest.approx(plain_replay(trees, capacity), abs=1e-12)


def shown(score: float, size_bytes: float = 1.0) -> ShownChunk:
    return ShownChunk(FACTS, 0, size_bytes, size_bytes, True, (score,))


def shadows(capacity: float) -> tuple[ShadowCaches, ShadowCache]:
    caches = ShadowCaches(PLAIN, capacity, ReuseAges(4.0, 1_000_000), lambda _: ())
    return caches, caches.each[0]


def test_what_is_finished_goes_first_until_it_is_fetched_again() -> None:
    caches, shadow = shadows(4)
    for chunk in range(4):
        caches.fetched([chunk], [shown(10.0 + chunk)], 1.0, chunk)
    caches.finished(2)
    caches.finished(3)
    caches.fetched([3], [shown(20.0)], 1.0, 5.0)
    caches.fetched([7], [shown(9.0)], 1.0, 6.0)
    assert [chunk in shadow for chunk in (0, 1, 2, 3, 7)] == [True, True, False, True, True]
    caches.finished(99)


def test_a_chunk_that_needs_more_room_than_is_worth_less_drops_nothing() -> None:
    caches, shadow = shadows(4)
    for chunk, score in enumerate((1.0, 5.0, 6.0, 7.0)):
        caches.fetched([chunk], [shown(score)], 1.0, chunk)
    caches.fetched([9], [shown(4.0, 2.0)], 1.0, 9.0)
    assert len(shadow) == 4 and 0 in shadow and 9 not in shadow
    caches.fetched([9], [shown(5.5, 2.0)], 1.0, 10.0)
    assert [chunk in shadow for chunk in (0, 1, 2, 3, 9)] == [False, False, True, True, True]


def test_a_prefix_longer_than_the_shadow_keeps_its_beginning() -> None:
    caches, shadow = shadows(3)
    for at in range(3):
        caches.fetched(range(5), [shown(float(at))] * 5, 1.0, at)
        assert [chunk in shadow for chunk in range(5)] == [True] * 3 + [False] * 2
    assert shadow.hits == 6


def test_parts_of_a_prefix_go_in_the_order_of_their_scores_among_all_leaves() -> None:
    """What a leaf hung on goes next only if nothing else scores less."""
    caches, shadow = shadows(6)
    caches.fetched([1, 2, 3], [shown(1.0), shown(3.0), shown(1.0)], 1.0, 0.0)
    caches.fetched([4], [shown(2.0)], 1.0, 1.0)
    caches.fetched([5], [shown(4.0)], 1.0, 2.0)
    caches.fetched([6], [shown(5.0)], 1.0, 3.0)
    left: list[int] = []
    for chunk in (10, 11, 12, 13):
        before = set(shadow.here())
        caches.fetched([chunk], [shown(9.0)], 1.0, chunk)
        left += before - set(shadow.here())
    assert left == [3, 4, 2, 1]
    caches.fetched([20, 21, 22], [shown(9.5)] * 3, 1.0, 20.0)
    assert [chunk in shadow for chunk in (5, 6, 10, 11, 20, 21, 22)] == [False] * 3 + [True] * 4


def test_a_fetch_may_bring_what_comes_before_a_leaf_that_was_to_go_next() -> None:
    """The newcomers displace the end of another prefix, whose beginning then is part of the same fetch."""
    caches, shadow = shadows(3)
    caches.fetched([1, 2], [shown(1.0)] * 2, 1.0, 0.0)
    caches.fetched([3], [shown(8.0)], 1.0, 1.0)
    caches.fetched([9, 1, 7], [shown(5.0), shown(5.0), shown(6.0)], 1.0, 2.0)
    assert set(shadow.here()) == {1, 7, 3} and set(shadow.leaves()) == {7, 3}
    check(shadow, 0)


@pytest.mark.parametrize("seed", range(10))
def test_leaves_score_by_the_ages_that_they_have_at_a_pass(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetches begin anywhere in a prefix, so that what is fetched again may be a leaf before the end of the fetch."""
    rng = random.Random(seed)
    ages = ReuseAges(4.0, 1_000_000)
    ages.work_out(0.0)
    for age_s in (0.1, 1.0, 3.0, 3.0, 20.0):
        ages.entered(1, 40)
        ages.left(1, age_s, 30)
    assert ages.work_out(100.0)
    policy = next(one for one in POLICIES if one.rule is Rule.AGE)
    caches = ShadowCaches((policy,), 30.0, ages, lambda facts: (facts[4],))
    (shadow,) = caches.each
    last_s: dict[int, float] = {}
    worth: dict[int, float] = {}
    passes: list[float] = []
    grow_older = AgingScores.grow_older

    def noted(rows: AgingScores, at_s: float) -> tuple[list[int], list[float]]:
        passes.append(at_s)
        return grow_older(rows, at_s)

    monkeypatch.setattr(AgingScores, "grow_older", noted)
    for at in range(900):
        now_s = 200.0 + at / 4
        leaf, path = rng.randrange(1, 256), []
        while leaf:
            path.append(leaf)
            leaf //= 3
        path = path[::-1][rng.choice((0, 0, 1, 2)) :]
        if not path:
            continue
        facts = (now_s, 1.0, 1, 0, rng.random(), 0.0)
        caches.fetched(path, [ShownChunk(facts, 1, 1.0, 1.0, True)] * len(path), 1.0, now_s)
        last_s |= dict.fromkeys(path, now_s)
        worth |= dict.fromkeys(path, facts[4])
        if passes and passes[-1] == now_s:
            for chunk, score in shadow.leaves().items():
                expected = worth[chunk] + ages.score(1, now_s - last_s[chunk])
                assert score - RECENCY * now_s == pytest.approx(expected, abs=1e-9)
    assert len(passes) > 5


@pytest.mark.parametrize("seed", range(20))
def test_a_sample_that_halves_leaves_shadows_sound(seed: int) -> None:
    """Random trees, fetches that begin anywhere, hints, halvings: leaves, children and bytes stay as they should."""
    rng = random.Random(seed)
    caches = ShadowCaches(POLICIES, 40.0, ReuseAges(4.0, 1_000_000), lambda _: ())
    parents = {chunk: rng.randrange(chunk // 2, chunk) for chunk in range(1, 512)}
    sampled_out = 0
    for at in range(600):
        chunk, path = rng.randrange(1, 512), []
        while chunk:
            path.append(chunk)
            chunk = parents[chunk]
        path = [one for one in reversed(path) if not one & sampled_out][rng.choice((0, 0, 1)) :]
        if path:
            scores = [rng.random() + at / 90 for _ in POLICIES]
            one = ShownChunk((float(at), *FACTS[1:]), 0, rng.choice((1.0, 2.0)), 1.0, at > 9, scores)
            caches.fetched(path, [one] * len(path), 1.0, float(at))
        if at % 7 == 0:
            caches.finished(rng.randrange(512))
        if at in (200, 400):
            sampled_out |= 1 << at // 100
            caches.shrink(1 << at // 100)
        for shadow in caches.each:
            check(shadow, sampled_out)
    assert caches.known == len({chunk for shadow in caches.each for chunk in shadow.here()}), "no more than is needed"


def check(shadow: ShadowCache, sampled_out: int) -> None:
    here = shadow.here()
    assert not any(chunk & sampled_out for chunk in here)
    assert shadow.used_bytes == sum(size for _, size in here.values()) <= shadow.capacity_bytes
    inner = {parent for parent, _ in here.values() if parent != NOBODY}
    assert inner <= set(here), "a chunk lost its ancestor"
    assert set(shadow.leaves()) == set(here) - inner
