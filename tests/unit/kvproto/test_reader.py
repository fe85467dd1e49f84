"""The reader, event by event: scripts of what arrives and what follows."""

from dataclasses import replace

import numpy as np
import pytest

from kvchunk.sources import ChunkSource
from kvproto.commands import (
    AbortRead,
    Blame,
    ChunkGone,
    ChunkHere,
    ReaderCommand,
    ReadLeaves,
    ReportBadCopy,
    SegmentsDropped,
    SendControl,
    StartRead,
    VerifyChunk,
)
from kvproto.errors import LocalProtocolError
from kvproto.events import (
    ChunkJudged,
    ChunkUnwanted,
    ChunkVerified,
    ChunkWanted,
    ControlReceived,
    HolderLost,
    HolderRef,
    HoldersChanged,
    ReadDone,
    ReadFailed,
    SwitchChanged,
)
from kvproto.ids import Member, NodeId
from kvproto.limits import MS
from kvproto.session.reader import Reader
from kvproto.session.timing import (
    JOIN_RETRY,
    LIVENESS,
    NEWCOMER_ANSWERS,
    NEWCOMER_MAX_NS,
    PATIENCE_UNLED,
    PATIENT_SEGMENTS,
    READ_STALL_NS,
    REPAIR_DELAY,
    REPAIR_DELAY_UNLED,
    REPAIR_RANK_STEP,
)
from kvproto.wire.control import TAG_LEADS, Control, Flag, Op, reaction_of
from tests.unit.kvproto.reader_words import (
    HOLDER,
    KEYS,
    ME,
    OTHER,
    SECOND,
    SEGMENTS,
    SWITCH,
    asked,
    cast,
    controls,
    kinds,
    notice,
    reader,
    wanted,
)


def test_alone_it_joins_reads_leaves_and_verifies() -> None:
    it = reader()
    commands = it.handle(wanted(KEYS[0]), 0)
    (join,) = controls(commands, Op.JOIN)
    assert (join.key, join.segments, join.tag) == (KEYS[0], SEGMENTS, 0)
    (read,) = kinds(it.handle(notice(KEYS[0], ME), MS), StartRead)
    assert (read.holder, read.first) == (HOLDER.node, 0)
    now, commands = MS, [read]
    while not kinds(commands, VerifyChunk):
        reads, commands, now = kinds(commands, StartRead), [], now + MS
        for each in reads:
            commands += it.handle(ReadDone(each.read), now)
    assert controls(commands, Op.LEAVE)
    assert it.missing(KEYS[0]) is None
    assert it.handle(ChunkVerified(KEYS[0], good=True), now) == [ChunkHere(KEYS[0], ChunkSource.HOLDER)]
    assert it.idle
    assert it.wake_ns is None


def test_in_company_that_pulls_it_follows() -> None:
    it = reader()
    it.handle(wanted(KEYS[0]), 0)
    commands = it.handle(notice(KEYS[0], ME, OTHER), MS)
    commands += it.handle(notice(KEYS[0], ME, OTHER, who=OTHER, tag=TAG_LEADS), 2 * MS)
    for first in range(0, SEGMENTS, 8):
        commands += it.handle(cast(KEYS[0], *range(first, first + 8)), (3 + first // 4) * MS)
    assert not controls(commands, Op.GET)
    assert not kinds(commands, StartRead)
    assert kinds(commands, VerifyChunk) == [VerifyChunk(KEYS[0])]
    assert it.handle(ChunkVerified(KEYS[0], good=True), 30 * MS) == [ChunkHere(KEYS[0], ChunkSource.CAST)]


def silent(it: Reader, until_ns: int) -> tuple[list, int]:
    """Run timers until segments are asked for."""
    commands: list = []
    now = 0
    while not asked(commands) and not kinds(commands, StartRead):
        due = it.wake_ns
        assert due is not None
        now = max(due, now)
        assert now <= until_ns
        commands += it.handle_timer(now)
    return commands, now


def test_it_is_patient_while_others_pull_and_much_is_missing() -> None:
    it = reader()
    assert not it.patient
    it.handle_all([wanted(key) for key in KEYS], 0)
    for key in KEYS:
        it.handle(notice(key, ME, OTHER), MS)
        it.handle(notice(key, ME, OTHER, who=OTHER, tag=TAG_LEADS), MS)
    assert SEGMENTS * len(KEYS) == PATIENT_SEGMENTS
    assert it.patient
    it.handle(cast(KEYS[0], 0), 2 * MS)
    assert not it.patient, "the end is near"


def test_who_leads_is_not_patient() -> None:
    it = reader()
    it.handle_all([wanted(key) for key in KEYS], 0)
    for key in KEYS:
        it.handle(notice(key, ME, OTHER), MS)
    assert it.patient
    silent(it, 60 * MS)
    assert it.led_count
    assert not it.patient


def test_half_of_what_it_may_ask_for_may_wait() -> None:
    it = reader()
    it.handle_all([wanted(key) for key in KEYS], 0)
    for key in KEYS:
        it.handle(notice(key, ME, OTHER), MS)
    commands, now = silent(it, 60 * MS)
    count = len(asked(commands))
    assert it.half_window == count // 2
    it.handle(cast(KEYS[0], *range(count)), now + MS)
    assert it.half_window == count, "the window has doubled"


def test_who_asks_a_switch_that_serves_is_not_patient() -> None:
    """It leads nothing, but its window moves on only as fast as it hears of what came."""
    it = reader()
    it.handle_all([wanted(key) for key in KEYS], 0)
    commands = []
    for key in KEYS:
        commands += it.handle(notice(key, ME, flags=Flag.JOINED | Flag.CACHED), MS)
    assert asked(commands)
    assert not it.led_count
    assert not it.patient


def test_it_says_how_late_it_reacts_in_joins_and_gets() -> None:
    it = reader()
    (join,) = controls(it.handle(wanted(KEYS[0]), 0), Op.JOIN)
    assert reaction_of(join.tag) is None, "nothing is measured yet"
    it.handle(notice(KEYS[0], ME, OTHER), 200_000)
    commands, _ = silent(it, 60 * MS)
    for message in controls(commands, Op.JOIN) + controls(commands, Op.GET):
        said = reaction_of(message.tag)
        assert said is not None
        assert said >= 200_000


def test_it_leads_when_nobody_does_and_says_so() -> None:
    it = reader()
    it.handle(wanted(KEYS[0]), 0)
    it.handle(notice(KEYS[0], ME, OTHER), MS)
    commands, now = silent(it, 60 * MS)
    assert now > MS
    assert [join.tag & TAG_LEADS for join in controls(commands, Op.JOIN)] == [TAG_LEADS]
    assert asked(commands) == sorted(set(asked(commands)))
    assert asked(commands)[0] == 0


@pytest.mark.parametrize(
    ("answer_us", "again", "waits_ns"),
    [
        (300, False, NEWCOMER_ANSWERS * 300_000),
        (2_000, False, NEWCOMER_ANSWERS * 2_000_000),
        (20_000, False, NEWCOMER_MAX_NS),
        (300, True, NEWCOMER_MAX_NS),
    ],
    ids=["a quick host", "a late one", "a very late one", "nothing measured: the JOIN was repeated"],
)
def test_a_newcomer_waits_as_long_as_answers_take(answer_us: int, again: bool, waits_ns: int) -> None:
    first = Member(0)  # nobody goes before it
    it = reader(first)
    it.handle(wanted(KEYS[0]), 0)
    now = JOIN_RETRY.ceiling_ns if again else 0
    assert bool(controls(it.handle_timer(now), Op.JOIN)) is again
    joined = now + answer_us * 1_000
    it.handle(notice(KEYS[0], first, OTHER, who=first), joined)
    commands, began = silent(it, joined + 2 * NEWCOMER_MAX_NS)
    assert [join.tag & TAG_LEADS for join in controls(commands, Op.JOIN)] == [TAG_LEADS]
    assert began - joined == waits_ns


@pytest.mark.parametrize("asked_last", [None, OTHER], ids=["who asked has left", "who asked is still there"])
def test_it_waits_for_a_pull_only_while_who_asked_is_there(asked_last: Member | None) -> None:
    first, third = Member(0), Member(7)
    it = reader(first)
    it.handle(wanted(KEYS[0]), 0)
    it.handle(notice(KEYS[0], first, OTHER, third, who=first), MS)
    it.handle(cast(KEYS[0], *range(8)), 2 * MS)  # asked for by somebody who announced nothing
    left = Control(
        Op.NOTICE,
        KEYS[0],
        SEGMENTS,
        flags=Flag.LEFT,
        member=third,
        members=1 << first | 1 << OTHER,
        count=0 if asked_last is None else 1 + asked_last,
    )
    it.handle(ControlReceived(left, SWITCH), 3 * MS)
    commands, began = silent(it, 100 * MS)
    assert asked(commands)[0] == 8
    if asked_last is None:
        assert 3 * MS + REPAIR_DELAY.ceiling_ns <= began <= (3 + NEWCOMER_ANSWERS) * MS + REPAIR_DELAY.ceiling_ns
    else:
        assert began >= 2 * MS + PATIENCE_UNLED.ceiling_ns


def _it_leads_two() -> tuple[Reader, int]:
    """It asks for the first chunk, has announced the second, and its window has no room to ask for that."""
    it = reader()
    it.handle_all([wanted(KEYS[0]), wanted(KEYS[1])], 0)
    for key in KEYS[:2]:
        it.handle(notice(key, ME, OTHER), MS)
    commands, now = silent(it, 60 * MS)
    announced = [join.key for join in controls(commands, Op.JOIN) if join.tag & TAG_LEADS]
    assert announced == KEYS[:2]
    assert {get.key for get in controls(commands, Op.GET)} == {KEYS[0]}
    return it, now


@pytest.mark.parametrize(
    ("chunk", "asked_last", "says"),
    [(1, 0, True), (1, 1 + OTHER, True), (0, 1 + ME, False)],
    ids=["nobody asked for it", "another one asked for some of it", "the switch names who asked"],
)
def test_a_leader_tells_a_newcomer_what_it_will_pull(chunk: int, asked_last: int, says: bool) -> None:
    newcomer = Member(7)
    it, now = _it_leads_two()
    joined = Control(
        Op.NOTICE,
        KEYS[chunk],
        SEGMENTS,
        flags=Flag.JOINED,
        member=newcomer,
        members=1 << ME | 1 << OTHER | 1 << newcomer,
        count=asked_last,
    )
    commands = it.handle(ControlReceived(joined, SWITCH), now + MS)
    assert [(join.key, join.tag & TAG_LEADS) for join in controls(commands, Op.JOIN)] == (
        [(KEYS[chunk], TAG_LEADS)] if says else []
    )


def test_it_leads_when_the_leader_falls_silent() -> None:
    it = reader()
    it.handle_all([wanted(KEYS[0]), wanted(KEYS[1])], 0)
    for key in KEYS[:2]:
        it.handle(notice(key, ME, OTHER), MS)
        it.handle(notice(key, ME, OTHER, who=OTHER, tag=TAG_LEADS), MS)
    it.handle(cast(KEYS[0], 0, 1, 2), 5 * MS)
    commands, now = silent(it, 200 * MS)
    assert now > 20 * MS
    assert not set(asked(commands)) & {0, 1, 2} or controls(commands, Op.GET)[0].key == KEYS[1]


def test_a_lone_reader_turns_to_casting_when_somebody_joins() -> None:
    it = reader()
    it.handle(wanted(KEYS[0]), 0)
    (read,) = kinds(it.handle(notice(KEYS[0], ME), MS), StartRead)
    commands = it.handle(notice(KEYS[0], ME, OTHER, who=OTHER), 2 * MS)
    commands += it.handle_timer(5 * MS)
    assert [join.tag & TAG_LEADS for join in controls(commands, Op.JOIN)] == [TAG_LEADS]
    assert min(asked(commands)) == read.count


def test_a_join_that_was_lost_is_repeated_by_the_first_measured_answer() -> None:
    it = reader()
    it.handle_all([wanted(KEYS[0]), wanted(KEYS[1])], 0)
    now = MS // 10
    commands = it.handle(notice(KEYS[0], ME, OTHER), now)
    while not controls(commands, Op.JOIN):
        due = it.wake_ns
        assert due is not None
        now = max(now, due)
        commands += it.handle_timer(now)
    assert controls(commands, Op.JOIN)[0].key == KEYS[1]
    assert now < JOIN_RETRY.ceiling_ns // 4


@pytest.mark.parametrize("more", [False, True], ids=["nothing else is left", "another chunk is cast"])
def test_at_last_it_repairs_in_its_order_and_waits_for_nobodys_repairs(more: bool) -> None:
    it, keys, left_ns = reader(), KEYS[: 1 + more], 10 * MS
    it.handle_all(map(wanted, keys), 0)
    for key in keys:
        it.handle(notice(key, 0, 1, ME, OTHER), MS)
        it.handle(notice(key, 0, 1, ME, OTHER, who=OTHER, tag=TAG_LEADS), MS)
    it.handle(cast(KEYS[0], *sorted(set(range(SEGMENTS)) - {10, 20, 30})), 9 * MS)
    commands = it.handle(notice(KEYS[0], 0, 1, ME, who=OTHER, flags=Flag.LEFT), left_ns)
    own_ns = left_ns + REPAIR_DELAY.ceiling_ns + 2 * REPAIR_RANK_STEP.ceiling_ns
    for at_ns, others in ((own_ns - MS, (10,)), (own_ns - MS // 2, (11,))):
        commands += it.handle(cast(KEYS[0], *others), at_ns)
    assert not asked(commands)
    commands = it.handle_timer(own_ns)
    assert asked(commands) == ([] if more else [20, 30])
    if more:
        assert asked(it.handle_timer(own_ns + REPAIR_DELAY_UNLED.ceiling_ns + 2 * MS)) == [20, 30]


@pytest.mark.parametrize("announced", [(OTHER,), (ME, OTHER), (OTHER, ME)])
def test_of_two_who_announce_at_once_the_one_whose_notice_comes_last_leads(announced: tuple[int, ...]) -> None:
    def heard(who: int = ME, tag: int = 0) -> ControlReceived:
        told = notice(KEYS[0], ME, OTHER, who=who, tag=tag)
        return replace(told, message=replace(told.message, segments=4 * SEGMENTS))

    it = reader()
    it.handle(ChunkWanted(KEYS[0], 4 * SEGMENTS, 4 * SEGMENTS * 4096, (HOLDER,), 0), 0)
    it.handle(heard(), MS)
    commands, now = silent(it, 60 * MS)
    assert [join.tag & TAG_LEADS for join in controls(commands, Op.JOIN)] == [TAG_LEADS]
    assert len(asked(commands)) == SEGMENTS
    for who in announced:
        it.handle(heard(who, TAG_LEADS), now + MS)
        it.handle(cast(KEYS[0], *range(64, 80)), now + MS)  # the other one has asked for them
    commands = it.handle(cast(KEYS[0], *range(32)), now + 2 * MS)
    assert bool(asked(commands)) == (announced[-1] == ME)


def test_what_the_switch_serves_is_asked_of_it_alone() -> None:
    it = reader()
    it.handle(wanted(KEYS[0]), 0)
    commands = it.handle(notice(KEYS[0], ME, OTHER, flags=Flag.JOINED | Flag.CACHED), MS)
    assert all(get.flags is Flag.ONLY_ME for get in controls(commands, Op.GET))
    assert asked(commands)


def test_a_lone_reader_passes_the_switch_by_where_it_is_told_to() -> None:
    alone, company = (ME,), (ME, OTHER)
    for read_alone, members, read in ((True, alone, True), (True, company, False), (False, alone, False)):
        it = reader()
        it.handle(ChunkWanted(KEYS[0], SEGMENTS, SEGMENTS * 4096, (HOLDER,), 0, read_alone), 0)
        commands = it.handle(notice(KEYS[0], *members, flags=Flag.JOINED | Flag.CACHED), MS)
        assert (bool(kinds(commands, StartRead)), bool(controls(commands, Op.GET))) == (read, not read)


@pytest.mark.parametrize("flag", [Flag.NO_SWITCH, Flag.REFUSED])
def test_without_interest_it_reads(flag: Flag) -> None:
    it = reader()
    it.handle(wanted(KEYS[0]), 0)
    assert kinds(it.handle(notice(KEYS[0], flags=flag | Flag.JOINED), MS), StartRead)


def test_without_a_member_index_nothing_is_joined() -> None:
    commands = reader(None).handle(wanted(KEYS[0]), 0)
    assert not controls(commands, Op.JOIN)
    assert kinds(commands, StartRead)


def test_unanswered_joins_end_in_reading() -> None:
    it = reader()
    it.handle(wanted(KEYS[0]), 0)
    commands, now = silent(it, 1000 * MS)
    assert len(controls(commands, Op.JOIN)) == 3
    assert now <= 400 * MS
    assert kinds(commands, StartRead)


def reading(*holders: HolderRef) -> tuple[Reader, StartRead]:
    it = reader(None)
    (read,) = kinds(it.handle(wanted(KEYS[0], *holders), 0), StartRead)
    return it, read


def test_an_absent_copy_is_reported_and_the_next_holder_read() -> None:
    it, read = reading(HOLDER, SECOND)
    commands = it.handle(ReadFailed(read.read, gone=True), MS)
    assert ReportBadCopy(KEYS[0], read.holder, Blame.ABSENT) in commands
    (again,) = kinds(commands, StartRead)
    assert again.holder != read.holder


def test_a_chunk_without_a_holder_is_gone_until_another_one_is_named() -> None:
    it, read = reading(HOLDER)
    commands = it.handle(ReadFailed(read.read, gone=True), MS)
    assert commands == [ReportBadCopy(KEYS[0], HOLDER.node, Blame.ABSENT), ChunkGone(KEYS[0])]
    assert not it.idle, "it is wanted all the same"
    (again,) = kinds(it.handle(HoldersChanged({KEYS[0]: (SECOND,)}), 2 * MS), StartRead)
    assert again.holder == SECOND.node


def test_wanting_a_gone_chunk_again_names_its_holders() -> None:
    it, read = reading(HOLDER)
    it.handle(ReadFailed(read.read, gone=True), MS)
    assert kinds(it.handle(wanted(KEYS[0], SECOND), 2 * MS), StartRead)
    it.handle(ChunkUnwanted(KEYS[0]), 3 * MS)
    assert it.idle


def test_the_least_place_is_pulled_first_whenever_it_is_wanted() -> None:
    it = reader(None)
    (read,) = kinds(it.handle_all([wanted(KEYS[1]), wanted(KEYS[2])], 0), StartRead)
    it.handle(wanted(KEYS[0]), MS)
    commands = it.handle(ReadDone(read.read), 2 * MS)
    assert kinds(commands, StartRead)[0].key == KEYS[0]


def test_what_is_proven_on_its_way_is_here_without_a_question() -> None:
    it, read = reading(HOLDER)
    reads, now = [read], 0
    while read.first + read.count < SEGMENTS:
        now += MS
        reads += kinds(it.handle(ReadDone(reads.pop(0).read), now), StartRead)
        read = reads[-1]
    for each in reads[:-1]:
        it.handle(ReadDone(each.read), now)
    assert it.handle(ReadDone(read.read, proves=True), now) == [ChunkHere(KEYS[0], ChunkSource.HOLDER)]
    assert it.idle
    assert it.wake_ns is None


def read_out(it: Reader, commands: list[ReaderCommand], now: int) -> tuple[list[ReaderCommand], int]:
    """All reads succeed, until the chunk is whole. Returns the last commands, and the time."""
    while not kinds(commands, VerifyChunk):
        reads, commands, now = kinds(commands, StartRead), [], now + MS
        assert reads
        for each in reads:
            commands += it.handle(ReadDone(each.read), now)
    return commands, now


def test_wrong_bytes_are_found_out_by_the_tree_and_read_again() -> None:
    it = reader()
    it.handle(wanted(KEYS[0], HOLDER), 0)
    it.handle(notice(KEYS[0], ME, OTHER), MS)
    it.handle(cast(KEYS[0], *range(SEGMENTS)), 2 * MS)
    commands = it.handle(ChunkVerified(KEYS[0], good=False, has_tree=True), 3 * MS)
    (proof,) = kinds(commands, ReadLeaves)
    assert not kinds(commands, ReportBadCopy), "a cast's source address is no evidence"
    commands = it.handle(ChunkJudged(proof.read, np.array([3, 4], np.uint32)), 4 * MS)
    assert kinds(commands, SegmentsDropped) == [SegmentsDropped(KEYS[0], 2)]
    assert [(read.first, read.count) for read in kinds(commands, StartRead)] == [(3, 2)]
    assert it.missing(KEYS[0]) is None, "casts are not welcome any more"
    commands, now = read_out(it, commands, 4 * MS)
    assert kinds(it.handle(ChunkVerified(KEYS[0], good=True), now), ChunkHere)


def test_a_holder_is_blamed_for_what_was_read_while_nothing_else_was_written() -> None:
    it, read = reading(HOLDER, SECOND)
    commands, now = read_out(it, [read], 0)
    commands = it.handle(ChunkVerified(KEYS[0], good=False), now)
    assert not kinds(commands, ReportBadCopy)
    (first, *_) = kinds(commands, StartRead)
    commands, now = read_out(it, commands, now)
    commands = it.handle(ChunkVerified(KEYS[0], good=False), now)
    assert kinds(commands, ReportBadCopy) == [ReportBadCopy(KEYS[0], first.holder, Blame.DIGEST)]
    assert {again.holder for again in kinds(commands, StartRead)} == {HOLDER.node, SECOND.node} - {first.holder}


def test_a_holder_with_leaves_of_another_chunk_is_blamed_and_the_next_one_asked() -> None:
    it, read = reading(HOLDER, SECOND)
    commands, now = read_out(it, [read], 0)
    (proof,) = kinds(it.handle(ChunkVerified(KEYS[0], good=False, has_tree=True), now), ReadLeaves)
    commands = it.handle(ChunkJudged(proof.read, None), now + MS)
    assert kinds(commands, ReportBadCopy) == [ReportBadCopy(KEYS[0], proof.holder, Blame.DIGEST)]
    (again,) = kinds(commands, ReadLeaves)
    assert again.holder != proof.holder


def test_leaves_that_never_come_are_not_waited_for() -> None:
    it, read = reading(HOLDER)
    commands, now = read_out(it, [read], 0)
    (proof,) = kinds(it.handle(ChunkVerified(KEYS[0], good=False, has_tree=True), now), ReadLeaves)
    commands = it.handle_timer(now + READ_STALL_NS)
    assert AbortRead(proof.read) in commands
    assert kinds(commands, StartRead), "all of it is read again"


def test_a_nak_with_a_holders_address_has_the_holder_itself_asked() -> None:
    it = reader()
    it.handle(wanted(KEYS[0], HOLDER), 0)
    it.handle(notice(KEYS[0], ME, OTHER), MS)
    nak = Control(Op.NAK, KEYS[0], SEGMENTS)
    commands = it.handle(ControlReceived(nak, HOLDER.address), 2 * MS)
    assert not kinds(commands, ReportBadCopy) and not kinds(commands, ChunkGone)
    assert kinds(commands, StartRead)


def test_a_leader_that_only_announces_is_not_waited_for() -> None:
    """Whoever says without end that it leads, and repeats a segment, gets nobody to wait."""
    it = reader()
    it.handle(wanted(KEYS[0], HOLDER), 0)
    now, started = MS, []
    while now < 2 * LIVENESS.ceiling_ns and not started:
        commands = it.handle(notice(KEYS[0], ME, OTHER, who=OTHER, tag=TAG_LEADS), now)
        commands += it.handle(cast(KEYS[0], 0), now + MS // 2)
        started = kinds(commands, StartRead)
        now += 5 * MS
    assert started and now <= LIVENESS.ceiling_ns + 20 * MS


def test_a_lost_holder_ends_its_reads() -> None:
    it, read = reading(HOLDER, SECOND)
    commands = it.handle(HolderLost(read.holder), MS)
    assert AbortRead(read.read) in commands
    assert kinds(commands, StartRead)


def test_nothing_of_a_chunk_that_nobody_wants_goes_on() -> None:
    it = reader()
    it.handle(wanted(KEYS[0]), 0)
    it.handle(notice(KEYS[0], ME), MS)
    commands = it.handle(ChunkUnwanted(KEYS[0]), 50 * MS)
    assert controls(commands, Op.LEAVE)
    assert kinds(commands, AbortRead)
    assert it.idle
    assert it.wake_ns is None
    assert it.handle(ChunkUnwanted(KEYS[0]), 51 * MS) == []


def test_a_chunk_that_is_wanted_twice_is_joined_once() -> None:
    it = reader()
    it.handle(wanted(KEYS[0]), 0)
    assert not controls(it.handle(wanted(KEYS[0]), 0), Op.JOIN)


def test_a_restarted_switch_is_joined_again() -> None:
    it = reader()
    it.handle_all([wanted(KEYS[0]), wanted(KEYS[1])], 0)
    for key in KEYS[:2]:
        it.handle(notice(key, ME, OTHER), MS)
    commands = it.handle(SwitchChanged(), 2 * MS)
    assert {join.key for join in controls(commands, Op.JOIN)} == set(KEYS[:2])


def test_segments_of_a_chunk_that_was_left_bring_another_leave() -> None:
    it = reader()
    it.handle(wanted(KEYS[0]), 0)
    it.handle(notice(KEYS[0], ME, OTHER), MS)
    it.handle(ChunkUnwanted(KEYS[0]), 2 * MS)
    assert not controls(it.handle(cast(KEYS[0], 1), 3 * MS), Op.LEAVE)
    assert controls(it.handle(cast(KEYS[0], 2), 50 * MS), Op.LEAVE)


def test_misuse_raises() -> None:
    it = reader()
    it.handle(wanted(KEYS[0]), 0)
    with pytest.raises(LocalProtocolError, match="segments"):
        it.handle(ChunkWanted(KEYS[0], 3, 5, (HOLDER,), 0), 0)
    with pytest.raises(LocalProtocolError, match="segments"):
        it.handle(ChunkWanted(KEYS[1], 0, 0, (HOLDER,), 0), 0)


def test_notices_and_segments_of_unknown_chunks_are_ignored() -> None:
    it = reader()
    assert it.handle(notice(KEYS[3], OTHER), 0) == []
    assert it.handle(cast(KEYS[3], 1), 0) == []
    assert it.handle(ControlReceived(Control(Op.NAK, KEYS[3], SEGMENTS), HOLDER.address), 0) == []


def test_it_leaves_where_it_joined_though_no_holder_is_left() -> None:
    it = reader()
    it.handle(wanted(KEYS[0]), 0)
    it.handle(notice(KEYS[0], ME, OTHER), MS)
    commands = it.handle(HolderLost(HOLDER.node), 2 * MS)
    (leave,) = kinds(commands, SendControl)
    assert (leave.message.op, leave.address) == (Op.LEAVE, HOLDER.address)


def test_reads_that_break_together_are_one_failure_of_their_holder() -> None:
    """A connection takes all its reads with it: a holder that was rebooted is asked again, not given up."""
    it = reader(None)
    (read,) = kinds(it.handle_all([wanted(KEYS[0]), wanted(KEYS[1])], 0), StartRead)
    reads = kinds(it.handle(ReadDone(read.read), MS), StartRead)
    assert len(reads) > 1
    commands = [command for each in reads for command in it.handle(ReadFailed(each.read, gone=False), 2 * MS)]
    again = kinds(commands, StartRead)
    assert again
    assert not kinds(commands, ChunkGone)
    # The second connection breaks, too, without a byte: that is enough.
    commands = it.handle(ReadFailed(again[0].read, gone=False), 3 * MS)
    assert ChunkGone(again[0].key) in commands


def test_the_switch_alone_is_asked_again_and_never_read_from() -> None:
    it = reader()
    switch = HolderRef(NodeId("@switch"), SWITCH, readable=False)
    commands = it.handle(wanted(KEYS[0], switch), 0)
    now = 0
    for _ in range(20):  # no NOTICE for seconds
        now = it.wake_ns
        commands += it.handle_timer(now)
    assert now > 2000 * MS
    assert len(controls(commands, Op.JOIN)) > 10
    # It is there, and then loses everything that it is asked for, for seconds more.
    commands += it.handle(notice(KEYS[0], ME, flags=Flag.JOINED | Flag.CACHED), now)
    for _ in range(20):
        now = it.wake_ns
        commands += it.handle_timer(now)
    assert len(controls(commands, Op.GET)) > 10
    assert not kinds(commands, StartRead)
    assert not kinds(commands, ChunkGone)
