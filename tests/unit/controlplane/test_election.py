"""Candidates for one lease: whatever happens to them and to the store, two never lead at once, and one leads again."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.core.election import Candidate, Hold, LeaseTerms, Look, Renew, Request, Standing, Take

MS = 1_000_000
LEASE_MS = 3000
STEP_MS = 100
PATIENCE_MS = 1000
"""A candidate waits so long for an answer."""
SETTLED_MS = 4 * LEASE_MS
"""Of quiet: then somebody has to lead."""
KINDS = [pytest.param(True, id="etcd"), pytest.param(False, id="kubernetes")]


class Store:
    """A lease, as a store keeps it that sees the true time."""

    def __init__(self, *, ends_by_itself: bool) -> None:
        self.ends_by_itself = ends_by_itself
        self._hold: Hold | None = None
        self._ends_ms = 0
        self._epoch = 0
        self._versions = itertools.count(1)

    def hold(self, now_ms: int) -> Hold | None:
        if self.ends_by_itself and now_ms >= self._ends_ms:
            self._hold = None
        return self._hold

    def answer(self, name: str, request: Request, now_ms: int) -> Hold | None:
        hold = self.hold(now_ms)
        match request:
            case Look():
                return hold
            case Take(epoch_above, instead_of):
                if hold != instead_of:
                    return None
                self._epoch = max(self._epoch, epoch_above) + 1
                self._hold = Hold(name, self._epoch, next(self._versions))
            case Renew(mine):
                if hold != mine:
                    return None
                if not self.ends_by_itself:
                    self._hold = Hold(name, mine.epoch, next(self._versions))
        self._ends_ms = now_ms + LEASE_MS
        return self._hold


@dataclass(frozen=True)
class Fault:
    """`away`: the store, for one candidate or all; `lost`: its answers only; `still`: a candidate does nothing."""

    kind: str
    who: int | None
    begins_ms: int
    lasts_ms: int

    def hits(self, kind: str, who: int, now_ms: int) -> bool:
        return self.kind == kind and self.who in (None, who) and 0 <= now_ms - self.begins_ms < self.lasts_ms


@dataclass
class Runner:
    """One candidate, with a clock of its own."""

    name: str
    candidate: Candidate
    offset_ms: int
    rate: float
    answers: list[tuple[int, str, Hold | None]] = field(default_factory=list)
    """(when it comes, which, what)"""

    def clock_ns(self, now_ms: int) -> int:
        return int((self.offset_ms + now_ms * self.rate) * MS)

    def leads(self, now_ms: int) -> bool:
        return self.candidate.standing(self.clock_ns(now_ms)) is Standing.LEADING


class World:
    """Three candidates, a store, faults. Checks at each step what has to hold."""

    def __init__(self, faults: list[Fault], *, ends_by_itself: bool, chance: random.Random) -> None:
        self.store = Store(ends_by_itself=ends_by_itself)
        self.faults = faults
        self.chance = chance
        terms = LeaseTerms(LEASE_MS * MS, ends_by_itself)
        self.runners = [
            Runner(f"c{one}", Candidate(f"c{one}", terms), chance.randrange(10**6), chance.uniform(0.99, 1.01))
            for one in range(3)
        ]
        self.led: list[tuple[str, int]] = []
        """(who, epoch), in the order in which they came to lead"""

    def run(self, until_ms: int) -> None:
        for now_ms in range(0, until_ms, STEP_MS):
            for index in self.chance.sample(range(3), 3):
                if not self._is("still", index, now_ms):
                    self._step(index, now_ms)
                self._check(now_ms)

    def _is(self, kind: str, who: int, now_ms: int) -> bool:
        return any(fault.hits(kind, who, now_ms) for fault in self.faults)

    def _step(self, index: int, now_ms: int) -> None:
        runner = self.runners[index]
        now_ns = runner.clock_ns(now_ms)
        due = [one for one in runner.answers if one[0] <= now_ms]
        runner.answers = [one for one in runner.answers if one[0] > now_ms]
        for _, kind, hold in due:
            if kind == "failed":
                runner.candidate.request_failed(now_ns)
            else:
                {"look": runner.candidate.looked, "take": runner.candidate.taken, "renew": runner.candidate.renewed}[
                    kind
                ](hold, now_ns)
        request = runner.candidate.next_request(now_ns)
        if request is None:
            return
        if self._is("away", index, now_ms):
            runner.answers.append((now_ms + PATIENCE_MS, "failed", None))
            return
        hold = self.store.answer(runner.name, request, now_ms)
        kind = {Look: "look", Take: "take", Renew: "renew"}[type(request)]
        if self._is("lost", index, now_ms):
            runner.answers.append((now_ms + PATIENCE_MS, "failed", None))
        else:
            runner.answers.append((now_ms + self.chance.randrange(0, PATIENCE_MS, STEP_MS), kind, hold))

    def _check(self, now_ms: int) -> None:
        leaders = [one for one in self.runners if one.leads(now_ms)]
        assert len(leaders) <= 1, f"{[one.name for one in leaders]} lead at {now_ms} ms"
        for one in leaders:
            hold = one.candidate.hold
            assert hold is not None
            if (one.name, hold.epoch) not in self.led:
                assert not self.led or hold.epoch > self.led[-1][1], "a later leader has the higher epoch"
                self.led.append((one.name, hold.epoch))


faults = st.lists(
    st.builds(
        Fault,
        st.sampled_from(["away", "lost", "still"]),
        st.sampled_from([None, 0, 1, 2]),
        st.integers(0, 20_000),
        st.integers(STEP_MS, 12_000),
    ),
    max_size=8,
)


@pytest.mark.parametrize("ends_by_itself", KINDS)
@settings(max_examples=40)
@given(faults=faults, dice=st.integers(0, 2**32))
def test_never_two_and_in_the_end_one(faults: list[Fault], dice: int, ends_by_itself: bool) -> None:
    world = World(faults, ends_by_itself=ends_by_itself, chance=random.Random(dice))
    quiet_ms = max((fault.begins_ms + fault.lasts_ms for fault in faults), default=0) + SETTLED_MS
    world.run(quiet_ms)
    assert [one.name for one in world.runners if one.leads(quiet_ms)], "nobody leads when all is well again"


class Scene:
    """One candidate, whose store the test plays."""

    def __init__(self, *, ends_by_itself: bool = True) -> None:
        self.one = Candidate("me", LeaseTerms(LEASE_MS * MS, ends_by_itself))
        self.now_ns = 1

    def later(self, ms: int) -> None:
        self.now_ns += ms * MS

    def asked(self) -> Request | None:
        return self.one.next_request(self.now_ns)

    def standing(self) -> Standing:
        return self.one.standing(self.now_ns)

    def leads(self, epoch: int = 7) -> Hold:
        """Nobody holds the lease, and this one takes it."""
        mine = Hold("me", epoch, 1)
        assert self.asked() == Look()
        self.one.looked(None, self.now_ns)
        assert isinstance(self.asked(), Take)
        self.one.taken(mine, self.now_ns)
        assert self.standing() is Standing.LEADING
        return mine


def test_a_leader_that_sleeps_does_not_lead_when_it_wakes() -> None:
    scene = Scene()
    mine = scene.leads()
    scene.later(1000)
    assert scene.asked() == Renew(mine)
    scene.later(50_000)
    scene.one.renewed(mine, scene.now_ns)
    assert scene.standing() is Standing.LAPSED, "the lease counts from when it was asked for, not from the answer"
    assert scene.asked() == Renew(mine)
    scene.one.renewed(None, scene.now_ns)
    assert scene.asked() == Look()
    scene.one.looked(Hold("other", 8, 2), scene.now_ns)
    assert scene.standing() is Standing.STANDBY
    assert scene.one.leader == "other"


def test_a_lease_that_outlived_the_absence_of_its_store_goes_on() -> None:
    scene = Scene()
    mine = scene.leads()
    scene.later(1000)
    for _ in range(4):
        assert scene.asked() == Renew(mine)
        scene.later(PATIENCE_MS)
        scene.one.request_failed(scene.now_ns)
        assert scene.asked() is None, "it does not hammer at a store that does not answer"
        scene.later(LEASE_MS // 6)
    assert scene.standing() is Standing.LAPSED
    assert scene.asked() == Renew(mine)
    scene.one.renewed(mine, scene.now_ns)
    assert scene.standing() is Standing.LEADING


def test_a_lease_that_was_taken_and_never_confirmed_is_led_after_a_renewal() -> None:
    scene = Scene()
    scene.asked()
    scene.one.looked(None, scene.now_ns)
    assert scene.asked() == Take(0, None)
    scene.one.request_failed(scene.now_ns)
    scene.later(1000)
    assert scene.asked() == Look()
    mine = Hold("me", 3, 1)
    scene.one.looked(mine, scene.now_ns)
    assert scene.standing() is Standing.STANDBY
    assert scene.asked() == Renew(mine)
    scene.one.renewed(mine, scene.now_ns)
    assert scene.standing() is Standing.LEADING


def test_a_holder_whose_version_moves_lives_and_one_that_stands_still_does_not() -> None:
    scene = Scene(ends_by_itself=False)
    for version in range(8):
        assert scene.asked() == Look()
        scene.one.looked(Hold("other", 5, version), scene.now_ns)
        scene.later(LEASE_MS // 4)
    last, waited_ms = Hold("other", 5, 7), LEASE_MS // 4
    while (asked := scene.asked()) == Look():
        scene.one.looked(last, scene.now_ns)
        scene.later(LEASE_MS // 4)
        waited_ms += LEASE_MS // 4
    assert asked == Take(5, last)
    assert LEASE_MS <= waited_ms <= LEASE_MS + LEASE_MS // 4
    scene.one.taken(None, scene.now_ns)
    assert scene.asked() == Look(), "somebody was quicker"


def test_a_holder_with_a_longer_lease_than_ours_has_all_of_it() -> None:
    scene = Scene(ends_by_itself=False)
    theirs, waited_ms = Hold("other", 5, 7, 4 * LEASE_MS * MS), 0
    while (asked := scene.asked()) == Look():
        scene.one.looked(theirs, scene.now_ns)
        scene.later(LEASE_MS // 4)
        waited_ms += LEASE_MS // 4
    assert asked == Take(5, theirs)
    assert 4 * LEASE_MS <= waited_ms <= 4 * LEASE_MS + LEASE_MS // 4


def test_news_of_the_lease_is_looked_at_at_once() -> None:
    scene = Scene()
    scene.asked()
    scene.one.lease_changed(scene.now_ns)
    scene.one.looked(Hold("other", 5, 1), scene.now_ns)
    assert scene.asked() == Look(), "it may have changed before the answer was made"
    scene.one.looked(Hold("other", 5, 1), scene.now_ns)
    assert scene.asked() is None
    scene.one.lease_changed(scene.now_ns)
    assert scene.asked() == Look()
    scene.one.looked(None, scene.now_ns)
    assert scene.asked() == Take(5, None)


def test_an_answer_to_no_request_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="an answer to no request"):
        Scene().one.looked(None, 0)
