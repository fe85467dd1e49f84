"""Reads that fall silent: what they owe is asked for by GET, too, and whatever comes first counts."""

import pytest

from kvproto.commands import (
    AbortRead,
    ChunkHere,
    DoubtHolder,
    ReaderCommand,
    StartRead,
    VerifyChunk,
)
from kvproto.events import (
    ChunkVerified,
    ReadDone,
    ReadProgress,
)
from kvproto.ids import NodeId
from kvproto.limits import MS
from kvproto.session.reader import Reader
from kvproto.session.timing import (
    READ_SILENCE,
    READ_STALL_NS,
)
from tests.unit.kvproto.reader_words import (
    KEYS,
    ME,
    SEGMENTS,
    asked,
    cast,
    kinds,
    notice,
    reader,
    wanted,
)


def lone_read(have: int = 0) -> tuple[Reader, StartRead, list[ReaderCommand], int]:
    """A read in a chunk that nobody else wants brings its first `have` segments, and then nothing for READ_SILENCE."""
    it = reader()
    it.handle(wanted(KEYS[0]), 0)
    (read,) = kinds(it.handle(notice(KEYS[0], ME), MS), StartRead)
    assert read.first == 0 and read.count < SEGMENTS
    now = 2 * MS
    commands = it.handle(ReadProgress(read.read, have), now)
    while now + 1 < 2 * MS + READ_SILENCE.ceiling_ns:
        due = it.wake_ns
        assert due is not None
        now = min(due, 2 * MS + READ_SILENCE.ceiling_ns - 1)
        commands += it.handle_timer(now)
    assert not asked(commands)
    return it, read, it.handle_timer(now + 1), now + 1


@pytest.mark.parametrize("have", [0, 6])
def test_what_a_silent_read_has_not_brought_is_asked_for_by_get_too(have: int) -> None:
    it, read, commands, now = lone_read(have)
    assert asked(commands)[: read.count - have] == list(range(have, read.count))
    missing = it.missing(KEYS[0])
    assert missing is not None and list(missing.nonzero()[0]) == list(range(have, SEGMENTS))
    unsettled = it.unsettled(KEYS[0])
    assert unsettled is not None and unsettled.all(), "the read may still write"
    assert not kinds(commands, AbortRead)
    # All of it comes by casts, and while the read is silent the rest of the chunk is asked for in the same way.
    brought = set(range(have))
    while not kinds(commands, VerifyChunk):
        fresh = sorted(set(asked(commands)) - brought)
        assert fresh and not kinds(commands, StartRead)
        brought |= set(fresh)
        now += MS
        commands = it.handle(cast(KEYS[0], *fresh), now) + it.handle_timer(now + MS)
    assert brought == set(range(SEGMENTS))
    assert AbortRead(read.read) in commands[: commands.index(VerifyChunk(KEYS[0]))], "nothing writes any more"
    assert now < READ_STALL_NS


def test_a_silent_read_that_ends_first_is_as_good() -> None:
    it, read, commands, now = lone_read(6)
    late = asked(commands)
    commands = it.handle(ReadDone(read.read), now + MS)
    missing = it.missing(KEYS[0])
    assert missing is not None and not missing[: read.count].any()
    # The answers to the GETs come, too, and change nothing; from now on the chunk is read again.
    rest = sorted(set(late) - set(range(read.count)))
    for number, some in enumerate((late[: read.count - 6], rest)):
        commands += it.handle(cast(KEYS[0], *some), now + (2 + number) * MS) if some else []
    while not kinds(commands, VerifyChunk):
        now += 5 * MS
        for each in kinds(commands, StartRead):
            commands += it.handle(ReadDone(each.read), now)
        commands += it.handle_timer(now)
    assert kinds(it.handle(ChunkVerified(KEYS[0], good=True), now), ChunkHere)
    assert it.idle


def test_a_silent_read_that_comes_after_the_answer_to_the_get_changes_nothing() -> None:
    it, read, commands, now = lone_read(0)
    assert sorted(asked(commands)) == list(range(SEGMENTS))
    it.handle(cast(KEYS[0], *range(read.count)), now + MS)
    before = it.missing(KEYS[0])
    assert before is not None and not before[: read.count].any()
    held = before.copy()
    commands = it.handle(ReadDone(read.read), now + 2 * MS)
    after = it.missing(KEYS[0])
    assert after is not None and (after == held).all()
    unsettled = it.unsettled(KEYS[0])
    assert unsettled is not None and not unsettled[: read.count].any(), "nobody writes there any more"
    assert not commands, "the rest is asked for already"


def test_a_read_that_moves_is_not_silent() -> None:
    it = reader()
    it.handle(wanted(KEYS[0]), 0)
    (read,) = kinds(it.handle(notice(KEYS[0], ME), MS), StartRead)
    commands, step_ns = [], READ_SILENCE.ceiling_ns // 2
    for have in range(1, 8):
        commands += it.handle(ReadProgress(read.read, have), MS + have * step_ns)
        commands += it.handle_timer(MS + have * step_ns)
    assert not asked(commands)


def test_without_the_switchs_interest_a_silent_read_is_waited_for() -> None:
    it = reader(None)
    (read,) = kinds(it.handle(wanted(KEYS[0]), 0), StartRead)
    commands = it.handle_timer(READ_SILENCE.ceiling_ns) + it.handle_timer(READ_STALL_NS - 1)
    assert commands == [DoubtHolder(NodeId("h"))], "it is only found out whether it can be reached"
    assert AbortRead(read.read) in it.handle_timer(READ_STALL_NS)
