"""Digests of chunks and their trees."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostagent.tree import LEAF_BYTES, PIECE_BYTES, hashed, leaves_bytes, root_of, wrong_segments
from kvproto.integrity import NO_DIGEST, Integrity, algorithm_of, digest_of, parse_digest

SEGMENT = 4096


def chunk(size_bytes: int) -> bytearray:
    return bytearray(random.Random(size_bytes).randbytes(size_bytes))


@pytest.mark.parametrize("size_bytes", [1, SEGMENT, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES - 7])
def test_a_changed_byte_is_found_in_its_piece(size_bytes: int) -> None:
    body = chunk(size_bytes)
    right = hashed(memoryview(body), Integrity.BLAKE3)
    assert len(right.leaves) == leaves_bytes(size_bytes)
    body[size_bytes // 2] ^= 1
    found = hashed(memoryview(body), Integrity.BLAKE3)
    assert found.digest != right.digest
    assert root_of(right.leaves, size_bytes) == right.digest
    wrong = wrong_segments(right.leaves, found.leaves, size_bytes, SEGMENT).tolist()
    piece = size_bytes // 2 // PIECE_BYTES
    last = min((piece + 1) * PIECE_BYTES, size_bytes) - 1
    assert wrong == list(range(piece * PIECE_BYTES // SEGMENT, last // SEGMENT + 1))


def test_segments_that_do_not_divide_a_piece_are_covered_whole() -> None:
    size_bytes = 3 * PIECE_BYTES
    body = chunk(size_bytes)
    right = hashed(memoryview(body), Integrity.BLAKE3)
    body[PIECE_BYTES] ^= 1
    wrong = wrong_segments(right.leaves, hashed(memoryview(body), Integrity.BLAKE3).leaves, size_bytes, 1000)
    assert wrong[0] * 1000 <= PIECE_BYTES and (wrong[-1] + 1) * 1000 >= 2 * PIECE_BYTES
    assert len(wrong) <= PIECE_BYTES // 1000 + 2


def test_the_root_binds_the_size_and_the_order() -> None:
    leaves = hashed(memoryview(chunk(2 * PIECE_BYTES)), Integrity.BLAKE3).leaves
    turned = leaves[LEAF_BYTES:] + leaves[:LEAF_BYTES]
    assert len({root_of(leaves, 2 * PIECE_BYTES), root_of(leaves, 2 * PIECE_BYTES - 1), root_of(turned, 131072)}) == 3


def test_a_leaf_is_no_chunk() -> None:
    """The leaves of a chunk, taken as a chunk of their own, have another digest: roots are made in another mode."""
    big = hashed(memoryview(chunk(4 * PIECE_BYTES)), Integrity.BLAKE3)
    assert hashed(memoryview(big.leaves), Integrity.BLAKE3).digest != big.digest


@given(st.binary(max_size=40))
def test_whatever_is_parsed_as_a_digest_is_one(packed: bytes) -> None:
    try:
        digest = parse_digest(packed)
    except ValueError:
        return
    assert digest == packed
    assert digest_of(algorithm_of(digest), digest[1:]) == digest


def test_what_is_no_digest_is_refused() -> None:
    for packed in (NO_DIGEST, b"\x02" + bytes(31), b"\x01" + bytes(9), b"\x07" + bytes(32)):
        with pytest.raises(ValueError, match="no digest"):
            parse_digest(packed)
    with pytest.raises(ValueError, match="8 bytes are no digest by blake3"):
        digest_of(Integrity.BLAKE3, bytes(8))
