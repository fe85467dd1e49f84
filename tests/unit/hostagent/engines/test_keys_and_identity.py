"""Keys bind everything that decides bytes, and nothing else."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchunk.ids import prefix_keys
from kvclient.engines.core.identity import EngineIdentity, RequestBinding, Shard
from kvclient.engines.core.keys import MediaSpan, PrefixKeys

SHARD = Shard(0, 2, 0, 1, "layout", 1000)
IDENTITY = EngineIdentity(
    model="m",
    revision="r",
    weights_digest="w",
    dtype="bfloat16",
    cache_dtype="auto",
    block_tokens=16,
    chunk_tokens=32,
    engine="vllm 1",
    extra="{}",
    shards=(SHARD, dataclasses.replace(SHARD, tensor_rank=1)),
)
PLAIN = RequestBinding()


def keys_of(
    identity: EngineIdentity, tokens: list[int], binding: RequestBinding = PLAIN, *media: MediaSpan
) -> PrefixKeys:
    keys = PrefixKeys(identity.digests(binding), identity.chunk_tokens, media)
    keys.extend(tokens)
    return keys


@given(st.lists(st.integers(0, 2**32 - 1), max_size=200), st.integers(0, 200))
def test_keys_are_those_of_the_protocol_however_they_grow(tokens: list[int], cut: int) -> None:
    grown = keys_of(IDENTITY, tokens[:cut])
    grown.extend(tokens)
    for index, shard in enumerate(IDENTITY.shards):
        expected = prefix_keys(IDENTITY.of_shard(shard, PLAIN), tokens)
        assert [keys[index] for keys in grown.keys] == expected
    assert grown.flat(0, 1) == list(grown.keys[0] if grown.keys else ())


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(EngineIdentity) if field.name != "shards"])
def test_every_fact_of_the_engine_counts(name: str) -> None:
    value = getattr(IDENTITY, name)
    changed = value + 32 if isinstance(value, int) else bytes(16) if isinstance(value, bytes) else f"{value}x"
    other = dataclasses.replace(IDENTITY, **{name: changed})
    tokens = list(range(128))
    assert not set(keys_of(IDENTITY, tokens).flat(0, 2)) & set(keys_of(other, tokens).flat(0, 2))


@pytest.mark.parametrize(
    "change",
    [
        {"tensor_rank": 5},
        {"tensor_size": 5},
        {"pipeline_rank": 5},
        {"pipeline_size": 5},
        {"layout": "x"},
        {"model": "x"},
    ],
)
def test_every_fact_of_a_shard_counts(change: dict[str, object]) -> None:
    other = dataclasses.replace(IDENTITY, shards=(dataclasses.replace(SHARD, **change),))
    tokens = list(range(64))
    assert not set(keys_of(IDENTITY, tokens).flat(0, 2)) & set(keys_of(other, tokens).flat(0, 2))


def test_adapter_and_salt_count() -> None:
    tokens = list(range(64))
    bindings = [PLAIN, RequestBinding(adapter="a"), RequestBinding(salt="a"), RequestBinding("b", "a")]
    found = [key for binding in bindings for key in keys_of(IDENTITY, tokens, binding).flat(0, 2)]
    assert len(set(found)) == len(found)


def test_media_count_from_where_they_begin() -> None:
    tokens = list(range(128))
    none = keys_of(IDENTITY, tokens)
    image = keys_of(IDENTITY, tokens, PLAIN, MediaSpan(40, 50, "cat"))
    other = keys_of(IDENTITY, tokens, PLAIN, MediaSpan(40, 50, "dog"))
    moved = keys_of(IDENTITY, tokens, PLAIN, MediaSpan(41, 51, "cat"))
    assert none.keys[0] == image.keys[0] == other.keys[0]
    for chunk in (1, 2, 3):
        assert len({each.keys[chunk] for each in (none, image, other, moved)}) == 4


def test_shards_have_keys_of_their_own_and_parents_in_their_own_chain() -> None:
    keys = keys_of(IDENTITY, list(range(96)))
    assert len(set(keys.flat(0, 3))) == 6
    assert keys.parents(0) == (None, None)
    assert keys.parents(2) == keys.keys[1]


def test_nothing_from_unseen_media_on_has_a_key() -> None:
    tokens = list(range(160))
    seen = MediaSpan(10, 20, "image")
    whole = keys_of(IDENTITY, tokens, PLAIN, seen)
    for start, chunks in ((0, 0), (31, 0), (32, 1), (100, 3), (159, 4)):
        keys = keys_of(IDENTITY, tokens, PLAIN, seen, MediaSpan(start, start + 1, None))
        assert keys.keys == whole.keys[:chunks]
        assert keys.named(5) == chunks
        assert keys.named(0) == 0
    assert whole.named(9) == 9
