"""Ranks that hold the same KV (latent attention, heads repeated over tensor-parallel ranks): one copy in the pool, read
by all of them, also by engines of another tensor-parallel size. Without an engine: the connector's own classes, real
tensors, agents of the testbed. vLLM computes no latent attention on a processor without AMX."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import pytest

from bmv2_testbed.client import Testbed
from kvchunk.ids import ChunkKey
from kvclient.client import AgentClient, Where
from kvclient.engines.core.head_groups import StageParts
from kvclient.engines.core.requests import Load
from kvclient.engines.core.saves import Save
from kvclient.engines.link import AgentLink
from kvclient.engines.transfers import CopyRules, Transfers
from tests.vllm import shard_keys
from tests.vllm.shard_keys import BLOCK_TOKENS, CHUNK_TOKENS
from tests.vllm.vllm_suite import assert_nothing_left, until

if TYPE_CHECKING:
    import torch

LATENT_NUMBERS, LAYERS, BLOCKS = 576, 3, 24
BLOCKS_IN_CHUNK = CHUNK_TOKENS // BLOCK_TOKENS
CHUNK_BYTES = LAYERS * CHUNK_TOKENS * LATENT_NUMBERS * 2
PATIENCE_S = 60.0
TEXT = list(range(100, 100 + 3 * CHUNK_TOKENS))
log = logging.getLogger("test")


def keys_of(tensor_size: int, replicas: int) -> list[tuple[ChunkKey, ...]]:
    """Keys of TEXT in an engine of so many tensor-parallel ranks, each `replicas` of which hold the same."""
    from kvclient.engines.vllm.facts import ShardFacts

    different = tensor_size // replicas
    parts = StageParts(tensor_size, different, different)
    return shard_keys.keys_of(TEXT, parts, ShardFacts("latent", CHUNK_BYTES, "MLA"))


def test_engines_of_any_tensor_parallel_size_share_latent_kv() -> None:
    alone = keys_of(1, 1)
    assert len(alone) == 3
    assert all(len(chunk) == 1 for chunk in alone), "one copy for all ranks"
    assert keys_of(2, 2) == keys_of(8, 8) == alone


def test_repeated_heads_are_shared_and_different_ones_are_not() -> None:
    """Four heads: eight ranks hold each of them twice."""
    four = keys_of(4, 1)
    assert keys_of(8, 2) == four
    assert all(len(set(chunk)) == 4 for chunk in four)
    assert not {key for chunk in keys_of(2, 1) for key in chunk} & {key for chunk in four for key in chunk}


def caches(filled: bool) -> list[torch.Tensor]:
    """Of one rank: pages of latent vectors."""
    import torch

    torch.manual_seed(5)
    shape = (BLOCKS, BLOCK_TOKENS, LATENT_NUMBERS)
    make = torch.randn if filled else torch.zeros
    return [make(shape, dtype=torch.bfloat16) for _ in range(LAYERS)]


def rank(agent_socket: str, layers: list[torch.Tensor], *, writes: bool) -> Transfers:
    from kvclient.engines.layout import page_view, paged_layers

    return Transfers(
        AgentLink(AgentClient, agent_socket, log),
        [paged_layers([page_view(layer, 1 << 20) for layer in layers])],
        None,
        CopyRules(shards=(0,), writes=writes, blocks_in_chunk=BLOCKS_IN_CHUNK, deadline_s=PATIENCE_S, threads=1),
        log,
        time.monotonic,
    )


@pytest.mark.parametrize("reading_ranks", [1, 4])
def test_one_rank_writes_and_all_read(reading_ranks: int, agent_sockets: list[str], testbed: Testbed) -> None:
    """Four ranks on the first node; one, or four of another engine, on the second."""
    import torch

    (key,) = keys_of(4, 4)[reading_ranks // 4]
    source = caches(filled=True)
    save = Save(1, (key,), (None,), 0, tuple(range(4, 4 + BLOCKS_IN_CHUNK)))
    writers = [rank(agent_sockets[0], source, writes=number == 0) for number in range(4)]
    for writer in writers:
        writer.save([save], "tiny@w")
    for writer in writers:
        writer.await_saves(PATIENCE_S)
    outcomes = [writer.take_results().saves for writer in writers]
    stored = [writer.take_figures().saved_chunks for writer in writers]
    assert outcomes == [{1: True}] * 4
    assert stored == [1, 0, 0, 0], "one copy"
    with AgentClient(agent_sockets[1]) as agent:
        until(lambda: agent.contains([key]) == [Where.REMOTE], "the second node knows of it")
        with agent.fetch([key], deadline_s=PATIENCE_S) as fetched:
            assert fetched.count == 1
            for _ in range(reading_ranks):
                into = caches(filled=False)
                reader = rank(agent_sockets[1], into, writes=False)
                reader.load(Load("r", ((key,),), 0, tuple(range(BLOCKS_IN_CHUNK))))
                reader.await_load(PATIENCE_S)
                assert reader.take_results().loads == {"r": True}
                reader.close()
                for layer, expected in zip(into, source, strict=True):
                    assert torch.equal(layer[:BLOCKS_IN_CHUNK], expected[4 : 4 + BLOCKS_IN_CHUNK])
                    assert not layer[BLOCKS_IN_CHUNK:].any()
    for writer in writers:
        writer.close()


def test_nothing_is_left_behind(testbed: Testbed) -> None:
    assert_nothing_left(testbed)
