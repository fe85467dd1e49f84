"""Control datagrams: fixed bytes, round trips, hostile bytes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvchunk.ids import ChunkKey
from kvproto.errors import WireError, WireReason
from kvproto.wire.control import Control, Flag, Op, decode_control

KEY = ChunkKey(bytes(range(16)))

controls = st.builds(
    Control,
    op=st.sampled_from([op for op in Op if op not in (Op.FILL, Op.GET)]),
    key=st.binary(min_size=16, max_size=16).map(ChunkKey),
    segments=st.just(1000),
    segment=st.integers(0, 999),
    count=st.integers(0, 0xFFFF),
    tag=st.integers(0, 0xFFFF),
    flags=st.integers(0, 63).map(Flag),
    member=st.integers(0, 255),
    members=st.integers(0, 2**64 - 1),
)


def test_bytes_of_a_get() -> None:
    get = Control(Op.GET, KEY, segments=256, segment=16, count=32, tag=7, flags=Flag.ONLY_ME, member=2, members=5)
    assert get.encode().hex() == ("01042002002000070000001000000100000102030405060708090a0b0c0d0e0f0000000000000005")


@given(control=controls)
def test_round_trip(control: Control) -> None:
    assert decode_control(control.encode()) == control


@pytest.mark.parametrize(
    ("offset", "value", "reason"),
    [
        (0, 2, WireReason.VERSION),
        (1, 0, WireReason.OP),
        (1, 5, WireReason.OP),
        (1, 16, WireReason.OP),
        (2, 0x80, WireReason.RESERVED),
        (5, 0, WireReason.SEGMENT),
        (5, 255, WireReason.SEGMENT),
        (10, 1, WireReason.SEGMENT),
        (12, 255, WireReason.SEGMENT),
    ],
)
def test_what_is_wrong_is_named(offset: int, value: int, reason: WireReason) -> None:
    raw = bytearray(Control(Op.GET, KEY, segments=256, segment=16, count=32).encode())
    raw[offset] = value
    with pytest.raises(WireError) as caught:
        decode_control(raw)
    assert caught.value.reason is reason


def test_lengths() -> None:
    raw = Control(Op.JOIN, KEY, segments=1).encode()
    for wrong, reason in (
        (raw[:-1], WireReason.TRUNCATED),
        (raw + b"\0", WireReason.OVERSIZED),
        (b"", WireReason.TRUNCATED),
    ):
        with pytest.raises(WireError) as caught:
            decode_control(wrong)
        assert caught.value.reason is reason


@settings(max_examples=500)
@given(raw=st.binary(min_size=40, max_size=40) | st.binary(max_size=60))
def test_random_bytes_give_a_control_or_a_wire_error(raw: bytes) -> None:
    try:
        control = decode_control(raw)
    except WireError:
        return
    assert control.segment < control.segments
