"""The reader with chunks that the shell loads from disk, and with a switch that a lone reader passes by."""

from __future__ import annotations

from kvchunk.ids import ChunkKey
from kvchunk.sources import ChunkSource
from kvproto.commands import AbortRead, DeliverFetch, DropChunk, FetchProgress, Outcome, SendControl, StartRead
from kvproto.events import (
    ChunkLoaded,
    ChunkPut,
    ChunkWanted,
    ControlReceived,
    FetchCancelled,
    FetchRequested,
    HolderRef,
    HoldersChanged,
    LoadFailed,
)
from kvproto.ids import Address, FetchId, Member, NodeId
from kvproto.limits import MS
from kvproto.session.parameters import ReaderParameters
from kvproto.session.reader import Reader
from kvproto.wire.control import Control, Flag, Op

ME, OTHER = Member(2), Member(5)
KEYS = [ChunkKey(bytes([index]) * 16) for index in range(3)]
HOLDER = HolderRef(NodeId("h"), Address(1))
SEGMENTS = 64


def loading(key: ChunkKey, *holders: HolderRef) -> ChunkWanted:
    return ChunkWanted(key, SEGMENTS, SEGMENTS * 4096, holders, loading=True)


def request(*chunks: ChunkWanted, fetch: int = 1, deadline_ms: int = 1000) -> FetchRequested:
    return FetchRequested(FetchId(fetch), chunks, deadline_ms * MS)


def of_kind(commands: list, kind: type) -> list:
    return [each for each in commands if isinstance(each, kind)]


def test_loaded_chunks_are_delivered_in_prefix_order_and_nobody_is_asked() -> None:
    it = Reader(ReaderParameters(ME))
    assert it.handle(request(loading(KEYS[0], HOLDER), loading(KEYS[1])), 0) == []
    assert it.handle(ChunkLoaded(KEYS[1]), MS) == []
    (answer,) = it.handle(ChunkLoaded(KEYS[0]), 2 * MS)
    assert answer == DeliverFetch(FetchId(1), Outcome.COMPLETE, 2, (ChunkSource.DISK, ChunkSource.DISK))
    assert it.idle


def test_progress_is_told_as_the_prefix_grows() -> None:
    it = Reader(ReaderParameters(ME))
    it.handle(request(loading(KEYS[0]), loading(KEYS[1])), 0)
    assert it.handle(ChunkLoaded(KEYS[0]), MS) == [FetchProgress(FetchId(1), 1, (ChunkSource.DISK,))]


def test_a_failed_load_turns_to_holders() -> None:
    it = Reader(ReaderParameters(ME))
    it.handle(request(loading(KEYS[0], HOLDER)), 0)
    (join,) = of_kind(it.handle(LoadFailed(KEYS[0]), MS), SendControl)
    assert (join.message.op, join.address) == (Op.JOIN, HOLDER.address)
    # The disk's answer counts once: what comes after it changes nothing.
    assert it.handle(ChunkLoaded(KEYS[0]), 2 * MS) == []


def test_a_failed_load_without_holders_ends_the_fetch_before_it() -> None:
    it = Reader(ReaderParameters(None))
    it.handle(request(loading(KEYS[0]), loading(KEYS[1]), loading(KEYS[2])), 0)
    it.handle(ChunkLoaded(KEYS[0]), MS)
    commands = it.handle(LoadFailed(KEYS[1]), MS)
    assert of_kind(commands, DeliverFetch) == [DeliverFetch(FetchId(1), Outcome.GONE, 1, (ChunkSource.DISK,))]
    assert {dropped.key for dropped in of_kind(commands, DropChunk)} == {KEYS[1], KEYS[2]}
    assert it.idle


def test_holders_learnt_while_loading_serve_when_the_disk_does_not() -> None:
    it = Reader(ReaderParameters(None))
    it.handle(request(loading(KEYS[0])), 0)
    assert it.handle(HoldersChanged({KEYS[0]: (HOLDER,)}), MS) == []
    (read,) = of_kind(it.handle(LoadFailed(KEYS[0]), 2 * MS), StartRead)
    assert read.holder == HOLDER.node


def test_deadline_and_cancel_drop_what_is_loading() -> None:
    it = Reader(ReaderParameters(ME))
    it.handle(request(loading(KEYS[0]), deadline_ms=5), 0)
    commands = it.handle_timer(5 * MS)
    assert of_kind(commands, DeliverFetch) == [DeliverFetch(FetchId(1), Outcome.LATE, 0, ())]
    assert of_kind(commands, DropChunk) == [DropChunk(KEYS[0])]
    it.handle(request(loading(KEYS[1]), fetch=2), 6 * MS)
    assert it.handle(FetchCancelled(FetchId(2)), 7 * MS) == [DropChunk(KEYS[1])]
    assert it.handle(LoadFailed(KEYS[1]), 8 * MS) == []
    assert it.idle


def served(members: int) -> ControlReceived:
    flags = Flag.JOINED | Flag.CACHED
    return ControlReceived(Control(Op.NOTICE, KEYS[0], SEGMENTS, flags=flags, member=ME, members=members), Address(99))


def test_a_lone_reader_passes_the_switch_by_where_it_is_told_to() -> None:
    alone, company = 1 << ME, 1 << ME | 1 << OTHER
    for read_alone, members, read in ((True, alone, True), (True, company, False), (False, alone, False)):
        it = Reader(ReaderParameters(ME))
        it.handle(request(ChunkWanted(KEYS[0], SEGMENTS, SEGMENTS * 4096, (HOLDER,), read_alone=read_alone)), 0)
        commands = it.handle(served(members), MS)
        gets = [each for each in of_kind(commands, SendControl) if each.message.op is Op.GET]
        assert (bool(of_kind(commands, StartRead)), bool(gets)) == (read, not read)


def test_a_chunk_that_an_engine_puts_ends_all_that_was_under_way_for_it() -> None:
    it = Reader(ReaderParameters(None))
    wanted = ChunkWanted(KEYS[0], SEGMENTS, SEGMENTS * 4096, (HOLDER,))
    (read,) = of_kind(it.handle(request(wanted), 0), StartRead)
    assert it.handle(ChunkPut(KEYS[1]), MS) == [], "nobody wants that one"
    commands = it.handle(ChunkPut(KEYS[0]), MS)
    assert commands == [AbortRead(read.read), DeliverFetch(FetchId(1), Outcome.COMPLETE, 1, (ChunkSource.LOCAL,))]
    assert it.idle


def test_a_put_chunk_leaves_the_interest_set_and_counts_once() -> None:
    it = Reader(ReaderParameters(ME))
    it.handle(request(ChunkWanted(KEYS[0], SEGMENTS, SEGMENTS * 4096, (HOLDER,)), loading(KEYS[1])), 0)
    commands = it.handle(ChunkPut(KEYS[0]), MS)
    assert [sent.message.op for sent in of_kind(commands, SendControl)] == [Op.LEAVE]
    assert of_kind(commands, FetchProgress) == [FetchProgress(FetchId(1), 1, (ChunkSource.LOCAL,))]
    assert it.handle(ChunkPut(KEYS[0]), 2 * MS) == []
    (answer,) = of_kind(it.handle(ChunkPut(KEYS[1]), 3 * MS), DeliverFetch)
    assert answer.sources == (ChunkSource.LOCAL, ChunkSource.LOCAL)
    assert it.handle(ChunkLoaded(KEYS[1]), 4 * MS) == []
    assert it.idle
