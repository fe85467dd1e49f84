"""Byte strings: the specification's tables of valid and invalid encodings, and round trips."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4switch.server.bytestring import decode_signed, decode_unsigned, encode_signed, encode_unsigned
from p4switch.server.status import Code, StatusError

VALID_UNSIGNED = [(8, "63", 0x63), (16, "0063", 0x63), (16, "63", 0x63), (16, "3064", 0x3064), (16, "003064", 0x3064),
                  (12, "0063", 0x63), (12, "63", 0x63), (12, "000063", 0x63)]  # fmt: skip
VALID_SIGNED = [(8, "63", 99), (8, "9d", -99), (8, "ff9d", -99), (12, "fd1d", -739), (16, "0000", 0), (16, "00", 0)]
INVALID_UNSIGNED = [(8, "0163"), (8, ""), (16, "010063"), (12, "1063"), (12, "010063"), (12, "004063")]
INVALID_SIGNED = [(8, "009d"), (12, "8d1d"), (16, "")]


@pytest.mark.parametrize(("width", "text", "value"), VALID_UNSIGNED)
def test_valid_unsigned(width, text, value):
    assert decode_unsigned(bytes.fromhex(text), width, "x") == value


@pytest.mark.parametrize(("width", "text", "value"), VALID_SIGNED)
def test_valid_signed(width, text, value):
    assert decode_signed(bytes.fromhex(text), width, "x") == value & ((1 << width) - 1)


@pytest.mark.parametrize(("width", "text"), INVALID_UNSIGNED)
def test_invalid_unsigned(width, text):
    with pytest.raises(StatusError) as caught:
        decode_unsigned(bytes.fromhex(text), width, "x")
    assert caught.value.code is Code.OUT_OF_RANGE


@pytest.mark.parametrize(("width", "text"), INVALID_SIGNED)
def test_invalid_signed(width, text):
    with pytest.raises(StatusError) as caught:
        decode_signed(bytes.fromhex(text), width, "x")
    assert caught.value.code is Code.OUT_OF_RANGE


@given(st.integers(0, 1 << 200))
def test_unsigned_round_trip_is_shortest(value):
    encoded = encode_unsigned(value)
    assert decode_unsigned(encoded, 201, "x") == value
    assert len(encoded) == 1 or encoded[0] != 0


@given(st.integers(1, 130).flatmap(lambda w: st.tuples(st.just(w), st.integers(0, (1 << w) - 1))))
def test_signed_round_trip_is_shortest(case):
    width, pattern = case
    encoded = encode_signed(pattern, width)
    assert decode_signed(encoded, width, "x") == pattern
    if len(encoded) > 1:
        shorter = int.from_bytes(encoded[1:], "big", signed=True)
        assert shorter != int.from_bytes(encoded, "big", signed=True)
