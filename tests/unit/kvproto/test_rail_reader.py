"""Casts by several rails: who reads a chunk by which, and what becomes of chunks whose rail fails."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from kvchunk.ids import ChunkKey
from kvproto.commands import ChunkHere, ReaderCommand, SendControl, StartRead, VerifyChunk
from kvproto.events import (
    ChunkVerified,
    ChunkWanted,
    ControlReceived,
    HolderLost,
    HolderRef,
    ReaderEvent,
    SegmentsReceived,
)
from kvproto.ids import Address, Member, NodeId
from kvproto.limits import MS
from kvproto.session.chunk import NO_KEY
from kvproto.session.parameters import ReaderParameters
from kvproto.session.rail_reader import TRY_WAIT_NS, RailReader
from kvproto.session.rails import LOOK_NS, QUIET_NS, rail_of
from kvproto.wire.control import TAG_LEADS, Control, Flag, Op

SEGMENTS, SEGMENT_BYTES = 64, 4096
HOLDER = HolderRef(NodeId("n0"), Address(1000), rail_addresses=(Address(2000),))
ME, LEADER = Member(3), Member(5)
PARAMETERS = ReaderParameters(ME, SEGMENT_BYTES, rails=2, cast_rails=2, by_keepers=True)
KEYS = [ChunkKey(bytes([index]) * 16) for index in range(1, 41)]
BY_RAIL = [[key for key in KEYS if rail_of(key, (1.0, 1.0)) == rail] for rail in range(2)]


@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.0, 0.25), (1.0, 1.0, 0.5, 2.0)])
def test_each_rail_has_its_share(weights: Sequence[float]) -> None:
    keys = [ChunkKey(index.to_bytes(16, "big")) for index in range(4000)]
    chosen = [rail_of(key, weights) for key in keys]
    for rail, weight in enumerate(weights):
        assert chosen.count(rail) / len(keys) == pytest.approx(weight / sum(weights), abs=0.03)


def test_only_chunks_of_the_changed_rail_move() -> None:
    keys = [ChunkKey(index.to_bytes(16, "big")) for index in range(4000)]
    before, slower = (1.0, 1.0, 1.0), (1.0, 0.5, 1.0)
    moved = [(rail_of(key, before), rail_of(key, slower)) for key in keys]
    assert {old for old, new in moved if old != new} == {1}
    assert {new for old, new in moved if old != new} == {0, 2}


class Script:
    """A reader of two rails, with what it has asked for."""

    def __init__(self) -> None:
        self.reader = RailReader(PARAMETERS)
        self.now_ns = 0
        self.said: list[ReaderCommand] = []
        self.answers = False
        """JOINs that timers send are answered."""

    def tell(self, *events: ReaderEvent) -> list[ReaderCommand]:
        out = self.reader.handle_all(events, self.now_ns)
        self.said += out
        return out

    def wait(self, until_ns: int) -> list[ReaderCommand]:
        """Timers run until then."""
        out: list[ReaderCommand] = []
        while self.reader.wake_ns is not None and self.reader.wake_ns <= until_ns:
            self.now_ns = max(self.now_ns, self.reader.wake_ns)
            due = self.reader.handle_timer(self.now_ns)
            out += due
            for key, address, rail in joins(due) if self.answers else ():
                notice = Control(Op.NOTICE, key, SEGMENTS, flags=Flag.JOINED, member=ME, members=1 << ME | 1 << LEADER)
                out += self.reader.handle_all([ControlReceived(notice, address, rail)], self.now_ns)
        self.now_ns = until_ns
        self.said += out
        return out

    def want(self, *keys: ChunkKey, holder: HolderRef = HOLDER) -> list[ReaderCommand]:
        """One by one: each goes where its key says."""
        size, out = SEGMENTS * SEGMENT_BYTES, list[ReaderCommand]()
        for key in keys:
            out += self.tell(ChunkWanted(key, SEGMENTS, size, (holder,), KEYS.index(key)))
        return out

    def led(self, key: ChunkKey, rail: int) -> None:
        """The keeper says that another member pulls this chunk."""
        source = HOLDER.rail_addresses[rail - 1] if rail else HOLDER.address
        assert source is not None
        members = 1 << ME | 1 << LEADER
        for tag, member in ((0, ME), (TAG_LEADS, LEADER)):
            notice = Control(Op.NOTICE, key, SEGMENTS, tag=tag, flags=Flag.JOINED, member=member, members=members)
            self.tell(ControlReceived(notice, source, rail))

    def cast(self, key: ChunkKey, rail: int, first: int, count: int = 1) -> list[ReaderCommand]:
        source = HOLDER.rail_addresses[rail - 1] if rail else HOLDER.address
        assert source is not None
        segments = np.arange(first, first + count, dtype=np.uint32)
        return self.tell(SegmentsReceived(key, segments, source, rail=rail))


def joins(commands: Sequence[ReaderCommand], op: Op = Op.JOIN) -> list[tuple[ChunkKey, Address, int]]:
    return [
        (one.message.key, one.address, one.rail)
        for one in commands
        if isinstance(one, SendControl) and one.message.op is op and one.message.key != NO_KEY
    ]


def tries(commands: Sequence[ReaderCommand]) -> list[tuple[Address, int]]:
    return [(one.address, one.rail) for one in commands if isinstance(one, SendControl) and one.message.key == NO_KEY]


def test_a_join_names_the_rail() -> None:
    script = Script()
    by_rail = {key: (address, rail) for key, address, rail in joins(script.want(*KEYS))}
    assert set(by_rail) == set(KEYS)
    assert {by_rail[key] for key in BY_RAIL[0]} == {(HOLDER.address, 0)}
    assert {by_rail[key] for key in BY_RAIL[1]} == {(HOLDER.rail_addresses[0], 1)}


def test_chunks_that_are_wanted_together_are_shared_out_evenly() -> None:
    script = Script()
    size = SEGMENTS * SEGMENT_BYTES
    for keys in (KEYS[:8], BY_RAIL[0][4:8]):
        out = script.tell(*(ChunkWanted(key, SEGMENTS, size, (HOLDER,), KEYS.index(key)) for key in keys))
        rails = [rail for _, _, rail in joins(out)]
        assert (rails.count(0), rails.count(1)) == (len(keys) // 2, len(keys) // 2)


@pytest.mark.parametrize("there", [(), (None,)])
def test_a_holder_with_one_rail_is_asked_by_that(there: tuple[Address | None, ...]) -> None:
    holder = HolderRef(NodeId("n0"), Address(1000), rail_addresses=there)
    script = Script()
    assert {(address, rail) for _, address, rail in joins(script.want(*KEYS, holder=holder))} == {(1000, 0)}


def test_where_a_switch_keeps_interest_all_is_asked_by_the_first_rail() -> None:
    script = Script()
    script.reader.configure(ReaderParameters(ME, SEGMENT_BYTES, rails=2, cast_rails=2), 0)
    assert {rail for _, _, rail in joins(script.want(*KEYS))} == {0}


def begun() -> tuple[Script, ChunkKey, ChunkKey]:
    """One chunk on each rail, of which half is here, cast for another member."""
    script = Script()
    script.answers = True
    first, second = BY_RAIL[0][0], BY_RAIL[1][0]
    script.want(first, second)
    for rail, key in ((0, first), (1, second)):
        script.led(key, rail)
    for at in range(SEGMENTS // 2):
        script.now_ns += MS
        script.cast(first, 0, at)
        script.cast(second, 1, at)
    return script, first, second


def gone_silent(script: Script, other: ChunkKey) -> tuple[int, list[ReaderCommand]]:
    """The first rail goes on, the second brings nothing: after how long something joins elsewhere, and all that."""
    since_ns = script.now_ns
    for at in range(SEGMENTS // 2, SEGMENTS - 1):
        out = script.wait(script.now_ns + 12 * MS)
        if [one for one in joins(out) if one[2] == 0 and one[0] != other]:
            return script.now_ns - since_ns, out
        script.cast(other, 0, at)
    raise AssertionError("the rail is not left")


def test_a_silent_rail_loses_its_chunk_with_what_is_here_of_it() -> None:
    script, first, second = begun()
    mask = script.reader.missing(second)
    took_ns, out = gone_silent(script, first)
    assert took_ns <= QUIET_NS + LOOK_NS + 12 * MS < 300 * MS
    assert set(joins(out)) == {(second, HOLDER.address, 0)}
    assert joins(out, Op.LEAVE) == [(second, HOLDER.rail_addresses[0], 1)]
    missing = script.reader.missing(second)
    assert missing is mask, "whoever places segments goes on with it"
    assert missing is not None
    assert np.flatnonzero(missing).tolist() == list(range(SEGMENTS // 2, SEGMENTS))
    # The rest comes by the first rail, and some of it late by the second, where it is left once more.
    script.led(second, 0)
    script.now_ns += 100 * MS
    late = script.cast(second, 1, SEGMENTS // 2)
    assert joins(late, Op.LEAVE) == [(second, HOLDER.rail_addresses[0], 1)]
    done = script.cast(second, 0, SEGMENTS // 2 + 1, SEGMENTS // 2 - 1)
    assert VerifyChunk(second) in done
    assert [one.key for one in script.tell(ChunkVerified(second, good=True)) if isinstance(one, ChunkHere)] == [second]


def test_a_rail_that_was_left_gets_chunks_when_it_answers() -> None:
    script, first, _ = begun()
    gone_silent(script, first)
    on_rail = (HOLDER.rail_addresses[0], 1)
    assert tries(script.said) == []
    more = BY_RAIL[1][1:6]
    assert {rail for _, _, rail in joins(script.want(*more))} == {0}
    asked: list[int] = []
    while len(asked) < 2:  # the first JOIN is not answered: another one follows
        if tries(script.wait(script.now_ns + 10 * MS)) == [on_rail]:
            asked.append(script.now_ns)
    assert asked[1] - asked[0] >= TRY_WAIT_NS
    assert on_rail[0] is not None
    script.tell(ControlReceived(Control(Op.NAK, NO_KEY, 1), on_rail[0], 1))
    assert {rail for _, _, rail in joins(script.want(*BY_RAIL[1][6:9]))} == {1}
    assert script.wait(script.now_ns + 20 * MS) is not None
    assert tries(script.said).count(on_rail) == 2


def test_a_rail_with_nothing_to_do_takes_chunks_that_nobody_has_begun_with() -> None:
    script = Script()
    first, *others = BY_RAIL[0][:4]
    script.want(first, *others)
    moved = joins(script.wait(LOOK_NS))
    assert {key for key, _, rail in moved if rail == 1} == {others[-1]}
    # What another member pulls, or what has begun to come, stays.
    led = Script()
    led.want(first, *others)
    for key in (first, *others):
        led.led(key, 0)
    assert [one for one in joins(led.wait(LOOK_NS)) if one[2] == 1] == []


def test_reads_of_all_rails_have_names_of_their_own() -> None:
    script = Script()
    script.want(*KEYS[:8], holder=HolderRef(NodeId("n0"), Address(1000), rail_addresses=(Address(2000),)))
    for _, address, rail in joins(script.said):
        for key in KEYS[:8]:
            notice = Control(Op.NOTICE, key, SEGMENTS, flags=Flag.JOINED, member=ME, members=1 << ME)
            script.tell(ControlReceived(notice, address, rail))
    script.wait(script.now_ns + 200 * MS)
    reads = [one.read for one in script.said if isinstance(one, StartRead)]
    assert len(reads) >= 2
    assert len(set(reads)) == len(reads)


def test_a_holder_that_is_gone_is_forgotten() -> None:
    script, *_ = begun()
    assert set(script.reader.keepers) == {HOLDER.node}
    script.tell(HolderLost(HOLDER.node))
    assert script.reader.keepers == {}
