"""What a node loses with its own copy, and that its pools know."""

from __future__ import annotations

from collections.abc import Sequence

from hostagent.core.chunk_entry import ChunkEntry
from hostagent.core.directory import Delta, DirectoryReplica, NodeEntry
from hostagent.pool.chunks import Chunk, ChunkPool, DropOutcome
from hostagent.pool.records import Record
from kvchunk.ids import ChunkKey
from kvpolicy.value import SourceCosts, Tier, Touch
from kvproto.ids import Address
from kvproto.integrity import NO_DIGEST
from tests.digests import digest, hashed

MIB = 1 << 20
PAGE = 4096


def key(number: int) -> ChunkKey:
    return ChunkKey(number.to_bytes(16, "big"))


def entry(number: int, *holders: int, served: bool = False, disk: tuple[int, ...] = ()) -> ChunkEntry:
    return ChunkEntry(key(number), None, MIB, digest(0), 0, holders, served, disk_holders=disk)


def directory_of(*chunks: ChunkEntry) -> DirectoryReplica:
    """That of node n0, in a cluster of three."""
    directory = DirectoryReplica("n0")
    nodes = tuple(NodeEntry(node, f"n{node}", Address(node), f"0.0.0.{node}:1", node) for node in range(3))
    directory.apply(Delta(1, snapshot=True, snapshot_end=True, nodes=nodes, chunks=chunks))
    return directory


def dram(made: DirectoryReplica, number: int, *, on_disk: bool = False) -> float:
    here_too = [Tier.LOCAL_DISK] if on_disk else []
    touch = Touch(key(number), None, 0, MIB)
    (cost_s,) = SourceCosts().eviction_costs_s(
        [touch], Tier.LOCAL_DRAM, [[*made.tiers_elsewhere(touch.key), *here_too]]
    )
    return cost_s


def test_the_more_others_have_a_chunk_the_less_is_lost_with_it() -> None:
    made = directory_of(entry(1, 0), entry(2, 0, disk=(1,)), entry(3, 0, 1), entry(5, 0, disk=(0,)))
    alone, on_a_disk, in_dram, unknown, own = (dram(made, number) for number in (1, 2, 3, 4, 5))
    assert alone > on_a_disk > in_dram > 0
    assert unknown == alone == own, "the directory's word on this node itself is no other source"
    assert dram(made, 1, on_disk=True) < alone
    touches = [Touch(key(number), None, 0, MIB) for number in (3, 1)]
    in_dram, alone = SourceCosts().eviction_costs_s(
        touches, Tier.LOCAL_DISK, [made.tiers_elsewhere(touch.key) for touch in touches]
    )
    assert in_dram < alone
    assert dram(directory_of(entry(1, 0, served=True)), 1) < alone


def test_of_chunks_fetched_alike_the_one_that_nobody_else_has_stays() -> None:
    made = directory_of(*(entry(number, 0, *([1] if number != 2 else [])) for number in range(4)))
    now_ns = 0
    costs = SourceCosts()
    pool = ChunkPool(
        4 * MIB,
        PAGE,
        lambda: now_ns,
        lambda chunks: costs.eviction_costs_s(
            chunks, Tier.LOCAL_DRAM, [made.tiers_elsewhere(chunk.key) for chunk in chunks]
        ),
    )
    for number in range(4):
        pool.fetched([Touch(key(number), None, 0, MIB)])
        chunk = pool.reserve(key(number), None, MIB)
        assert isinstance(chunk, Chunk)
        pool.commit(chunk, hashed(0))
    assert pool.next_victims(4)[-1] == key(2)


def test_a_pool_asks_for_the_loss_of_each_chunk_once_a_fetch_and_before_it_may_go() -> None:
    """A chunk whose worth nobody asked for would be compared in other units than all the others."""
    asked: list[ChunkKey] = []

    def loss(chunks: Sequence[Touch]) -> list[float]:
        assert all(one.size_bytes == MIB for one in chunks)
        asked.extend(one.key for one in chunks)
        return [1.0] * len(chunks)

    def heard(of: ChunkKey) -> bool:
        found = of in asked
        asked.clear()
        return found

    now_ns = 0
    pool = ChunkPool(3 * MIB, PAGE, lambda: now_ns, loss)
    first = pool.reserve(key(1), None, MIB)
    assert isinstance(first, Chunk)
    assert not heard(key(1)), "it cannot go before it is whole"
    pool.commit(first, hashed(0))
    assert heard(key(1))
    pool.touch([key(1)])
    assert heard(key(1))
    pool.fetched([Touch(key(2), None, 0, MIB)])
    assert heard(key(2))
    second = pool.restore(Record(key(2), None, 0, "", first.offset + MIB, MIB, NO_DIGEST, sequence=0))
    assert second is not None
    assert not heard(key(2)), "the fetch has asked"
    assert pool.restore(Record(key(4), None, 0, "", first.offset + 2 * MIB, MIB, NO_DIGEST, sequence=0)) is not None
    assert heard(key(4)), "nobody has fetched it, and it may go"
    assert pool.drop(key(2)) is DropOutcome.DROPPED
    pool.fetched([Touch(key(5), None, 0, MIB)])
    asked.clear()
    again = pool.reserve(key(2), None, MIB)
    assert isinstance(again, Chunk)
    assert heard(key(2)), "its last fetch was another one"
    pool.update_remote_score(key(1), 0.0)
    now_ns = 60_000_000_000
    pool.update_remote_score(key(1), 5.0)
    assert heard(key(1))
    outside = Chunk(key(3), None, 0, "", 0, MIB, first.state)
    pool.admits(outside)
    assert heard(key(3))
