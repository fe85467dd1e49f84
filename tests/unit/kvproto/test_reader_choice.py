"""A reader hears that each should read a chunk, or finds it itself."""

import pytest

from kvproto.commands import StartRead
from kvproto.limits import MS
from kvproto.session.choice import Way
from kvproto.session.reader import Reader
from kvproto.wire.control import TAG_LEADS, TAG_READS, Flag, Op
from tests.unit.kvproto.reader_words import KEYS, ME, OTHER, asked, cast, controls, kinds, notice, reader, wanted


def measured(it: Reader, way: Way, bytes_per_s: float) -> None:
    """What two got of late."""
    for turn in range(4):
        asked_ns = turn * int((1 << 20) / bytes_per_s * 1e9)
        it.choice.came(way, 2, 1 << 20, asked_ns, asked_ns + int((1 << 20) / bytes_per_s * 1e9))


def joined(it: Reader, flags: Flag = Flag.JOINED) -> None:
    it.handle(wanted(KEYS[0]), 0)
    it.handle(notice(KEYS[0], ME, OTHER, flags=flags), MS)


def test_it_reads_what_another_found_that_each_should_read() -> None:
    it = reader()
    joined(it)
    commands = it.handle(notice(KEYS[0], ME, OTHER, who=OTHER, tag=TAG_READS), 2 * MS)
    commands += it.handle_timer(2 * MS)
    (read,) = kinds(commands, StartRead)
    assert (read.key, read.first) == (KEYS[0], 0)
    assert len(controls(commands, Op.LEAVE)) == 1
    assert not asked(commands)


@pytest.mark.parametrize("why", ["served", "begun", "known"])
def test_it_does_not_where_it_has_a_better_way(why: str) -> None:
    it = reader()
    if why == "known":
        measured(it, Way.FANOUT, 1e9)
        measured(it, Way.READ, 1e8)
    joined(it, Flag.JOINED | Flag.CACHED if why == "served" else Flag.JOINED)
    if why == "begun":
        it.handle(cast(KEYS[0], *range(8)), 2 * MS)
    flags = Flag.JOINED | Flag.CACHED if why == "served" else Flag.JOINED
    commands = it.handle(notice(KEYS[0], ME, OTHER, who=OTHER, tag=TAG_READS, flags=flags), 3 * MS)
    assert not kinds(commands, StartRead)
    assert not controls(commands, Op.LEAVE)


def test_where_reading_brought_more_it_reads_and_says_so() -> None:
    it = reader()
    measured(it, Way.FANOUT, 1e8)
    measured(it, Way.READ, 1e9)
    joined(it)
    commands: list = []
    now_ns = MS
    while not kinds(commands, StartRead) and now_ns < 200 * MS:
        now_ns = max(now_ns, it.wake_ns or now_ns + MS)
        commands += it.handle_timer(now_ns)
    tags = [join.tag for join in controls(commands, Op.JOIN)]
    assert kinds(commands, StartRead)
    assert not any(tag & TAG_LEADS for tag in tags)
    assert sum(bool(tag & TAG_READS) for tag in tags) <= 1
    assert not asked(commands)
