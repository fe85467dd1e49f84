"""Whether casts bring anything: liars are found out, and what merely stands still or is slow is not taken for one."""

from collections.abc import Callable

from kvproto.limits import MS
from kvproto.session.liveness import Liveness
from kvproto.session.pace import Pace
from kvproto.session.timing import LIVENESS, LIVENESS_STALLED

WINDOW_NS = LIVENESS.ceiling_ns
LINK = 30_000.0
"""Segments per second: 1 Gbit/s."""


def windows(it: Liveness, count: float, happens: Callable[[], None], *, heard: bool = True, reads: bool = False) -> int:
    """What it says within so many windows, in all; `happens` each 10 ms. Begins where the last call ended."""
    said, clock = 0, CLOCKS.setdefault(id(it), [0])
    for _ in range(int(count * WINDOW_NS / (10 * MS))):
        clock[0] += 10 * MS
        if heard:
            it.heard(clock[0])
        happens()
        said += it.starved(LINK, clock[0], waits=True, reads=reads)
    return said


CLOCKS: dict[int, list[int]] = {}


def nothing() -> None:
    pass


def test_who_only_talks_is_not_believed_and_less_and_less() -> None:
    it = Liveness(Pace())
    assert windows(it, 1.2, nothing) == 1
    assert windows(it, 1.0, lambda: it.was_read(40)) == 2
    assert windows(it, 1.0, lambda: it.was_read(40)) == 4


def test_silence_counts_only_when_it_lasts() -> None:
    it = Liveness(Pace())
    assert windows(it, LIVENESS_STALLED - 1, nothing, heard=False) == 0, "something stands still"
    assert windows(it, 1.2, nothing, heard=False) == 1


def test_after_a_stall_the_window_goes_on() -> None:
    it = Liveness(Pace())
    windows(it, 0.2, nothing)
    assert windows(it, 2.5, nothing, heard=False) == 0
    assert windows(it, 0.7, lambda: it.arrived(30)) == 0, "it brings enough as soon as it runs"


def test_where_reads_are_no_quicker_there_are_no_more_of_them() -> None:
    """A machine on which everything is slow: all who wait would read, and make it slower."""
    it = Liveness(Pace())
    assert windows(it, 1.2, lambda: it.arrived(5)) == 1
    assert windows(it, 8.0, lambda: (it.arrived(5), it.was_read(6))) == 0


def test_reads_that_do_not_come_either_are_not_doubled() -> None:
    it = Liveness(Pace())
    assert windows(it, 1.2, nothing) == 1
    assert windows(it, 6.0, nothing, reads=True) == 0


def test_reads_that_come_well_are_waited_for_before_there_are_more() -> None:
    it = Liveness(Pace())
    assert windows(it, 1.2, nothing) == 1
    assert windows(it, 2.0, lambda: it.was_read(100), reads=True) == 0
    assert windows(it, 1.1, lambda: it.was_read(100)) == 2


def test_casts_that_bring_enough_are_left_alone() -> None:
    it = Liveness(Pace())
    assert windows(it, 5.0, lambda: it.arrived(40)) == 0
