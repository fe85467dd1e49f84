"""Relays whose parents and children are late, gone or hostile, one message at a time."""

from __future__ import annotations

from kvproto.ids import ReadId
from kvproto.limits import MS
from kvproto.session.relay import gathering
from kvproto.session.relay.relay_commands import LeaveParent, ReadRun, RelayCommand, TellChild, TellParent
from kvproto.session.relay.relay_node import Relay
from kvproto.wire.relay_messages import Leaves, Message, Run, RunKind
from tests.unit.kvproto.relay_network import PIECE_BYTES, key_of

PIECES = 16
KEY = key_of(1)
LEAVES = bytes(32 * PIECES)


def node(here: int = 0) -> Relay:
    """A relay that has the first chunks whole."""
    whole = {key_of(number): PIECES for number in range(1, here + 1)}
    return Relay(
        "r:1",
        PIECE_BYTES,
        whole_pieces=lambda key: whole.get(key, 0),
        leaves=lambda _key: LEAVES,
        accepts=lambda _key, leaves: leaves == LEAVES,
        may_give=lambda _endpoint: True,
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
    assert len(relay.gathering._orphans_ns) <= gathering.ORPHANS_ASKED_MAX
