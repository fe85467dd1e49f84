"""The prefix tree against a model that keeps nothing but (node, facts) pairs."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.core.directory import AddOutcome, AmbiguousKeyError, ChunkFacts, Directory, UnknownKeyError
from controlplane.core.ids import ChunkKey, NodeIndex
from controlplane.core.live.runs import Runs
from kvproto.chunk_columns import Columns
from kvproto.chunk_table import NONE
from tests.digests import digest
from tests.unit.controlplane.helpers import CHUNK, facts, key

A, B, C = NodeIndex(0), NodeIndex(1), NodeIndex(2)

# A small tree: chunk i hangs on chunk (i - 1) // 2.
TREE = [facts(0)] + [facts(i, (i - 1) // 2, position=(i + 1).bit_length() - 1) for i in range(1, 15)]

operations = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from([A, B, C]), st.sampled_from(TREE)),
        st.tuples(st.just("remove"), st.sampled_from([A, B, C]), st.sampled_from(TREE)),
        st.tuples(st.just("node"), st.sampled_from([A, B, C]), st.none()),
        st.tuples(st.just("served"), st.booleans(), st.sampled_from(TREE)),
    ),
    max_size=60,
)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(operations)
def test_agrees_with_a_plain_set_of_copies(steps: list[tuple[str, object, ChunkFacts | None]]) -> None:
    directory, copies, served = Directory(), set(), set()
    replica: set[ChunkKey] = set()
    for action, who, what in steps:
        if action == "add":
            directory.add_copy(who, what)
            copies.add((who, what.key))
        elif action == "remove":
            directory.remove_copy(who, what.key)
            copies.discard((who, what.key))
        elif action == "node":
            directory.remove_node(who)
            copies = {one for one in copies if one[0] != who}
        elif who and what.key in directory:
            directory.set_served(what.key, True)
            served.add(what.key)
        else:
            directory.set_served(what.key, False)
            served.discard(what.key)
        served &= {chunk.key for chunk in directory}
        rows, gone = directory.take_rows(limit=1000)
        replica = (replica | {chunk.key for chunk in directory.chunks_of(rows)}) - set(gone)
        assert replica == {chunk.key for chunk in directory}
    available = {one for _, one in copies} | served
    assert {chunk.key for chunk in directory} == available
    assert directory.copies == len(copies)
    assert directory.size_bytes == len(available) * CHUNK
    for one in TREE:
        chunk = directory.get(one.key)
        if chunk is not None:
            assert chunk.holders == {who for who, held in copies if held == one.key}
        assert directory.children(one.key) == {other.key for other in TREE if other.parent == one.key} & available
        path, at = [], one
        while at is not None:
            path.append(at.key)
            at = next((other for other in TREE if other.key == at.parent), None)
        assert directory.is_rooted(one.key) == all(step in available for step in path)
    for node in (A, B, C):
        last = {held for who, held in copies if who == node} - {held for who, held in copies if who != node}
        assert set(directory.last_copies(node)) == last


def chain(directory: Directory, node: NodeIndex, count: int) -> list[ChunkKey]:
    for at in range(count):
        directory.add_copy(node, facts(at, at - 1 if at else None, position=at))
    return [key(at) for at in range(count)]


def test_prefix_and_subtree_follow_the_links() -> None:
    directory = Directory()
    keys = chain(directory, A, 4)
    directory.add_copy(A, facts("side", 1, position=2))
    assert directory.prefix(keys[3]) == keys
    assert set(directory.subtree(keys[1])) == {keys[1], keys[2], keys[3], key("side")}
    assert directory.subtree(keys[1])[0] == keys[1]
    with pytest.raises(UnknownKeyError):
        directory.prefix(key("nothing"))


def test_prefix_begins_behind_a_gap() -> None:
    directory = Directory()
    keys = chain(directory, A, 4)
    directory.remove_copy(A, keys[1])
    assert directory.prefix(keys[3]) == keys[2:]
    assert not directory.is_rooted(keys[3])
    directory.add_copy(B, facts(1, 0, position=1))
    assert directory.prefix(keys[3]) == keys


def test_other_bytes_under_the_same_key_are_kept_apart() -> None:
    directory = Directory()
    first = facts("x")
    second = ChunkFacts(first.key, None, CHUNK, digest(1), 0, "m")
    assert directory.add_copy(A, first) is AddOutcome.NEW_CHUNK
    assert directory.add_copy(B, second) is AddOutcome.CONFLICT
    assert directory.add_copy(C, second) is AddOutcome.CONFLICT
    assert directory.get(first.key).holders == {A}
    directory.remove_copy(A, first.key)
    chunk = directory.get(first.key)
    assert chunk is not None
    assert chunk.holders == {B, C}, "the dissenters agree with each other and take over"
    assert chunk.facts.digest == second.digest
    directory.remove_node(B)
    directory.remove_node(C)
    assert first.key not in directory


def test_a_snapshot_removes_what_it_does_not_name() -> None:
    directory = Directory()
    keys = chain(directory, A, 3)
    directory.begin_snapshot(A)
    directory.add_copy(A, facts(0))
    directory.add_copy(A, facts("new"))
    directory.end_snapshot(A)
    assert {chunk.key for chunk in directory if A in chunk.holders} == {keys[0], key("new")}


def test_find_wants_unambiguous_digits() -> None:
    directory = Directory()
    chain(directory, A, 40)
    wanted = key(7)
    assert directory.find(wanted.hex()) == wanted
    assert directory.find(wanted.hex()[:12].upper()) == wanted
    first = next(digit for digit in "0123456789abcdef" if sum(key(i).hex()[0] == digit for i in range(40)) > 1)
    with pytest.raises(AmbiguousKeyError, match="give more digits"):
        directory.find(first)
    for nonsense in ("", "xyz", "0" * 33):
        with pytest.raises(UnknownKeyError):
            directory.find(nonsense)


def columns(chunks: list[ChunkFacts]) -> Columns:
    return Columns(
        [one.key for one in chunks],
        np.frombuffer(b"".join(one.parent or bytes(16) for one in chunks), np.uint64).reshape(-1, 2),
        np.frombuffer(b"".join(one.digest for one in chunks), np.uint8).reshape(len(chunks), -1),
        np.array([one.size_bytes for one in chunks], np.uint64),
        np.array([one.position for one in chunks], np.uint32),
        ["m", "n"],
        np.array(["mn".index(one.namespace) for one in chunks], np.uint32),
        np.zeros(len(chunks), np.uint8),
    )


def shape(directory: Directory, runs: Runs) -> object:
    """All that can be known of a directory."""
    chunks = {one.key: replace(one, score_told=0.0) for one in directory}
    nodes = {
        node: (
            directory.count_held_by(node),
            directory.count_on_disk_of(node),
            directory.count_last_copies(node),
            directory.last_copies(node),
        )
        for node in (A, B, C)
    }
    whole = {
        (run.first, run.chunks, run.size_bytes, run.served_chunks)
        for one in chunks
        if (run := runs.run_of(one)) is not None
    }
    of = {one: runs.run_of(one).first for one in chunks}
    below = {one: directory.children(one) for one in chunks}
    return chunks, nodes, whole, of, below, directory.copies, directory.size_bytes


@pytest.mark.parametrize("seed", range(60))
def test_many_copies_together_are_the_same_as_one_by_one(seed: int) -> None:
    rng, pair = random.Random(seed), [Directory(), Directory()]
    seen: list[list[tuple[ChunkKey, bool]]] = [[], []]
    all_runs = [Runs(one) for one in pair]
    for directory, told in zip(pair, seen, strict=True):
        directory.watch(lambda keys, is_new, told=told: told.extend((key, is_new) for key in keys))
    tree = [facts(at, rng.randrange(at) if at and rng.random() < 0.8 else None, position=at) for at in range(60)]
    for _ in range(40):
        node, on_disk = rng.choice((A, B, C)), rng.random() < 0.3
        kind, some = rng.randrange(6), rng.sample(tree, rng.randrange(1, 40))
        if kind < 3:
            # Mostly prefixes in order, sometimes in any order, other bytes, another namespace, or twice.
            some = sorted(some, key=lambda one: one.position) if rng.random() < 0.7 else some
            some = [one if rng.random() < 0.97 else _other(one, rng) for one in some]
            some += some[:1] if rng.random() < 0.1 else []
            together, by_itself = pair
            left = [some[at] for at in together.add_copies(node, columns(some), on_disk=on_disk)]
            for directory, rest in ((together, left), (by_itself, some)):
                for one in rest:
                    (directory.add_disk_copy if on_disk else directory.add_copy)(node, one)
        for directory in pair:
            if kind == 3:
                for one in some:
                    (directory.remove_disk_copy if on_disk else directory.remove_copy)(node, one.key)
            elif kind == 4:
                directory.set_pinned([some[0].key], on_disk)
            elif kind == 5:
                directory.set_served(some[0].key, on_disk)
        assert shape(pair[0], all_runs[0]) == shape(pair[1], all_runs[1])
        assert set(seen[0]) == set(seen[1])
        limit = rng.choice((5, 1000))
        news = [directory.take_rows(limit) for directory in pair] if rng.random() < 0.5 else []
        if limit == 1000:
            told = [({*one.table.keys_of(rows)}, {*gone}) for one, (rows, gone) in zip(pair, news, strict=bool(news))]
            assert told[:1] == told[1:]
        else:
            assert [len(rows) + len(gone) for rows, gone in news[:1]] == [
                len(rows) + len(gone) for rows, gone in news[1:]
            ]
            for directory in pair:
                directory.take_rows(1000)
        for told in seen:
            told.clear()


def _other(one: ChunkFacts, rng: random.Random) -> ChunkFacts:
    if rng.random() < 0.5:
        return ChunkFacts(one.key, one.parent, one.size_bytes, digest(7), one.position, "m")
    return ChunkFacts(one.key, one.parent, one.size_bytes, one.digest, one.position, "n")


@pytest.mark.parametrize("seed", range(30))
def test_no_announcement_closes_a_cycle(seed: int) -> None:
    rng, directory = random.Random(seed), Directory()
    for _ in range(20):
        some = [facts(at, rng.randrange(20) if rng.random() < 0.8 else None) for at in rng.sample(range(20), 8)]
        some = [one for one in some if one.parent != one.key]
        left = directory.add_copies(A, columns(some))
        for at in left:
            directory.add_copy(A, some[at])
        for one in directory:
            row = directory.table.row(one.key)
            for _ in range(100):
                if row == NONE:
                    break
                row = directory.table.parents[row]
            assert row == NONE
