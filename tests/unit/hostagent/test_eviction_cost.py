"""What a node loses with its own copy, and that its pools know."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from hostagent.core.directory import ChunkEntry, Delta, DirectoryReplica, NodeEntry
from hostagent.core.eviction_cost import EvictionCost
from hostagent.pool.chunks import Chunk, ChunkPool
from kvchunk.ids import ChunkKey
from kvpolicy.value import SourceCosts, Tier, Touch
from kvproto.ids import Address
from tests.digests import digest, hashed

MIB = 1 << 20
PAGE = 4096


def key(number: int) -> ChunkKey:
    return ChunkKey(number.to_bytes(16, "big"))


def entry(number: int, *holders: int, served: bool = False, disk: tuple[int, ...] = ()) -> ChunkEntry:
    return ChunkEntry(key(number), None, MIB, digest(0), 0, holders, served, disk_holders=disk)


def eviction_cost(*chunks: ChunkEntry) -> EvictionCost:
    """Of node n0, in a cluster of three."""
    directory = DirectoryReplica("n0")
    nodes = tuple(NodeEntry(node, f"n{node}", Address(node), f"0.0.0.{node}:1", node) for node in range(3))
    directory.apply(Delta(1, snapshot=True, snapshot_end=True, nodes=nodes, chunks=chunks))
    return EvictionCost(SourceCosts(), directory)


def dram(made: EvictionCost, number: int, *, on_disk: bool = False) -> float:
    here_too = [Tier.LOCAL_DISK] if on_disk else []
    return made.of_dram([Touch(key(number), None, 0, MIB)], lambda _: here_too)[0]


def test_the_more_others_have_a_chunk_the_less_is_lost_with_it() -> None:
    made = eviction_cost(entry(1, 0), entry(2, 0, disk=(1,)), entry(3, 0, 1), entry(5, 0, disk=(0,)))
    alone, on_a_disk, in_dram, unknown, own = (dram(made, number) for number in (1, 2, 3, 4, 5))
    assert alone > on_a_disk > in_dram > 0
    assert unknown == alone == own, "the directory's word on this node itself is no other source"
    assert dram(made, 1, on_disk=True) < alone
    in_dram, alone = made.of_disk([Touch(key(number), None, 0, MIB) for number in (3, 1)])
    assert in_dram < alone
    assert dram(eviction_cost(entry(1, 0, served=True)), 1) < alone


def test_of_chunks_fetched_alike_the_one_that_nobody_else_has_stays() -> None:
    made = eviction_cost(*(entry(number, 0, *([1] if number != 2 else [])) for number in range(4)))
    now_ns = 0
    pool = ChunkPool(4 * MIB, PAGE, lambda: now_ns, partial(made.of_dram, here_too=lambda _: []))
    for number in range(4):
        pool.fetched([Touch(key(number), None, 0, MIB)])
        chunk = pool.reserve(key(number), None, MIB)
        assert isinstance(chunk, Chunk)
        pool.commit(chunk, hashed(0))
    assert pool.next_victims(4)[-1] == key(2)


def test_whatever_touches_a_pool_asks_for_the_loss() -> None:
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
    pool = ChunkPool(2 * MIB, PAGE, lambda: now_ns, loss)
    first = pool.reserve(key(1), None, MIB)
    assert isinstance(first, Chunk)
    assert heard(key(1))
    pool.commit(first, hashed(0))
    assert heard(key(1))
    pool.touch(key(1))
    assert heard(key(1))
    pool.fetched([Touch(key(2), None, 0, MIB)])
    assert heard(key(2))
    second = pool.restore(key(2), None, 0, "", first.offset + MIB, MIB, 0)
    assert second is not None
    assert heard(key(2))
    pool.update_remote_score(key(1), 0.0)
    now_ns = 60_000_000_000
    pool.update_remote_score(key(1), 5.0)
    assert heard(key(1))
    outside = Chunk(key(3), None, 0, "", 0, MIB, first.state)
    pool.admits(outside)
    assert heard(key(3))
