"""The peers in the table are the published policies: against plain versions of them, and against libCacheSim's."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from bmv2_testbed.bench.policy.compare import BELADY, OURS, PolicyHit, case_results, summaries
from bmv2_testbed.bench.policy.peers import PEERS, BlockCache
from bmv2_testbed.bench.policy.trees import forest
from tests.unit.value.library_cache import LibraryCache, needs_library
from tests.unit.value.tuning_loads import MADE

CAPACITIES = (2, 10, 40, 200)


def streams() -> dict[str, list[int]]:
    """Blocks asked for: by popularity, in a loop, and groups of samples."""
    rng = random.Random(3)
    popular = rng.choices(range(600), [1 / (rank + 1) for rank in range(600)], k=4000)
    trees = forest(MADE["samples"](1, 60.0))
    return {
        "popular": popular,
        "loop": [*range(60)] * 20 + popular[:800],
        "samples": [chunk for step in trees.steps for chunk in reversed(step.path)][:4000],
    }


def hits(cache: BlockCache, stream: list[int]) -> list[bool]:
    return [cache.asked(block) for block in stream]


def plain_lfu(capacity: int, stream: list[int]) -> list[bool]:
    here: dict[int, tuple[int, int]] = {}
    found = []
    for at, block in enumerate(stream):
        found.append(block in here)
        if block not in here and len(here) == capacity:
            del here[min(here, key=lambda one: here[one])]
        here[block] = (here.get(block, (0, 0))[0] + 1, at)
    return found


def plain_lfuda(capacity: int, stream: list[int]) -> list[bool]:
    here: dict[int, tuple[int, int]] = {}
    count: dict[int, int] = {}
    age, found = 0, []
    for at, block in enumerate(stream):
        found.append(block in here)
        if block not in here and len(here) == capacity:
            gone = min(here, key=lambda one: here[one])
            age = here.pop(gone)[0]
            del count[gone]
        count[block] = count.get(block, 0) + 1
        here[block] = (age + count[block], at)
    return found


def plain_sieve(capacity: int, stream: list[int]) -> list[bool]:
    queue: list[int] = []
    visited: dict[int, bool] = {}
    hand, found = 0, []
    for block in stream:
        found.append(block in visited)
        if block in visited:
            visited[block] = True
            continue
        if len(queue) == capacity:
            while visited[queue[hand]]:
                visited[queue[hand]] = False
                hand = (hand + 1) % capacity
            del visited[queue.pop(hand)]
            hand %= len(queue)
        queue.append(block)
        visited[block] = False
    return found


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize(("policy", "plain"), [("lfu", plain_lfu), ("lfuda-gdsf", plain_lfuda), ("sieve", plain_sieve)])
def test_peers_do_what_plain_versions_do(
    policy: str, plain: Callable[[int, list[int]], list[bool]], capacity: int
) -> None:
    for name, stream in streams().items():
        assert hits(PEERS[policy](capacity), stream) == plain(capacity, stream), name


@pytest.mark.parametrize("policy", PEERS)
def test_no_peer_holds_more_than_fits(policy: str) -> None:
    """More than fits, in a loop: whoever cheats on the room hits. And what fits is never lost."""
    for capacity in CAPACITIES:
        fits = hits(PEERS[policy](capacity), [*range(capacity - 1)] * 3)
        if policy != "w-tinylfu":  # its window is a part of the room
            assert sum(fits) >= (capacity - 1) * 2 * 0.85, capacity
        once = hits(PEERS[policy](capacity), [*range(10 * capacity)])
        assert not any(once)
        looped = hits(PEERS[policy](capacity), [*range(10 * capacity)] * 5)
        assert sum(looped) <= 4 * capacity, capacity


@needs_library
@pytest.mark.parametrize(
    ("policy", "kind", "slack"),
    [
        ("lfu", "LFU", 0.0),
        ("arc", "ARC", 0.0),
        ("sieve", "Sieve", 0.0),
        ("s3-fifo", "S3FIFO", 0.0),
        ("lfuda-gdsf", "GDSF", 0.01),  # of equal priorities another one goes first there
    ],
)
def test_peers_do_what_the_library_does(policy: str, kind: str, slack: float) -> None:
    for name, stream in streams().items():
        for capacity in (100, 200):  # smaller queues are rounded in another way there
            ours, theirs = hits(PEERS[policy](capacity), stream), hits(LibraryCache(kind, capacity), stream)
            if slack:
                assert abs(sum(ours) - sum(theirs)) <= slack * len(stream), (name, capacity)
            else:
                assert ours == theirs, (name, capacity)


def test_cases_and_means_say_who_is_ahead() -> None:
    figures = {("a", OURS): 0.5, ("a", "lru"): 0.5004, ("a", BELADY): 0.9}
    figures |= {("b", OURS): 0.3, ("b", "lru"): 0.31, ("b", BELADY): 0.8}
    told = [PolicyHit(trace, policy, 0.1, 10, hit, 2.0) for (trace, policy), hit in figures.items()]
    cases = case_results(told)
    assert [(one.trace, one.winner, one.is_loss, one.best) for one in cases] == [
        ("a", OURS, False, 0.5004),
        ("b", "lru", True, 0.31),
    ]
    assert [(one.policy, one.ahead) for one in summaries(told)] == [(BELADY, 2), ("lru", 1), (OURS, 0)]
    assert summaries(told)[2].mean == pytest.approx(0.4)
