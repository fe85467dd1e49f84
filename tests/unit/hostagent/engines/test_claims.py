"""What an engine claims of prompts that it computes: each chunk once, with times that stay true, nothing left over."""

from __future__ import annotations

import pytest

from kvchunk.ids import ChunkKey
from kvclient.engines.core.claims import Claim, ClaimLedger, Disclaim

CHUNK = 256


def chunks(count: int, shards: int = 1) -> list[tuple[ChunkKey, ...]]:
    return [
        tuple(ChunkKey(f"{place}/{shard}".encode().ljust(16, b".")) for shard in range(shards))
        for place in range(count)
    ]


def ledger(token_s: float | None = 0.001) -> ClaimLedger:
    return ClaimLedger(CHUNK, lambda first, tokens: None if token_s is None else token_s * tokens)


def test_the_chunks_of_a_prompt_are_claimed_with_their_times() -> None:
    claim = ledger().begin("a", chunks(3), 256, 0.1, now_s=5.0)
    assert claim is not None
    assert claim.keys == tuple(key for chunk in chunks(3)[1:] for key in chunk)
    assert claim.etas_s == pytest.approx((0.1 + 0.256, 0.1 + 0.512))


def test_all_shards_of_a_chunk_have_its_time() -> None:
    claim = ledger().begin("a", chunks(2, shards=2), 0, 0.0, now_s=0.0)
    assert claim is not None
    assert claim.etas_s == pytest.approx((0.256, 0.256, 0.512, 0.512))


@pytest.mark.parametrize(("count", "computed", "token_s"), [(0, 0, 0.001), (2, 512, 0.001), (2, 0, None)])
def test_what_is_computed_or_of_unknown_cost_is_not_claimed(count: int, computed: int, token_s: float | None) -> None:
    one = ledger(token_s)
    assert one.begin("a", chunks(count), computed, 0.0, now_s=0.0) is None
    assert one.request_ended("a") is None


def test_a_time_is_told_again_when_it_is_no_longer_true() -> None:
    one = ledger()
    one.begin("a", chunks(4), 0, 0.0, now_s=0.0)
    assert one.request_progressed("a", 256, 0.0, now_s=0.256) is None
    assert one.request_progressed("a", 256, 0.0, now_s=0.3) is None
    later = one.request_progressed("a", 256, 0.0, now_s=0.5)
    assert isinstance(later, Claim)
    assert later.keys == tuple(key for chunk in chunks(4)[1:] for key in chunk)


def test_what_was_offered_is_neither_claimed_again_nor_disclaimed() -> None:
    one = ledger()
    one.begin("a", chunks(3), 0, 0.0, now_s=0.0)
    one.chunk_offered("a", 0)
    assert one.request_ended("a") == Disclaim(tuple(key for chunk in chunks(3)[1:] for key in chunk))
    assert one.request_ended("a") is None


def test_a_prompt_that_is_all_offered_is_over() -> None:
    one = ledger()
    one.begin("a", chunks(2), 0, 0.0, now_s=0.0)
    one.chunk_offered("a", 0)
    one.chunk_offered("a", 1)
    assert "a" not in one
    assert one.request_ended("a") is None


def test_the_state_behind_a_prompt_is_claimed_with_its_last_chunk() -> None:
    one = ledger()
    state = (ChunkKey(b"state of shard 0"), ChunkKey(b"state of shard 1"))
    claim = one.begin("a", chunks(2, shards=2), 0, 0.0, now_s=0.0, state=state)
    assert claim is not None
    assert len(claim.keys) == 4
    assert claim.state_claim is not None
    assert claim.state_claim.keys == state
    assert claim.state_claim.etas_s == pytest.approx((0.512, 0.512))
    assert claim.state_claim.state_claim is None
    assert one.request_ended("a") == Disclaim((*(key for chunk in chunks(2, shards=2) for key in chunk), *state))
