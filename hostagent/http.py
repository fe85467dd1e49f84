"""A very small HTTP server for /metrics and /healthz, on the agent's own event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

REQUEST_BYTES_MAX = 8192
REQUEST_TIMEOUT_S = 5.0


class HttpError(Exception):
    """The port cannot be had; one line that names the remedy."""


class HttpServer:
    """Serves Prometheus metrics and a JSON health report."""

    def __init__(self, registry: CollectorRegistry, health: Callable[[], Mapping[str, object]]) -> None:
        self._registry = registry
        self._health = health
        self._server: asyncio.Server | None = None

    async def listen(self, address: str, port: int) -> tuple[str, int]:
        """Start; returns the bound address. Raises HttpError."""
        try:
            self._server = await asyncio.start_server(self._serve, address, port, limit=REQUEST_BYTES_MAX)
        except OSError as error:
            reason = error.strerror or str(error)
            raise HttpError(f"cannot listen on {address}:{port}: {reason}; set http.port to a free port") from error
        bound: tuple[str, int] = self._server.sockets[0].getsockname()[:2]
        return bound

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._respond(head))
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            writer.transport.abort()
        finally:
            writer.close()

    def _respond(self, head: bytes) -> bytes:
        words = head.split(b"\r\n", 1)[0].split(b" ")
        path = words[1].split(b"?")[0] if len(words) == 3 else b""
        if words[0] not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", "text/plain", b"only GET\n", head_only=False)
        head_only = words[0] == b"HEAD"
        if path == b"/metrics":
            return _response("200 OK", CONTENT_TYPE_LATEST, generate_latest(self._registry), head_only=head_only)
        if path == b"/healthz":
            body = json.dumps(self._health(), indent=1).encode() + b"\n"
            return _response("200 OK", "application/json", body, head_only=head_only)
        return _response("404 Not Found", "text/plain", b"/metrics or /healthz\n", head_only=head_only)


def _response(status: str, kind: str, body: bytes, *, head_only: bool) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + (b"" if head_only else body)
