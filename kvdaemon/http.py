"""A very small HTTP server for a daemon's pages, on its own event loop: one request per connection.

Pages are read with GET and HEAD: made at once and sent. Services take a question too, in the query of a GET or in the
body of a POST. A stream (`text/event-stream`) goes on until the peer has gone, takes nothing for a while, or the server
is closed. What a stream sends waits for the peer, so nothing piles up for one that is slow.

Who is connected to an HTTP server, and which connection ends when another one wants in.

Whether a request for a page of this machine comes from such a page.

A browser on the machine (or at the end of its tunnel) asks whatever the pages of strangers make it ask. A page of
theirs reads no answer of another origin; but who owns a name can let it lead to 127.0.0.1 (DNS rebinding), and then is
the same origin. The name stands in Host, and no page can write that.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import math
import os
import platform
import socket
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TypeAlias
from urllib.parse import parse_qsl

from prometheus_client import CollectorRegistry, Gauge, disable_created_metrics, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from kvdaemon.errors import CannotRunError
from kvproto import __version__


def header_fields(head: bytes) -> dict[str, list[str]]:
    """Fields of a request's head, names in lower case, several values of one name in order."""
    found: dict[str, list[str]] = {}
    for line in head.split(b"\r\n")[1:]:
        name, colon, value = line.decode("latin-1").partition(":")
        if colon:
            found.setdefault(name.strip().lower(), []).append(value.strip())
    return found


def is_own_origin(fields: Mapping[str, Sequence[str]], machine: str) -> bool:
    """Whether Host names an address, localhost or this `machine` and none that somebody else may own, and Origin, where
    there is one, the same. What is no browser may leave both out."""
    hosts, origins = fields.get("host", ()), fields.get("origin", ())
    if len(hosts) > 1 or len(origins) > 1:
        return False
    if hosts and not _is_own(_without_port(hosts[0]), machine):
        return False
    return not origins or (bool(hosts) and origins[0].partition("://")[2] == hosts[0])


def _without_port(host: str) -> str:
    return host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]


def _is_own(host: str, machine: str) -> bool:
    name = host.lower().rstrip(".")
    if name in ("localhost", machine.lower(), machine.lower().partition(".")[0]):
        return True
    try:
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


BACKLOG = 64
"""Connections that the kernel keeps for the server, and that one turn of the loop accepts."""
CONNECTIONS_PER_PEER_MAX = 96
"""From one address. More than one turn accepts: whose request came along is answered before others push it out."""
CONNECTIONS_MAX = 256
"""Of all; streams do not count, they have a limit of their own. The daemon keeps its file descriptors."""
STREAMS_MAX = 16
"""Connections that may be streams. Further streams get 503, so that metrics and health stay reachable."""
STREAMS_PER_ADDRESS_MAX = 8
"""Of one address: some places stay for others."""
assert BACKLOG < CONNECTIONS_PER_PEER_MAX < CONNECTIONS_MAX


@dataclass(slots=True)
class _Connection:
    writer: asyncio.StreamWriter
    address: str
    is_stream: bool = False
    is_ended: bool = False


class Connections:
    """In the order in which they came. No one is turned away: the oldest one of an address that has its share ends, and
    where all have too many, the oldest one of the address that has most. So who connects and is silent, or does not
    take its answer, shuts out itself."""

    def __init__(self) -> None:
        self._all: dict[asyncio.Task[None], _Connection] = {}

    def __len__(self) -> int:
        return len(self._all)

    def enter(self, task: asyncio.Task[None], writer: asyncio.StreamWriter) -> None:
        """`task` serves a new one."""
        peer = writer.get_extra_info("peername")
        address = peer[0] if peer else ""
        waiting = [one for one in self._all.values() if not one.is_stream and not one.is_ended]
        counts = Counter(one.address for one in waiting)
        if counts[address] >= CONNECTIONS_PER_PEER_MAX:
            _end_oldest(one for one in waiting if one.address == address)
        elif len(waiting) >= CONNECTIONS_MAX:
            ((greediest, _),) = counts.most_common(1)
            _end_oldest(one for one in waiting if one.address == greediest)
        self._all[task] = _Connection(writer, address)

    def leave(self, task: asyncio.Task[None]) -> None:
        """It has ended."""
        self._all.pop(task).writer.transport.abort()

    def becomes_stream(self, task: asyncio.Task[None]) -> str:
        """It goes on for as long as its peer likes, and does not count any more. Or why it may not."""
        own, streams = self._all[task], [one.address for one in self._all.values() if one.is_stream]
        if len(streams) >= STREAMS_MAX:
            return f"{STREAMS_MAX} watch already: try again later"
        if streams.count(own.address) >= STREAMS_PER_ADDRESS_MAX:
            return f"{own.address} has {STREAMS_PER_ADDRESS_MAX} streams already: close one of them"
        own.is_stream = True
        return ""

    async def end_all(self) -> None:
        """End every one, and wait for those who serve them."""
        for one in self._all.values():
            one.writer.transport.abort()
        if self._all:
            await asyncio.wait(self._all)


def _end_oldest(connections: Iterable[_Connection]) -> None:
    oldest = next(iter(connections))
    oldest.is_ended = True
    oldest.writer.transport.abort()


REQUEST_BYTES_MAX = 8192
"""The longest head of a request."""
BODY_BYTES_MAX = 1 << 20
TIMEOUT_S = 5.0
"""How long a peer may take to send a request, and again to take the answer."""
STREAM_TIMEOUT_S = 20.0
"""How long a peer of a stream may take nothing before the stream ends."""
STREAM_BUFFER_BYTES = 64 << 10
"""A stream waits when this much is sent and not taken, beyond the kernel's buffers."""
NAMELESS = frozenset({"/metrics", "/healthz", "/livez", "/readyz"})
"""What names no chunk and no namespace: for scrapers and probes, by whatever name they know this machine."""
_EVERYWHERE = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Header fields of every answer: browsers must not cache it, guess its type, frame it, send it as a referrer or load it
into another site's page."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The body of a page, its type, its status and its header fields."""

    content_type: str
    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    fields: Mapping[str, str] = field(default_factory=dict)
    """More header fields."""


Page: TypeAlias = Callable[[], Answer]
Stream: TypeAlias = Callable[[Mapping[str, str]], AsyncGenerator[bytes, None]]
"""Server-sent events, each ended by an empty line (WHATWG HTML, 9.2), for a query; a client that comes again says the
last id that it knows, which counts as `since`. Closed when the peer has gone."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a service is asked."""

    query: Mapping[str, str]
    """Of a GET; of several values of a name the last counts."""
    body: bytes | None
    """Of a POST; None: it was a GET."""


Service: TypeAlias = Callable[[Question], Answer]


def metrics_page(registry: CollectorRegistry, component: str) -> Page:
    """For Prometheus, with `kvcast_build_info` added. `component`: which daemon it is."""
    disable_created_metrics()  # type: ignore[no-untyped-call]  # it would double the series of each counter
    build = Gauge("kvcast_build_info", "1; what runs here", ["component", "version", "python"], registry=registry)
    build.labels(component, __version__, platform.python_version()).set(1)
    return lambda: Answer(CONTENT_TYPE_LATEST, generate_latest(registry))


def json_page(facts: Callable[[], Mapping[str, object]]) -> Page:
    """What `facts` returns, as JSON."""
    return lambda: Answer("application/json", json.dumps(facts(), indent=1).encode() + b"\n")


def json_service(
    answer: Callable[[Question], Mapping[str, object]], malformed: type[Exception], busy: type[Exception]
) -> Service:
    """What `answer` returns, as JSON. It raises `malformed` for a question that makes no sense, and `busy` when there
    are too many: its `after_s` says when to ask again."""

    def service(question: Question) -> Answer:
        try:
            facts = answer(question)
        except malformed as error:
            return words_page(HTTPStatus.BAD_REQUEST, str(error))
        except busy as error:
            after_s = math.ceil(getattr(error, "after_s", 1.0))
            return words_page(HTTPStatus.TOO_MANY_REQUESTS, str(error), {"Retry-After": str(after_s)})
        return Answer("application/json", json.dumps(facts).encode() + b"\n")

    return service


class HttpServer:
    """Serves pages and streams by their paths. One that raises is a bug: 500, or the end of the stream, and the event
    loop's exception handler runs."""

    def __init__(
        self,
        pages: Mapping[str, Page],
        streams: Mapping[str, Stream] | None = None,
        services: Mapping[str, Service] | None = None,
        private: Mapping[str, str] | None = None,
    ) -> None:
        """All by their paths. `private`: paths for processes of this machine only, each with the remedy that other
        machines read in the refusal."""
        self._private = private or {}
        self._pages = pages
        self._streams = streams or {}
        self._services = services or {}
        self._server: asyncio.Server | None = None
        self._connections = Connections()

    @property
    def connections_count(self) -> int:
        """Peers that are being served."""
        return len(self._connections)

    async def listen(self, host: str, port: int, remedy: str) -> tuple[str, int]:
        """Start; port 0 takes any. Returns the bound address. Raises CannotRunError, which ends with `remedy`."""
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=REQUEST_BYTES_MAX, backlog=BACKLOG)
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
        await self._connections.end_all()
        await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or self._server is None:
            writer.transport.abort()
            return
        self._connections.enter(task, writer)
        try:
            head = await _request_head(reader)
            if head is not None:
                method, path, query = _request(head)
                if refusal := self._refusal(path, head, writer):
                    await _send(writer, _encode(words_page(HTTPStatus.FORBIDDEN, refusal)))
                elif method == "GET" and path in self._streams:
                    if refusal := self._connections.becomes_stream(task):
                        await _send(writer, _encode(words_page(HTTPStatus.SERVICE_UNAVAILABLE, refusal)))
                        return
                    last = [("since", one) for one in header_fields(head).get("last-event-id", [])]
                    await self._stream(self._streams[path](dict(parse_qsl(query) + last)), path, reader, writer)
                else:
                    await _send(writer, await self._reply(method, path, query, head, reader))
        finally:
            self._connections.leave(task)

    def _refusal(self, path: str, head: bytes, writer: asyncio.StreamWriter) -> str:
        """Why this peer does not get a page; empty if it does."""
        is_private = path in self._private
        if is_private and not _is_near(writer):
            return f"{path} is for this machine only: {self._private[path]}"
        is_for_programs = path in self._services and not is_private
        if path in NAMELESS or is_for_programs or is_own_origin(header_fields(head), socket.gethostname()):
            return ""
        return f"{path}: this name may be a stranger's: ask by localhost, an address, or the machine's own name"

    async def _reply(self, method: str, path: str, query: str, head: bytes, reader: asyncio.StreamReader) -> bytes:
        if not path:
            return _encode(words_page(HTTPStatus.BAD_REQUEST, "not an HTTP request"))
        if path in self._services and method == "POST":
            body = await _request_body(head, reader)
            return _encode(body if isinstance(body, Answer) else self._answer(path, Question({}, body)))
        if method not in ("GET", "HEAD"):
            return _encode(_not_allowed("GET, HEAD and POST" if path in self._services else "GET and HEAD"))
        if path in self._streams:
            return _STREAM_HEAD
        return _encode(self._answer(path, Question(dict(parse_qsl(query)), None)), with_body=method == "GET")

    async def _stream(
        self,
        events: AsyncGenerator[bytes, None],
        path: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Until the peer has gone or is too slow."""
        sending = asyncio.create_task(_send_events(writer, events))
        gone = asyncio.create_task(_until_client_left(reader))
        try:
            await asyncio.wait((sending, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, gone):
                task.cancel()
            problem, _ = await asyncio.gather(sending, gone, return_exceptions=True)
        if isinstance(problem, Exception):
            context = {"message": f"the stream {path} broke off", "exception": problem}
            asyncio.get_running_loop().call_exception_handler(context)

    def _answer(self, path: str, question: Question) -> Answer:
        page, service = self._pages.get(path), self._services.get(path)
        if page is None and service is None:
            known = (*self._pages, *self._services, *self._streams)
            return words_page(HTTPStatus.NOT_FOUND, f"try {' or '.join(known)}")
        try:
            return page() if page is not None else service(question)  # type: ignore[misc]  # one of them is there
        except Exception as error:  # noqa: BLE001 - goes to the handler of bugs
            context = {"message": f"the page {path} failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
            return words_page(HTTPStatus.INTERNAL_SERVER_ERROR, "a bug: the log has more")


def _is_near(writer: asyncio.StreamWriter) -> bool:
    """Whether the peer is a process of this machine, as far as its address says."""
    peer = writer.get_extra_info("peername")
    return peer is not None and ipaddress.ip_address(peer[0].partition("%")[0]).is_loopback


async def _request_head(reader: asyncio.StreamReader) -> bytes | None:
    """None if the peer is gone, too slow, or sends too much."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        async with asyncio.timeout(TIMEOUT_S):
            return await reader.readuntil(b"\r\n\r\n")
    return None


def _request(head: bytes) -> tuple[str, str, str]:
    """Method, path and query; no path where it is not an HTTP request."""
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    if len(words) != 3:
        return "", "", ""
    path, _, query = words[1].partition("?")
    return words[0], path, query


async def _send_events(writer: asyncio.StreamWriter, events: AsyncGenerator[bytes, None]) -> None:
    """Send each as soon as those before it are taken, but for some in buffers."""
    writer.transport.set_write_buffer_limits(high=STREAM_BUFFER_BYTES)
    with contextlib.suppress(OSError):  # TimeoutError is one
        async with contextlib.aclosing(events):
            writer.write(_STREAM_HEAD)
            async for event in events:
                writer.write(event)
                async with asyncio.timeout(STREAM_TIMEOUT_S):
                    await writer.drain()
                # `drain` does not give way while the kernel takes all, and an event may have cost milliseconds.
                await asyncio.sleep(0)


async def _until_client_left(reader: asyncio.StreamReader) -> None:
    """Wait until the peer of a stream closes it. What it sends meanwhile is dropped."""
    with contextlib.suppress(OSError):
        while await reader.read(REQUEST_BYTES_MAX):
            pass


async def _request_body(head: bytes, reader: asyncio.StreamReader) -> bytes | Answer:
    """The body, or why there is none."""
    lengths = header_fields(head).get("content-length", [])
    if len(lengths) != 1 or not (lengths[0].isascii() and lengths[0].isdigit()):
        return words_page(HTTPStatus.LENGTH_REQUIRED, "a POST needs Content-Length")
    if len(lengths[0]) > 9 or int(lengths[0]) > BODY_BYTES_MAX:
        return words_page(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {BODY_BYTES_MAX} bytes")
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        async with asyncio.timeout(TIMEOUT_S):
            return await reader.readexactly(int(lengths[0]))
    return words_page(HTTPStatus.BAD_REQUEST, f"the body did not arrive within {TIMEOUT_S:g} s")


async def _send(writer: asyncio.StreamWriter, reply: bytes) -> None:
    """Send all of it, or as much as the peer accepts in time."""
    with contextlib.suppress(OSError):
        async with asyncio.timeout(TIMEOUT_S):
            writer.write(reply)
            writer.close()
            await writer.wait_closed()


def words_page(status: HTTPStatus, text: str, fields: Mapping[str, str] | None = None) -> Answer:
    """A line or more of plain text."""
    return Answer("text/plain", f"{text}\n".encode(), status, fields or {})


def _encode(answer: Answer, *, with_body: bool = True) -> bytes:
    fields = {"Content-Type": answer.content_type, "Content-Length": str(len(answer.body)), **answer.fields}
    return _head(answer.status, fields) + (answer.body if with_body else b"")


def _not_allowed(methods: str) -> Answer:
    """RFC 9110, 15.5.6."""
    return words_page(HTTPStatus.METHOD_NOT_ALLOWED, f"only {methods}", {"Allow": methods.replace(" and", ",")})


def _head(status: HTTPStatus, fields: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status.value} {status.phrase}"]
    lines += [f"{name}: {value}" for name, value in {**fields, **_EVERYWHERE, "Connection": "close"}.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


_STREAM_HEAD = _head(HTTPStatus.OK, {"Content-Type": "text/event-stream"})


def _reason(error: OSError | UnicodeError) -> str:
    """The reason without asyncio's own words, which repeat the address."""
    if isinstance(error, OSError) and not isinstance(error, socket.gaierror) and error.errno is not None:
        return os.strerror(error.errno)
    return getattr(error, "strerror", None) or str(error)
