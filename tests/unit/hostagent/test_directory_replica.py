"""The replica: deltas, snapshots, gaps, and what survives a controller's restart."""

from __future__ import annotations

import dataclasses

import pytest

from hostagent.core import replica_table
from hostagent.core.chunk_entry import ChunkEntry, Variant
from hostagent.core.directory import Delta, DirectoryReplica, NodeEntry, SequenceGapError
from kvchunk.ids import ChunkKey
from kvpolicy.value import Tier
from kvproto.ids import parse_address
from tests.digests import digest
from tests.unit.hostagent.agent_harness import key


def node(number: int, name: str, *, draining: bool = False) -> NodeEntry:
    return NodeEntry(number, name, parse_address(f"10.0.0.{number + 1}"), f"10.0.0.{number + 1}:4790", number, draining)


def chunk(number: int, *holders: int) -> ChunkEntry:
    return ChunkEntry(key(number), None, 100, digest(7), 0, holders)


def replica(*deltas: Delta, controller: int = 1) -> DirectoryReplica:
    made = DirectoryReplica("n0")
    made.restart(controller)
    for delta in deltas:
        made.apply(delta)
    return made


SNAPSHOT = Delta(5, snapshot=True, snapshot_end=True, nodes=(node(0, "a"), node(1, "b")), chunks=(chunk(1, 0, 1),))


def test_snapshot_comes_into_force_when_it_is_whole() -> None:
    made = replica()
    first = Delta(5, snapshot=True, nodes=(node(0, "a"),), chunks=(chunk(1, 0),))
    assert made.apply(first).changed == ()
    assert made.find(key(1)) is None
    last = made.apply(Delta(5, snapshot=True, snapshot_end=True, chunks=(chunk(2, 0),)))
    assert last.changed == (key(1), key(2))
    assert [holder.name for holder in made.holders_elsewhere(key(2))[0]] == ["a"]


def test_deltas_follow_without_a_gap() -> None:
    made = replica(SNAPSHOT)
    applied = made.apply(Delta(6, chunks=(chunk(2, 1),), chunks_gone=(key(1),), nodes_gone=(0,)))
    assert applied.changed == (key(2), key(1))
    assert applied.nodes_lost == ("a",)
    assert made.find(key(1)) is None
    with pytest.raises(SequenceGapError):
        made.apply(Delta(8))


def test_delta_inside_a_snapshot_is_a_gap() -> None:
    made = replica(SNAPSHOT)
    made.restart(1)
    made.apply(Delta(9, snapshot=True))
    with pytest.raises(SequenceGapError):
        made.apply(Delta(10))


def test_leaving_holders_come_last_and_unknown_ones_not_at_all() -> None:
    made = replica(SNAPSHOT)
    made.apply(Delta(6, nodes=(node(0, "a", draining=True),), chunks=(chunk(1, 0, 1, 9),)))
    assert [holder.name for holder in made.holders_elsewhere(key(1))[0]] == ["b", "a"]


def test_same_controller_again_is_the_whole_truth() -> None:
    made = replica(SNAPSHOT)
    made.restart(1)
    assert made.find(key(1)) is not None, "the old content answers meanwhile"
    applied = made.apply(Delta(9, snapshot=True, snapshot_end=True, nodes=(node(0, "a"),)))
    assert applied.changed == (key(1),)
    assert applied.nodes_lost == ("b",)
    assert made.find(key(1)) is None
    assert not made.has_stale


def test_a_snapshot_is_compared_as_it_comes_and_not_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = [dataclasses.replace(chunk(number, 0), parent=key(number - 1) if number else None) for number in range(20)]
    made = replica(Delta(5, snapshot=True, snapshot_end=True, chunks=tuple(chunks)))

    def again(*parts: tuple[ChunkEntry, ...], gone: tuple[ChunkKey, ...] = ()) -> set[ChunkKey]:
        made.restart(1)
        for part in parts:
            assert made.apply(Delta(6, snapshot=True, chunks=part)).changed == ()
        with monkeypatch.context() as patched:
            patched.setattr(replica_table, "ChunkEntry", lambda *_, **__: pytest.fail("an entry is made"))
            changed = made.apply(Delta(6, snapshot=True, snapshot_end=True, chunks_gone=gone)).changed
        return set(changed)

    assert again(tuple(chunks[:9]), tuple(chunks[9:])) == set()
    changes = {
        "parent": key(50),
        "size_bytes": 7,
        "digest": digest(8),
        "position": 1,
        "holders": (1,),
        "served": True,
        "pinned": True,
        "value": 0.5,
        "disk_holders": (0,),
        "namespace": "m",
        "others": (Variant(1, digest(9), (1,)),),
    }
    for name, value in changes.items():
        chunks[3] = dataclasses.replace(chunks[3], **{name: value})
        assert again(tuple(chunks)) == {key(3)}, name
        assert made.find(key(3)) == chunks[3]
    made.restart(1)
    made.apply(Delta(7, snapshot=True, chunks=tuple(chunks)))
    assert again(tuple(chunks[:5]), tuple(chunks[6:]), gone=(key(7),)) == {key(5), key(7)}, "the one before broke off"
    assert (made.find(key(5)), made.find(key(7)), made.chunks_count) == (None, None, 18)


def test_new_controller_does_not_make_known_copies_unknown() -> None:
    made = replica(SNAPSHOT)
    made.restart(2)
    applied = made.apply(Delta(1, snapshot=True, snapshot_end=True, nodes=(node(3, "b"),)))
    assert applied.nodes_lost == ()
    assert made.has_stale
    assert [holder.name for holder in made.holders_elsewhere(key(1))[0]] == ["a", "b"]
    assert made.node_named("a") == node(0, "a")
    # Numbers are the new controller's own: b is 3 now, and announced what it holds.
    made.apply(Delta(2, chunks=(chunk(1, 3),)))
    assert [(holder.node, holder.name) for holder in made.holders_elsewhere(key(1))[0]] == [(3, "b"), (0, "a")]
    assert made.forget_stale().changed == (key(1),)
    assert [holder.name for holder in made.holders_elsewhere(key(1))[0]] == ["b"]
    assert made.node_named("a") is None


def test_what_is_stale_is_forgotten_some_at_a_time_and_until_then_answers() -> None:
    many = tuple(chunk(number, 0) for number in range(1, 11))
    made = replica(Delta(1, snapshot=True, snapshot_end=True, nodes=(node(0, "a"),), chunks=many))
    made.restart(1, keep=True)
    applied = made.apply(Delta(2, snapshot=True, snapshot_end=True, nodes=(node(0, "a"),)))
    assert applied.changed == (), "all is known as before"
    made.apply(Delta(3, chunks_gone=(key(9),)))
    forgotten = []
    while made.has_stale:
        some = made.forget_stale(4).changed
        assert len(some) <= 4
        forgotten += some
        assert all(made.find(one) is None for one in forgotten)
    assert sorted(forgotten) == [key(number) for number in range(1, 11) if number != 9]
    assert made.node_named("a") is not None


def test_chunk_gone_is_gone_from_what_is_stale_too() -> None:
    made = replica(SNAPSHOT)
    made.restart(2)
    made.apply(Delta(1, snapshot=True, snapshot_end=True))
    made.apply(Delta(2, chunks_gone=(key(1),)))
    assert made.find(key(1)) is None


def test_own_copies_are_no_others_and_a_copy_on_disk_counts_where_there_is_none_in_dram() -> None:
    made = DirectoryReplica("a")
    entry = dataclasses.replace(chunk(1, 0, 1), disk_holders=(0, 1, 2))
    nodes = (node(0, "a"), node(1, "b"), node(2, "c"))
    made.apply(Delta(5, snapshot=True, snapshot_end=True, nodes=nodes, chunks=(entry,)))
    in_dram, on_disk = made.holders_elsewhere(key(1))
    assert ([one.name for one in in_dram], [one.name for one in on_disk]) == (["b"], ["c"])
    assert made.tiers_elsewhere(key(1)) == [Tier.REMOTE_DRAM]
    assert made.tiers_elsewhere(key(2)) == []


HONEST, POISON = Variant(100, digest(7), (1,)), Variant(200, digest(8), (2,))


def offered(first: Variant, *others: Variant) -> Delta:
    one = ChunkEntry(key(1), None, first.size_bytes, first.digest, 0, first.holders, others=others)
    return Delta(0, snapshot=True, snapshot_end=True, chunks=(one,))


def test_when_nothing_of_a_chunk_comes_its_other_bytes_are_asked_for() -> None:
    replica = DirectoryReplica("n0")
    replica.restart(1)
    replica.apply(offered(POISON, HONEST))
    replica.failed(key(1))
    replica.failed(key(2))
    found = replica.find(key(1))
    assert found is not None
    assert (found.own, found.others) == (HONEST, (POISON,))
    replica.failed(key(1))
    again = replica.find(key(1))
    assert again is not None
    assert again.own == POISON, "and then the first again"


def test_nobody_gets_before_what_is_known_by_being_quick_after_a_failover() -> None:
    replica = DirectoryReplica("n0")
    replica.restart(1)
    replica.apply(offered(HONEST))
    replica.restart(2)
    replica.apply(offered(POISON, HONEST))
    found = replica.find(key(1))
    assert found is not None
    assert (found.own, found.others) == (HONEST, (POISON,))
    replica.apply(Delta(1, chunks=offered(POISON).chunks))
    gone = replica.find(key(1))
    assert gone is not None
    assert gone.own == POISON, "what is offered no more is not asked for"
