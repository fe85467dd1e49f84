"""Blocks of members, and the cheapest of them for a set."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproto.blocks import BLOCKS_OF_MEMBER, blocks_of, cover, unasked
from kvproto.ids import Member, members_of
from kvproto.limits import MEMBERS_MAX

ALL = (1 << MEMBERS_MAX) - 1
READERS = 0b1_1111_1110
"""Eight beside a holder that is member 0."""


def reached(blocks: tuple[int, ...]) -> list[int]:
    """Members that get a cast, as often as they get it."""
    return sorted(m for m in range(MEMBERS_MAX) for block in blocks_of(Member(m)) if block in blocks)


def test_a_member_is_in_seven_groups_and_there_are_127() -> None:
    assert BLOCKS_OF_MEMBER == 7
    assert all(len(list(blocks_of(Member(m)))) == BLOCKS_OF_MEMBER for m in range(MEMBERS_MAX))
    assert {b for m in range(MEMBERS_MAX) for b in blocks_of(Member(m))} == set(range(1, 2 * MEMBERS_MAX))


def test_nobody_needs_no_block() -> None:
    assert cover(0, ALL, 1.0) == ()


def test_where_flooding_costs_nothing_there_is_one_cast() -> None:
    assert len(cover(1 << 3 | 1 << 60, ALL, 0.0)) == 1


def test_where_it_is_dear_nobody_gets_what_it_did_not_ask_for() -> None:
    for wanted in (READERS, 1 << 5, 0b1011 << 7):
        blocks = cover(wanted, ALL, 1000.0)
        assert reached(blocks) == list(members_of(wanted))


def test_places_without_members_cost_nothing() -> None:
    """Eight readers and a holder of 64: one cast, which brings the holder nothing, since nobody hears itself."""
    assert len(cover(READERS, READERS, 1.0)) == 1


def test_random_thirds_are_the_cheaper_by_weight() -> None:
    """Three of eight: one prefix on the uplink and 0.9 at each port that did not ask, or two and a quarter."""
    sets = [sum(1 << m for m in some) for some in combinations(range(1, 9), 3)]
    for weight, most_tx, most_unasked in ((0.1, 1.1, 0.9), (0.5, 2.1, 0.25), (1.0, 2.6, 0.1)):
        blocks = [cover(wanted, READERS, weight) for wanted in sets]
        tx = sum(map(len, blocks)) / len(sets)
        stray = sum(unasked(wanted, READERS, one) for wanted, one in zip(sets, blocks, strict=True)) / len(sets) / 5
        assert tx <= most_tx, (weight, tx, stray)
        assert stray <= most_unasked, (weight, tx, stray)


@given(st.integers(0, ALL), st.integers(0, ALL), st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0, 4.0]))
def test_all_who_want_it_get_it_once(wanted: int, others: int, weight: float) -> None:
    blocks = cover(wanted, wanted | others, weight)
    got = reached(blocks)
    assert len(got) == len(set(got))
    assert wanted & ~sum(1 << m for m in got) == 0
    assert unasked(wanted, wanted | others, blocks) == len([m for m in got if (others & ~wanted) >> m & 1])


@pytest.mark.parametrize("weight", [0.0, 0.2, 0.7, 3.0])
def test_no_other_cover_is_cheaper(weight: float) -> None:
    """Against all covers of eight members by their fifteen blocks."""
    of_eight = [b for b in range(1, 2 * MEMBERS_MAX) if set(reached((b,))) <= set(range(8))]
    covers = [set_ for count in range(1, 5) for set_ in combinations(of_eight, count)]
    for wanted in (0b10010110, 0b00000101, 0b11101110):
        present = 0xFF
        fits = [one for one in covers if set(members_of(wanted)) <= set(reached(one))]
        best = min(len(one) + weight * unasked(wanted, present, one) for one in fits)
        found = cover(wanted, present, weight)
        assert len(found) + weight * unasked(wanted, present, found) == pytest.approx(best)
