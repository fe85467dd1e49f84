"""Who keeps interest keeps it by the same rules: the P4 programs, the simulator's switch, a keeper without a switch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from kvproto.wire.control import TAG_LEADS, Flag
from tests.contracts.interest.tables import ENTRIES_OF_MEMBER, MAKERS, InterestKeeper, OfProgram, Told, join, leave
from tests.dataplane.bench import STRANGER_PORT, Bench, mask
from tests.dataplane.conftest import make_kvcast, running

PROGRAMS = ("p4switch", "tna")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Bench]]:
    """Switches that run the programs, started when they are first needed."""
    folders = map(tmp_path_factory.mktemp, PROGRAMS)
    with contextlib.ExitStack() as ends:
        yield {
            name: Bench(ends.enter_context(running(name, folder)), "interest")
            for name, folder in zip(PROGRAMS, folders, strict=True)
        }


@pytest.fixture(params=[*MAKERS, *PROGRAMS])
def table(request: pytest.FixtureRequest) -> Iterator[InterestKeeper]:
    if request.param in MAKERS:
        yield MAKERS[request.param]()
        return
    bench = request.getfixturevalue("programs")[request.param]
    make_kvcast(bench)
    yield OfProgram(bench)
    bench.reset()


def joined(port: int, members: int, leader: int = 0, tag: int = 0) -> Told:
    return Told(Flag.JOINED, port - 1, members, leader, tag)


def left(port: int, members: int, leader: int = 0) -> Told:
    return Told(Flag.LEFT, port - 1, members, leader, 0)


def test_who_joins_and_all_who_have_are_told(table: InterestKeeper) -> None:
    key = table.key()
    assert table.say(2, join(key, 77)) == {2: joined(2, mask(2), tag=77)}
    assert table.say(5, join(key, 78)) == dict.fromkeys((2, 5), joined(5, mask(2, 5), tag=78))
    assert table.say(5, join(key, TAG_LEADS)) == dict.fromkeys((2, 5), joined(5, mask(2, 5), tag=TAG_LEADS))


def test_casts_go_to_those_who_want_them(table: InterestKeeper) -> None:
    key, other = table.key(), table.key()
    assert table.cast(key) == set()
    for port in (1, 2, 4, 7):
        table.say(port, join(key))
    table.say(3, join(other))
    assert table.cast(key) == {2, 4, 7}, "not to the holder, which wants it, too"
    assert table.cast(other) == {3}


def test_who_leaves_gets_nothing_and_the_others_are_told(table: InterestKeeper) -> None:
    key = table.key()
    for port in (2, 3, 4):
        table.say(port, join(key))
    assert table.say(3, leave(key)) == dict.fromkeys((2, 4), left(3, mask(2, 4)))
    assert table.cast(key) == {2, 4}
    assert table.say(3, leave(key)) == {}, "it had left"
    assert table.say(5, leave(key)) == {}, "it had never joined"
    assert table.say(2, leave(key)) == {4: left(2, mask(4))}
    assert table.say(4, leave(key)) == {}
    assert table.cast(key) == set()
    assert table.say(6, join(key)) == {6: joined(6, mask(6))}


def test_only_who_waits_may_ask(table: InterestKeeper) -> None:
    key = table.key()
    assert not table.asks(2, key)
    table.say(2, join(key))
    assert table.asks(2, key)
    assert not table.asks(3, key)
    table.say(2, leave(key))
    assert not table.asks(2, key)


def test_the_leader_is_who_asked_last_for_everybody(table: InterestKeeper) -> None:
    key = table.key()
    for port in (2, 3):
        table.say(port, join(key))
    table.asks(2, key)
    table.asks(3, key, Flag.ONLY_ME)
    assert table.say(4, join(key))[4] == joined(4, mask(2, 3, 4), leader=2)
    table.asks(5, key)
    assert table.say(4, join(key))[4].leader == 2, "who has not joined leads nobody"
    table.asks(3, key)
    assert table.say(4, leave(key))[2] == left(4, mask(2, 3), leader=3)
    assert table.say(3, leave(key)) == {2: left(3, mask(2))}, "the leader left"


def test_what_is_too_old_is_over(table: InterestKeeper) -> None:
    key = table.key()
    table.say(2, join(key))
    table.expire()
    assert table.cast(key) == set()
    assert not table.asks(2, key)
    if table.begins_anew:
        assert table.say(3, join(key)) == {3: joined(3, mask(3))}


def test_a_member_speaks_for_itself(table: InterestKeeper) -> None:
    key = table.key()
    assert table.say(2, join(key, member=5)) == {2: joined(2, mask(2))}
    assert table.say(STRANGER_PORT, join(key, member=5)) == {}, "no member stands there"
    assert not table.asks(STRANGER_PORT, key)
    table.say(STRANGER_PORT, leave(key))
    assert table.cast(key) == {2}


def test_a_member_has_its_share_and_no_more(table: InterestKeeper) -> None:
    keys = [table.key() for _ in range(ENTRIES_OF_MEMBER)]
    assert all(table.say(2, join(key)) for key in keys)
    beyond = table.key()
    assert table.say(2, join(beyond)) == {}
    assert table.cast(beyond) == set()
    assert table.say(3, join(beyond)) == {3: joined(3, mask(3))}, "another has a share of its own"
    assert 2 in table.say(2, join(beyond)), "an entry that another one pays for costs nothing"
    assert 2 in table.say(2, join(keys[0])), "what it has it may renew"
    table.say(2, leave(keys[1]))
    assert table.say(2, join(table.key())), "what it leaves is given back"
    assert table.say(2, join(table.key())) == {}


def test_an_entry_whose_sponsor_left_is_paid_for_by_who_needs_it(table: InterestKeeper) -> None:
    shared = table.key()
    table.say(2, join(shared))
    table.say(3, join(shared))
    for _ in range(ENTRIES_OF_MEMBER - 1):
        table.say(3, join(table.key()))
    table.say(2, leave(shared))
    assert table.say(3, join(shared)), "renewed, and paid for"
    assert table.say(3, join(table.key())) == {}
