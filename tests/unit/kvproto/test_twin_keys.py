"""Keys of twins: they follow from the chunk's, collide with no others, and can be told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchunk.ids import KEY_BYTES, ChunkKey, chunk_key
from kvcodec.forms import Form
from kvproto.twins import TWIN_CODES, twin_code, twin_key

keys = st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES).map(ChunkKey)


def test_every_form_but_the_chunk_itself_has_twins() -> None:
    assert set(TWIN_CODES) == {form.value for form in Form} - {Form.RAW}


@given(keys, keys)
def test_a_twin_is_told_by_its_parent(key: ChunkKey, other: ChunkKey) -> None:
    twins = [twin_key(key, code) for code in TWIN_CODES]
    assert len({key, *twins}) == 1 + len(TWIN_CODES)
    assert [twin_code(twin, key) for twin in twins] == list(TWIN_CODES)
    assert twin_code(key, None) is None
    if other != key:
        assert all(twin_code(twin, other) is None for twin in twins)


def test_a_chunk_of_tokens_is_no_twin() -> None:
    parent = twin_key(ChunkKey(bytes(KEY_BYTES)), 1)
    assert twin_code(chunk_key(parent, bytes(32), [1]), parent) is None


def test_keys_of_twins_are_part_of_what_nodes_agree_on() -> None:
    assert twin_key(ChunkKey(bytes(range(16))), 1).hex() == "4db6836101c8b42636991efb25d1ceb8"
    assert twin_key(ChunkKey(bytes(range(16))), 2).hex() == "94b524f34c519886020346c1abd0a54a"


@pytest.mark.parametrize("code", [0, 3, -1])
def test_other_forms_have_none(code: int) -> None:
    with pytest.raises(ValueError, match="no form of twins"):
        twin_key(ChunkKey(bytes(16)), code)
