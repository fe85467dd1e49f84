"""Recurrent layers: which prefix ends with a state, what is fetched for it, and where states come from and go."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from kvchunk.ids import ChunkKey
from kvchunk.sources import ChunkSource
from kvclient.engines.core.keys import PrefixKeys
from kvclient.engines.core.prefill import FetchTerms
from kvclient.engines.core.requests import (
    Command,
    Fetch,
    Load,
    LookUp,
    Miss,
    Release,
    RequestCaches,
    Rules,
    Stage,
)
from kvclient.engines.core.states import chunks_with_state, flat_state_keys, state_blocks, state_keys
from kvclient.engines.paged import HostLayers, StateLayers
from kvclient.messages import Status, Where

CHUNK = 8
L, R, N, C = Where.LOCAL, Where.REMOTE, Where.NOWHERE, Where.COMPUTING
TOKENS = list(range(45))  # five whole chunks and five tokens
TABLE = list(range(100, 106))


class Script:
    """A connector's core of an engine with recurrent layers, in chunks of one block."""

    def __init__(self, shards: int = 1) -> None:
        self.missed: list[Miss] = []
        self.terms: list[int] = []
        self.shards = shards
        rules = Rules(CHUNK, CHUNK, has_states=True)
        self.core = RequestCaches(rules, self._terms, lambda why, _: self.missed.append(why))

    def _terms(self, _request: str, _first: int, tokens: int) -> FetchTerms:
        self.terms.append(tokens)
        return FetchTerms(1.0, 1.0)

    def look(self, chunks: Sequence[Where], states: Sequence[Where], expected_chunks: int = 0) -> LookUp:
        """A request has come, and its lookup is answered; `chunks`, `states`: by chunk, the same for all shards."""
        keys = PrefixKeys([bytes([shard]) * 32 for shard in range(self.shards)], CHUNK)
        (lookup,) = self.core.request_arrived(
            "a", TOKENS, keys, may_load=True, may_save=True, away=False, expected_chunks=expected_chunks
        )
        assert isinstance(lookup, LookUp)
        where = [place for places in (chunks, states) for place in places for _ in range(self.shards)]
        assert len(lookup.keys) == len(where)
        self.core.lookup_answered("a", lookup.ticket, where)
        return lookup

    def commands(self, computed: int = 0) -> tuple[Command, ...]:
        return self.core.ask("a", TOKENS, computed, away=False).commands

    def fetch(self, computed: int = 0) -> Fetch:
        (found,) = self.commands(computed)
        assert isinstance(found, Fetch)
        return found

    def keys(self, first: int, end: int) -> tuple[ChunkKey, ...]:
        """Of the chunks, and of the state behind them."""
        keys = self.core.keys("a")
        return (*keys.flat(first, end), *state_keys(keys.keys[end - 1]))

    def load(self, tokens: int) -> Load:
        assert self.core.ask("a", TOKENS, 40 - tokens, away=False).tokens is not None
        load, _ = self.core.blocks_allocated("a", tokens, TABLE, (), ([0] * 4 + [7, 8], [0] * 4 + [9, 0]))
        assert load is not None
        return load


def came(count: int) -> list[ChunkSource]:
    return [ChunkSource.HOLDER] * count


@pytest.mark.parametrize("shards", [1, 2])
def test_chunks_and_the_last_state_are_fetched(shards: int) -> None:
    script = Script(shards)
    lookup = script.look([L, R, R, R, R], [N, R, N, N, R])
    keys = script.core.keys("a")
    assert lookup.keys == (*keys.flat(0, 5), *flat_state_keys(keys.keys))
    fetch = script.fetch()
    assert fetch.keys == script.keys(0, 5)
    assert script.terms == [40], "all of it is spared, or nothing"
    script.core.fetch_answered("a", fetch.ticket, came(6 * shards), Status.OK)
    assert script.core.ask("a", TOKENS, 0, away=False).tokens == 40
    assert len(script.core.sources("a")) == 5
    load = script.load(40)
    assert load.block_ids == tuple(TABLE[:5])
    assert load.state is not None
    assert (load.state.keys, load.state.block_ids) == (state_keys(keys.keys[4]), (7, 9))


@pytest.mark.parametrize(
    ("states", "chunks"),
    [([R, R, R, R, R], 5), ([R, N, R, N, N], 3), ([C, N, N, N, N], 1), ([N, N, N, N, R], 5), ([N, N, N, N, N], 0)],
)
def test_a_prefix_ends_with_a_state(states: list[Where], chunks: int) -> None:
    script = Script()
    script.look([R] * 5, states)
    assert script.core.shared_tokens("a") == 40
    if chunks:
        assert script.fetch().keys == script.keys(0, chunks)
    else:
        assert script.core.ask("a", TOKENS, 0, away=False).tokens == 0
        assert script.missed == [Miss.ABSENT]


def test_a_state_behind_a_missing_chunk_is_of_no_use() -> None:
    script = Script()
    script.look([R, R, N, R, R], [N, R, N, N, R])
    assert script.fetch().keys == script.keys(0, 2)
    assert script.core.shared_tokens("a") == 16


def test_what_the_engine_has_itself_is_not_fetched_but_its_state_is_not_enough() -> None:
    script = Script()
    script.look([R] * 5, [N, N, N, R, N])
    assert script.fetch(computed=16).keys == script.keys(2, 4)
    script = Script()
    script.look([R] * 5, [N, R, N, N, N])
    assert script.core.ask("a", TOKENS, 16, away=False).tokens == 0
    assert script.missed == [Miss.SHORT]


@pytest.mark.parametrize("arrived", [2, 3, 4, 5])
def test_a_fetch_without_its_state_falls_back_to_an_earlier_one(arrived: int) -> None:
    """And from there to nothing."""
    script = Script()
    script.look([R] * 5, [N, R, N, N, R])
    fetch = script.fetch()
    assert script.core.fetch_answered("a", fetch.ticket, came(arrived), Status.DEADLINE) == (
        Release("a", fetch.ticket),
    )
    again = script.fetch()
    assert again.keys == script.keys(0, 2)
    assert script.core.fetch_answered("a", again.ticket, came(2), Status.NOT_FOUND) == (Release("a", again.ticket),)
    assert script.core.ask("a", TOKENS, 0, away=False).tokens == 0
    assert script.missed == [Miss.ABSENT]


def test_a_fetch_that_brings_less_than_any_state_needs_is_a_miss() -> None:
    script = Script()
    script.look([R] * 5, [N, R, N, N, R])
    fetch = script.fetch()
    script.core.fetch_answered("a", fetch.ticket, came(1), Status.DEADLINE)
    assert script.core.stage("a") is Stage.MISSED
    assert script.missed == [Miss.LATE]


def test_nothing_came_since_the_agent_is_gone() -> None:
    script = Script()
    script.look([R] * 5, [R] * 5)
    fetch = script.fetch()
    assert script.core.fetch_answered("a", fetch.ticket, [], Status.UNAVAILABLE) == ()
    assert script.missed == [Miss.LOST]


def test_what_another_engine_computes_ends_with_its_last_chunk() -> None:
    script = Script()
    script.look([N] * 5, [N] * 5, expected_chunks=5)
    assert script.fetch().keys == script.keys(0, 5)
    # It says that it has put fewer: then a state has to be known.
    script = Script()
    script.look([R, R, R, N, N], [N, R, N, N, N], expected_chunks=3)
    assert script.fetch().keys == script.keys(0, 2)


def test_no_block_for_the_state_is_an_error() -> None:
    script = Script()
    script.look([R] * 5, [N, N, N, N, R])
    fetch = script.fetch()
    script.core.fetch_answered("a", fetch.ticket, came(6), Status.OK)
    with pytest.raises(ValueError, match="no room for the state behind 5 blocks"):
        script.core.blocks_allocated("a", 40, TABLE, (), ([0, 0, 0, 7, 0],))
    script.core.load_ended("a", whole=False)  # as the shell tells the workers then
    assert script.core.stage("a") is Stage.RUNNING


def test_states_are_saved_where_the_engine_has_them_and_the_pool_has_not() -> None:
    script = Script()
    script.look([R, N, N, N, N], [L, R, N, N, N])
    keys = script.core.keys("a")
    assert script.core.state_save("a", TOKENS, 8, [3, 4]) is None, "it is in this node's pool"
    for end in (0, 12, 48, 41):
        assert script.core.state_save("a", TOKENS, end, [3, 4]) is None, end
    for chunk in (1, 4):
        found = script.core.state_save("a", TOKENS, (chunk + 1) * CHUNK, [3, 4])
        assert found is not None
        assert (found.keys, found.parents) == (state_keys(keys.keys[chunk]), keys.keys[chunk])
        assert (found.chunk, found.block_ids, found.is_state) == (chunk, (3, 4), True)
    script.core.distrust()
    assert script.core.state_save("a", TOKENS, 16, [3, 4]) is None


def test_a_loaded_state_is_not_saved_again() -> None:
    script = Script()
    script.look([R] * 5, [N, N, N, N, R])
    fetch = script.fetch()
    script.core.fetch_answered("a", fetch.ticket, came(6), Status.OK)
    script.load(40)
    script.core.load_ended("a", whole=True)
    assert script.core.state_save("a", TOKENS, 40, [3, 4]) is None
    assert script.core.state_save("a", TOKENS, 32, [3, 4]) is not None


def test_a_state_has_another_key_than_its_chunk_and_any_other() -> None:
    keys = PrefixKeys([bytes(32), bytes([1]) * 32], CHUNK)
    keys.extend(TOKENS)
    states = flat_state_keys(keys.keys)
    assert len({*states, *keys.flat(0, 5)}) == 20
    assert states[2:4] == list(state_keys(keys.keys[1]))


@pytest.mark.parametrize("seed", range(20))
def test_no_longer_prefix_ends_with_a_state(seed: int) -> None:
    chance = random.Random(seed)
    states = [chance.choice([L, R, N, N, N]) for _ in range(12)]
    for chunks in range(13):
        found = chunks_with_state(states, chunks, 0)
        assert found <= chunks
        assert found == 0 or states[found - 1] is not N
        assert all(state is N for state in states[found:chunks])


def test_state_blocks() -> None:
    with pytest.raises(ValueError, match="behind 2 blocks"):
        state_blocks([[0, 3, 5], [0, 0, 6]], 2)
    assert state_blocks([[0, 3, 5], [0, 4, 6]], 2) == (3, 4)


def test_states_of_several_groups_are_copied_block_by_block() -> None:
    chance = np.random.default_rng(4)
    sizes = ((6, 40), (10,), (3, 3, 3))
    source, target = (
        [[chance.integers(0, 256, (9, size), dtype=np.uint8) for size in group] for group in sizes] for _ in range(2)
    )
    before = [[layer.copy() for layer in group] for group in target]
    state = bytearray(StateLayers([HostLayers(group) for group in source]).state_bytes)
    assert len(state) == sum(map(sum, sizes))
    StateLayers([HostLayers(group) for group in source]).gather((4, 0, 8), state)
    StateLayers([HostLayers(group) for group in target]).scatter(bytes(state), (1, 7, 2))
    for old, new, made, block, place in zip(before, target, source, (4, 0, 8), (1, 7, 2), strict=True):
        for was, now, layer in zip(old, new, made, strict=True):
            assert (now[place] == layer[block]).all()
            rest = [row for row in range(9) if row != place]
            assert (now[rest] == was[rest]).all()
