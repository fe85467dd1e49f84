"""The choice of rails, whatever happens: every read is on one rail, and no rail is asked that is known to be gone."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvproto.limits import MS, RAILS_MAX
from kvproto.session.rails import LOOK_NS, QUIET_NS, TRY_NS, Rails

SIZE = 1 << 17


def test_the_number_of_rails() -> None:
    for count in (0, RAILS_MAX + 1):
        with pytest.raises(ValueError, match=f"{count} rails: 1 to {RAILS_MAX} are possible"):
            Rails(count)


def looked(rails: Rails, since_ns: int, until_ns: int) -> tuple[int, list[tuple[int, int]]]:
    """Look as often as is asked for; when, and what the first look that moved something did."""
    now_ns = since_ns
    while now_ns < until_ns:
        now_ns += LOOK_NS
        if moved := rails.look(now_ns):
            return now_ns, moved
    return now_ns, []


def test_reads_go_where_they_end_first() -> None:
    rails = Rails(2)
    assert [rails.begin(number, SIZE, 0) for number in range(4)] == [0, 1, 0, 1]
    for number, at_ms in ((0, 10), (1, 40), (2, 20), (3, 80)):  # the second has a quarter of the first's rate
        rails.end(number, at_ms * MS)
    assert [rails.begin(number, SIZE, 80 * MS) for number in (4, 5, 6)] == [0, 0, 0]


def test_a_slow_rail_has_one_that_ends_before_the_rest() -> None:
    rails = Rails(2)
    for number, at_ms in ((0, 10), (1, 40)):
        assert rails.begin(number, SIZE, 0) == number
        rails.end(number, at_ms * MS)
    wanted = [rails.begin(number, SIZE, 40 * MS, 100 * SIZE) for number in (2, 3, 4, 5)]
    assert wanted == [0, 1, 0, 0]


def test_a_silent_rail_is_left_and_tried_until_it_answers() -> None:
    rails = Rails(2)
    assert [rails.begin(number, SIZE, 0) for number in range(2)] == [0, 1]
    rails.progress(0, 120 * MS)
    at_ns, moved = looked(rails, 0, 300 * MS)
    assert (at_ns, moved, rails.left) == (QUIET_NS, [(1, 0)], (1,))
    assert rails.to_try(at_ns) == []
    tried_ns = at_ns + 250 * MS
    assert rails.next_ns(tried_ns) == tried_ns
    assert rails.to_try(tried_ns) == [1]
    assert rails.to_try(tried_ns) == []
    rails.tried(1, False, tried_ns)
    assert rails.to_try(tried_ns + TRY_NS) == [1]
    rails.tried(1, True, tried_ns + TRY_NS)
    assert rails.left == ()


def test_a_rail_whose_reads_are_given_up_before_they_come_is_left() -> None:
    """Relays wait for a peer no longer than some times what its reads take, and ask another one."""
    rails, now_ns = Rails(2), 0
    for number in range(20):
        rail = rails.begin(number, SIZE, now_ns)
        now_ns += LOOK_NS
        rails.look(now_ns)
        if rail:
            rails.forget(number, now_ns)
        else:
            rails.end(number, now_ns)
        if rails.left:
            break
    assert rails.left == (1,)
    assert now_ns <= 2 * (QUIET_NS + LOOK_NS)


def test_a_process_that_did_not_run_blames_nobody() -> None:
    rails = Rails(2)
    rails.begin(0, SIZE, 0)
    assert rails.look(10 * QUIET_NS) == []


def test_a_peer_that_sends_nothing_keeps_its_rails() -> None:
    rails = Rails(2)
    for number in range(4):
        rails.begin(number, SIZE, 0)
    assert looked(rails, 0, 1_000 * MS)[1] == []


def test_a_read_under_which_every_rail_breaks_has_failed() -> None:
    rails = Rails(3)
    first = rails.begin(7, SIZE, 0)
    second = rails.fail(7, 0)
    third = rails.fail(7, 0)
    assert {first, second, third} == {0, 1, 2}
    assert rails.fail(7, 0) is None
    assert not rails.is_busy


class AnyOrder(RuleBasedStateMachine):
    """Reads begin, come, break and are given up in any order, at any pace."""

    def __init__(self) -> None:
        super().__init__()
        self.rails = Rails(3)
        self.on: dict[int, int] = {}
        self.now_ns = 0
        self.last = 0

    @rule(size=st.integers(1, 1 << 24), wanted=st.integers(0, 1 << 30))
    def begin(self, size: int, wanted: int) -> None:
        left = self.rails.left
        self.last += 1
        rail = self.rails.begin(self.last, size, self.now_ns, wanted)
        assert rail not in left or len(left) == 3
        self.on[self.last] = rail

    @precondition(lambda self: self.on)
    @rule(data=st.data(), what=st.sampled_from(["progress", "end", "fail", "forget"]))
    def happens(self, data: st.DataObject, what: str) -> None:
        number = data.draw(st.sampled_from(sorted(self.on)))
        if what == "progress":
            self.rails.progress(number, self.now_ns)
        elif what == "end":
            self.rails.end(number, self.now_ns)
            assert self.on.pop(number) not in self.rails.left
        elif what == "forget":
            self.rails.forget(number, self.now_ns)
            del self.on[number]
        else:
            was = self.on.pop(number)
            rail = self.rails.fail(number, self.now_ns)
            assert rail != was
            if rail is not None:
                self.on[number] = rail

    @rule(ms=st.integers(0, 400))
    def passes(self, ms: int) -> None:
        self.now_ns += ms * MS
        for number, rail in self.rails.look(self.now_ns):
            assert self.on[number] != rail
            assert rail not in self.rails.left
            self.on[number] = rail
        for rail in self.rails.to_try(self.now_ns):
            assert rail in self.rails.left
            self.rails.tried(rail, ms % 2 == 0, self.now_ns)

    @invariant()
    def each_is_on_one_rail(self) -> None:
        rails = self.rails.each
        assert {number: index for index, rail in enumerate(rails) for number in rail.reads} == self.on
        assert all(rail.queued_bytes == sum(read.size_bytes for read in rail.reads.values()) for rail in rails)
        assert self.rails.is_busy == bool(self.on)
        assert len(self.rails.left) < 3 or not self.on or self.rails.next_ns(self.now_ns) is not None


AnyOrder.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnyOrder = AnyOrder.TestCase
