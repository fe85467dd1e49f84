"""A very small HTTP server for a daemon's pages, on its own event loop: GET and HEAD, one request a connection."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeAlias

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from kvproto.daemon.errors import CannotRunError

REQUEST_BYTES_MAX = 8192
CONNECTIONS_MAX = 64
"""At a time; more are closed unheard, so that the daemon keeps its file descriptors."""
TIMEOUT_S = 5.0
"""For a request to come, and again for the answer to be taken."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a page says."""

    content_type: str
    body: bytes
    status: HTTPStatus = HTTPStatus.OK


Page: TypeAlias = Callable[[], Answer]


def metrics_page(registry: CollectorRegistry) -> Page:
    """For Prometheus."""
    return lambda: Answer(CONTENT_TYPE_LATEST, generate_latest(registry))


def json_page(facts: Callable[[], Mapping[str, object]]) -> Page:
    """What `facts` returns, as JSON."""
    return lambda: Answer("application/json", json.dumps(facts(), indent=1).encode() + b"\n")


class HttpServer:
    """Serves pages by their paths. A page that raises is a bug: 500, and the event loop's exception handler is told."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self._pages = pages
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def listen(self, host: str, port: int, remedy: str) -> tuple[str, int]:
        """Start; port 0 takes any. Returns the bound address. Raises CannotRunError, which ends with `remedy`."""
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=REQUEST_BYTES_MAX)
        except (OSError, UnicodeError) as error:
            raise CannotRunError(f"cannot listen on {host}:{port} for HTTP: {_reason(error)}; {remedy}") from error
        bound: tuple[str, int] = self._server.sockets[0].getsockname()[:2]
        return bound

    async def close(self) -> None:
        """Stop listening and end every connection."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        for writer in self._connections.values():
            writer.transport.abort()
        await server.wait_closed()
        if self._connections:
            await asyncio.wait(self._connections)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or self._server is None or len(self._connections) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        self._connections[task] = writer
        try:
            head = await _request_head(reader)
            if head is not None:
                await _send(writer, self._reply(head))
        finally:
            writer.transport.abort()
            del self._connections[task]

    def _reply(self, head: bytes) -> bytes:
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3:
            return _encode(_words(HTTPStatus.BAD_REQUEST, "not an HTTP request"))
        method, path = words[0], words[1].split("?", 1)[0]
        if method not in ("GET", "HEAD"):
            return _encode(_words(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD"))
        return _encode(self._answer(path), with_body=method == "GET")

    def _answer(self, path: str) -> Answer:
        page = self._pages.get(path)
        if page is None:
            return _words(HTTPStatus.NOT_FOUND, f"try {' or '.join(self._pages)}")
        try:
            return page()
        except Exception as error:  # noqa: BLE001 - told to who handles bugs
            told = {"message": f"the page {path} cannot be made", "exception": error}
            asyncio.get_running_loop().call_exception_handler(told)
            return _words(HTTPStatus.INTERNAL_SERVER_ERROR, "a bug: the log has more")


async def _request_head(reader: asyncio.StreamReader) -> bytes | None:
    """None from a peer that is gone, too slow or says too much."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        async with asyncio.timeout(TIMEOUT_S):
            return await reader.readuntil(b"\r\n\r\n")
    return None


async def _send(writer: asyncio.StreamWriter, reply: bytes) -> None:
    """All of it, or as much as the peer takes in time."""
    with contextlib.suppress(OSError):
        async with asyncio.timeout(TIMEOUT_S):
            writer.write(reply)
            writer.close()
            await writer.wait_closed()


def _words(status: HTTPStatus, text: str) -> Answer:
    return Answer("text/plain", f"{text}\n".encode(), status)


def _encode(answer: Answer, *, with_body: bool = True) -> bytes:
    lines = [
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        "Connection: close",
    ]
    if answer.status is HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append("Allow: GET, HEAD")  # RFC 9110, 15.5.6
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + (answer.body if with_body else b"")


def _reason(error: OSError | UnicodeError) -> str:
    """Without the words that asyncio puts around it, which have the address once more."""
    if isinstance(error, OSError) and not isinstance(error, socket.gaierror) and error.errno is not None:
        return os.strerror(error.errno)
    return getattr(error, "strerror", None) or str(error)
