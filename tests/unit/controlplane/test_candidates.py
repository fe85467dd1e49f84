"""Who is looked at next for a place in the switch."""

from __future__ import annotations

import random

import pytest

from controlplane.core.ids import ChunkKey, NodeIndex, Slot
from controlplane.core.switch.slots import SlotRange
from controlplane.core.switch_cache import candidates as module
from controlplane.core.switch_cache.candidates import Candidates, Evidence, Rank
from tests.unit.controlplane.helpers import key


class Line:
    """Candidates with values that the test sets; counts how often one is worked out."""

    def __init__(self) -> None:
        self.values: dict[ChunkKey, float] = {}
        self.busy: set[NodeIndex] = set()
        self.ranked = 0
        self.all = Candidates(self._rank)

    def _rank(self, one: ChunkKey, _: Evidence) -> Rank:
        self.ranked += 1
        return (True, -self.values.get(one, 0.0), 0, one)

    def want(self, name: str, value: float) -> None:
        self.values[key(name)] = value
        self.all.seen(key(name), 2, 0)

    def next(self) -> ChunkKey | None:
        return self.all.take_next(lambda node: node not in self.busy)


def test_the_dearest_comes_first_and_news_change_the_order() -> None:
    line = Line()
    for name, value in (("a", 1.0), ("b", 3.0), ("c", 2.0)):
        line.want(name, value)
    line.values[key("a")] = 9.0
    line.all.changed(key("a"))
    assert [line.next() for _ in range(4)] == [key("a"), key("b"), key("c"), None]


def test_who_waits_is_passed_by_until_a_holder_has_time() -> None:
    line = Line()
    line.busy = {NodeIndex(1)}
    for name, value in (("a", 5.0), ("b", 4.0)):
        line.want(name, value)
        first = line.next()
        assert first is not None
        line.all.wait(first, [NodeIndex(1)])
    line.want("c", 1.0)
    assert line.next() == key("c")
    line.all.drop(key("c"))
    assert line.next() is None
    line.busy.clear()
    assert [line.next(), line.next(), line.next()] == [key("a"), key("b"), None]


def test_the_end_of_one_fill_works_out_no_other_candidate() -> None:
    line = Line()
    line.busy = {NodeIndex(1)}
    for number in range(500):
        line.want(str(number), float(number))
    while (one := line.next()) is not None:
        line.all.wait(one, [NodeIndex(1)])
    line.ranked = 0
    line.busy.clear()
    assert line.next() == key("499")
    assert line.ranked == 0


def test_those_seen_longest_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CANDIDATES_MAX", 3)
    line = Line()
    for name in "abc":
        line.want(name, 1.0)
    line.want("a", 1.0)
    line.want("d", 1.0)
    assert key("b") not in line.all
    assert {key(name) for name in "acd"} == {one for one in (line.next() for _ in range(4)) if one is not None}


def test_a_claim_and_what_is_set_aside_stand_in_no_line() -> None:
    line = Line()
    line.want("a", 2.0)
    line.want("b", 1.0)
    assert line.next() == key("a")
    line.all.claim(key("a"), SlotRange(Slot(0), 4), [key("x")])
    assert line.next() == key("b")
    line.all.set_aside(key("b"))
    line.want("a", 7.0)
    line.all.changed(key("b"))
    assert line.next() is None
    assert line.all.claimed == [key("a")]
    assert line.all.claims == [SlotRange(Slot(0), 4)]
    line.all.wake_aside()
    line.all.give_up_claims()
    assert [line.next(), line.next()] == [key("a"), key("b")]


@pytest.mark.parametrize("seed", range(20))
def test_it_chooses_as_a_search_of_all_would(seed: int) -> None:
    """Random events, against the rule said in one line: the least rank of all that do not wait for busy nodes only."""
    rng = random.Random(seed)
    line = Line()
    names = [key(str(number)) for number in range(12)]
    waits: dict[ChunkKey, set[NodeIndex]] = {}
    for step in range(400):
        one = rng.choice(names)
        match rng.randrange(5):
            case 0:
                line.values[one] = rng.random()
                line.all.seen(one, 1, step)
                waits[one] = set()
            case 1:
                line.values[one] = rng.random()
                line.all.changed(one)
            case 2:
                line.busy = {NodeIndex(node) for node in range(3) if rng.random() < 0.6}
            case 3:
                line.all.wake(one)
                if one in waits:
                    waits[one] = set()
            case _:
                able = [one for one, nodes in waits.items() if not nodes or nodes - line.busy]
                expected = min(able, key=lambda one: (-line.values[one], one), default=None)
                assert line.next() == expected
                if expected is not None and line.busy and rng.random() < 0.8:
                    waits[expected] = set(rng.sample(sorted(line.busy), rng.randint(1, len(line.busy))))
                    line.all.wait(expected, sorted(waits[expected]))
                elif expected is not None:
                    line.all.drop(expected)
                    del waits[expected]
