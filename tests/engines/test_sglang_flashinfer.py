"""FlashInfer's paged caches through the pool: written by FlashInfer's own reference in one layout, read in another."""

from __future__ import annotations

import importlib
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.nn.functional import scaled_dot_product_attention

from kvclient.engines.flashinfer.caches import KvLayout, LayerCache, paged_caches, parts_of
from kvclient.engines.layout import LayoutError
from tests.unit.hostagent.agent_harness import cluster

PAGES, PAGE_SIZE, HEADS, DIM, LAYERS = 12, 4, 3, 8, 2
TOKENS = 3 * PAGE_SIZE
DTYPES = [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float32]


@pytest.fixture(scope="module")
def append() -> Callable[..., Any]:
    """FlashInfer's reference of `append_paged_kv_cache`; importing the package itself would want a GPU's kernels."""
    where = Path(sys.prefix) / "flashinfer"
    assert where.is_dir(), "tools/setup_sglang.sh puts FlashInfer's wheel there: make .venv-sglang/.installed"
    package = types.ModuleType("flashinfer")
    package.__path__ = [str(where / "flashinfer")]
    sys.modules["flashinfer"] = package
    try:
        template = importlib.import_module("flashinfer.trace.templates.page").append_paged_kv_cache_trace
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "flashinfer"]:
            del sys.modules[name]
    found: Callable[..., Any] = template.reference
    return found


def empty(layout: KvLayout, *, apart: bool, dtype: torch.dtype) -> list[LayerCache]:
    page = (PAGE_SIZE, HEADS, DIM) if layout is KvLayout.NHD else (HEADS, PAGE_SIZE, DIM)
    if apart:
        return [tuple(torch.zeros((PAGES, *page), dtype=dtype) for _ in range(2)) for _ in range(LAYERS)]  # type: ignore[misc]
    return [torch.zeros((PAGES, 2, *page), dtype=dtype) for _ in range(LAYERS)]


def contents(dtype: torch.dtype) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(5)
    return [
        (torch.randn(TOKENS, HEADS, DIM).to(dtype), torch.randn(TOKENS, HEADS, DIM).to(dtype)) for _ in range(LAYERS)
    ]


def filled(
    append: Callable[..., Any], layout: KvLayout, pages: list[int], *, apart: bool, dtype: torch.dtype
) -> list[LayerCache]:
    """Caches in which FlashInfer has put the contents at these pages."""
    caches = empty(layout, apart=apart, dtype=dtype)
    table = torch.tensor(pages), torch.tensor([0, len(pages)]), torch.tensor([PAGE_SIZE])
    for cache, (keys, values) in zip(caches, contents(dtype), strict=True):
        given = cache if isinstance(cache, tuple) else (cache[:, 0], cache[:, 1])
        append(
            keys,
            values,
            torch.zeros(TOKENS, dtype=torch.int),
            torch.arange(TOKENS),
            given,
            *table,
            kv_layout=layout.value,
        )
    return caches


def as_bytes(cache: LayerCache) -> torch.Tensor:
    sides = cache if isinstance(cache, tuple) else (cache,)
    return torch.cat([side.contiguous().view(torch.uint8).flatten() for side in sides])


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("into_apart", [False, True], ids=["into one tensor", "into a pair"])
@pytest.mark.parametrize("apart", [False, True], ids=["of one tensor", "of a pair"])
@pytest.mark.parametrize("into", list(KvLayout))
@pytest.mark.parametrize("layout", list(KvLayout))
def test_what_one_layout_wrote_another_has_as_flashinfer_would(
    append: Callable[..., Any], layout: KvLayout, into: KvLayout, apart: bool, into_apart: bool, dtype: torch.dtype
) -> None:
    source = filled(append, layout, [7, 0, 11], apart=apart, dtype=dtype)
    writer = paged_caches(source, layout)
    chunk = bytearray(writer.chunk_bytes(3))
    writer.gather([7, 0, 11], chunk)
    target = empty(into, apart=into_apart, dtype=dtype)
    paged_caches(target, into.value).scatter(bytes(chunk), 3, 0, [2, 5, 1])
    wanted = filled(append, into, [2, 5, 1], apart=into_apart, dtype=dtype)
    for got, expected in zip(target, wanted, strict=True):
        assert torch.equal(as_bytes(got), as_bytes(expected))


def test_a_chunk_is_keys_and_values_of_each_layer_in_nhd(append: Callable[..., Any]) -> None:
    source = filled(append, KvLayout.HND, [3, 4, 5], apart=False, dtype=torch.float32)
    layers = paged_caches(source, "HND")
    assert layers.layers_count == 2 * LAYERS
    chunk = bytearray(layers.chunk_bytes(3))
    layers.gather([3, 4, 5], chunk)
    wanted = torch.cat([side.flatten() for sides in contents(torch.float32) for side in sides])
    assert torch.equal(torch.frombuffer(chunk, dtype=torch.float32), wanted)


def test_leading_pages_may_be_left_out_and_layers_come_one_by_one(append: Callable[..., Any]) -> None:
    source = filled(append, KvLayout.NHD, [3, 4, 5], apart=True, dtype=torch.float16)
    layers = paged_caches(source, KvLayout.NHD)
    chunk = bytearray(layers.chunk_bytes(3))
    layers.gather([3, 4, 5], chunk)
    target = empty(KvLayout.HND, apart=False, dtype=torch.float16)
    into = paged_caches(target, KvLayout.HND)
    into.scatter(bytes(chunk), 3, 1, [8, 9], layer=2)  # keys of layer 1
    (first, second) = target
    assert isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)
    assert not first.any() and not second[:, 1].any()
    keys = contents(torch.float16)[1][0].view(3, PAGE_SIZE, HEADS, DIM)[1:]
    assert torch.equal(second[8:10, 0], keys.transpose(1, 2))


@pytest.mark.parametrize(
    ("caches", "complaint"),
    [
        ([torch.zeros(4, 3, 2, 2, 2)], r"the cache of layer 0 has shape \(4, 3, 2, 2, 2\), not"),
        ([(torch.zeros(4, 3, 2), torch.zeros(4, 3, 2))], r"layer 0 has a side of shape \(4, 3, 2\), not 4 dimensions"),
        ([torch.zeros(4, 2, 3, 2, 2), torch.zeros(4, 2, 3, 2, 4)], "the caches differ"),
    ],
)
def test_caches_of_other_shapes_are_refused_by_name(caches: list[LayerCache], complaint: str) -> None:
    with pytest.raises(LayoutError, match=complaint):
        parts_of(caches, KvLayout.NHD)
    with pytest.raises(ValueError, match="'NDH' is not a valid KvLayout"):
        paged_caches(caches, "NDH")


# ---------------------------------------------------------------------- docs/how-to/flashinfer.md

PAGE = Path(__file__).parents[2] / "docs/how-to/flashinfer.md"


class StandInWrapper:
    """Takes what FlashInfer's wrapper takes, and attends in torch: the wheel's kernels are for GPUs."""

    def plan(self, *given: Any) -> None:
        self.arrays, self.page_size = given[:4], given[7]
        assert all(array.dtype is torch.int32 for arrays in self.arrays for array in arrays)

    def run(self, queries: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        out, sums = torch.zeros_like(queries), torch.full(queries.shape[:2], -torch.inf)
        keys, values = parts_of([cache], KvLayout.HND)
        for asks, where, pages, last in zip(*self.arrays, strict=True):
            for group in range(len(last)):
                rows, ids = slice(asks[group], asks[group + 1]), pages[where[group] : where[group + 1]]
                if not len(ids):
                    continue
                tokens = (len(ids) - 1) * self.page_size + last[group]
                seen = [side[ids].flatten(0, 1)[:tokens].float() for side in (keys, values)]
                scores = torch.einsum("qhd,khd->qhk", queries[rows], seen[0]) / DIM**0.5
                log = scores.logsumexp(2)
                both = torch.logaddexp(sums[rows], log)
                part = torch.einsum("qhk,khd->qhd", scores.softmax(2), seen[1])
                out[rows] = out[rows] * (sums[rows] - both).exp()[..., None] + part * (log - both).exp()[..., None]
                sums[rows] = both
        return out


def test_the_page_works_as_it_stands() -> None:
    """Two engines in two layouts and a real agent each: one saves, the other loads and attends to what it loaded."""
    first, second = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    torch.manual_seed(7)
    prompts = [[1] * 256 + [2] * 256, [1] * 256 + [3] * 300]
    tables = [list(range(3, 35)), list(range(40, 75))]

    def engine(caches: list[torch.Tensor], layout: str) -> dict[str, Any]:
        names: dict[str, Any] = {"kv_caches": caches}
        exec(compile(first.replace('"HND"', repr(layout)), str(PAGE), "exec"), names)
        return names

    with cluster(2) as agents:
        one = engine([torch.randn(80, 2, 16, HEADS, DIM).half() for _ in range(LAYERS)], "NHD")
        two = engine([torch.zeros(80, 2, HEADS, 16, DIM).half() for _ in range(LAYERS)], "HND")
        # What both prompts begin with has been computed once, and copied.
        for cache in one["kv_caches"]:
            cache[tables[1][:16]] = cache[tables[0][:16]]
        for tokens, pages in zip(prompts, tables, strict=True):
            one["save"](agents.client(0), tokens, pages)
        for tokens in prompts:
            shared, alone = (int.from_bytes(key, "big") for key in one["prefix_keys"](one["identity"], tokens))
            agents.publish(shared, 0)
            agents.publish(alone, 0, parent=shared)
        reader = agents.client(1)
        assert [two["load"](reader, tokens, pages) for tokens, pages in zip(prompts, tables, strict=True)] == [512, 512]

    queries = torch.randn(2, HEADS, DIM)
    requests = [(tokens[:512], pages) for tokens, pages in zip(prompts, tables, strict=True)]
    wrapper = StandInWrapper()
    two |= {"requests": requests, "wrapper": wrapper, "queries": queries, "device": "cpu"}
    two |= {"num_qo_heads": HEADS, "num_kv_heads": HEADS, "head_dim": DIM}
    exec(compile(second, str(PAGE), "exec"), two)
    assert (two["shared"].pages_read, two["shared"].pages_alone) == (48, 64)
    for row, number in enumerate(two["shared"].order):
        keys, values = (side[tables[number][:32]].flatten(0, 1).float() for side in one["kv_caches"][0].unbind(1))
        wanted = scaled_dot_product_attention(
            queries[number][:, None], keys.transpose(0, 1), values.transpose(0, 1), scale=DIM**-0.5
        )
        torch.testing.assert_close(two["out"][row], wanted[:, 0])
