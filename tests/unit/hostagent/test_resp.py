"""Redis's protocol, and which configurations our client of it serves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostagent.cold.cold_options import ColdConfig
from hostagent.cold.redis_store import RedisPlace, redis_place
from hostagent.cold.resp import LINE_BYTES_MAX, ReplyKind, ReplyReader, RespError, packed_head


def read(stream: bytes, sizes: list[int], *pieces: int) -> tuple[ReplyReader, list[bytes], bytes]:
    """A reply that comes in pieces of these sizes, then byte by byte; the buffers; what was not taken."""
    buffers = [bytearray(b"\xee" * size) for size in sizes]
    reader = ReplyReader([memoryview(buffer) for buffer in buffers])
    left, wanted = stream, iter(pieces)
    while True:
        room = reader.room()
        count = min(len(room), len(left), next(wanted, 1))
        assert count, "it wants more than there is, or has no room"
        room[:count], left = left[:count], left[count:]
        if reader.came(count):
            assert not reader.room()
            return reader, [bytes(buffer) for buffer in buffers], left


def test_requests_are_arrays_of_words() -> None:
    assert packed_head(b"GET", b"a b") == b"*2\r\n$3\r\nGET\r\n$3\r\na b\r\n"
    head = packed_head(b"SET", b"k", body_bytes=5)
    assert head + b"hello" + b"\r\n" == b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nhello\r\n"


@given(st.binary(max_size=1500), st.lists(st.integers(0, 700), max_size=4), st.lists(st.integers(1, 1000), max_size=9))
def test_a_body_fills_the_buffers_in_order_however_it_comes(body: bytes, sizes: list[int], pieces: list[int]) -> None:
    whole = b"$%d\r\n%b\r\n" % (len(body), body)
    if len(body) > sum(sizes):
        with pytest.raises(RespError, match="not what was asked for"):
            read(whole, sizes, *pieces)
        return
    reader, buffers, left = read(whole, sizes, *pieces)
    assert (reader.kind, reader.number, left) == (ReplyKind.BODY, len(body), b"")
    assert b"".join(buffers) == body + b"\xee" * (sum(sizes) - len(body))


@pytest.mark.parametrize("pieces", [(), (999,)], ids=["byte by byte", "at once"])
def test_what_is_not_a_body(pieces: tuple[int, ...]) -> None:
    reader, *_ = read(b"+OK\r\n", [4], *pieces)
    assert (reader.kind, reader.text) == (ReplyKind.TEXT, "OK")
    reader, *_ = read(b"-OOM command not allowed\r\n", [4], *pieces)
    assert (reader.kind, reader.text) == (ReplyKind.ERROR, "OOM command not allowed")
    reader, *_ = read(b":-12\r\n", [], *pieces)
    assert (reader.kind, reader.number) == (ReplyKind.NUMBER, -12)
    reader, (buffer,), _ = read(b"$-1\r\n", [4], *pieces)
    assert (reader.kind, reader.number, buffer) == (ReplyKind.BODY, -1, b"\xee" * 4)


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (b"*1\r\n", "a reply begins with b'\\*'"),
        (b"\r\n", "a reply begins with b''"),
        (b"HTTP/1.1 200 OK\r\n", "a reply begins with b'H'"),
        (b"$x\r\n", "not a number"),
        (b"$\r\n", "not a number"),
        (b":1_000\r\n", "not a number"),
        (b"$-2\r\n", "not what was asked for"),
        (b"$5\r\nabcde\r\n", "not what was asked for"),
        (b"$9999999999999999999\r\n", "not what was asked for"),
        (b"$4\r\nabcdef", "does not end where it should"),
        (b"+OK\r\n+OK\r\n", "more came than was asked for"),
        (b"+" * LINE_BYTES_MAX, "the first line does not end"),
    ],
)
def test_what_is_no_reply_is_refused(stream: bytes, message: str) -> None:
    with pytest.raises(RespError, match=message):
        read(stream, [4], len(stream))


def redis(secrets: dict[str, str] | None = None, **options: str) -> RedisPlace | None:
    return redis_place(ColdConfig("redis", options), secrets or {})


def test_plain_options_are_served_by_our_client() -> None:
    assert redis() == RedisPlace("127.0.0.1", 6379)
    assert redis(endpoint="tcp://h.example:7000", root="//a/b/", db="3") == RedisPlace("h.example", 7000, 3, "a/b/")
    found = redis({"password": "hunter2"}, endpoint="tcp://[::1]:7000", username="me")
    assert found == RedisPlace("::1", 7000, 0, "", "me", "hunter2")
    assert "hunter2" not in repr(found)


@pytest.mark.parametrize(
    "options",
    [
        {"cluster_endpoints": "tcp://a:1,tcp://b:2"},
        {"default_ttl": "60s"},
        {"endpoint": "rediss://h:1"},
        {"endpoint": "unix:///run/redis"},
        {"endpoint": "tcp://h:70000"},
        {"endpoint": "tcp://a:1,tcp://b:2"},
        {"endpoint": "tcp://h:1/3"},
        {"db": "-1"},
        {"db": "x"},
        {"username": "me"},
    ],
)
def test_everything_else_is_opendals_business(options: dict[str, str]) -> None:
    assert redis(**options) is None


def test_another_service_is_not_redis() -> None:
    assert redis_place(ColdConfig("fs"), {}) is None
