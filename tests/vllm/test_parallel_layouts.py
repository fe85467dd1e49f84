"""Engines that split heads, contexts and layers differently: who shares with whom, byte for byte. Without engines: the
connector's own classes, caches in every layout that vLLM has, agents of the testbed."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator
from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from bmv2_testbed.client import Testbed
from kvchunk.ids import ChunkKey
from kvclient.client import AgentClient
from kvclient.engines.core.head_groups import StageParts
from kvclient.engines.core.requests import Load
from kvclient.engines.core.saves import Save
from kvclient.engines.link import AgentLink
from kvclient.engines.settings import Settings, SettingsError
from kvclient.engines.transfers import CopyRules, Transfers
from tests.vllm.shard_keys import BLOCK_TOKENS, CHUNK_TOKENS, keys_of
from tests.vllm.vllm_suite import assert_nothing_left, random_tokens

if TYPE_CHECKING:
    import torch

HEADS, NUMBERS, BLOCKS = 8, 16, 12
NAMES = ["layer.0", "layer.1", "layer.2"]
BLOCKS_IN_CHUNK = CHUNK_TOKENS // BLOCK_TOKENS
LAYOUTS = ["LBHNC", "LBNHC", "BLHNC", "BLNHC", "LHBNC", "BHLNC"]
PATIENCE_S = 60.0
log = logging.getLogger("test")


def cache_spec(heads: int) -> Any:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    return FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=heads, head_size=NUMBERS // 2, dtype=torch.bfloat16)


class Rank:
    """One worker of an engine: its caches, and the connector's classes over them."""

    def __init__(self, parts: StageParts, number: int, layout: str, kernel_blocks: int) -> None:
        """`kernel_blocks`: of the attention kernel, in one of vLLM's."""
        import torch
        from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.kv_cache_layout import KVCacheLayout

        from kvclient.engines.vllm.facts import CacheGroups

        self.held = parts.of(number)
        self.heads = slice(
            self.held.parts[0] // parts.contexts * (HEADS // parts.groups),
            (self.held.parts[-1] // parts.contexts + 1) * (HEADS // parts.groups),
        )
        count = self.heads.stop - self.heads.start
        shape = (len(NAMES), BLOCKS * kernel_blocks, count, BLOCK_TOKENS // kernel_blocks, NUMBERS)
        order = KVCacheLayout[layout].stride_order
        whole = torch.zeros([shape[axis] for axis in order], dtype=torch.bfloat16)
        whole = whole.permute([order.index(axis) for axis in range(5)])
        self.caches: dict[str, torch.Tensor] = dict(zip(NAMES, whole, strict=True))
        self.blocks_in_chunk = BLOCKS_IN_CHUNK // parts.contexts
        self.groups = CacheGroups(BLOCK_TOKENS * parts.contexts, parts=parts)
        spec = cache_spec(count)
        self.config = KVCacheConfig(
            num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(NAMES, spec)]
        )

    def blocks(self, ids: list[int]) -> list[torch.Tensor]:
        """Of each layer, shape (blocks, heads, tokens, numbers), to read and to write."""
        from vllm.v1.kv_cache_interface import group_kernel_blocks

        found = []
        for cache in self.caches.values():
            grouped = group_kernel_blocks(cache, BLOCKS)[ids]
            found.append(grouped.transpose(1, 2).flatten(2, 3) if grouped.dim() == 5 else grouped)
        return found

    def fill(self, ids: list[int], content: torch.Tensor) -> None:
        """`content`: shape (layers, blocks, all heads, tokens, numbers)."""
        from vllm.v1.kv_cache_interface import group_kernel_blocks

        for cache, layer in zip(self.caches.values(), content[:, :, self.heads], strict=True):
            grouped = group_kernel_blocks(cache, BLOCKS)
            if grouped.dim() == 5:
                grouped[ids] = layer.unflatten(2, (grouped.shape[1], -1)).transpose(1, 2)
            else:
                grouped[ids] = layer

    def facts(self) -> Any:
        """What it tells the scheduler."""
        from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

        from kvclient.engines.vllm.facts import shard_facts

        class Layer(AttentionLayerBase):  # type: ignore[misc]
            """Only a name."""

            def get_attn_backend(self) -> Any:
                return SimpleNamespace(get_name=lambda: "FLASH_ATTN")

            def get_kv_cache_spec(self, vllm_config: Any) -> Any:
                return None

        layers = {name: Layer() for name in NAMES}
        config = SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context=layers))
        chunk_bytes = self._copiers()[0].chunk_bytes(self.blocks_in_chunk)
        return shard_facts(config, self.config, self.caches, chunk_bytes, self.groups)

    def _copiers(self) -> list[Any]:
        from kvclient.engines.layout import paged_layers
        from kvclient.engines.vllm.facts import layer_views

        found = [
            layer_views(self.config, self.caches, self.groups, part) for part in range(self.groups.parts.groups_each)
        ]
        return [paged_layers(list(views.values())) for (views,) in found]

    def transfers(self, link: AgentLink[AgentClient]) -> Transfers:
        rules = CopyRules(
            shards=self.held.parts,
            writes=self.held.writes,
            blocks_in_chunk=self.blocks_in_chunk,
            deadline_s=PATIENCE_S,
            threads=1,
        )
        return Transfers(link, self._copiers(), None, rules, log, time.monotonic)


@pytest.fixture
def link(agent_sockets: list[str]) -> Iterator[AgentLink[AgentClient]]:
    """One for all ranks of a test: an agent takes so many connections only."""
    made = AgentLink(AgentClient, agent_sockets[0], log)
    yield made
    made.close()


def engine(parts: StageParts, layout: str = "LBHNC", kernel_blocks: int = 1) -> list[Rank]:
    return [Rank(parts, number, layout, kernel_blocks) for number in range(parts.workers_count)]


def names(ranks: list[Rank], salt: str) -> tuple[ChunkKey, ...]:
    """Keys of one chunk. `salt`: what its tokens are made of, so that tests do not share."""
    parts = ranks[0].groups.parts
    text = random_tokens(random.Random(salt), CHUNK_TOKENS)
    (keys,) = keys_of(text, parts, [rank.facts() for rank in ranks])
    return keys


def of_ranks(ranks: int, groups: int) -> StageParts:
    return StageParts(ranks, min(ranks, HEADS), groups)


def share(writer: list[Rank], reader: list[Rank], link: AgentLink[AgentClient], salt: str) -> None:
    """What one engine saves the other one loads, and nothing else of its cache is written."""
    import torch

    torch.manual_seed(7)
    ids, into = [3, 0, 9, 5], [1, 11, 2, 7]
    content = torch.randn((len(NAMES), len(ids), HEADS, BLOCK_TOKENS, NUMBERS), dtype=torch.bfloat16)
    keys = names(writer, salt)
    assert names(reader, salt) == keys
    saving = [rank.transfers(link) for rank in writer]
    for rank, transfers in zip(writer, saving, strict=True):
        rank.fill(ids, content)
        transfers.save([Save(1, keys, (None,) * len(keys), 0, tuple(ids))], "tiny@w")
    for transfers in saving:
        transfers.await_saves(PATIENCE_S)
        assert transfers.take_results().saves == {1: True}
        transfers.close()
    for rank in reader:
        loading = rank.transfers(link)
        loading.load(Load("r", (keys,), 0, tuple(into)))
        loading.await_load(PATIENCE_S)
        assert loading.take_results().loads == {"r": True}
        loading.close()
        for layer, expected in zip(rank.blocks(into), content, strict=True):
            assert torch.equal(layer, expected[:, rank.heads])
        others = [block for block in range(BLOCKS) if block not in into]
        assert not any(layer.any() for layer in rank.blocks(others))


@pytest.mark.parametrize(("writing", "reading"), list(product((1, 2, 4, 8, 16), repeat=2)))
def test_any_two_tensor_parallel_sizes_share(writing: int, reading: int, link: AgentLink[AgentClient]) -> None:
    """Eight heads; sixteen ranks repeat them. The largest one's groups name the chunks of all."""
    salt = f"{writing} to {reading}"
    share(engine(of_ranks(writing, HEADS)), engine(of_ranks(reading, HEADS)), link, salt)


@pytest.mark.parametrize("kernel_blocks", [1, 2])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_in_every_layout(layout: str, kernel_blocks: int, link: AgentLink[AgentClient]) -> None:
    if kernel_blocks > 1 and not layout.startswith("LB"):
        pytest.skip("vLLM splits blocks for kernels in layouts by layers and blocks only")
    salt = f"{layout} {kernel_blocks}"
    writer, reader = (engine(of_ranks(ranks, 4), layout, kernel_blocks) for ranks in (1, 4))
    share(writer, reader, link, salt)
    share(reader, engine(of_ranks(2, 4), layout, kernel_blocks), link, f"{salt} back")


def test_layouts_with_the_same_order_of_numbers_share_and_others_do_not() -> None:
    keys = {layout: names(engine(of_ranks(2, 2), layout), "order") for layout in LAYOUTS}
    assert len({keys[layout] for layout in ("LBHNC", "BLHNC", "LHBNC", "BHLNC")}) == 1, "heads, tokens, numbers"
    assert keys["LBNHC"] == keys["BLNHC"] != keys["LBHNC"], "tokens, heads, numbers"


def test_the_largest_engine_needs_no_setting_and_keeps_its_keys() -> None:
    """And engines that say nothing keep theirs: only those with equal ranks share."""
    import torch

    own = {ranks: names(engine(of_ranks(ranks, ranks)), "own") for ranks in (1, 2, 4)}
    assert len({key for keys in own.values() for key in keys}) == 1 + 2 + 4
    assert names(engine(of_ranks(1, 4)), "own") == names(engine(of_ranks(2, 4)), "own") == own[4]
    (rank,) = engine(of_ranks(1, 1))
    assert [rank.facts().layout, rank.facts().chunk_bytes] == _as_before(rank, torch)


def _as_before(rank: Rank, torch: Any) -> list[Any]:
    """The digest of whole pages, as kvcast made it before there were groups of heads."""
    import hashlib
    import json

    layers = [
        [name, str(cache.dtype), list(cache.shape[1:]), list(cache.stride()[1:])] for name, cache in rank.caches.items()
    ]
    text = json.dumps([layers, ["FLASH_ATTN"]], separators=(",", ":"))
    digest = hashlib.blake2b(text.encode(), digest_size=16, person=b"kvcast-layout").hexdigest()
    return [digest, sum(cache[0].numel() for cache in rank.caches.values()) * 2 * BLOCKS_IN_CHUNK]


@pytest.mark.parametrize(
    "parts",
    [
        StageParts(16, 8, 8, 2),
        StageParts(2, 2, 2, 2, 2),
        StageParts(8, 8, 8, 1, 2),
    ],
    ids=["decode context parallel", "both", "prefill context parallel"],
)
def test_engines_with_equal_shares_of_contexts_share(parts: StageParts, link: AgentLink[AgentClient]) -> None:
    """Simulated: what the shares hold. Each worker has its own content, as if of its own tokens."""
    import torch

    writer, reader = engine(parts), engine(parts)
    keys = names(writer, "contexts")
    assert names(reader, "contexts") == keys
    assert len(set(keys)) == parts.count
    whole = names(engine(of_ranks(8, 8)), "contexts")
    assert (set(keys) == set(whole)) == (parts.contexts == 1), "a share is no whole context"
    ids, into = [3, 0, 9, 5][: BLOCKS_IN_CHUNK // parts.contexts], [1, 11, 2, 7][: BLOCKS_IN_CHUNK // parts.contexts]
    contents: dict[tuple[int, ...], torch.Tensor] = {}
    for number, rank in enumerate(writer):
        torch.manual_seed(number)
        made = torch.randn((len(NAMES), len(ids), HEADS, BLOCK_TOKENS, NUMBERS), dtype=torch.bfloat16)
        rank.fill(ids, contents.setdefault(rank.held.parts, made))
        transfers = rank.transfers(link)
        transfers.save([Save(1, keys, (None,) * len(keys), 0, tuple(ids))], "tiny@w")
        transfers.await_saves(PATIENCE_S)
        assert transfers.take_figures().saved_chunks == rank.held.writes, "one worker of those with the same writes"
        transfers.close()
    for rank in reader:
        loading = rank.transfers(link)
        loading.load(Load("r", (keys,), 0, tuple(into)))
        loading.await_load(PATIENCE_S)
        assert loading.take_results().loads == {"r": True}
        loading.close()
        for layer, expected in zip(rank.blocks(into), contents[rank.held.parts], strict=True):
            assert torch.equal(layer, expected[:, rank.heads])


def parts_of(ranks: int, heads: int, *, wanted: int = 0, spec: Any = None, **parallel: Any) -> StageParts:
    """By vLLM's configuration, of a model with so many KV heads."""
    from kvclient.engines.vllm.parallel import stage_parts

    model = SimpleNamespace(
        get_total_num_kv_heads=lambda: heads,
        hf_text_config=SimpleNamespace(to_dict=lambda: {"num_key_value_heads": heads}),
        model_arch_config=SimpleNamespace(per_layer_overrides=None),
    )
    config = SimpleNamespace(
        model_config=model, parallel_config=SimpleNamespace(tensor_parallel_size=ranks, **parallel)
    )
    spec = spec or cache_spec(max(1, heads // ranks))
    replicas = ranks if spec.max_tp_shards == 1 and not parallel else 1
    caches = SimpleNamespace(kv_tp_replicas=replicas)
    return stage_parts(config, caches, [spec], Settings(kv_head_groups=wanted))


def test_what_vllm_is_configured_with() -> None:
    from dataclasses import replace

    assert parts_of(2, 8) == StageParts(2, 2, 2)
    assert parts_of(2, 8, wanted=8) == StageParts(2, 2, 8)
    assert parts_of(1, 4, wanted=8) == StageParts(1, 1, 4), "eight ranks repeat four heads"
    assert parts_of(8, 4, wanted=8) == StageParts(8, 4, 4), "and save them once"
    latent = replace(cache_spec(1), max_tp_shards=1)
    assert parts_of(8, 1, wanted=8, spec=latent) == StageParts(8, 1, 1)
    split = parts_of(8, 1, spec=latent, decode_context_parallel_size=4, cp_kv_cache_interleave_size=16)
    assert split == StageParts(8, 1, 1, 4, 1, 16)
    assert parts_of(4, 2, decode_context_parallel_size=2) == StageParts(4, 2, 2, 2)
    assert parts_of(4, 8, prefill_context_parallel_size=2) == StageParts(4, 4, 4, 1, 2)


def test_what_cannot_be_shared_is_refused_by_name() -> None:
    from dataclasses import replace

    from vllm.v1.kv_cache_interface import KVQuantMode

    scales = next(mode for mode in KVQuantMode if mode.is_per_token_head)
    for arguments, why in (
        (
            {"ranks": 4, "heads": 8, "wanted": 2},
            "kv_head_groups is 2; this engine has 4 ranks with different heads: set",
        ),
        ({"ranks": 1, "heads": 6, "wanted": 4}, "kv_head_groups is 4, and 6 KV heads do not come out even on 4 ranks"),
        ({"ranks": 4, "heads": 8, "decode_context_parallel_size": 2}, "which worker holds which KV"),
        (
            {"ranks": 1, "heads": 8, "wanted": 2, "spec": replace(cache_spec(8), kv_quant_mode=scales)},
            "apart into 2 groups",
        ),
        (
            {
                "ranks": 4,
                "heads": 2,
                "decode_context_parallel_size": 2,
                "spec": replace(cache_spec(1), dcp_sharded=False),
            },
            "splits the contexts of some of its layers only",
        ),
    ):
        with pytest.raises(SettingsError, match=why):
            parts_of(**arguments)


def test_nothing_is_left_behind(testbed: Testbed) -> None:
    assert_nothing_left(testbed)


def test_a_setting_asks_vllm_for_a_layout() -> None:
    """By vLLM's own choice among what the attention backends know."""
    from vllm.config import KVTransferConfig
    from vllm.v1.attention.backends.utils import resolve_kv_cache_layout

    from kvclient.engines.settings import CACHE_LAYOUTS
    from kvclient.engines.vllm.plugin import register

    register()
    assert set(CACHE_LAYOUTS) == {"", *LAYOUTS}

    def chosen(layout: str, known: list[str]) -> str:
        settings = {"cache_layout": layout} if layout else {}
        transfer = KVTransferConfig(
            kv_connector="KvcastConnector", kv_role="kv_both", kv_connector_extra_config=settings
        )
        config: Any = SimpleNamespace(kv_transfer_config=transfer, cache_config=SimpleNamespace(kv_cache_layout=None))
        return str(resolve_kv_cache_layout(config, [known]).name)

    assert chosen("BLHNC", ["LBNHC", "BLHNC"]) == "BLHNC"
    assert chosen("BLHNC", ["LBHNC"]) == "LBHNC", "vLLM's own, with a warning"
    assert chosen("", ["LBNHC", "BLHNC"]) == "LBNHC"
