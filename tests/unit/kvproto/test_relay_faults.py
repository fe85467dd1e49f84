"""Relays whose parents and children are late, gone or hostile, one message at a time."""

from __future__ import annotations

from collections.abc import Callable

from kvproto.ids import ReadId
from kvproto.limits import MS
from kvproto.session.choice import Chooser, Way
from kvproto.session.relay import gathering
from kvproto.session.relay.relay_commands import (
    EndChild,
    GaveUp,
    LeaveParent,
    ReadRun,
    RelayCommand,
    TellChild,
    TellParent,
)
from kvproto.session.relay.relay_node import Relay
from kvproto.wire.relay_messages import Drop, Gone, Hello, Leaves, Message, Peers, Room, Run, RunKind, Want
from tests.unit.kvproto.relay_network import PIECE_BYTES, key_of

PIECES = 16
KEY = key_of(1)
LEAVES = bytes(32 * PIECES)


def node(here: int = 0, choice: Chooser | None = None, reads: Callable[[], int] = lambda: 0) -> Relay:
    """A relay that has the first chunks whole."""
    whole = {key_of(number): PIECES for number in range(1, here + 1)}
    return Relay(
        "r:1",
        PIECE_BYTES,
        whole_pieces=lambda key: whole.get(key, 0),
        leaves=lambda _key: LEAVES,
        accepts=lambda _key, leaves: leaves == LEAVES,
        may_give=lambda _endpoint: True,
        choice=lambda: choice or Chooser(is_free=False),
        reads=reads,
    )


def told(made: list[RelayCommand], endpoint: str) -> list[Message]:
    """What a parent hears."""
    return [one.message for one in made if isinstance(one, TellParent) and one.endpoint == endpoint]


def granted(made: list[RelayCommand], link: int) -> int:
    """Pieces that a child is granted."""
    runs = [one.message for one in made if isinstance(one, TellChild) and one.link == link]
    return sum(run.count for run in runs if isinstance(run, Run) and run.kind is RunKind.GRANT)


def reads(made: list[RelayCommand]) -> list[ReadRun]:
    return [one for one in made if isinstance(one, ReadRun)]


def grant(piece: int, number: int = 1) -> Run:
    return Run(RunKind.GRANT, number, piece, 1)


def test_a_keeper_that_withholds_leaves_and_repeats_grants_is_left() -> None:
    relay = node()
    relay.want([(KEY, PIECES, ["k:1"])], 0)
    made = relay.heard_parent("k:1", [grant(0)] * (gathering.GRANTS_MAX + 1), MS)
    assert LeaveParent("k:1") in made


def test_a_keeper_that_grants_a_chunk_at_once_is_asked_for_some() -> None:
    relay, pieces = node(), 256
    relay.want([(KEY, pieces, ["k:1"])], 0)
    made = relay.heard_parent("k:1", [Leaves(1, LEAVES), *map(grant, range(pieces))], MS)
    assert len(reads(made)) == gathering.READS_GRANTED_MAX
    assert len(reads(relay.read_ended(ReadId(1), True, 2 * MS))) == 1


def test_orphans_of_chunks_that_ended_are_forgotten() -> None:
    relay = node()
    relay.want([(key_of(number), PIECES, ["k:1"]) for number in (1, 2)], 0)
    relay.heard_parent("k:1", [Leaves(1, LEAVES), Leaves(2, LEAVES), grant(0)], MS)
    relay.read_ended(ReadId(1), True, 2 * MS)
    for turn in range(1, 15):
        relay.handle_timer((2 + 100 * turn) * MS)
    relay.unwant([KEY], 1_500 * MS)
    relay.handle_timer(1_900 * MS)
    assert len(relay.gathering.orphans_ns) <= gathering.ORPHANS_ASKED_MAX


class Keeper:
    """A keeper, and what its children say."""

    def __init__(self, chunks: int = 1) -> None:
        self.relay = node(chunks)
        self.now_ns = 0
        self.is_good = True

    def hears(self, link: int, *messages: Message, after_ns: int = 200 * MS) -> list[RelayCommand]:
        self.now_ns += after_ns
        made = self.relay.heard_child(link, messages, self.now_ns)
        self.is_good &= EndChild(link) not in made
        return made

    def joins(self, link: int, *numbers: int) -> list[RelayCommand]:
        wants = [Want(number, key_of(number), PIECES, keeper=True) for number in numbers]
        return self.hears(link, Hello(f"c{link}:1"), *wants)


def orphan(piece: int, number: int = 1) -> Run:
    return Run(RunKind.ORPHAN, number, piece, 1)


def done(piece: int, number: int = 1) -> Run:
    return Run(RunKind.DONE, number, piece, 1)


def owning(pieces: int) -> Keeper:
    """A keeper of two chunks whose first child was granted the first pieces, and has them."""
    keeper = Keeper(2)
    keeper.joins(1, 1, 2)
    keeper.joins(2, 1, 2)
    for piece in range(pieces):
        assert granted(keeper.hears(1, Room(1), after_ns=MS), 1) == 1
        keeper.hears(1, done(piece), after_ns=MS)
    return keeper


def test_a_child_whose_pieces_nobody_gets_is_granted_no_more() -> None:
    keeper = owning(6)
    for piece in range(6):
        keeper.hears(2, orphan(piece), done(piece))
    assert granted(keeper.hears(1, Room(1)), 1) == 0


def test_an_orphan_counts_once_however_many_tell_of_it() -> None:
    keeper = owning(1)
    for link in (3, 4, 5, 6, 7):
        keeper.joins(link, 1)
    for link in 6 * (2, 3, 4, 5, 6, 7):
        keeper.hears(link, orphan(0), done(0))
    assert all(granted(keeper.hears(link, Room(1)), link) for link in (1, 2, 3, 4, 5, 6, 7))


def test_who_wants_nothing_more_has_no_orphans() -> None:
    keeper = owning(6)
    keeper.hears(1, Drop(1), Drop(2))
    for piece in range(6):
        keeper.hears(2, orphan(piece), done(piece))
    keeper.hears(1, Want(3, key_of(2), PIECES, keeper=True))
    assert granted(keeper.hears(1, Room(1)), 1) == 1


def test_orphans_are_forgiven_when_all_is_over() -> None:
    keeper = owning(6)
    for piece in range(6):
        keeper.hears(2, orphan(piece), done(piece))
    keeper.hears(1, Drop(1), Drop(2), Want(3, key_of(2), PIECES, keeper=True))
    assert granted(keeper.hears(1, Room(1)), 1) == 1


def test_orphans_are_forgiven_for_what_is_done() -> None:
    keeper = owning(8)
    for piece in range(3):
        keeper.hears(2, orphan(piece), done(piece))
    for piece in range(8, 16):
        keeper.hears(1, Room(1))
        keeper.hears(1, done(piece))
    keeper.hears(2, orphan(3), done(3))
    assert granted(keeper.hears(1, Room(1)), 1) == 1


def test_a_parent_whose_read_failed_hears_that_it_is_asked_no_more() -> None:
    relay = node()
    relay.want([(KEY, PIECES, ["k:1"])], 0)
    relay.heard_parent("k:1", [Leaves(1, LEAVES), Peers(1, ("p:1",))], MS)
    (read,) = reads(relay.heard_parent("p:1", [Run(RunKind.HAVE, 1, 0, 1)], 2 * MS))
    assert told(relay.read_ended(read.read, None, 3 * MS), "p:1") == [Drop(1)]
    assert told(relay.heard_parent("k:1", [Peers(1, ("p:1",))], 4 * MS), "p:1") == [Want(1, KEY, PIECES, keeper=False)]
    assert not told(relay.heard_parent("p:1", [Gone(1)], 5 * MS), "p:1")


def test_a_keeper_whose_leaves_are_wrong_hears_that_it_is_asked_no_more() -> None:
    relay = node()
    relay.want([(KEY, PIECES, ["k:1", "l:1"])], 0)
    assert told(relay.heard_parent("k:1", [Leaves(1, b"no")], MS), "k:1") == [Drop(1)]


def test_pieces_of_readers_that_are_gone_are_granted_to_those_who_come_then() -> None:
    keeper = owning(6)
    keeper.hears(1, Drop(1), Drop(2))
    keeper.relay.child_lost(1, keeper.now_ns)
    made = keeper.joins(3, 1)
    made += keeper.hears(3, Room(3))
    assert TellChild(3, Run(RunKind.GRANT, 1, 0, 3)) in made


def test_a_reader_to_whom_nothing_comes_at_all_tells_its_keeper_soon() -> None:
    relay = node()
    relay.want([(KEY, PIECES, ["k:1"])], 0)
    relay.heard_parent("k:1", [Leaves(1, LEAVES)], MS)
    assert relay.wake_ns == MS + gathering.ORPHAN_NS
    assert orphan(0) in told(relay.handle_timer(relay.wake_ns), "k:1")


def comes(relay: Relay, piece: int, now_ns: int) -> list[RelayCommand]:
    """A piece of the second chunk comes from another keeper."""
    made = relay.heard_parent("l:1", [grant(piece, 2)], now_ns)
    return made + relay.read_ended(reads(made)[0].read, True, now_ns)


def two_chunks(keepers: list[str]) -> Relay:
    """A relay that gathers a chunk from these and another from a keeper that gives."""
    relay = node()
    relay.want([(KEY, PIECES, keepers), (key_of(2), PIECES, ["l:1"])], 0)
    relay.heard_parent("k:1", [Leaves(1, LEAVES), Peers(1, ("p:1",))], MS)
    relay.heard_parent("l:1", [Leaves(2, LEAVES)], MS)
    return relay


def test_a_chunk_whose_keeper_died_is_given_up_though_others_come() -> None:
    relay = two_chunks(["k:1"])
    (read,) = reads(relay.heard_parent("p:1", [Run(RunKind.HAVE, 1, 0, 1)], 2 * MS))
    relay.read_ended(read.read, True, 3 * MS)
    made = relay.parent_lost("k:1", 4 * MS)
    assert GaveUp(KEY) not in made, "what others have may be on its way to be known"
    for turn in range(3):
        made += comes(relay, turn, (50 * turn + 5) * MS)
    assert GaveUp(KEY) in made


def test_what_peers_have_whole_needs_no_keeper() -> None:
    relay = two_chunks(["k:1"])
    made = relay.heard_parent("p:1", [Run(RunKind.HAVE, 1, 0, PIECES)], 2 * MS)
    made += relay.parent_lost("k:1", 3 * MS)
    made += relay.handle_timer(390 * MS)
    assert GaveUp(KEY) not in made


def test_a_keeper_that_says_nothing_more_makes_way_for_the_next() -> None:
    relay = two_chunks(["k:1", "m:1"])
    made: list[RelayCommand] = []
    for turn in range(12):
        made += comes(relay, turn, (100 * turn + 5) * MS)
    assert told(made, "k:1")[-1] == Drop(1)
    assert Want(1, KEY, PIECES, keeper=True) in told(made, "m:1")


def test_a_parent_whose_node_is_gone_is_left() -> None:
    relay = two_chunks(["k:1", "m:1"])
    made = relay.leave_parents(["k:1", "z:1"], 2 * MS)
    assert [one for one in made if isinstance(one, LeaveParent)] == [LeaveParent("k:1")]
    assert Want(1, KEY, PIECES, keeper=True) in told(made, "m:1")


def test_peers_leave_room_for_keepers_and_who_is_of_no_use_makes_room() -> None:
    relay = node()
    made = relay.want([(KEY, PIECES, ["k:1"])], 0)
    made += relay.heard_parent("k:1", [Leaves(1, LEAVES), Peers(1, tuple(f"p{peer}:1" for peer in range(64)))], MS)
    assert sum(isinstance(one, TellParent) and isinstance(one.message, Hello) for one in made) == gathering.PEERS_MAX
    made = relay.want([(key_of(2), PIECES, ["l:1"])], 2 * MS)
    assert told(made, "l:1")[1] == Want(2, key_of(2), PIECES, keeper=True)
    relay.heard_parent("k:1", [Gone(1)], 3 * MS)
    made = relay.want([(key_of(number), PIECES, [f"k{number}:1"]) for number in range(3, 99)], 4 * MS)
    assert told(made, "k60:1"), "those that were asked for the first chunk are of no more use"
    left = [one.endpoint for one in made if isinstance(one, LeaveParent)]
    assert "l:1" not in left and "p7:1" in left
    assert {one.key for one in made if isinstance(one, GaveUp)} == {key_of(number) for number in range(66, 99)}


def test_who_holds_a_chunk_by_now_is_its_next_keeper() -> None:
    relay = two_chunks(["k:1"])
    assert not told(relay.offer(KEY, ["k:1", "m:1", "p:1"], 2 * MS), "m:1"), "not before it is needed"
    made = relay.parent_lost("k:1", 3 * MS)
    assert Want(1, KEY, PIECES, keeper=True) in told(made, "m:1")
    made = relay.parent_lost("m:1", 4 * MS)
    assert GaveUp(KEY) in made
    assert not told(made, "p:1")[1:], "it is asked as a peer already"


def test_a_keeper_that_is_ahead_makes_no_orphans_of_another_keepers_pieces() -> None:
    relay, pieces = node(), 64
    relay.want([(KEY, pieces, ["k:1"]), (key_of(2), pieces, ["l:1"])], 0)
    relay.heard_parent("k:1", [Leaves(1, LEAVES)], MS)
    relay.heard_parent("l:1", [Leaves(2, LEAVES), grant(0, 2)], MS)
    relay.read_ended(ReadId(1), True, 2 * MS)
    made = relay.heard_parent("l:1", [grant(60, 2)], 9 * MS)
    assert not told(made, "k:1")
    assert orphan(1, 2) in told(made, "l:1"), "what this one has passed over is nowhere"


def test_chunks_are_left_to_reads_where_these_brought_more_and_a_few_at_a_time() -> None:
    choice, left = Chooser(), list[GaveUp]()
    for way, took_ms in ((Way.FANOUT, 20), (Way.READ, 5)):
        for turn in range(4):
            asked_ns = turn * took_ms * MS
            choice.came(way, 3, 1 << 20, asked_ns, asked_ns + took_ms * MS)
    relay = node(choice=choice, reads=lambda: len(left))
    keys = [key_of(number) for number in range(1, 9)]
    made = relay.want([(key, PIECES, ["k:1"]) for key in keys], 100 * MS)
    for number in range(1, 9):
        made += relay.heard_parent("k:1", [Peers(number, ("p:1", "p:2")), Leaves(number, LEAVES)], (101 + number) * MS)
        made += relay.handle_timer((110 + 2 * number) * MS)
        left += [one for one in made if isinstance(one, GaveUp)]
        assert len(left) <= gathering.LEFT_TO_READS_MAX
        made = []
    assert left == [GaveUp(key, 3) for key in keys[: gathering.LEFT_TO_READS_MAX]]
    del left[0]
    made = relay.handle_timer(140 * MS)
    assert GaveUp(keys[gathering.LEFT_TO_READS_MAX], 3) in made
    assert Drop(gathering.LEFT_TO_READS_MAX + 1) in told(made, "k:1")
