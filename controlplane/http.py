"""A very small HTTP server for /metrics and /healthz: GET only, one request a connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import TypeAlias

Page: TypeAlias = Callable[[], tuple[int, str, bytes]]
"""Returns status, content type and body."""

_REQUEST_BYTES_MAX = 8192
_REQUEST_TIMEOUT_S = 5.0
_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


async def serve(host: str, port: int, pages: Mapping[str, Page]) -> asyncio.Server:
    """Start serving; port 0 takes any. Raises OSError if the address cannot be had."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(_reply(head, pages))
                await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    return await asyncio.start_server(answer, host, port, limit=_REQUEST_BYTES_MAX)


def _reply(head: bytes, pages: Mapping[str, Page]) -> bytes:
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    method, path = (words[0], words[1].split("?", 1)[0]) if len(words) >= 2 else ("", "")
    if method != "GET":
        status, kind, body = 405, "text/plain", b"GET only\n"
    elif path in pages:
        status, kind, body = pages[path]()
    else:
        status, kind, body = 404, "text/plain", f"try {' or '.join(pages)}\n".encode()
    lines = [
        f"HTTP/1.1 {status} {_REASONS.get(status, '')}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
