"""What holders have queued, as readers hear of it; and how much of a fetch is still worth waiting for."""

from __future__ import annotations

import pytest

from hostagent.core.behind import Progress, worth_waiting
from kvpolicy.tiers.gate import Choice, Verdict
from kvpolicy.tiers.holder_load import IDLE, HolderLoad, HolderLoads
from kvpolicy.value.costs import Tier

MB = 10**6
SECOND = 1_000_000_000


def test_a_small_read_waits_for_as_much_of_each_other_reader_and_a_large_one_for_all_that_is_queued() -> None:
    load = HolderLoad(900 * MB, 3)
    assert load.delay_s(100 * MB, 1e9) == pytest.approx(0.3)
    assert load.delay_s(500 * MB, 1e9) == pytest.approx(0.9)
    assert IDLE.delay_s(500 * MB, 1e9) == 0.0


def test_a_reader_hears_of_a_queue_that_has_doubled_halved_or_gone() -> None:
    told = HolderLoad(100, 1)
    assert [HolderLoad(size, 1).differs(told) for size in (0, 50, 51, 150, 200)] == [True, True, False, False, True]
    assert not IDLE.differs(IDLE)


def test_the_last_figure_counts_and_shrinks_at_the_rate_of_the_link() -> None:
    loads = HolderLoads(lambda: 1e9)
    loads.load_reported("n1", HolderLoad(800 * MB, 4), 0)
    assert loads.of("n1", SECOND // 2) == HolderLoad(300 * MB, 4)
    loads.load_reported("n1", HolderLoad(500 * MB, 2), SECOND // 2)
    assert loads.of("n1", SECOND // 2) == HolderLoad(500 * MB, 2)
    assert loads.of("n1", SECOND) is IDLE
    assert loads.of("n1", SECOND // 2) is IDLE, "forgotten"
    loads.load_reported("n1", HolderLoad(500 * MB, 2), 0)
    loads.load_reported("n1", IDLE, 1)
    assert loads.of("n1", 1) is IDLE
    assert loads.of("n2", 0) is IDLE


def test_what_is_for_others_only() -> None:
    assert HolderLoad(900 * MB, 3).without(300 * MB) == HolderLoad(600 * MB, 2)
    assert HolderLoad(900 * MB, 3).without(900 * MB) is IDLE


def verdict(*compute_left_s: float, queue_s: float = 0.0) -> Verdict:
    count = len(compute_left_s) - 1
    return Verdict(
        Choice.FETCH, (Tier.REMOTE_DRAM,) * count, 0.0, give_up_s=1.0, queue_s=queue_s, compute_left_s=compute_left_s
    )


def test_a_fetch_goes_on_while_that_is_quicker() -> None:
    """0.3 s to come, 0.4 s to compute."""
    assert worth_waiting(verdict(0.4, 0.2, 0.0), Progress(0.1, (150 * MB, 150 * MB), 1e9, IDLE)) == 2


def test_what_is_nearly_here_is_waited_for_and_the_rest_computed() -> None:
    busy = HolderLoad(4000 * MB, 4)
    assert worth_waiting(verdict(0.4, 0.2, 0.0), Progress(0.1, (5 * MB, 150 * MB), 1e9, busy)) == 1
    assert worth_waiting(verdict(0.4, 0.2, 0.0), Progress(0.1, (150 * MB, 150 * MB), 1e9, busy)) == 0


def test_the_engines_queue_is_time_for_what_is_late() -> None:
    busy = HolderLoad(450 * MB, 3)
    progress = Progress(0.1, (150 * MB, 0), 1e9, busy)
    assert worth_waiting(verdict(0.4, 0.2, 0.0), progress) == 0
    assert worth_waiting(verdict(0.4, 0.2, 0.0, queue_s=0.7), progress) == 2


@pytest.mark.parametrize("wrong", [(-1, 1), (1, -1)])
def test_no_such_load(wrong: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="no such load"):
        HolderLoad(*wrong)
