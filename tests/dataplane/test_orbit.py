"""What only a program has whose cached segments circulate (p4/tna): the orbit's counters, losses, groups by bitmap."""

from __future__ import annotations

import finsy as fy
import pytest

from tests.dataplane.bench import ORBIT_FENCE_PORT, Bench, counts, notices, served, table
from tests.dataplane.frames import Flag, Host, Op, parse

pytestmark = pytest.mark.parametrize("target", ["tna"], indirect=True)

ENTERED, REPEATED, LEFT, LOST = 1, 2, 5, 7
"""Cells of the counter `orbit` (p4/tna/types.p4)."""
FRAME_BYTES = 4198


def orbit(bench: Bench) -> dict[int, int]:
    return {int(cell.index): cell.packet_count for cell in bench.target.control.read(fy.P4CounterEntry("orbit"))}


def test_what_circulates_is_entered_less_left(bench: Bench) -> None:
    def circulating() -> int:
        found = orbit(bench)
        return found[ENTERED] - found[LEFT]

    before = circulating()
    key = bench.key()
    bench.cache(bench.segments(key), base_slot=0)
    assert circulating() == before + 8
    bench.remove(bench.chunk(key, "filling", base_slot=0, segments=8, port=1))
    bench.exchange()
    assert circulating() == before


def test_bytes_are_counted_too(bench: Bench) -> None:
    def entered() -> int:
        (cell,) = bench.target.control.read(fy.P4CounterEntry("orbit", index=ENTERED))
        octets: int = cell.byte_count
        return octets

    before = entered()
    bench.cache(bench.segments(bench.key()), base_slot=8)
    # A FILL has a control header more than the frame that circulates.
    assert (entered() - before) / 8 == pytest.approx(FRAME_BYTES, abs=48)


def test_repeated_fill_is_acknowledged_and_adds_nothing(bench: Bench) -> None:
    key = bench.key()
    segments = bench.segments(key)
    bench.insert(bench.chunk(key, "filling", base_slot=16, segments=8, port=1))
    bench.exchange((1, segments[2].fill_frame()))
    before = orbit(bench)
    received = bench.exchange((1, segments[2].fill_frame()))
    assert [parse(frame).control.op for frame in received[1]] == [Op.FILL_ACK]
    after = orbit(bench)
    assert (after[ENTERED] - before[ENTERED], after[REPEATED] - before[REPEATED]) == (0, 1)
    bench.serve(key, 16, 8)
    assert counts(bench.ask(2, bench.get(key, 2))) == {2: 1}


def test_a_lost_segment_is_reported_asked_of_its_holder_and_can_be_filled_in(bench: Bench) -> None:
    key = bench.key()
    segments = bench.segments(key)
    bench.insert(bench.chunk(key, "filling", base_slot=24, segments=8, port=1))
    bench.exchange(*((1, segment.fill_frame()) for segment in segments if segment.segment != 5))
    bench.serve(key, 24, 8)
    lost = orbit(bench)[LOST]
    assert counts(bench.ask(2, bench.get(key, 5))) == {1: 1}, "its reader waits for nothing"
    assert orbit(bench)[LOST] == lost + 1
    report = bench.target.control.next_digest(5.0, "lost_report_t")
    assert report == {"key": int.from_bytes(key, "big"), "segment": 5}

    bench.target.control.modify([bench.chunk(key, "filling", base_slot=24, segments=8, port=1)])
    before = orbit(bench)
    bench.exchange(*((1, segment.fill_frame()) for segment in segments))
    after = orbit(bench)
    assert (after[ENTERED] - before[ENTERED], after[REPEATED] - before[REPEATED]) == (1, 7)
    bench.serve(key, 24, 8)
    received = bench.ask(2, bench.get(key, 0, amount=8), expect=8)
    assert counts(received) == {2: 8}
    for got, segment in zip(bench.in_order(received[2]), segments, strict=True):
        served(got, segment)


def test_nothing_is_served_while_a_chunk_is_filled_in_again(bench: Bench) -> None:
    key = bench.key()
    bench.cache(bench.segments(key), base_slot=32)
    bench.target.control.modify([bench.chunk(key, "filling", base_slot=32, segments=8, port=1)])
    assert counts(bench.ask(2, bench.get(key, 3))) == {1: 1}


def become(bench: Bench, members: dict[int, int]) -> None:
    """These ports get other members than usual."""
    for port, member in members.items():
        usual = Host(port)
        if member == usual.member:
            continue
        for kind, key, action, field in (
            ("port_member", "ingress_port", "set_member", {"member": member}),
            ("egress_member", "egress_port", "set_receiver", {}),
        ):
            old = {"member": usual.member} if field else {}
            bench.remove(table(kind, {key: port}, action, member_bit=usual.bit, **old))
            bench.insert(table(kind, {key: port}, action, member_bit=1 << member, **field))


def interested(bench: Bench, members: dict[int, int]) -> dict[int, int]:
    """All ports join a chunk that port 1 holds; who gets what it casts."""
    key = bench.key()
    for port in members:
        told = notices(bench.join(port, key))
        assert set(told) == {other for other in members if other <= port}
    data = bench.segments(key)[0]
    return counts(bench.exchange((1, data.frame())))


def test_two_bitmaps_reach_members_of_both_halves(bench: Bench) -> None:
    members = {2: 1, 3: 14, 4: 16, 5: 30}
    become(bench, members)
    # NOTICEs go to the sets on the way there: {1}, {1, 14}, {1, 14, 16}.
    bench.group(1 << 1 | 1 << 14, [2, 3])
    bench.group(0x8000 | 1, [4])
    bench.group(0x8000 | 1 | 1 << 14, [4, 5])
    bench.replicate("to_two_bitmaps")
    assert interested(bench, members) == dict.fromkeys(members, 1)


def test_the_set_that_is_the_group_of_all_ports_is_pruned(bench: Bench) -> None:
    members = {2: 15}
    become(bench, members)
    assert interested(bench, members) == {2: 1}


def test_beyond_thirty_members_the_group_of_all_ports_is_pruned(bench: Bench) -> None:
    members = {2: 1, 3: 31, 4: 63}
    become(bench, members)
    bench.prune()
    assert interested(bench, members) == dict.fromkeys(members, 1)
    bench.group(0x400, [2, 3, 4])
    bench.insert(table("replicate", {"members": 1 << 1 | 1 << 31 | 1 << 63}, "to_group", group=0x400))
    assert interested(bench, members) == dict.fromkeys(members, 1)


def test_what_is_cast_from_the_orbit_reaches_both_halves_and_goes_on(bench: Bench) -> None:
    members = {2: 1, 3: 16}
    become(bench, members)
    bench.group(0x8000 | 1, [3])
    bench.replicate("to_two_bitmaps")
    key = bench.key()
    segments = bench.segments(key)
    bench.cache(segments, base_slot=40)
    bench.join(2, key)
    for _ in range(2):
        assert counts(bench.ask(3, bench.get(key, 1))) == {2: 1, 3: 1}
    assert counts(bench.ask(ORBIT_FENCE_PORT, bench.get(key, 1, flags=Flag.ONLY_ME))) == {ORBIT_FENCE_PORT: 1}
