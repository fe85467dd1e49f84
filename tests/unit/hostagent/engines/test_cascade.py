"""Shared prefixes of a batch: attention by levels is attention, and no plan with as many levels reads less."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvclient.engines.flashinfer.cascade import Cascade, PagedRequest, cascade

PAGE_SIZE, PAGES_IN_CHUNK, DIM = 4, 2, 8
CHUNK = PAGE_SIZE * PAGES_IN_CHUNK

Floats = npt.NDArray[np.float64]


class Batch:
    """Requests whose chunks are named by letters; each has pages of its own, with equal bytes where letters agree."""

    def __init__(self, prompts: Sequence[str], extra: Sequence[int], queries: Sequence[int], seed: int = 0) -> None:
        chance, free = np.random.default_rng(seed), iter(random.Random(seed).sample(range(1000), 1000))
        self.keys = np.zeros((1000, PAGE_SIZE, DIM))
        self.values = np.zeros_like(self.keys)
        self.requests: list[PagedRequest] = []
        known: dict[str, Floats] = {}
        for prompt, more, asks in zip(prompts, extra, queries, strict=True):
            tokens = len(prompt) * CHUNK + more
            pages = [next(free) for _ in range(-(-tokens // PAGE_SIZE))]
            for at, page in enumerate(pages):
                # The same chunks up to here: the same content.
                name = prompt[: at // PAGES_IN_CHUNK + 1] + f" {at}" if at < len(prompt) * PAGES_IN_CHUNK else ""
                content = chance.normal(size=(2, PAGE_SIZE, DIM)) if not name else known.get(name)
                if content is None:
                    content = known[name] = chance.normal(size=(2, PAGE_SIZE, DIM))
                self.keys[page], self.values[page] = content
            names = [prompt[: at + 1].encode() for at in range(len(prompt))]
            self.requests.append(PagedRequest(names, pages, tokens, min(asks, tokens)))
        self.asks = [chance.normal(size=(request.queries, DIM)) for request in self.requests]

    def whole(self, number: int) -> Floats:
        """Attention of a request's queries over its own pages."""
        request = self.requests[number]
        keys, values = (
            side[list(request.pages)].reshape(-1, DIM)[: request.tokens] for side in (self.keys, self.values)
        )
        return attend(self.asks[number], keys, values, causal=True)[0]

    def by_levels(self, plan: Cascade) -> list[Floats]:
        """As MultiLevelCascadeAttentionWrapper: each level by its arrays, merged by what the softmax sums are."""
        asks = np.concatenate([self.asks[number] for number in plan.order])
        out, sums = np.zeros_like(asks), np.full(len(asks), -np.inf)
        for level in plan.levels:
            for group, last_page_len in enumerate(level.paged_kv_last_page_len):
                rows = slice(level.qo_indptr[group], level.qo_indptr[group + 1])
                pages = level.paged_kv_indices[level.paged_kv_indptr[group] : level.paged_kv_indptr[group + 1]]
                assert (last_page_len == 0) == (not pages)
                if not pages:
                    continue
                tokens = (len(pages) - 1) * PAGE_SIZE + last_page_len
                keys, values = (side[pages].reshape(-1, DIM)[:tokens] for side in (self.keys, self.values))
                part, log = attend(asks[rows], keys, values, causal=level is plan.levels[-1])
                both = np.logaddexp(sums[rows], log)
                out[rows] = out[rows] * np.exp(sums[rows] - both)[:, None] + part * np.exp(log - both)[:, None]
                sums[rows] = both
            assert level.qo_indptr[-1] == len(asks), "every level says something of every query"
        ends = np.cumsum([len(self.asks[number]) for number in plan.order])
        found: list[Floats] = [out] * len(plan.order)
        for number, part in zip(plan.order, np.split(out, ends[:-1]), strict=True):
            found[number] = part
        return found


def attend(asks: Floats, keys: Floats, values: Floats, *, causal: bool) -> tuple[Floats, Floats]:
    """Softmax attention, and the logarithm of its sums; causal: the last query sees all, each before it one less."""
    scores = asks @ keys.T / math.sqrt(DIM)
    if causal:
        seen = np.arange(len(keys))[None] <= np.arange(len(asks))[:, None] + len(keys) - len(asks)
        scores = np.where(seen, scores, -np.inf)
    log = np.logaddexp.reduce(scores, axis=1)
    result: Floats = np.exp(scores - log[:, None]) @ values
    return result, log


prompts = st.lists(
    st.tuples(st.text("ab", max_size=5), st.integers(1, 9), st.sampled_from([1, 1, 2, 7])), min_size=0, max_size=7
)


@given(prompts, st.integers(1, 4))
@settings(max_examples=60)
def test_attention_by_levels_is_attention(batch: list[tuple[str, int, int]], levels: int) -> None:
    made = Batch(*zip(*batch, strict=True)) if batch else Batch([], [], [])
    plan = cascade(made.requests, page_size=PAGE_SIZE, pages_in_chunk=PAGES_IN_CHUNK, levels=levels)
    assert len(plan.levels) == levels
    assert sorted(plan.order) == list(range(len(batch)))
    assert plan.pages_read <= plan.pages_alone
    if batch:
        for number, part in enumerate(made.by_levels(plan)):
            np.testing.assert_allclose(part, made.whole(number), rtol=1e-9)


def saved_at_best(ranked: list[str], levels: int) -> int:
    """Chunks that need not be read, by trying every way to cut prompts into segments: slow, and obviously right."""
    if levels == 0 or not ranked:
        return 0
    best = 0
    for depth in range(1, max(map(len, ranked)) + 1):
        heads = {prompt[:depth] for prompt in ranked if len(prompt) >= depth}
        for head in heads:
            inside = [prompt[depth:] for prompt in ranked if prompt.startswith(head)]
            outside = [prompt for prompt in ranked if not prompt.startswith(head)]
            if len(inside) > 1:
                saved = (len(inside) - 1) * depth + saved_at_best(inside, levels - 1) + saved_at_best(outside, levels)
                best = max(best, saved)
    return best


@given(st.lists(st.text("ab", min_size=1, max_size=4), max_size=5), st.integers(1, 3))
@settings(max_examples=60)
def test_no_plan_reads_less(ranked: list[str], levels: int) -> None:
    made = Batch(ranked, [1] * len(ranked), [1] * len(ranked))
    plan = cascade(made.requests, page_size=PAGE_SIZE, pages_in_chunk=PAGES_IN_CHUNK, levels=levels)
    assert plan.pages_alone - plan.pages_read == saved_at_best(ranked, levels - 1) * PAGES_IN_CHUNK


def test_a_system_prompt_and_documents_take_a_level_each() -> None:
    """Six requests: all share one chunk, three of them a document of four more, the others another one."""
    made = Batch(["sdefg"] * 3 + ["sabcd"] * 3, [3] * 6, [1] * 6)
    two, three = (
        cascade(made.requests, page_size=PAGE_SIZE, pages_in_chunk=PAGES_IN_CHUNK, levels=levels) for levels in (2, 3)
    )
    # With one shared level the documents are worth more than the prompt, which each of the two groups then reads.
    assert [len(level.paged_kv_last_page_len) for level in two.levels] == [2, 6]
    assert two.pages_read == (2 * 5) * PAGES_IN_CHUNK + 6
    assert [len(level.paged_kv_last_page_len) for level in three.levels] == [1, 2, 6]
    assert three.pages_read == (1 + 2 * 4) * PAGES_IN_CHUNK + 6


def test_chunks_in_which_queries_lie_are_not_shared() -> None:
    made = Batch(["aa", "aa"], [0, 0], [1, CHUNK + 1])
    plan = cascade(made.requests, page_size=PAGE_SIZE, pages_in_chunk=PAGES_IN_CHUNK)
    assert plan.pages_read == plan.pages_alone, "the second request asks from within its first chunk on"


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        (PagedRequest([], [1], 5), "request 0 has 5 tokens and only 1 pages"),
        (PagedRequest([], [1], 2, 3), "request 0 has 3 queries among 2 tokens"),
        (PagedRequest([], [1], 2, 0), "request 0 has 0 queries"),
    ],
)
def test_bad_requests_are_named(request_: PagedRequest, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        cascade([request_], page_size=PAGE_SIZE, pages_in_chunk=PAGES_IN_CHUNK)


def test_a_cascade_has_a_level() -> None:
    with pytest.raises(ValueError, match="at least one level, not 0"):
        cascade([], page_size=PAGE_SIZE, pages_in_chunk=PAGES_IN_CHUNK, levels=0)
