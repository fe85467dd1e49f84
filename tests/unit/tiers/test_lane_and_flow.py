"""Background work: its queue stays below what engines wait for; its plans move what is worth moving."""

from __future__ import annotations

import pytest

from kvchunk.ids import ChunkKey
from kvpolicy.tiers.flow import Stored, plan_demotions, plan_promotions
from kvpolicy.tiers.lane import Lane, LaneLimits

MS = 1_000_000


def test_items_are_taken_in_order_and_so_many_at_once() -> None:
    lane: Lane[str] = Lane(LaneLimits(waiting_max=4, at_once=2))
    for name in "abcd":
        assert lane.offer(name, 1, 0)
    assert not lane.offer("e", 1, 0)
    assert lane.offer("a", 1, 0), "waits already"
    assert [lane.take(False, 0) for _ in range(3)] == ["a", "b", None]
    assert "a" in lane
    lane.ended("a")
    assert (lane.take(False, 5), lane.running_count, len(lane)) == ("c", 2, 1)
    assert (lane.counts.offered, lane.counts.refused, lane.counts.taken, lane.counts.waited_ns) == (5, 1, 3, 5)


def test_while_an_engine_waits_only_patience_lets_one_through() -> None:
    lane: Lane[str] = Lane(LaneLimits(at_once=8, patience_ns=100 * MS))
    for name in "abc":
        lane.offer(name, 1, 0)
    assert lane.take(True, 99 * MS) is None
    assert lane.due_ns(True, 99 * MS) == 100 * MS
    assert lane.take(True, 100 * MS) == "a"
    assert lane.take(True, 150 * MS) is None
    assert lane.due_ns(True, 150 * MS) == 200 * MS
    assert lane.take(False, 150 * MS) == "b", "the engine has what it wanted"
    assert lane.take(True, 200 * MS) == "c"
    assert lane.counts.forced == 2


def test_a_rate_spreads_what_is_taken() -> None:
    lane: Lane[int] = Lane(LaneLimits(at_once=99, bytes_per_s=1000))
    for number in range(4):
        lane.offer(number, 100, 0)
    taken = []
    for now_ms in range(0, 400, 10):
        while (item := lane.take(False, now_ms * MS)) is not None:
            taken.append((item, now_ms))
    assert taken == [(0, 0), (1, 100), (2, 200), (3, 300)]


def test_nothing_is_due_when_nothing_can_start() -> None:
    lane: Lane[str] = Lane(LaneLimits(at_once=1))
    assert lane.due_ns(False, 0) is None
    lane.offer("a", 1, 0)
    lane.offer("b", 1, 0)
    assert lane.due_ns(False, 7) == 7
    lane.take(False, 7)
    assert lane.due_ns(False, 8) is None
    assert lane.drop(lambda item: item == "b") == ["b"]
    lane.ended("a")
    assert lane.due_ns(False, 9) is None


def test_limits_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="must be positive"):
        LaneLimits(at_once=0)


def key(number: int) -> ChunkKey:
    return ChunkKey(number.to_bytes(16, "big"))


def keys(*numbers: int) -> list[ChunkKey]:
    return [key(number) for number in numbers]


def test_demotions_go_by_age_until_evictions_are_near() -> None:
    unsaved = dict.fromkeys(keys(1, 2, 3, 4))
    asked: list[int] = []

    def victims(count: int) -> list[ChunkKey]:
        asked.append(count)
        return keys(9, 4, 3)

    assert plan_demotions(unsaved, victims, 0.5, 3) == keys(1, 2, 3)
    assert asked == []
    assert plan_demotions(unsaved, victims, 0.05, 3) == keys(4, 3, 1)
    assert plan_demotions({}, victims, 0.05, 3) == []


def stored(tree: dict[int, int | None], size: int = 10) -> dict[ChunkKey, Stored]:
    return {key(one): Stored(None if parent is None else key(parent), size) for one, parent in tree.items()}


def test_promotions_bring_ancestors_first_and_stay_within_the_room() -> None:
    disk = stored({1: None, 2: 1, 3: 2, 7: None})
    plan = plan_promotions(keys(3, 7, 1), disk.get, lambda _: False, 30, 99)
    assert plan == keys(1, 2, 3)
    assert plan_promotions(keys(3, 7, 1), disk.get, lambda _: False, 29, 99) == keys(7, 1)
    assert plan_promotions(keys(3, 7, 1), disk.get, lambda one: one == key(1), 30, 99) == keys(2, 3, 7)
    assert plan_promotions(keys(3, 7, 1), disk.get, lambda _: False, 100, 2) == keys(7, 1)


def test_chunks_whose_ancestors_are_nowhere_stay_on_disk() -> None:
    disk = stored({2: 1, 3: 2, 7: None})
    assert plan_promotions(keys(3, 2, 7), disk.get, lambda _: False, 100, 99) == keys(7)
