"""A keeper, and readers that ask one: what goes out when, and who is asked next."""

import numpy as np

from kvproto.commands import SendControl
from kvproto.events import ChunkUnwanted, ControlReceived, HolderRef, HoldersChanged, SegmentsReceived
from kvproto.ids import Address, Member, NodeId
from kvproto.limits import MS
from kvproto.session.holder import Holder
from kvproto.session.interest import InterestTable
from kvproto.session.keeper import NEWS_WAIT_NS, Keeper
from kvproto.session.membership import LEAVES_AGAIN_MAX
from kvproto.session.parameters import HolderParameters, ReaderParameters
from kvproto.session.reader import Reader
from kvproto.wire.control import TAG_LEADS, Control, Flag, Op
from tests.unit.kvproto.reader_words import KEYS, ME, SEGMENTS, controls, wanted

KEY = KEYS[0]
TTL_NS = 2_000 * MS


class Town:
    """Member m is at address 100 + m."""

    def member_at(self, address: Address) -> Member | None:
        return Member(address - 100) if 100 <= address < 164 else None

    def address_of(self, member: Member) -> Address | None:
        return Address(100 + member)


class Shelf:
    def segments_of(self, _: object) -> int:
        return SEGMENTS


def holder(elsewhere: Address | None = None) -> Holder:
    keeper = Keeper(InterestTable(TTL_NS), Town(), Member(0), lambda _: elsewhere)
    return Holder(HolderParameters(), Shelf(), keeper)


def said(member: int, op: Op = Op.JOIN, **fields: int) -> ControlReceived:
    return ControlReceived(Control(op, KEY, SEGMENTS, **fields), Address(100 + member))


def told(commands: list) -> list[tuple[int, int]]:
    """To whom, and of whom, each NOTICE is."""
    return [(one.address - 100, one.message.member) for one in commands if isinstance(one, SendControl)]


def test_many_who_join_at_once_are_one_notice_to_each() -> None:
    it = holder()
    out = it.handle_all([said(member) for member in range(1, 33)], 0)
    own = [(member, member) for member in range(1, 33)]
    assert told(out) == [*own[:2], (1, 2), *own[2:]], "each its own answer at once; the first is not alone"
    assert it.next_timeout_ns() == NEWS_WAIT_NS
    out = it.handle_timer(NEWS_WAIT_NS)
    assert sorted(to for to, _ in told(out)) == list(range(1, 32)), "and once what the others did; the last knows"
    assert {one.message.members for one in out} == {sum(1 << member for member in range(1, 33))}
    assert it.next_timeout_ns() is None


def test_who_leads_or_leaves_is_told_at_once() -> None:
    it = holder()
    it.handle_all([said(1), said(2)], 0)
    assert told(it.handle(said(2, tag=TAG_LEADS), 1)) == [(1, 2), (2, 2)]
    assert it.next_timeout_ns() is None, "that said all"
    assert told(it.handle(said(2, Op.LEAVE), 2)) == [(1, 2)]
    assert told(it.handle(said(1, Op.LEAVE), 3)) == []


def test_segments_go_to_those_who_want_them_when_they_leave() -> None:
    it = holder()
    it.handle_all([said(1), said(2), said(5)], 0)
    out = it.handle(said(1, Op.GET, count=8), 1)
    (sent,) = [one for one in out if not isinstance(one, SendControl) and hasattr(one, "to")]
    assert sent.to == 1 << 1 | 1 << 2 | 1 << 5


def test_what_nobody_wants_any_more_does_not_leave_and_nothing_stays_pinned() -> None:
    it = Holder(HolderParameters(send_burst_segments=8), Shelf(), Keeper(InterestTable(TTL_NS), Town(), Member(0)))
    it.handle(said(1), 0)
    it.handle(said(1, Op.GET, count=40), 1)
    it.handle(said(1, Op.LEAVE), 2)
    from kvproto.events import SegmentsSent

    it.handle(SegmentsSent(KEY, 8), 3)
    assert not it.pinned
    assert it.queued_segments == 0


def test_who_is_no_member_hears_that_there_is_no_switch() -> None:
    (answer,) = holder().handle(ControlReceived(Control(Op.JOIN, KEY, SEGMENTS), Address(7)), 0)
    assert isinstance(answer, SendControl)
    assert answer.message.flags & Flag.NO_SWITCH


def test_who_knows_the_keeper_of_what_is_in_flight_names_it() -> None:
    (answer,) = holder(elsewhere=Address(2)).handle(said(3), 0)
    assert isinstance(answer, SendControl)
    assert (answer.message.op, answer.message.members) == (Op.NAK, 2)


# ---------------------------------------------------------------------- readers

HOLDERS = tuple(HolderRef(NodeId(f"h{number}"), Address(number)) for number in (1, 2, 3))


def reader() -> Reader:
    return Reader(ReaderParameters(ME, by_keepers=True))


def joined_at(commands: list) -> int:
    (join,) = [one for one in commands if isinstance(one, SendControl) and one.message.op is Op.JOIN]
    return join.address


def test_readers_agree_on_the_keeper_whatever_their_numbers_and_loads() -> None:
    asked = set()
    for member in (0, 7, 63):
        for loads in ((0.0, 0.5, 0.9), (0.9, 0.0, 0.1)):
            holders = [HolderRef(one.node, one.address, load) for one, load in zip(HOLDERS, loads, strict=True)]
            it = Reader(ReaderParameters(Member(member), by_keepers=True))
            asked.add(joined_at(it.handle(wanted(KEY, *holders), 0)))
    assert len(asked) == 1
    others = {joined_at(reader().handle(wanted(key, *HOLDERS), 0)) for key in KEYS}
    assert len(others) > 1, "other chunks have other keepers"


def test_a_nak_names_the_next_and_the_last_is_read_from() -> None:
    it = reader()
    first = joined_at(it.handle(wanted(KEY, *HOLDERS), 0))
    named = next(one.address for one in HOLDERS if one.address != first)
    nak = Control(Op.NAK, KEY, SEGMENTS, members=named)
    second = joined_at(it.handle(ControlReceived(nak, Address(first)), 1))
    assert second == named
    third = joined_at(it.handle(ControlReceived(Control(Op.NAK, KEY, SEGMENTS), Address(second)), 2))
    assert {first, second, third} == {1, 2, 3}
    out = it.handle(ControlReceived(Control(Op.NAK, KEY, SEGMENTS), Address(third)), 3)
    assert not controls(out, Op.JOIN)


def test_silence_names_the_next() -> None:
    it, now_ns = reader(), 0
    asked = [joined_at(it.handle(wanted(KEY, *HOLDERS), 0))]
    while len(set(asked)) < 3:
        assert it.wake_ns is not None
        now_ns = it.wake_ns
        asked += [one.address for one in it.handle_timer(now_ns) if isinstance(one, SendControl)]
        assert len(asked) < 20
    assert now_ns < 1_000 * MS


def test_only_its_keeper_tells_a_reader_anything() -> None:
    it = reader()
    at = joined_at(it.handle(wanted(KEY, HOLDERS[0]), 0))
    notice = Control(Op.NOTICE, KEY, SEGMENTS, flags=Flag.NO_SWITCH)
    it.handle(ControlReceived(notice, Address(66)), 1)
    missing = it.missing(KEY)
    assert missing is not None
    joined = Control(Op.NOTICE, KEY, SEGMENTS, flags=Flag.JOINED, member=ME, members=1 << ME)
    it.handle(ControlReceived(joined, Address(at)), 2)
    out = it.handle_timer(200 * MS)
    assert controls(out, Op.GET) or it.led_count


def test_who_turns_to_another_keeper_joins_there_before_it_asks_and_leaves_the_last() -> None:
    it = reader()
    first = joined_at(it.handle(wanted(KEY, *HOLDERS), 0))
    joined = Control(Op.NOTICE, KEY, SEGMENTS, flags=Flag.JOINED, member=ME, members=1 << ME | 1 << 9, count=10)
    it.handle(ControlReceived(joined, Address(first)), 1)
    others = tuple(one for one in HOLDERS if one.address != first)
    sent, now_ns = it.handle(HoldersChanged({KEY: others}), 2), 2
    while not controls(sent, Op.GET):
        assert it.wake_ns is not None and now_ns < 1_000 * MS
        now_ns = it.wake_ns
        sent += it.handle_timer(now_ns)
    said = [(one.message.op, one.address) for one in sent if isinstance(one, SendControl)]
    asked = next(address for op, address in said if op is Op.GET)
    assert asked != first
    assert said.index((Op.JOIN, asked)) < said.index((Op.GET, asked))
    assert (Op.LEAVE, first) in said


def test_casts_of_a_chunk_that_was_left_are_answered_a_few_times_only_and_notices_each_time() -> None:
    it = reader()
    at = joined_at(it.handle(wanted(KEY, HOLDERS[0]), 0))
    assert len(controls(it.handle(ChunkUnwanted(KEY), 1), Op.LEAVE)) == 1
    again = []
    for step in range(1, 200):
        again += it.handle(SegmentsReceived(KEY, np.array([step % SEGMENTS], np.uint32), Address(at)), step * 25 * MS)
    assert len(controls(again, Op.LEAVE)) == LEAVES_AGAIN_MAX, "others want it, and share groups with this reader"
    counted = Control(Op.NOTICE, KEY, SEGMENTS, flags=Flag.JOINED, member=9, members=1 << ME | 1 << 9)
    told = [it.handle(ControlReceived(counted, Address(at)), step * 25 * MS) for step in range(200, 205)]
    assert all(controls(one, Op.LEAVE) for one in told), "its LEAVE was lost"
