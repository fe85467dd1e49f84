"""The holder, event by event."""

import pytest

from kvchunk.ids import ChunkKey
from kvproto.commands import FillEnded, PinChunk, SendControl, SendFill, SendSegments, UnpinChunk
from kvproto.errors import LocalProtocolError
from kvproto.events import (
    ControlReceived,
    FillCancelled,
    FillRequested,
    SegmentsSent,
)
from kvproto.ids import Address, FillId
from kvproto.limits import FILL_WINDOW, HOLDER_PEER_SEGMENTS_MAX, HOLDER_QUEUE_SEGMENTS_MAX, MS
from kvproto.session.holder import Holder
from kvproto.session.parameters import HolderParameters
from kvproto.session.timing import FILL_RIDES_MAX_NS, FILL_RIDES_NS, FILL_TIMEOUT_NS
from kvproto.wire.control import TAG_LEADS, Control, Flag, Op
from tests.counted_keys import CountedKey, counted

KEY, OTHER = ChunkKey(b"k" * 16), ChunkKey(b"o" * 16)
ASKER, POOL = Address(7), Address(99)


class Shelf:
    def __init__(self, **segments: int) -> None:
        self.chunks = {KEY: 256} | {ChunkKey(key.encode().ljust(16)): count for key, count in segments.items()}

    def segments_of(self, key: ChunkKey) -> int | None:
        return self.chunks.get(key)


def holder(burst: int = 64) -> Holder:
    return Holder(HolderParameters(send_burst_segments=burst), Shelf())


def get(first: int, count: int, member: int = 1, key: ChunkKey = KEY, segments: int = 256) -> ControlReceived:
    return ControlReceived(Control(Op.GET, key, segments, segment=first, count=count, member=member), ASKER)


def test_a_get_is_sent_under_a_pin() -> None:
    it = holder()
    assert it.handle(get(3, 5), 0) == [PinChunk(KEY), SendSegments(KEY, 3, 5)]
    assert it.handle(SegmentsSent(KEY, 2), 1) == []
    assert it.handle(SegmentsSent(KEY, 3), 2) == [UnpinChunk(KEY)]
    assert not it.pinned


def test_what_is_not_here_is_refused() -> None:
    it = holder()
    for event in (get(0, 1, key=OTHER), get(0, 1, segments=8)):
        (command,) = it.handle(event, 0)
        assert isinstance(command, SendControl)
        assert command.message.op is Op.NAK
        assert command.address == ASKER


def test_the_queue_is_handed_over_in_bursts_and_in_order() -> None:
    it = holder(burst=8)
    assert it.handle(get(0, 12), 0) == [PinChunk(KEY), SendSegments(KEY, 0, 8)]
    assert it.handle(get(100, 4, member=2), 0) == []
    assert it.handle(SegmentsSent(KEY, 6), 1) == [SendSegments(KEY, 8, 4), SendSegments(KEY, 100, 2)]
    assert it.handle(SegmentsSent(KEY, 2), 1) == [SendSegments(KEY, 102, 2)]
    assert it.handle(SegmentsSent(KEY, 8), 1) == [UnpinChunk(KEY)]


def test_gets_that_come_together_leave_as_one_run() -> None:
    it = holder(burst=100)
    gets = [get(0, 64), get(64, 32), get(96, 32, member=2), get(200, 8)]
    assert it.handle_all(gets, 0) == [PinChunk(KEY), SendSegments(KEY, 0, 96), SendSegments(KEY, 96, 4)]
    assert it.handle(SegmentsSent(KEY, 100), 1) == [SendSegments(KEY, 100, 28), SendSegments(KEY, 200, 8)]


def test_a_shell_that_reports_all_of_a_burst_at_once_gets_larger_ones() -> None:
    """That it has nothing left for a moment does not mean that it rests."""
    it = holder(burst=4)
    it.handle(get(0, 256), 0)
    now, handed = 0, 4
    while handed < 100:
        now += 100_000
        handed += sum(command.count for command in it.handle(SegmentsSent(KEY, 4), now))
    assert handed > 100, "more than the shell has reported"
    assert now == 2 * MS


def test_what_is_queued_or_just_sent_for_another_is_not_sent_again() -> None:
    it = holder(burst=4)
    it.handle(get(0, 8), 0)
    assert it.handle(get(2, 8, member=2), MS) == []
    sent = it.handle(SegmentsSent(KEY, 4), 2 * MS)
    assert sent == [SendSegments(KEY, 4, 4)]
    sent = it.handle(SegmentsSent(KEY, 4), 3 * MS)
    assert sent == [SendSegments(KEY, 8, 2)]
    assert it.counts.answered_already == 6


def test_the_same_member_asking_again_has_lost_it() -> None:
    it = holder()
    it.handle(get(0, 2), 0)
    it.handle(SegmentsSent(KEY, 2), 0)
    assert SendSegments(KEY, 0, 2) in it.handle(get(0, 2), MS)


def test_another_member_asking_much_later_has_lost_it() -> None:
    it = holder()
    it.handle(get(0, 2), 0)
    it.handle(SegmentsSent(KEY, 2), 0)
    assert SendSegments(KEY, 0, 2) in it.handle(get(0, 2, member=2), 20 * MS)


def test_the_queue_is_bounded() -> None:
    shelf = Shelf()
    shelf.chunks[KEY] = 4 * HOLDER_QUEUE_SEGMENTS_MAX
    it = Holder(HolderParameters(send_burst_segments=1), shelf)
    for first in range(0, 2 * HOLDER_QUEUE_SEGMENTS_MAX, 4096):
        it.handle(get(first, 4096, segments=shelf.chunks[KEY]), 0)
    assert it.counts.segments_refused > 0
    assert it.counts.segments_queued <= HOLDER_QUEUE_SEGMENTS_MAX + 1


def test_one_peer_that_asks_for_everything_leaves_half_of_the_queue_to_others() -> None:
    """As 800 datagrams of 60 bytes do that ask for 13 GB."""
    shelf = Shelf()
    shelf.chunks[KEY] = 4 * HOLDER_QUEUE_SEGMENTS_MAX
    it = Holder(HolderParameters(send_burst_segments=1), shelf)
    out = []
    for first in range(800):
        out += it.handle(get(first * 80, 4096, segments=shelf.chunks[KEY], member=first % 64), 0)
    assert it.queued_segments <= HOLDER_PEER_SEGMENTS_MAX + 1
    before = it.queued_segments
    other = ControlReceived(Control(Op.GET, OTHER, 4096, segment=0, count=4096, member=9), Address(8))
    shelf.chunks[OTHER] = 4096
    out += it.handle(other, 0)
    assert it.queued_segments == before + 4096
    while sends := [command for command in out if isinstance(command, SendSegments)]:
        out = [more for sent in sends for more in it.handle(SegmentsSent(sent.key, sent.count), MS)]
    assert not it.queued_segments
    it.handle(get(0, 4096, segments=shelf.chunks[KEY]), 900 * MS)
    assert it.queued_segments == 4096, "what was sent counts no more"


def test_a_join_that_gets_here_met_no_switch() -> None:
    it = holder()
    (command,) = it.handle(ControlReceived(Control(Op.JOIN, KEY, 256, tag=TAG_LEADS), ASKER), 0)
    assert isinstance(command, SendControl)
    assert command.message == Control(Op.NOTICE, KEY, 256, tag=TAG_LEADS, flags=Flag.NO_SWITCH | Flag.JOINED)
    (command,) = it.handle(ControlReceived(Control(Op.JOIN, OTHER, 256), ASKER), 0)
    assert command.message.op is Op.NAK


def test_misuse_raises() -> None:
    it = holder()
    with pytest.raises(LocalProtocolError):
        it.handle(SegmentsSent(KEY, 1), 0)
    it.handle(get(0, 2), 0)
    with pytest.raises(LocalProtocolError):
        it.handle(SegmentsSent(KEY, 3), 0)


def fill(deadline_ns: int = 1000 * MS) -> FillRequested:
    return FillRequested(FillId(5), KEY, POOL, deadline_ns)


def riding(readers: int = 0, deadline_ns: int = 5000 * MS) -> FillRequested:
    return FillRequested(FillId(5), KEY, POOL, deadline_ns, cast_too=True, readers=readers)


def ack(segment: int) -> ControlReceived:
    return ControlReceived(Control(Op.FILL_ACK, KEY, 256, segment=segment), POOL)


def sent(commands: list) -> list[int]:
    return [
        segment
        for command in commands
        if isinstance(command, SendFill)
        for segment in range(command.first, command.first + command.count)
    ]


def test_a_fill_keeps_a_window_and_ends_complete() -> None:
    it = holder()
    commands = it.handle(fill(), 0)
    assert commands[0] == PinChunk(KEY)
    assert sent(commands) == list(range(FILL_WINDOW))
    last: list = []
    for segment in range(256):
        last = it.handle(ack(segment), MS)
        assert sent(last) == ([segment + FILL_WINDOW] if segment + FILL_WINDOW < 256 else [])
    assert last == [FillEnded(FillId(5), KEY, complete=True, acknowledged=256), UnpinChunk(KEY)]


def test_fills_that_were_overtaken_are_sent_again() -> None:
    it = holder()
    it.handle(fill(), 0)
    again = [segment for number in range(1, 32) for segment in sent(it.handle(ack(number), MS))]
    assert again.count(0) == 1


def test_fills_without_any_answer_are_repeated_until_the_deadline() -> None:
    it = holder()
    it.handle(fill(deadline_ns=300 * MS), 0)
    repeated, now = 0, 0
    while (due := it.next_timeout_ns()) is not None and it.pinned:
        assert due > now
        now = due
        commands = it.handle_timer(now)
        repeated += bool(sent(commands))
    assert repeated >= 2
    assert now == 300 * MS
    assert commands == [FillEnded(FillId(5), KEY, complete=False, acknowledged=0), UnpinChunk(KEY)]


def test_a_fill_of_what_is_not_here_fails_at_once() -> None:
    it = holder()
    request = FillRequested(FillId(6), OTHER, POOL, 1000 * MS)
    assert it.handle(request, 0) == [FillEnded(FillId(6), OTHER, complete=False, acknowledged=0)]


def test_a_cancelled_fill_is_forgotten() -> None:
    it = holder()
    it.handle(fill(), 0)
    assert it.handle(FillCancelled(FillId(5)), 1) == [UnpinChunk(KEY)]
    assert it.handle(ack(0), 2) == []
    assert it.handle(FillCancelled(FillId(5)), 3) == []


def test_nothing_is_remembered_for_ever() -> None:
    it = holder()
    it.handle(get(0, 2), 0)
    it.handle(SegmentsSent(KEY, 2), 0)
    due = it.next_timeout_ns()
    assert due is not None
    assert it.handle_timer(due) == []
    assert it.next_timeout_ns() is None


# --- fills that ride on a cast


def ride(first: int, count: int) -> SendFill:
    return SendFill(KEY, first, count, POOL, cast_too=True)


def test_what_a_get_asks_for_leaves_once_for_readers_and_switch() -> None:
    it = holder()
    assert it.handle(riding(readers=2), 0) == [PinChunk(KEY)]
    assert it.handle(get(8, 4), MS) == [ride(8, 4)]
    assert it.counts.rode == 4
    assert it.handle(SegmentsSent(KEY, 4), MS) == []
    for segment in range(8, 12):
        assert it.handle(ack(segment), 2 * MS) == []
    # Half of this one has ridden already: a reader lost it.
    assert it.handle(get(10, 4, member=2), 20 * MS) == [SendSegments(KEY, 10, 2), ride(12, 2)]


def test_the_rest_goes_by_itself_when_nobody_asks_any_more() -> None:
    it = holder()
    it.handle(riding(readers=2), 0)
    it.handle(get(0, 64), MS)
    it.handle(SegmentsSent(KEY, 64), 2 * MS)
    for segment in range(64):
        assert it.handle(ack(segment), 3 * MS) == []
    quiet = 2 * MS + FILL_RIDES_NS
    assert it.next_timeout_ns() == quiet
    assert it.handle_timer(quiet - 1) == []
    assert sent(it.handle_timer(quiet)) == list(range(64, 64 + FILL_WINDOW))


def test_the_window_is_for_what_does_not_ride() -> None:
    it = holder(burst=256)
    it.handle(riding(readers=2), 0)
    assert it.handle(get(0, 127), 0) == [ride(0, 127)]
    it.handle(SegmentsSent(KEY, 127), MS)
    it.handle(ack(126), FILL_RIDES_NS)
    commands = it.handle_timer(MS + FILL_RIDES_NS)
    assert len(sent(commands)) == FILL_WINDOW


def test_nobody_waits_so_nothing_is_waited_for() -> None:
    it = holder()
    assert sent(it.handle(riding(), 0)) == list(range(FILL_WINDOW))


def test_a_chunk_waits_for_its_turn_while_others_are_cast_but_not_for_ever() -> None:
    shelf = ChunkKey(b"other".ljust(16))
    it = Holder(HolderParameters(send_burst_segments=64), Shelf(other=8))
    now = 0
    it.handle(riding(readers=2), now)
    while now < FILL_RIDES_MAX_NS - 20 * MS:
        now += 20 * MS
        it.handle(get(0, 8, key=shelf, segments=8), now)
        assert sent(it.handle(SegmentsSent(shelf, 8), now)) == []
    now = FILL_RIDES_MAX_NS
    assert len(sent(it.handle_timer(now))) == FILL_WINDOW


def test_a_switch_that_does_not_answer_is_not_relied_on() -> None:
    """It casts nothing of what it refuses: readers get data datagrams again."""
    it = holder()
    it.handle(riding(readers=2), 0)
    assert it.handle(get(0, 4), 0) == [ride(0, 4)]
    it.handle(SegmentsSent(KEY, 4), 0)
    assert it.handle(get(4, 4), FILL_TIMEOUT_NS - 1) == [ride(4, 4)]
    it.handle(SegmentsSent(KEY, 4), FILL_TIMEOUT_NS - 1)
    assert it.handle(get(8, 4), FILL_TIMEOUT_NS) == [SendSegments(KEY, 8, 4)]
    it.handle(SegmentsSent(KEY, 4), FILL_TIMEOUT_NS)
    assert it.handle(ack(5), FILL_TIMEOUT_NS) == []
    assert it.handle(get(12, 4), FILL_TIMEOUT_NS) == [ride(12, 4)]


def test_a_fill_that_is_cancelled_leaves_its_casts_under_their_own_pin() -> None:
    it = holder()
    it.handle(riding(readers=2), 0)
    it.handle(get(0, 4), 0)
    assert it.handle(FillCancelled(FillId(5)), 0) == []
    assert it.pinned == {KEY}
    assert it.handle(SegmentsSent(KEY, 4), 1) == [UnpinChunk(KEY)]
    assert it.handle(get(4, 4), 1) == [PinChunk(KEY), SendSegments(KEY, 4, 4)]


@pytest.mark.parametrize("op", [Op.FILL_ACK, Op.GET])
def test_fills_of_other_chunks_cost_a_datagram_nothing(op: Op) -> None:
    compared = []
    for count in (4, 200):
        shelf = Shelf()
        shelf.chunks = {counted(number): 1 for number in range(count)}
        it = Holder(HolderParameters(), shelf)
        for number in range(count):
            it.handle(FillRequested(FillId(number), counted(number), POOL, 1000 * MS), 0)
        before = CountedKey.compared_count
        it.handle(ControlReceived(Control(op, counted(count - 1), 1, segment=0, count=1, member=1), ASKER), 1)
        compared.append(CountedKey.compared_count - before)
    assert compared[0] == compared[1] > 0
