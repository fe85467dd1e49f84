"""The HTTP server of the daemons: what it answers, to whom it does not listen, and that no connection outlives it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Coroutine, Mapping
from http import HTTPStatus
from typing import TypeVar

import pytest
from prometheus_client import CollectorRegistry, Gauge

from kvproto.daemon import http
from kvproto.daemon.errors import CannotRunError
from kvproto.daemon.http import Answer, HttpServer, Page, json_page, metrics_page

LOOPBACK = "127.0.0.1"
PATIENCE_S = 30.0
GET = b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE_BYTES = 32 << 20
"""More than sockets take that nobody reads from."""

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
        "/metrics": metrics_page(registry),
        "/healthz": json_page(lambda: {"status": "ok"}),
        "/sick": lambda: Answer("text/plain", b"no\n", HTTPStatus.SERVICE_UNAVAILABLE),
        "/large": lambda: Answer("text/plain", bytes(LARGE_BYTES)),
        "/failing": failing,
    }


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[tuple[HttpServer, int]]:
    server = HttpServer(pages())
    host, port = await server.listen(LOOPBACK, 0, "")
    assert host == LOOPBACK
    try:
        yield server, port
    finally:
        await server.close()


@contextlib.asynccontextmanager
async def connected(port: int, request: bytes) -> AsyncIterator[asyncio.StreamReader]:
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    try:
        writer.write(request)
        yield reader
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def idle(server: HttpServer) -> None:
    """Until nobody is served."""
    if server._connections:
        await asyncio.wait(server._connections)


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


def test_no_more_connections_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 1)

    async def steps() -> None:
        async with serving() as (server, port):
            async with connected(port, GET % b"/large") as reader:
                await reader.readexactly(1)
                assert await exchange(port, GET % b"/healthz") == b""
            await idle(server)
            assert (await exchange(port, GET % b"/healthz")).startswith(b"HTTP/1.1 200 OK\r\n")

    run(steps())


def test_closing_ends_connections() -> None:
    async def steps() -> None:
        async with (
            serving() as (server, port),
            connected(port, GET % b"/large") as busy,
            connected(port, b"GET") as silent,
        ):
            await busy.readexactly(1)
            await server.close()
            assert not server._connections
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
            assert not server._connections
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
