"""How many tokens a chunk has where nobody says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvclient.engines.core.chunk_sizes import CHUNK_BYTES, CHUNK_TOKENS_MOST, chunk_tokens_for


@pytest.mark.parametrize(
    ("layers", "heads", "head_bytes", "block_tokens", "tokens"),
    [
        pytest.param(32, 8, 2 * 128 * 2, 16, 64, id="Llama 3 8B"),
        pytest.param(80, 8, 2 * 128 * 2, 16, 32, id="Llama 3 70B"),
        pytest.param(80, 8, 2 * 128 * 1, 16, 64, id="Llama 3 70B, fp8"),
        pytest.param(61, 1, 576 * 2, 64, 128, id="DeepSeek V3, blocks of 64"),
        pytest.param(24, 2, 2 * 64 * 2, 16, 256, id="Qwen 2.5 0.5B"),
        pytest.param(126, 128, 2 * 128 * 4, 16, 16, id="one block is more than enough"),
        pytest.param(1, 1, 64, 1024, 1024, id="a block is never split"),
    ],
)
def test_chunks_of_models_that_people_use(
    layers: int, heads: int, head_bytes: int, block_tokens: int, tokens: int
) -> None:
    assert chunk_tokens_for(layers * heads * head_bytes, block_tokens) == tokens


@given(token_bytes=st.integers(1, 1 << 24), block_tokens=st.sampled_from([1, 8, 16, 32, 48, 128, 544, 1024]))
def test_a_chunk_is_whole_blocks_and_no_more_than_needed(token_bytes: int, block_tokens: int) -> None:
    tokens = chunk_tokens_for(token_bytes, block_tokens)
    assert tokens and tokens % block_tokens == 0
    if tokens > block_tokens:
        assert tokens <= CHUNK_TOKENS_MOST
        assert (tokens - block_tokens) * token_bytes < CHUNK_BYTES
    if tokens + block_tokens <= CHUNK_TOKENS_MOST:
        assert tokens * token_bytes >= CHUNK_BYTES
