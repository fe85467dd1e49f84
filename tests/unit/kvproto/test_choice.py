"""The way that ends first: what a chooser learns, tries and keeps to."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproto.limits import MS
from kvproto.session.choice import MARGIN, OLD_NS, TRIAL_BYTES, TRIAL_SHARE, Chooser, Way, crowd_of

MIB = 1 << 20
ALONE = 1.25e9


class Network:
    """What each way brings one of `readers`, bytes per second, and the time that passes."""

    def __init__(self, read: float, fanout: float, readers: int = 4) -> None:
        self.rates = {Way.READ: read, Way.FANOUT: fanout}
        self.readers = readers
        self.chooser = Chooser()
        self.now_ns = 0
        self.ways: list[Way] = []

    def chunk(self, size_bytes: int = MIB, alone: float | None = ALONE) -> Way:
        """One comes by the way that is chosen, a sixteenth at a time."""
        way = self.chooser.choose(self.readers, size_bytes, alone, self.now_ns)
        for _ in range(16):
            asked_ns = self.now_ns
            self.now_ns += int(size_bytes / 16 * 1e9 / self.rates[way])
            self.chooser.came(
                way, self.readers, size_bytes // 16, asked_ns if way is Way.READ else self.now_ns, self.now_ns
            )
        self.ways.append(way)
        return way

    def chunks(self, count: int) -> list[Way]:
        return [self.chunk() for _ in range(count)]


def test_nothing_measured_is_fanned_out() -> None:
    assert Chooser().choose(8, MIB, ALONE, 0) is Way.FANOUT
    assert Chooser().standing() == []


def test_quick_links_slow_casts_are_read_after_one_trial() -> None:
    network = Network(read=4e8, fanout=1.5e8)
    ways = network.chunks(16)
    assert ways.index(Way.READ) <= 3
    assert ways[4:] == [Way.READ] * 12
    (standing,) = network.chooser.standing()
    assert (standing.readers, standing.way) == (4, Way.READ)
    assert standing.read_bytes_per_s > 3e8 > 1.6e8 > standing.fanout_bytes_per_s > 1.4e8


def test_a_trial_that_cannot_pay_is_not_made() -> None:
    """A slow link: one reader alone gets hardly more than each gets by casts."""
    network = Network(read=12.5e6 / 8, fanout=11.9e6, readers=8)
    assert {network.chunk(alone=12.5e6) for _ in range(500)} == {Way.FANOUT}


def test_who_knows_nothing_of_reading_tries_nothing() -> None:
    network = Network(read=4e8, fanout=1.5e8)
    assert {network.chunk(alone=None) for _ in range(100)} == {Way.FANOUT}


def test_trials_take_a_small_share_of_the_time() -> None:
    """Reading might bring more, and brings an eighth: the trial costs no more than it may, and is made once."""
    network = Network(read=1e7, fanout=4e7, readers=8)
    ways = [network.chunk(alone=8e7) for _ in range(1200)]
    assert MIB < ways.count(Way.READ) * MIB <= TRIAL_BYTES
    assert ways.index(Way.READ) >= 4 * 64


def test_what_is_old_is_tried_again_ever_more_rarely() -> None:
    network = Network(read=3e7, fanout=6e7)
    seen: list[int] = []
    while network.now_ns < 400_000 * MS:
        if network.chunk(32 * MIB, alone=8e7) is Way.READ:
            seen.append(network.now_ns)
    gaps = [after - before for before, after in pairwise(seen)]
    assert len(seen) < 10
    assert gaps == sorted(gaps) and gaps[0] >= OLD_NS


def test_a_network_that_changes_is_followed() -> None:
    network = Network(read=4e8, fanout=1.5e8)
    network.chunks(16)
    network.rates[Way.READ] = 0.5e8
    assert network.chunks(24)[-4:] == [Way.FANOUT] * 4


def test_a_little_better_is_no_reason_to_leave() -> None:
    network = Network(read=1.1e8, fanout=1e8)
    assert network.chunks(300)[-1] is Way.FANOUT


@pytest.mark.parametrize("readers", [3, 4])
def test_what_one_number_of_readers_found_holds_for_the_like(readers: int) -> None:
    network = Network(read=4e8, fanout=1.5e8)
    network.chunks(16)
    assert network.chooser.choose(readers, MIB, ALONE, network.now_ns) is Way.READ
    assert network.chooser.is_read(readers)
    assert not network.chooser.is_read(8)


def test_a_decision_of_others_is_followed_unless_it_is_known_to_be_wrong() -> None:
    assert Chooser().agrees(8)
    network = Network(read=4e8, fanout=1.5e8)
    network.chunks(16)
    assert network.chooser.agrees(4)
    slow = Network(read=1e7, fanout=4e7, readers=8)
    for _ in range(1200):
        slow.chunk(alone=8e7)
    assert not slow.chooser.agrees(8)
    assert not Chooser(is_free=False).agrees(8)


def test_who_may_not_choose_fans_out() -> None:
    network = Network(read=4e8, fanout=1.5e8)
    network.chooser.is_free = False
    assert set(network.chunks(50)) == {Way.FANOUT}


def test_a_pause_between_fetches_is_not_slowness() -> None:
    network = Network(read=4e8, fanout=1.5e8)
    network.chunk()
    network.chooser.rest()
    network.now_ns += 1_000 * MS
    network.chunk()
    assert network.chooser.standing()[0].fanout_bytes_per_s > 1.4e8


@given(
    st.floats(1e6, 1e10),
    st.floats(1e6, 1e10),
    st.integers(2, 64),
    st.floats(1e6, 1e10) | st.none(),
)
def test_it_ends_by_the_way_that_brings_more(read: float, fanout: float, readers: int, alone: float | None) -> None:
    """Whatever a network does, what is used in the end is no slower than the other, but for the margin, unless reading
    was never worth a trial."""
    network = Network(read, fanout, readers)
    for _ in range(80):
        network.chunk(MIB, alone)
    used = network.ways[-1]
    if Way.READ in network.ways[:-1]:
        assert network.rates[used.other] <= 1.01 * MARGIN * network.rates[used]
    else:
        assert used is Way.FANOUT


@given(st.integers(1, 1 << 20))
def test_crowds_are_few_and_in_order(readers: int) -> None:
    assert 0 <= crowd_of(readers) <= crowd_of(readers + 1) <= 6
    assert (crowd_of(readers) == 0) == (readers == 1)


def test_who_relays_alone_tries_to_read_when_much_has_come() -> None:
    """Nobody has it sooner by that, and who comes meanwhile has it later."""
    network = Network(read=4e8, fanout=1.5e8, readers=1)
    ways = [network.chunk(alone=None) for _ in range(400)]
    assert ways.index(Way.READ) * MIB > TRIAL_BYTES / TRIAL_SHARE
    assert ways[-1] is Way.READ
    assert network.chooser.standing() == [], "it is nobody's choice but its own"
