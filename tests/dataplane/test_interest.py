"""Interest table, NOTICE and casts: who asks for a chunk gets it, and nobody else."""

from __future__ import annotations

import pytest

from tests.dataplane.bench import STRANGER_PORT, Bench, counts, mask, notices, table
from tests.dataplane.frames import (
    GROUP_MAC,
    Control,
    Drop,
    Flag,
    Host,
    Op,
    control_frame,
    parse,
    signature,
)
from tests.dataplane.targets import INTEREST_OF_PORT


def colliding_keys(bench: Bench) -> tuple[bytes, bytes]:
    """Two keys with the same index in the interest table and different signatures."""
    seen: dict[int, bytes] = {}
    for _ in range(1 << 12):
        key = bench.any_key()
        other = seen.setdefault(bench.interest_index(key), key)
        if signature(other) != signature(key) and bench.claim(other, key):
            return other, key
    raise AssertionError("no collision found")


def cast(bench: Bench, key: bytes, segment: int = 0, holder: int = 1) -> dict[int, int]:
    """Casts one segment and checks that it arrives byte for byte; returns where."""
    data = bench.segments(key, holder=holder)[segment]
    received = bench.exchange((holder, data.frame()))
    for frames in received.values():
        for frame in frames:
            assert frame == data.frame()
            assert parse(frame).icrc_valid
    return counts(received)


def test_join_notifies_the_joiner_and_all_members(bench: Bench) -> None:
    key = bench.key()
    first = notices(bench.join(2, key, tag=77))
    assert first == {2: Control(Op.NOTICE, key, tag=77, flags=Flag.JOINED, member=1, members=mask(2))}
    second = notices(bench.join(5, key, tag=78))
    told = Control(Op.NOTICE, key, tag=78, flags=Flag.JOINED, member=4, members=mask(2, 5))
    assert second == {2: told, 5: told}


def test_renewed_join_changes_nothing_and_is_answered(bench: Bench) -> None:
    key = bench.key()
    bench.join(2, key)
    bench.join(3, key)
    again = notices(bench.join(3, key, tag=9))
    told = Control(Op.NOTICE, key, tag=9, flags=Flag.JOINED, member=2, members=mask(2, 3))
    assert again == {2: told, 3: told}


def test_leave_notifies_those_who_remain(bench: Bench) -> None:
    key = bench.key()
    for port in (2, 3, 4):
        bench.join(port, key)
    left = notices(bench.leave(3, key))
    told = Control(Op.NOTICE, key, flags=Flag.LEFT, member=2, members=mask(2, 4))
    assert left == {2: told, 4: told}
    assert cast(bench, key) == {2: 1, 4: 1}


def test_last_leave_clears_the_entry(bench: Bench) -> None:
    key = bench.key()
    before = bench.drops()[Drop.LAST_LEFT]
    bench.join(2, key)
    assert counts(bench.leave(2, key)) == {}
    assert bench.drops()[Drop.LAST_LEFT] == before + 1
    assert cast(bench, key) == {}
    assert notices(bench.join(3, key))[3].members == mask(3)


def test_leave_of_somebody_who_never_joined_changes_nothing(bench: Bench) -> None:
    key = bench.key()
    bench.join(2, key)
    before = bench.drops()[Drop.NO_INTEREST]
    assert counts(bench.leave(3, key)) == {}
    assert counts(bench.leave(3, bench.key())) == {}
    assert bench.drops()[Drop.NO_INTEREST] == before + 2
    assert cast(bench, key) == {2: 1}


def test_cast_reaches_each_interested_member_once_and_nobody_else(bench: Bench) -> None:
    key = bench.key()
    for port in (2, 4, 7):
        bench.join(port, key)
    for segment in range(8):
        assert cast(bench, key, segment) == {2: 1, 4: 1, 7: 1}


def test_cast_does_not_return_to_a_holder_who_is_interested(bench: Bench) -> None:
    key = bench.key()
    bench.join(1, key)
    bench.join(2, key)
    assert cast(bench, key) == {2: 1}


def test_cast_without_interest_is_dropped_and_counted(bench: Bench) -> None:
    key = bench.key()
    before = bench.drops()[Drop.NO_INTEREST]
    assert cast(bench, key) == {}
    bench.join(1, key)
    assert cast(bench, key) == {}, "the holder alone is interested"
    assert bench.drops()[Drop.NO_INTEREST] == before + 2


def test_chunks_have_interest_of_their_own(bench: Bench) -> None:
    one, other = bench.key(), bench.key()
    bench.join(2, one)
    bench.join(3, other)
    assert cast(bench, one) == {2: 1}
    assert cast(bench, other) == {3: 1}


def test_exact_group_and_pruning_reach_the_same_members(bench: Bench) -> None:
    key = bench.key()
    bench.prune()
    bench.join(3, key)
    bench.join(6, key)
    pruned = bench.drops("egress_drops")[Drop.NOT_INTERESTED]
    assert cast(bench, key) == {3: 1, 6: 1}
    by_pruning = bench.drops("egress_drops")[Drop.NOT_INTERESTED]
    assert by_pruning == pruned + 7
    bench.group(0x300, [3, 6])
    bench.insert(table("replicate", {"members": mask(3, 6)}, "to_group", group=0x300))
    assert cast(bench, key) == {3: 1, 6: 1}
    assert bench.drops("egress_drops")[Drop.NOT_INTERESTED] == by_pruning, "an exact group makes no copy too many"


def test_set_of_one_needs_no_group(bench: Bench) -> None:
    key = bench.key()
    bench.insert(table("replicate", {"members": mask(4)}, "to_port", port=4))
    pruned = bench.drops("egress_drops")[Drop.NOT_INTERESTED]
    assert notices(bench.join(4, key))[4].members == mask(4)
    assert cast(bench, key) == {4: 1}
    assert bench.drops("egress_drops")[Drop.NOT_INTERESTED] == pruned


def test_colliding_chunk_is_refused_and_disturbs_nobody(bench: Bench) -> None:
    owner, late = colliding_keys(bench)
    bench.join(2, owner)
    refused = notices(bench.join(3, late, tag=5))
    assert refused == {3: Control(Op.NOTICE, late, tag=5, flags=Flag.REFUSED, member=2, members=0)}
    assert counts(bench.leave(3, late)) == {}
    assert cast(bench, late) == {}
    assert cast(bench, owner) == {2: 1}
    bench.leave(2, owner)
    assert notices(bench.join(3, late))[3].flags == Flag.JOINED


def test_another_salt_parts_who_collided(bench: Bench) -> None:
    """Who camps on the entry of a chunk loses it with the salt; readers that join again find their entries free."""
    camper, wanted = colliding_keys(bench)
    assert notices(bench.join(2, camper))[2].flags == Flag.JOINED
    assert notices(bench.join(3, wanted))[3].flags == Flag.REFUSED
    for _ in range(2):
        bench.salt(bench.salt_apart(camper, wanted))
        assert bench.interest_index(camper) != bench.interest_index(wanted)
        assert notices(bench.join(2, camper))[2].flags == Flag.JOINED
        assert notices(bench.join(3, wanted))[3].members == mask(3)
        assert counts(bench.control(3, bench.get(wanted, 0))) == {1: 1}
    camper, wanted = colliding_keys(bench)
    bench.join(2, camper)
    assert notices(bench.join(3, wanted))[3].flags == Flag.REFUSED, "where our hash says that they collide, they do"


def test_expired_entry_is_free_and_gets_nothing(bench: Bench) -> None:
    owner, late = colliding_keys(bench)
    bench.join(2, owner)
    bench.fabric(ttl_us=1)
    assert cast(bench, owner) == {}
    claimed = notices(bench.join(3, late))
    assert claimed[3].flags == Flag.JOINED
    assert claimed[3].members == mask(3)
    bench.fabric()
    assert cast(bench, late) == {3: 1}
    assert cast(bench, owner) == {}


V1MODEL_ONLY = pytest.mark.parametrize(
    "target", ["p4switch", pytest.param("bmv2", marks=[pytest.mark.bmv2, pytest.mark.root])], indirect=True
)
"""On Tofino only a JOIN that is paid for makes an entry younger."""
TNA_ONLY = pytest.mark.parametrize("target", ["tna"], indirect=True)


@V1MODEL_ONLY
def test_expired_entry_starts_again_for_its_own_chunk(bench: Bench) -> None:
    key = bench.key()
    bench.join(2, key)
    bench.fabric(ttl_us=1)
    assert notices(bench.join(3, key))[3].members == mask(3), "the old member is forgotten"


@V1MODEL_ONLY
@pytest.mark.parametrize("kind", ["data", "get"])
def test_data_and_get_keep_an_entry_alive(bench: Bench, kind: str) -> None:
    """An entry lives much longer than its TTL as long as packets touch it in time."""
    key = bench.key()
    ttl_us = 200_000
    bench.fabric(ttl_us=ttl_us)
    deadline_us = bench.clock_us() + 60e6
    bench.join(2, key)
    touched_us, kept_us = bench.clock_us(), 0.0
    while True:
        assert bench.clock_us() < deadline_us, "this machine is too slow to touch an entry within its TTL"
        finished = kept_us > 3 * ttl_us
        if kind == "data" or finished:
            arrived = cast(bench, key)
        else:
            bench.ask(3, bench.get(key, 0))
        now_us = bench.clock_us()
        if now_us - touched_us >= ttl_us:  # the test was held up, the entry may rightly be gone
            bench.join(2, key)
            kept_us = 0.0
        elif finished:
            assert arrived == {2: 1}
            return
        else:
            kept_us += now_us - touched_us
        touched_us = now_us


def test_notice_echoes_what_the_protocol_puts_into_a_join(bench: Bench) -> None:
    """Leaders announce themselves in the tag of a renewed JOIN; `count` is the switch's own."""
    key = bench.key()
    bench.join(2, key)
    join = Control(Op.JOIN, key, segment=5, segments=9, count=3, tag=0x8001)
    told = Control(Op.NOTICE, key, 5, 9, 0, 0x8001, Flag.JOINED, Host(3).member, mask(2, 3))
    assert notices(bench.control(3, join)) == {2: told, 3: told}


def test_notice_names_the_leader(bench: Bench) -> None:
    key = bench.key()
    assert notices(bench.join(2, key))[2].count == 0
    bench.ask(2, bench.get(key, 0))
    assert notices(bench.join(3, key))[3].count == 1 + Host(2).member
    bench.ask(3, bench.get(key, 4, flags=Flag.ONLY_ME))
    assert notices(bench.join(4, key))[4].count == 1 + Host(2).member, "a GET for oneself leads nobody"
    bench.control(5, bench.get(key, 4))
    assert notices(bench.join(4, key))[4].count == 1 + Host(2).member, "who has not joined leads nobody"
    told = notices(bench.leave(2, key))
    assert {notice.count for notice in told.values()} == {0}, "the leader left"
    bench.ask(4, bench.get(key, 5))
    told = notices(bench.leave(3, key))
    assert {notice.count for notice in told.values()} == {1 + Host(4).member}, "a follower left"


def test_new_owner_of_an_entry_inherits_no_leader(bench: Bench) -> None:
    owner, late = colliding_keys(bench)
    bench.join(2, owner)
    bench.ask(2, bench.get(owner, 0))
    bench.fabric(ttl_us=1)
    assert notices(bench.join(3, late))[3].count == 0
    bench.fabric()
    bench.ask(3, bench.get(late, 0))
    bench.leave(3, late)
    assert notices(bench.join(4, late))[4].count == 0, "the last leader left"


def test_get_of_an_absent_chunk_goes_to_its_holder_with_the_right_member(bench: Bench) -> None:
    key = bench.key()
    liar = bench.get(key, 2, amount=4, tag=99, member=7)
    received = bench.ask(3, liar, holder=1)
    assert counts(received) == {1: 1}
    sent = control_frame(Host(3), liar, Host(1))
    (frame,) = received[1]
    assert parse(frame).headers_valid
    assert parse(frame).control.member == Host(3).member
    assert frame[:40] == sent[:40]
    assert frame[40:42] == b"\0\0", "the checksum covered the member"
    assert frame[42:45] + b"\x07" + frame[46:] == sent[42:]


def test_nak_goes_from_holder_to_host(bench: Bench) -> None:
    received = bench.control(1, Control(Op.NAK, bench.key()), holder=5)
    assert counts(received) == {5: 1}
    datagram = parse(received[5][0])
    assert datagram.headers_valid
    assert (datagram.control.op, datagram.control.member) == (Op.NAK, Host(1).member)


def test_host_cannot_join_or_leave_for_another(bench: Bench) -> None:
    key = bench.key()
    joined = notices(bench.control(2, Control(Op.JOIN, key, member=5)))
    assert joined == {2: Control(Op.NOTICE, key, flags=Flag.JOINED, member=1, members=mask(2))}
    bench.join(6, key)
    told = notices(bench.control(2, Control(Op.LEAVE, key, member=5)))
    assert told[6].member == Host(2).member
    assert cast(bench, key) == {6: 1}


@pytest.mark.parametrize("op", [Op.JOIN, Op.LEAVE, Op.GET, Op.NAK])
def test_port_without_member_takes_no_part(bench: Bench, op: Op) -> None:
    key = bench.key()
    bench.join(2, key)
    before = bench.drops()[Drop.NOT_A_MEMBER]
    assert counts(bench.control(STRANGER_PORT, Control(op, key, count=1))) == {}
    assert bench.drops()[Drop.NOT_A_MEMBER] == before + 1
    assert cast(bench, key) == {2: 1}


def test_port_without_member_cannot_cast(bench: Bench) -> None:
    key = bench.key()
    bench.join(2, key)
    before = bench.drops()[Drop.NOT_A_MEMBER]
    assert cast(bench, key, holder=STRANGER_PORT) == {}
    assert bench.drops()[Drop.NOT_A_MEMBER] == before + 1


def test_cast_is_told_by_its_ip_group_not_its_mac(bench: Bench) -> None:
    """A datagram to the group's address is cast data whatever MAC it was sent to."""
    key = bench.key()
    bench.join(2, key)
    data = bench.segments(key)[0]
    frame = data.frame(dst_mac=Host(5).mac)
    assert frame[:6] != GROUP_MAC
    assert counts(bench.exchange((1, frame))) == {2: 1}


def joined(bench: Bench, port: int, key: bytes) -> bool:
    """Whether a JOIN is answered; one that takes too many entries is not."""
    return port in bench.join(port, key)


def take_all(bench: Bench, port: int, *, but: int = 0) -> list[bytes]:
    """Takes as many entries as a port may pay for, less `but`; returns their keys."""
    keys = [bench.key() for _ in range(INTEREST_OF_PORT - but)]
    joins = [(port, control_frame(Host(port), Control(Op.JOIN, key), Host(1))) for key in keys]
    assert counts(bench.exchange(*joins)) == {port: len(keys)}
    return keys


def test_a_port_takes_its_share_of_entries_and_no_more(bench: Bench) -> None:
    """Who camps on entries of keys that nobody wants gets so many, and hinders neither others nor what it has."""
    before = bench.drops()[Drop.TOO_MANY_ENTRIES]
    camped = take_all(bench, 2)
    beyond = bench.key()
    assert not joined(bench, 2, beyond)
    assert bench.drops()[Drop.TOO_MANY_ENTRIES] == before + 1
    assert cast(bench, beyond) == {}, "the entry was not taken"
    assert joined(bench, 3, beyond), "another port has a share of its own"
    assert joined(bench, 2, beyond), "an entry that another one pays for costs nothing"
    assert joined(bench, 2, camped[0]), "what it has it may renew"
    assert cast(bench, camped[0]) == {2: 1}


def test_who_leaves_may_take_others(bench: Bench) -> None:
    for key in take_all(bench, 2):
        bench.leave(2, key)
    assert all(joined(bench, 2, key) for key in take_all(bench, 2, but=1))
    assert joined(bench, 2, bench.key())
    assert not joined(bench, 2, bench.key())


def test_entries_that_expire_cost_nothing(bench: Bench) -> None:
    """Nobody has to give them back: a count that is not renewed ends with its window."""
    take_all(bench, 2)
    assert not joined(bench, 2, bench.key())
    bench.fresh_budgets()
    take_all(bench, 2)
    assert not joined(bench, 2, bench.key())


def test_an_entry_whose_sponsor_left_is_paid_for_by_who_needs_it(bench: Bench) -> None:
    shared = bench.key()
    take_all(bench, 2, but=1)
    assert joined(bench, 2, shared)
    assert joined(bench, 3, shared)
    take_all(bench, 3, but=1)
    bench.leave(2, shared)
    assert joined(bench, 2, bench.key()), "it is not counted for who has left"
    assert cast(bench, shared) == {3: 1}
    assert joined(bench, 3, shared), "renewed, and paid for"
    assert not joined(bench, 3, bench.key())
    bench.leave(3, shared)
    assert joined(bench, 3, bench.key())


@V1MODEL_ONLY
def test_an_entry_that_lives_on_is_paid_for_in_each_window(bench: Bench) -> None:
    """A port that renews what it has never gets more than its share, however many windows go by."""
    ttl_us = 400_000
    keys = [bench.key() for _ in range(INTEREST_OF_PORT)]
    joins = [(2, control_frame(Host(2), Control(Op.JOIN, key), Host(1))) for key in keys]
    bench.fabric(ttl_us=ttl_us)
    began_us, taken, windows, one_more = bench.clock_us(), 0, 3, bench.key()
    while bench.clock_us() - began_us <= windows * ttl_us:
        bench.exchange(*joins)
        if joined(bench, 2, one_more):
            taken, one_more = taken + 1, bench.key()
    passed = int((bench.clock_us() - began_us) // ttl_us) + 2
    assert taken <= passed, "the first JOIN of a window may be one of another key: then one of the old entries ends"


@TNA_ONLY
def test_an_old_entry_is_claimed_again_by_who_renews_it(bench: Bench) -> None:
    """From half its time to live on: the set stays, and who renews pays."""
    shared = bench.key()
    bench.join(2, shared)
    take_all(bench, 3, but=1)
    bench.old_at_once()
    assert notices(bench.join(3, shared))[2].members == mask(2, 3)
    assert not joined(bench, 3, bench.key())
    bench.fabric()
    assert cast(bench, shared) == {2: 1, 3: 1}


@TNA_ONLY
def test_who_cannot_pay_renews_nothing_and_joins_what_others_pay_for(bench: Bench) -> None:
    own, others = bench.key(), bench.key()
    bench.join(2, own)
    bench.join(3, others)
    take_all(bench, 2, but=1)
    assert not joined(bench, 2, bench.key())
    assert joined(bench, 2, others)
    assert joined(bench, 2, own)
    assert cast(bench, others) == {2: 1, 3: 1}


@TNA_ONLY
def test_a_port_keeps_twice_its_share_at_most_whatever_it_renews(bench: Bench) -> None:
    """A camper that joins all that it has ever had, and new keys, for several windows. One JOIN at a time: those that
    come while the head of another one goes round are not bounded."""
    ttl_us = 400_000
    keys = [bench.key() for _ in range(3 * INTEREST_OF_PORT)]
    frames = [bench.segments(key)[0].frame() for key in keys]
    bench.fabric(ttl_us=ttl_us)
    began_us, most = bench.clock_us(), 0
    while bench.clock_us() - began_us <= 4 * ttl_us or not most:
        for key in keys:
            bench.join(2, key)
        most = max(most, counts(bench.exchange(*((1, frame) for frame in frames))).get(2, 0))
    assert most <= 2 * INTEREST_OF_PORT
