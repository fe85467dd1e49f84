"""The HTTP server of the daemons: what it answers, to whom it does not listen, and that no connection outlives it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping
from http import HTTPStatus
from typing import TypeVar

import pytest
from prometheus_client import CollectorRegistry, Gauge

from kvdaemon import http
from kvdaemon.errors import CannotRunError
from kvdaemon.http import Answer, HttpServer, Page, Question, json_page, json_service, metrics_page

LOOPBACK = "127.0.0.1"
PATIENCE_S = 30.0
GET = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n"
LARGE_BYTES = 32 << 20
"""More than sockets take that nobody reads from."""
EVENT_BYTES = 32 << 10

T = TypeVar("T")


@pytest.fixture(autouse=True)
def no_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "TIMEOUT_S", PATIENCE_S)


def failing() -> Answer:
    raise ZeroDivisionError("a bug in a page")


def pages() -> dict[str, Page]:
    registry = CollectorRegistry()
    Gauge("chunks", "Chunks", registry=registry).set(3)
    return {
        "/metrics": metrics_page(registry, "test"),
        "/healthz": json_page(lambda: {"status": "ok"}),
        "/sick": lambda: Answer("text/plain", b"no\n", HTTPStatus.SERVICE_UNAVAILABLE),
        "/large": lambda: Answer("text/plain", bytes(LARGE_BYTES)),
        "/failing": failing,
    }


class Clock:
    """A stream of the tests: large events as fast as they are taken, or one each time the test says so."""

    def __init__(self) -> None:
        self.sent = 0
        self.open = 0
        self.closed = asyncio.Event()
        self.tick = asyncio.Event()

    async def ticks(self, _query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        self.open += 1
        try:
            while True:
                self.sent += 1
                yield b"data: %d\n\n" % self.sent
                await self.tick.wait()
                self.tick.clear()
        finally:
            self.open -= 1
            self.closed.set()

    async def flood(self, _query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        self.open += 1
        try:
            while True:
                self.sent += 1
                yield b"data: " + b"x" * EVENT_BYTES + b"\n\n"
        finally:
            self.open -= 1
            self.closed.set()

    async def broken(self, _query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        yield b"data: 1\n\n"
        raise ZeroDivisionError("a bug in a stream")


@contextlib.asynccontextmanager
async def serving(clock: Clock | None = None) -> AsyncIterator[tuple[HttpServer, int]]:
    streams = {} if clock is None else {"/ticks": clock.ticks, "/flood": clock.flood, "/broken": clock.broken}
    server = HttpServer(pages(), streams)
    host, port = await server.listen(LOOPBACK, 0, "")
    assert host == LOOPBACK
    try:
        yield server, port
    finally:
        await server.close()


@contextlib.asynccontextmanager
async def connected(port: int, request: bytes, local: str = LOOPBACK) -> AsyncIterator[asyncio.StreamReader]:
    reader, writer = await asyncio.open_connection(LOOPBACK, port, local_addr=(local, 0))
    try:
        writer.write(request)
        yield reader
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def idle(server: HttpServer) -> None:
    """Until nobody is served."""
    async with asyncio.timeout(PATIENCE_S):
        while server.connections_count:
            await asyncio.sleep(0)


async def rest(reader: asyncio.StreamReader) -> bytes:
    """What comes until the server ends the connection."""
    pieces = []
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(1 << 20):
            pieces.append(piece)
    return b"".join(pieces)


async def exchange(port: int, request: bytes) -> bytes:
    async with connected(port, request) as reader:
        return await rest(reader)


def run(steps: Coroutine[None, None, T]) -> T:
    return asyncio.run(asyncio.wait_for(steps, PATIENCE_S))


def answer(request: bytes) -> tuple[int, Mapping[str, str], bytes]:
    """Status, header fields and body."""

    async def steps() -> bytes:
        async with serving() as (_, port):
            return await exchange(port, request)

    head, _, body = run(steps()).partition(b"\r\n\r\n")
    first, *fields = head.decode().split("\r\n")
    protocol, status, _ = first.split(" ", 2)
    assert protocol == "HTTP/1.1"
    return int(status), dict(line.split(": ", 1) for line in fields), body


def test_pages() -> None:
    status, fields, body = answer(GET % b"/metrics?format=any")
    assert status == 200
    assert fields["Content-Type"].startswith("text/plain; version=")
    assert b"\nchunks 3.0\n" in body
    status, fields, body = answer(GET % b"/healthz")
    assert (status, fields["Content-Type"], json.loads(body)) == (200, "application/json", {"status": "ok"})
    assert fields["Connection"] == "close"
    assert int(fields["Content-Length"]) == len(body)
    assert answer(GET % b"/sick")[::2] == (503, b"no\n")


def test_nothing_is_kept_or_guessed_or_framed() -> None:
    _, fields, _ = answer(GET % b"/healthz")
    assert fields["Cache-Control"] == "no-store"
    assert fields["X-Content-Type-Options"] == "nosniff"
    assert fields["X-Frame-Options"] == "DENY"


def test_head_is_get_without_the_body() -> None:
    for path in (b"/healthz", b"/nowhere"):
        status, fields, body = answer(GET % path)
        assert body
        assert answer((GET % path).replace(b"GET", b"HEAD")) == (status, fields, b"")


@pytest.mark.parametrize(
    ("request_", "status", "said"),
    [
        (GET % b"/", 404, b"try /metrics or /healthz or "),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405, b"only GET and HEAD\n"),
        (b"GET /metrics\r\n\r\n", 400, b"not an HTTP request\n"),
        (b"\xff\xfe\r\n\r\n", 400, b"not an HTTP request\n"),
    ],
)
def test_what_is_not_served(request_: bytes, status: int, said: bytes) -> None:
    found, fields, body = answer(request_)
    assert found == status
    assert body.startswith(said)
    assert ("Allow" in fields) == (status == 405)


def test_who_says_too_much_or_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "TIMEOUT_S", 0.05)

    async def steps() -> None:
        async with serving() as (_, port):
            assert await exchange(port, b"GET /metrics HTTP/1.1\r\n") == b""
            assert await exchange(port, b"GET /" + b"x" * 3 * http.REQUEST_BYTES_MAX) == b""

    run(steps())


def test_who_does_not_take_the_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "TIMEOUT_S", 0.05)

    async def steps() -> None:
        async with serving() as (server, port), connected(port, GET % b"/large") as reader:
            await reader.readexactly(1)
            await idle(server)
            assert len(await rest(reader)) < LARGE_BYTES

    run(steps())


async def silent_ones(port: int, count: int, stack: contextlib.AsyncExitStack) -> None:
    for _ in range(count):
        await stack.enter_async_context(connected(port, b"G"))


@pytest.mark.parametrize("limit", ["CONNECTIONS_PER_PEER_MAX", "CONNECTIONS_MAX"])
def test_who_is_silent_makes_room(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(http, limit, 8)

    async def steps() -> None:
        async with serving() as (server, port), contextlib.AsyncExitStack() as stack:
            first = await stack.enter_async_context(connected(port, b"GET"))
            for _ in range(3):
                await silent_ones(port, 20, stack)
                assert (await exchange(port, GET % b"/healthz")).startswith(b"HTTP/1.1 200 OK\r\n")
                assert server.connections_count <= 9
            assert await rest(first) == b""

    run(steps())


def test_who_takes_no_answer_makes_room_and_a_stream_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_PER_PEER_MAX", 4)
    clock = Clock()

    async def steps() -> None:
        async with serving(clock) as (_, port), contextlib.AsyncExitStack() as stack:
            watching = await stack.enter_async_context(connected(port, GET % b"/ticks"))
            await watching.readuntil(b"\r\n\r\n")
            for _ in range(12):
                deaf = await stack.enter_async_context(connected(port, GET % b"/large"))
                await deaf.readexactly(1)
            assert (await exchange(port, GET % b"/healthz")).startswith(b"HTTP/1.1 200 OK\r\n")
            assert not watching.at_eof()
            assert clock.open == 1

    run(steps())


NAMES = (
    ({"host": ["127.0.0.1:9470"]}, True),
    ({"host": ["[::1]:9470"]}, True),
    ({"host": ["localhost"]}, True),
    ({"host": ["N1:9470"]}, True),
    ({"host": ["n1.rack.example"]}, True),
    ({}, True),
    ({"host": ["10.0.0.1:9470"], "origin": ["http://10.0.0.1:9470"]}, True),
    ({"host": ["evil.example:9470"]}, False),
    ({"host": ["127.0.0.1.evil.example"]}, False),
    ({"host": ["localhost", "evil.example"]}, False),
    ({"host": ["localhost:9470"], "origin": ["http://evil.example"]}, False),
    ({"host": ["localhost:9470"], "origin": ["null"]}, False),
    ({"origin": ["http://localhost"]}, False),
)


@pytest.mark.parametrize(("fields", "expected"), NAMES)
def test_whose_name_a_page_was_asked_for_by(fields: dict[str, list[str]], expected: bool) -> None:
    assert http.is_own_origin(fields, "n1.rack.example") is expected


def test_closing_ends_connections() -> None:
    async def steps() -> None:
        async with (
            serving() as (server, port),
            connected(port, GET % b"/large") as busy,
            connected(port, b"GET") as silent,
        ):
            await busy.readexactly(1)
            await server.close()
            assert server.connections_count == 0
            assert len(await rest(busy)) < LARGE_BYTES
            assert await rest(silent) == b""
            await server.close()

    run(steps())


def test_a_bug_in_a_page_is_the_loops_to_report() -> None:
    reported: list[object] = []

    async def steps() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
        async with serving() as (server, port):
            assert (await exchange(port, GET % b"/failing")).startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
            assert server.connections_count == 0
            assert (await exchange(port, GET % b"/healthz")).endswith(b"}\n")

    run(steps())
    assert [type(one) for one in reported] == [ZeroDivisionError]


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        (LOOPBACK, "Address already in use"),
        ("203.0.113.7", ""),
        ("a" * 70, ""),
    ],
)
def test_a_port_that_cannot_be_had_is_one_line(host: str, reason: str) -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotRunError) as caught:
            run(HttpServer({}).listen(host, port, "change http.port"))
    said = str(caught.value)
    assert said.startswith(f"cannot listen on {host}:{port} for HTTP: {reason}")
    assert said.endswith("; change http.port")
    assert "\n" not in said


# -- services


class NonsenseError(Exception):
    pass


class BusyError(Exception):
    after_s = 1.2


def service(asked: Question) -> dict[str, object]:
    if asked.query.get("name") == "busy":
        raise BusyError("come again")
    if asked.body == b"nonsense":
        raise NonsenseError("no sense in that")
    return {"query": dict(asked.query), "body": None if asked.body is None else asked.body.decode()}


def ask(request: bytes) -> tuple[int, Mapping[str, str], bytes]:
    async def steps() -> bytes:
        server = HttpServer({}, services={"/ask": json_service(service, NonsenseError, BusyError)})
        _, port = await server.listen(LOOPBACK, 0, "")
        try:
            return await exchange(port, request)
        finally:
            await server.close()

    head, _, body = run(steps()).partition(b"\r\n\r\n")
    first, *fields = head.decode().split("\r\n")
    return int(first.split(" ")[1]), dict(line.split(": ", 1) for line in fields), body


def test_a_service_is_asked_by_query_or_by_body() -> None:
    status, _, body = ask(GET % b"/ask?name=a%20b&x=1,2")
    assert (status, json.loads(body)) == (200, {"query": {"name": "a b", "x": "1,2"}, "body": None})
    status, fields, body = ask(b"POST /ask HTTP/1.1\r\ncontent-length: 4\r\n\r\nfour and more")
    assert (status, json.loads(body)) == (200, {"query": {}, "body": "four"})
    assert fields["Content-Type"] == "application/json"


@pytest.mark.parametrize(
    ("request_", "status", "said"),
    [
        (b"POST /ask HTTP/1.1\r\nContent-Length: 8\r\n\r\nnonsense", 400, b"no sense in that\n"),
        (GET % b"/ask?name=busy", 429, b"come again\n"),
        (b"POST /ask HTTP/1.1\r\n\r\n", 411, b"a POST needs Content-Length\n"),
        (b"POST /ask HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411, b"a POST needs Content-Length\n"),
        (b"POST /ask HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 411, b"a POST needs Content-Length\n"),
        (b"POST /ask HTTP/1.1\r\nContent-Length: 1048577\r\n\r\n", 413, b"at most 1048576 bytes\n"),
        (b"POST /ask HTTP/1.1\r\nContent-Length: 99999999999999\r\n\r\n", 413, b"at most 1048576 bytes\n"),
        (b"PUT /ask HTTP/1.1\r\n\r\n", 405, b"only GET, HEAD and POST\n"),
        (GET % b"/nowhere", 404, b"try /ask\n"),
    ],
)
def test_questions_that_are_refused(request_: bytes, status: int, said: bytes) -> None:
    found, fields, body = ask(request_)
    assert (found, body) == (status, said)
    assert fields.get("Retry-After") == ("2" if status == 429 else None)
    assert fields.get("Allow") == ("GET, HEAD, POST" if status == 405 else None)


# -- streams


async def heads(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")


def test_a_stream_goes_on_until_its_peer_has_gone() -> None:
    async def steps() -> None:
        clock = Clock()
        async with serving(clock) as (server, port):
            async with connected(port, GET % b"/ticks?from=here") as reader:
                head = await heads(reader)
                assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
                assert b"Content-Length" not in head
                assert await reader.readuntil(b"\n\n") == b"data: 1\n\n"
                clock.tick.set()
                assert await reader.readuntil(b"\n\n") == b"data: 2\n\n"
                assert clock.open == 1
            # Nothing is sent any more: that the peer has gone is seen all the same.
            await clock.closed.wait()
            await idle(server)
            assert (clock.open, clock.sent) == (0, 2)

    run(steps())


def test_head_of_a_stream_is_its_header() -> None:
    async def steps() -> None:
        clock = Clock()
        async with serving(clock) as (_, port):
            said = await exchange(port, (GET % b"/ticks").replace(b"GET", b"HEAD"))
            assert b"text/event-stream" in said
            assert said.endswith(b"\r\n\r\n")
            assert clock.sent == 0

    run(steps())


def test_a_stream_waits_for_a_slow_peer_and_holds_nothing_for_it() -> None:
    async def steps() -> None:
        clock = Clock()
        async with serving(clock) as (_, port), connected(port, GET % b"/flood") as reader:
            await heads(reader)
            sent = 0
            while sent != clock.sent:
                sent = clock.sent
                assert (await exchange(port, GET % b"/healthz")).startswith(b"HTTP/1.1 200 OK\r\n")
            assert 0 < sent * EVENT_BYTES < LARGE_BYTES
            while clock.sent == sent:
                await reader.readuntil(b"\n\n")

    run(steps())


def test_who_takes_nothing_of_a_stream_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "STREAM_TIMEOUT_S", 0.05)

    async def steps() -> None:
        clock = Clock()
        async with serving(clock) as (server, port), connected(port, GET % b"/flood"):
            await clock.closed.wait()
            await idle(server)

    run(steps())


def test_more_streams_than_the_limit_are_told_so_and_pages_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "STREAMS_MAX", 1)

    async def steps() -> None:
        clock = Clock()
        async with serving(clock) as (server, port):
            async with connected(port, GET % b"/ticks") as reader:
                await heads(reader)
                said = await exchange(port, GET % b"/ticks")
                assert said.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
                assert said.endswith(b"1 watch already: try again later\n")
                assert (await exchange(port, GET % b"/healthz")).startswith(b"HTTP/1.1 200 OK\r\n")
            await clock.closed.wait()
            await idle(server)
            async with connected(port, GET % b"/ticks") as reader:
                await heads(reader)

    run(steps())


def test_one_address_leaves_streams_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "STREAMS_PER_ADDRESS_MAX", 1)

    async def steps() -> None:
        clock = Clock()
        async with serving(clock) as (server, port):
            async with connected(port, GET % b"/ticks") as reader:
                await heads(reader)
                said = await exchange(port, GET % b"/ticks")
                assert said.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
                assert said.endswith(b"127.0.0.1 has 1 streams already: close one of them\n")
                async with connected(port, GET % b"/ticks", local="127.0.0.2") as other:
                    assert b" 200 " in await heads(other)
                await clock.closed.wait()
            await idle(server)
            async with connected(port, GET % b"/ticks") as reader:
                assert b" 200 " in await heads(reader)

    run(steps())


def test_closing_ends_streams() -> None:
    async def steps() -> None:
        clock = Clock()
        async with serving(clock) as (server, port), connected(port, GET % b"/ticks") as reader:
            await heads(reader)
            await server.close()
            assert clock.open == 0
            assert await rest(reader) == b"data: 1\n\n"

    run(steps())


def test_a_bug_in_a_stream_is_the_loops_to_report() -> None:
    reported: list[object] = []

    async def steps() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
        async with serving(Clock()) as (server, port):
            assert (await exchange(port, GET % b"/broken")).endswith(b"\r\n\r\ndata: 1\n\n")
            assert server.connections_count == 0

    run(steps())
    assert [type(one) for one in reported] == [ZeroDivisionError]
