"""Messages of relay links: what is sent comes, however the stream is cut; anything else is a WireError."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchunk.ids import ChunkKey
from kvproto.errors import WireError, WireReason
from kvproto.wire.relay_messages import (
    PIECES_MAX,
    Decoder,
    Drop,
    Gone,
    Hello,
    Leaves,
    Message,
    Peers,
    Rate,
    Room,
    Run,
    RunKind,
    Want,
    encode,
)

NUMBER = st.integers(0, 2**32 - 1)
ENDPOINT = st.from_regex(r"\A[0-9]{1,3}(\.[0-9]{1,3}){3}:[0-9]{1,5}\Z")
RUN = st.integers(1, 64).flatmap(
    lambda count: st.builds(Run, st.sampled_from(RunKind), NUMBER, st.integers(0, PIECES_MAX - count), st.just(count))
)
WANT = st.builds(
    Want, NUMBER, st.binary(min_size=16, max_size=16).map(ChunkKey), st.integers(1, PIECES_MAX), st.booleans()
)
MESSAGE: st.SearchStrategy[Message] = st.one_of(
    RUN,
    WANT,
    st.builds(Hello, ENDPOINT),
    st.builds(Drop, NUMBER),
    st.builds(Room, NUMBER),
    st.builds(Rate, st.integers(0, 2**64 - 1), st.booleans()),
    st.builds(Peers, NUMBER, st.lists(ENDPOINT, max_size=64).map(tuple)),
    st.builds(Leaves, NUMBER, st.binary(max_size=200)),
    st.builds(Gone, NUMBER),
)


@given(st.lists(MESSAGE, max_size=5), st.integers(1, 40))
def test_what_is_sent_comes(messages: list[Message], cut: int) -> None:
    stream = b"".join(map(encode, messages))
    decoder = Decoder()
    got = [message for at in range(0, len(stream), cut) for message in decoder.feed(stream[at : at + cut])]
    assert got == messages


@given(st.binary(max_size=200))
def test_any_bytes_are_messages_or_an_error(stream: bytes) -> None:
    with contextlib.suppress(WireError):
        Decoder().feed(stream)


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (b"\xff\0\0\0\0", WireReason.OP),
        (b"\x05\xff\xff\xff\xff", WireReason.OVERSIZED),
        (b"\x11\0\0\0\x0c" + bytes(12), WireReason.SEGMENT),
        (b"\x11\0\0\0\x01\0", WireReason.LENGTH),
        (b"\x01\0\0\0\0", WireReason.LENGTH),
        (b"\x01\0\0\0\x01\xff", WireReason.LENGTH),
    ],
)
def test_each_error_has_its_reason(stream: bytes, reason: WireReason) -> None:
    with pytest.raises(WireError) as refused:
        Decoder().feed(stream)
    assert refused.value.reason is reason
