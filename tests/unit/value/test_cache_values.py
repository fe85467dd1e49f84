"""What pools keep: prefix constraint, bounds, hints, and orders that equal their definitions."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bmv2_testbed.bench.policy.peers import PEERS, replay_blocks
from bmv2_testbed.bench.policy.replay import replay_belady, replay_lru, replay_ours
from bmv2_testbed.bench.policy.trees import Forest, forest, session_ends
from kvcast.cli import main
from kvchunk.ids import ChunkKey
from kvpolicy.value import POLICIES, CacheValues, Policy, Rule, Touch, ValueParameters
from kvpolicy.value.parameters import value
from kvpolicy.value.table import NONE, ORPHAN, RESIDENT, ChunkTable, mixed
from planner.traces import TraceRequest, holdout, read_trace
from planner.traces.catalog import CARRIED
from tests.seeds import also_long
from tests.unit.value.library_cache import LibraryCache, needs_library
from tests.unit.value.tuning_loads import MADE

SECOND = 1_000_000_000
LRU = tuple(one for one in POLICIES if one.name == "lru")


def key(number: int) -> ChunkKey:
    return ChunkKey(number.to_bytes(16, "big"))


def touch(number: int, parent: int | None = None, position: int = 0) -> Touch:
    return Touch(key(number), key(parent) if parent is not None else None, position, 1)


@st.composite
def traces(draw: st.DrawFn) -> Forest:
    """Requests over a small tree: node n hangs on n // 2, a request is a path to some node."""
    leaves = draw(st.lists(st.integers(1, 40), min_size=1, max_size=60))
    requests = []
    for at, leaf in enumerate(leaves):
        path = []
        while leaf:
            path.append(leaf)
            leaf //= 2
        requests.append(TraceRequest(1000.0 * at, 512 * len(path), 1, tuple(reversed(path))))
    return forest(requests)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(traces(), st.integers(1, 12))
def test_the_lru_policy_is_true_lru(trees: Forest, capacity: int) -> None:
    assert replay_ours(trees, capacity, policies=LRU) == pytest.approx(replay_lru(trees, capacity))


def best_possible(trees: Forest, capacity: int) -> float:
    """By trying everything: pools are sets of chunks that hold all their ancestors, filled from what was just used."""
    states: dict[frozenset[int], int] = {frozenset(): 0}
    for step in trees.steps:
        following: dict[frozenset[int], int] = {}
        for pool, hit in states.items():
            leading = next((at for at, chunk in enumerate(step.path) if chunk not in pool), len(step.path))
            now = hit + step.hit_tokens(leading)
            union = sorted(pool | set(step.path))
            for size in range(min(capacity, len(union)) + 1):
                for kept in itertools.combinations(union, size):
                    chosen = frozenset(kept)
                    if all(trees.parents[chunk] < 0 or trees.parents[chunk] in chosen for chunk in chosen):
                        following[chosen] = max(following.get(chosen, 0), now)
        states = following
    return max(states.values()) / trees.tokens


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=9), st.integers(1, 4))
def test_nothing_beats_the_best_possible_and_belady_comes_close(leaves: list[int], capacity: int) -> None:
    requests = []
    for at, leaf in enumerate(leaves):
        path = [one for one in (leaf // 4, leaf // 2, leaf) if one]
        requests.append(TraceRequest(1000.0 * at, 512 * len(path), 1, tuple(path)))
    trees = forest(requests)
    best = best_possible(trees, capacity)
    for hit in (replay_belady(trees, capacity), replay_lru(trees, capacity), replay_ours(trees, capacity)):
        assert hit <= best + 1e-12
    assert replay_belady(trees, capacity) >= 0.6 * best


@settings(derandomize=True, deadline=None, max_examples=100)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 300), st.sampled_from(["fetch", "finish", "expect", "out"]))),
    st.integers(2, 12),
    st.sampled_from(POLICIES),
)
def test_prefixes_stay_whole_and_the_order_is_by_score(
    events: list[tuple[int, int, str]], capacity: int, policy: Policy
) -> None:
    values = CacheValues(capacity, policies=(policy,))
    now = 0
    for leaf, gap_s, what in events:
        now += gap_s * SECOND
        path = [one for one in (leaf // 16, leaf // 8, leaf // 4, leaf // 2, leaf) if one]
        touches = [touch(one, path[at - 1] if at else None, at) for at, one in enumerate(path)]
        if what == "finish":
            values.finished([key(leaf)], now)
        elif what == "expect":
            values.expect([key(leaf)], gap_s, now)
        elif what == "out":
            for victim in list(values.victims(now))[:1]:
                values.remove(victim)
        else:
            values.fetched(touches, now)
            own = {one.key for one in touches}
            for one in touches:
                if one.key in values:
                    continue
                while len(values) >= capacity:
                    victim = next(values.victims(now, lambda k, own=own: k not in own), None)  # type: ignore[misc]
                    if victim is None:
                        break
                    values.remove(victim)
                if len(values) >= capacity:
                    break
                values.add([one], now)
        assert len(values) <= capacity
        here = {int.from_bytes(one, "big") for one in values.victims(now)}
        assert len(here) == len(values)
        assert all(one == 1 or one // 2 in here for one in here), "a chunk lost its ancestor"
        order = [int.from_bytes(one, "big") for one in values.victims(now)]
        assert all(order.index(one) < order.index(one // 2) for one in order if one // 2 in order), "leaves first"


def test_what_costs_more_to_get_again_stays() -> None:
    for policy in POLICIES:
        values = CacheValues(
            2, policies=(policy,), eviction_costs=lambda chunks: [1.0 if one.key == key(1) else 0.1 for one in chunks]
        )
        for one in (touch(1), touch(2)):
            values.fetched([one], 0)
            values.add([one], 0)
        assert list(values.victims(SECOND)) == [key(2), key(1)], policy.name


def test_readers_at_once_count_as_so_many_fetches() -> None:
    for policy in POLICIES:
        if policy.rule is not Rule.RATE:
            continue
        values = CacheValues(2, policies=(policy,))
        for one in (Touch(key(1), None, 0, 1, readers=3), touch(2)):
            values.fetched([one], 0)
            values.add([one], 0)
        assert list(values.victims(SECOND)) == [key(2), key(1)], policy.name
        assert values.rate(key(1), SECOND) > values.rate(key(2), SECOND)
    three, one = (value(0.5, saved_s=0.25, size_bytes=128, readers=readers) for readers in (3, 1))
    assert three == 3 * one
    assert value(0.5, saved_s=0.2, size_bytes=100) == pytest.approx(0.5 * 0.2 / 100)
    assert value(0.5, saved_s=0.2, size_bytes=100, rooted=False) == 0.0


def test_a_newcomer_worth_less_stays_out_and_pins_are_the_owners_say() -> None:
    values = CacheValues(1, policies=tuple(one for one in POLICIES if one.rule is Rule.RATE))
    for at in range(5):
        values.fetched([touch(1)], at * SECOND)
    values.add([touch(1)], 5 * SECOND)
    values.fetched([touch(2)], 6 * SECOND)
    assert not values.admits(touch(2), 6 * SECOND)
    assert values.admits(touch(2), 6 * SECOND, room_bytes=1)
    for at in range(10):
        values.fetched([touch(2)], (7 + at) * SECOND)
    assert values.admits(touch(2), 20 * SECOND)
    assert not values.admits(touch(2), 20 * SECOND, evictable=lambda _: False)


def test_hints_lift_and_drop_until_the_next_fetch() -> None:
    values = CacheValues(3)
    for number in (1, 2, 3):
        values.fetched([touch(number)], number * SECOND)
        values.add([touch(number)], number * SECOND)
    values.finished([key(3)], 4 * SECOND)
    assert next(values.victims(4 * SECOND)) == key(3)
    assert values.rate(key(3), 4 * SECOND) == 0.0
    values.fetched([touch(3)], 5 * SECOND)
    assert values.rate(key(3), 5 * SECOND) > 0.0
    assert next(values.victims(5 * SECOND)) == key(1)
    values.expect([key(1)], 1.0, 6 * SECOND)
    assert next(values.victims(6 * SECOND)) == key(2)


def test_descendants_of_what_went_go_first() -> None:
    values = CacheValues(4)
    for number, parent in ((1, None), (2, 1), (3, 2), (9, None)):
        values.fetched([touch(number, parent, number)], SECOND)
        values.add([touch(number, parent, number)], SECOND)
    values.remove(key(1))
    assert list(values.victims(2 * SECOND)) == [key(3), key(2), key(9)]
    values.add([touch(1)], 2 * SECOND)
    assert next(values.victims(2 * SECOND)) in (key(3), key(9))


class Walked(CacheValues):
    """Finds those that hang on a chunk by walking from parent to child."""

    def _mark_orphans(self, slot: int, orphans: bool) -> None:
        table = self.table
        wanted = RESIDENT if orphans else RESIDENT | ORPHAN
        above = [slot]
        for one in above:
            for child in range(table.end):
                if table.parent[child] == one and table.flags[child] & (RESIDENT | ORPHAN) == wanted:
                    table.flags[child] ^= ORPHAN
                    above.append(child)
        self._order.forget()


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.lists(st.integers(0, 20), min_size=2, max_size=20), st.lists(st.integers(0, 19), max_size=30))
def test_all_that_hang_on_a_chunk_lose_their_ancestor_with_it(parents: list[int], changes: list[int]) -> None:
    """Chunk n hangs on parents[n], whoever that is: on itself, on one that never came, in circles."""
    both = CacheValues(len(parents)), Walked(len(parents))
    here: set[int] = set()
    for change in [*range(len(parents)), *changes]:
        number = change % len(parents)
        for values in both:
            if number in here:
                values.remove(key(number))
            else:
                values.add([touch(number, parents[number])], SECOND)
        here ^= {number}
        ours, walked = (list(values.victims(2 * SECOND)) for values in both)
        assert ours == walked


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.lists(st.integers(0, 20), min_size=2, max_size=20), st.sets(st.integers(0, 19)))
def test_chunks_that_come_at_once_are_as_if_they_came_one_by_one(parents: list[int], moved: set[int]) -> None:
    """Some are there before, some of them hang on those that come, and chunk n hangs on parents[n], whoever that is."""
    chunks = [touch(number, parent) for number, parent in enumerate(parents)]
    coming = [chunks[number] for number in sorted(moved) if number < len(chunks)]
    both = CacheValues(len(chunks)), CacheValues(len(chunks))
    for values in both:
        values.fetched(chunks, 0)
        values.add(chunks, 0)
        for one in coming:
            values.remove(one.key)
    both[0].add(coming, SECOND)
    for one in coming:
        both[1].add([one], SECOND)
    at_once, singly = ([*values.victims(2 * SECOND)] for values in both)
    assert at_once == singly
    assert len(singly) == len(chunks)


def test_what_is_remembered_is_bounded_and_residents_never_forgotten() -> None:
    values = CacheValues(8, ValueParameters(tracked_max=64))
    for number in range(8):
        values.fetched([touch(number)], number)
        values.add([touch(number)], number)
    for number in range(8, 2000):
        values.fetched([touch(number)], number * SECOND)
    assert values.table.count <= 64
    assert all(key(number) in values for number in range(8))
    assert values.is_known(key(1999))
    assert not values.is_known(key(100))
    assert values.table.nbytes / 64 < 80


def test_misuse_raises() -> None:
    values = CacheValues(2)
    values.add([touch(1)], 0)
    with pytest.raises(ValueError, match="already"):
        values.add([touch(1)], 0)
    with pytest.raises(KeyError, match="not in the pool"):
        values.remove(key(2))
    with pytest.raises(ValueError, match="16 bytes"):
        values.rate(ChunkKey(b"short"), 0)


@settings(derandomize=True, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=300))
def test_the_table_finds_what_a_dict_finds(events: list[tuple[int, bool]]) -> None:
    table, mirror = ChunkTable(64), dict[int, int]()
    for number, put in events:
        slot = table.find(key(number))
        assert slot == mirror.get(number, NONE)
        if put and slot == NONE:
            mirror[number] = table.take(key(number), mixed(key(number)))
            assert table.key(mirror[number]) == key(number)
        elif not put and slot != NONE:
            table.drop(mirror.pop(number))
    assert table.count == len(mirror)


def test_the_table_keeps_everything_as_it_grows() -> None:
    rng = np.random.default_rng(3)
    keys = [ChunkKey(rng.bytes(16)) for _ in range(5000)]
    table = ChunkTable(5000)
    slots = [table.take(one, mixed(one)) for one in keys]
    assert [table.find(one) for one in keys] == slots
    assert table.take(ChunkKey(bytes(16)), 0) == NONE, "there is no room for one more"


def test_a_fetch_may_name_a_chunk_twice_and_never_forgets_its_own() -> None:
    """In a table that is full, with rows of the fetch among the oldest."""
    values = CacheValues(4, ValueParameters(tracked_max=8))
    for number in range(8):
        values.fetched([touch(number)], number * SECOND)
    values.fetched([touch(0), touch(1), touch(20), touch(20), touch(21)], 9 * SECOND)
    assert all(values.is_known(key(number)) for number in (0, 1, 20, 21))
    assert [values.idle_s(key(number), 9 * SECOND) for number in (0, 1, 20, 21)] == [0.0] * 4
    assert values.table.count == 8


def test_the_order_that_suits_the_stream_comes_to_decide() -> None:
    """A loop over more than fits defeats recency; what is fetched between its turns is worth keeping."""
    values = CacheValues(50)
    now = 0
    for turn in range(400):
        for hot in range(20):
            now += SECOND // 10
            _use(values, touch(hot), now)
        for cold in range(100):
            now += SECOND // 100
            _use(values, touch(1000 + turn * 100 + cold), now)
    shares = values.selector.shares()
    assert shares[POLICIES[values.selector.active].name] >= max(shares.values()) * 0.97
    assert shares["rate-300s"] > shares["lru"]


def _use(values: CacheValues, one: Touch, now: int) -> None:
    values.fetched([one], now)
    if one.key in values:
        return
    if len(values) >= values.capacity_bytes:
        if not values.admits(one, now):
            return
        values.remove(next(values.victims(now)))
    values.add([one], now)


def test_session_ends_name_what_only_that_session_used() -> None:
    requests = [
        TraceRequest(0, 512 * 3, 1, (1, 2, 3)),
        TraceRequest(1, 512 * 4, 1, (1, 2, 4, 5)),
        TraceRequest(2, 512 * 2, 1, (1, 9)),
    ]
    trees = forest(requests)
    assert session_ends(trees) == [[2], [0, 1, 3, 4], [5]]


@needs_library
def test_on_single_chunks_the_library_lru_is_ours() -> None:
    rng = np.random.default_rng(5)
    requests = [TraceRequest(float(at), 512, 1, (int(rng.zipf(1.3)) % 300,)) for at in range(3000)]
    trees = forest(requests)
    for capacity in (5, 30, 100):
        assert replay_blocks(trees, LibraryCache("LRU", capacity)) == pytest.approx(replay_lru(trees, capacity))


@pytest.mark.parametrize("name", ["chat_small.jsonl", "rollout_small.jsonl"])
def test_on_the_carried_traces_ours_is_between_lru_and_belady(name: str) -> None:
    requests = read_trace(CARRIED / name).requests
    trees = forest(requests)
    ends = session_ends(trees)
    for share in (0.01, 0.05, 0.2):
        capacity = max(1, int(trees.count * share))
        ours, lru = replay_ours(trees, capacity), replay_lru(trees, capacity)
        belady = replay_belady(trees, capacity)
        assert 0.97 * lru - 0.005 <= ours <= belady + 0.005, (name, share)
        assert replay_ours(trees, capacity, ends=ends) >= ours - 0.02, (name, share)


def test_the_command_writes_every_policy_and_pool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "hits.json"
    trace = str(CARRIED / "rollout_small.jsonl")
    assert main(["bench", "policy", "--trace", trace, "--pool", "0.05,0.2", "--json", str(out), "--hints"]) == 0
    hits = json.loads(out.read_text())
    assert {"ours", "ours-without-hints", "lru", "belady", *PEERS} <= {one["policy"] for one in hits}
    assert all(0 <= one["hit"] <= 1 and one["pool"] in (0.05, 0.2) and one["chunk_us"] > 0 for one in hits)
    told = capsys.readouterr().out
    assert "cases" in told and "w-tinylfu" in told and max(map(len, told.splitlines())) <= 80
    assert main(["bench", "policy", "--trace", str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl" in capsys.readouterr().err


def test_the_command_replays_a_whole_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "hits.json"
    assert main(["bench", "policy", "--holdout", "--requests", "12", "--pool", "0.5", "--json", str(out)]) == 0
    hits = json.loads(out.read_text())
    assert {one["trace"] for one in hits} == set(holdout.MADE)
    assert {one["pool"] for one in hits} == {0.5}
    assert f"of {len(holdout.MADE)} cases" in capsys.readouterr().out


@pytest.mark.parametrize("blocks_max", also_long(30_000, long=(10**9,)))
@pytest.mark.parametrize("name", MADE)
def test_on_many_kinds_of_load_it_is_not_below_lru(name: str, blocks_max: int) -> None:
    """Ten minutes of each; of the busiest the first requests, that ask for so many blocks together."""
    requests = MADE[name](1, 600.0)
    asked = itertools.accumulate(len(request.blocks) for request in requests)
    trees = forest([request for request, blocks in zip(requests, asked, strict=True) if blocks <= blocks_max])
    for share in (0.01, 0.1):
        capacity = int(trees.count * share)
        assert replay_ours(trees, capacity) > 0.97 * replay_lru(trees, capacity)
