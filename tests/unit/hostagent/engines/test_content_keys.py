"""Keys of contents: of the tokens and the namespace alone, and never a key of a prefix or a name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchunk.ids import KEY_BYTES, ROOT_KEY, KvIdentity, chunk_key, pack_tokens
from kvclient.engines.core.content_keys import content_keys
from kvclient.engines.core.named_keys import named_keys

TOKENS = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40)
SPACE = KvIdentity("m").digest()


@given(TOKENS, TOKENS)
def test_equal_only_where_tokens_and_namespace_are(first: list[int], second: list[int]) -> None:
    keys = content_keys(SPACE, [first, second])
    assert (keys[0] == keys[1]) == (first == second)
    assert content_keys(SPACE, [second, first]) == keys[::-1], "whatever stands before it"
    assert set(content_keys(KvIdentity("other").digest(), [first])).isdisjoint(keys)
    assert {len(key) for key in keys} == {KEY_BYTES}


@given(TOKENS)
def test_no_key_of_a_prefix_or_a_name(tokens: list[int]) -> None:
    (key,) = content_keys(SPACE, [tokens])
    assert key != chunk_key(ROOT_KEY, SPACE, tokens)
    assert [key] != named_keys(SPACE, [pack_tokens(tokens)])


def test_a_secret_keeps_them_from_others() -> None:
    secret = KvIdentity("m", tenant_secret=b"0123456789abcdef").digest()
    assert content_keys(secret, [[1, 2]]) != content_keys(SPACE, [[1, 2]])


def test_what_has_no_key() -> None:
    with pytest.raises(ValueError, match="without tokens"):
        content_keys(SPACE, [[]])
    with pytest.raises(ValueError, match="has 32 bytes"):
        content_keys(b"short", [[1]])
    with pytest.raises(OverflowError):
        content_keys(SPACE, [[2**32]])
