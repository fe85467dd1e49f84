"""Which worker holds which parts of a token's KV: every part has one writer, whatever the layout."""

from __future__ import annotations

from itertools import product

import pytest

from kvclient.engines.core.head_groups import StageParts, different_ranks, groups_of_rank

SIZES = (1, 2, 4, 8, 16)


@pytest.mark.parametrize(("ranks", "heads"), list(product(SIZES, SIZES)))
def test_every_group_of_heads_has_one_writer(ranks: int, heads: int) -> None:
    """Also where ranks repeat heads, and for every number of groups that the heads allow."""
    different = different_ranks(ranks, heads)
    for groups in (size for size in SIZES if different <= size <= heads):
        stage = StageParts(ranks, different, groups)
        held = [stage.of(worker) for worker in range(ranks)]
        written = [part for one in held if one.writes for part in one.parts]
        assert sorted(written) == list(range(groups))
        assert [stage.first_holder(part) for part in range(groups)] == sorted(
            worker for worker, one in enumerate(held) if one.writes for _ in one.parts
        )
        assert {len(one.parts) for one in held} == {stage.groups_each}


@pytest.mark.parametrize(
    ("stage", "shares"),
    [
        # Four ranks over two heads, each context split over the two that have the same.
        (StageParts(4, 2, 2, 2), [0, 1, 0, 1]),
        # Latent attention: a share for each of four ranks; two, with two ranks that have the same.
        (StageParts(4, 1, 1, 4), [0, 1, 2, 3]),
        (StageParts(4, 1, 1, 2), [0, 1, 0, 1]),
        # Contexts split over the two groups of prefill context parallel, which hold the same heads.
        (StageParts(2, 2, 2, 2, 2), [0, 0, 1, 1]),
        # And over both: across the groups first.
        (StageParts(2, 1, 1, 4, 2), [0, 2, 1, 3]),
        # Prefill context parallel alone: everybody has whole contexts.
        (StageParts(2, 2, 2, 1, 2), [0, 0, 0, 0]),
    ],
)
def test_shares_of_contexts_lie_where_vllm_has_them(stage: StageParts, shares: list[int]) -> None:
    held = [stage.of(worker) for worker in range(stage.workers_count)]
    assert [{part % stage.contexts for part in one.parts} for one in held] == [{share} for share in shares]
    assert sorted(part for one in held if one.writes for part in one.parts) == list(range(stage.count))
    assert len({stage.context_name(part) for part in range(stage.count)}) == stage.contexts


def test_what_does_not_come_out_even_is_refused() -> None:
    with pytest.raises(ValueError, match="4 ranks with different heads do not divide 2 groups"):
        groups_of_rank(0, 4, 2)
    with pytest.raises(ValueError, match="6 KV heads do not come out even on 4 ranks"):
        different_ranks(4, 6)
    with pytest.raises(ValueError, match="3 ranks with different heads do not divide 4 ranks"):
        StageParts(4, 3, 3)
    with pytest.raises(ValueError, match="2 shares of a context do not come out even on 2 tensor-parallel"):
        StageParts(2, 2, 2, 2)
