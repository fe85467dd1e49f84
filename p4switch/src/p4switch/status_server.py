"""The switch's pages over HTTP: metrics and health.

/metrics   counters for Prometheus
/livez     200 while packets' thread turns, else 503
/readyz    200 while a program runs, else 503
/healthz   200; what runs, as JSON
/stats     200; every counter, as JSON
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from p4switch import __version__, metrics
from p4switch.errors import SwitchError
from p4switch.listening import host_and_port, refusal

log = logging.getLogger(__name__)

FLAG = "--http"
REQUEST_TIMEOUT_S = 5.0
CONNECTIONS_MAX = 64
"""At a time. Where one more comes, the oldest one of the address that has most ends: who is silent makes room."""

STALL_S = 2.0
"""The packet thread wakes up every tenth of a second: as long without one, it hangs."""


class Observed(Protocol):
    """What the pages show."""

    def stats(self) -> dict[str, Any]: ...


@dataclass(slots=True)
class Liveness:
    """Whether a count that always grows still does. Pure."""

    count: int = -1
    since_s: float = 0.0

    def alive(self, count: int, now_s: float) -> bool:
        """`count` at `now_s`; False once it has been the same for STALL_S."""
        if count != self.count:
            self.count, self.since_s = count, now_s
        return now_s - self.since_s < STALL_S


@dataclass(frozen=True, slots=True)
class Page:
    """An answer."""

    status: HTTPStatus
    content_type: str
    body: bytes


class StatusServer:
    """Serves the pages while it is entered. Raises SwitchError when it cannot listen."""

    def __init__(self, address: str, switch: Observed) -> None:
        host, port = host_and_port(address, FLAG)
        pages = Pages(switch)
        try:
            self._server = _Server((host, port), pages)
        except OSError as error:
            raise refusal(address, error, FLAG) from error
        self.address = f"{address.rpartition(':')[0]}:{self._server.server_address[1]}"
        """HOST:PORT with the port that was chosen."""
        self._thread = threading.Thread(target=self._server.serve_forever, name="p4switch-http", daemon=True)

    def __enter__(self) -> StatusServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Pages:
    """What each path answers. Thread-safe as far as the switch is."""

    def __init__(self, switch: Observed, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._switch = switch
        self._clock_s = clock_s
        self._liveness = Liveness()
        self._lock = threading.Lock()
        self._pages: dict[str, Callable[[dict[str, Any]], Page]] = {
            "/metrics": self._metrics,
            "/livez": self._livez,
            "/readyz": self._readyz,
            "/healthz": self._healthz,
            "/stats": lambda stats: _json(stats),
        }

    def answer(self, path: str) -> Page:
        """The page at `path` now."""
        page = self._pages.get(path)
        if page is None:
            return _words(HTTPStatus.NOT_FOUND, f"try {', '.join(self._pages)}")
        return page(self._switch.stats())

    def _metrics(self, stats: dict[str, Any]) -> Page:
        return Page(HTTPStatus.OK, metrics.CONTENT_TYPE, metrics.render(stats, __version__).encode())

    def _livez(self, stats: dict[str, Any]) -> Page:
        with self._lock:
            alive = self._liveness.alive(stats["switch"]["wakeups"], self._clock_s())
        if alive:
            return _words(HTTPStatus.OK, "alive")
        return _words(HTTPStatus.SERVICE_UNAVAILABLE, f"the packet thread has not turned for {STALL_S:g} s")

    def _readyz(self, stats: dict[str, Any]) -> Page:
        if stats["program"] is not None:
            return _words(HTTPStatus.OK, "ready")
        return _words(HTTPStatus.SERVICE_UNAVAILABLE, "no program: name one, or let a controller push one")

    def _healthz(self, stats: dict[str, Any]) -> Page:
        up = sorted((int(number) for number, port in stats["ports"].items() if port["up"]))
        down = sorted((int(number) for number, port in stats["ports"].items() if not port["up"]))
        facts = {
            "status": "no program" if stats["program"] is None else "ready",
            "version": __version__,
            "program": stats["program"],
            "ports_up": up,
            "ports_down": down,
            "p4runtime": stats["p4runtime"],
        }
        return _json(facts)


def _words(status: HTTPStatus, text: str) -> Page:
    return Page(status, "text/plain; charset=utf-8", text.encode() + b"\n")


def _json(facts: dict[str, Any]) -> Page:
    return Page(HTTPStatus.OK, "application/json", json.dumps(facts, indent=1).encode() + b"\n")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = CONNECTIONS_MAX

    def __init__(self, where: tuple[str, int], pages: Pages) -> None:
        self.pages = pages
        self._open: dict[socket.socket, str] = {}
        """In the order in which they came, with the peer's address."""
        self._lock = threading.Lock()
        self.address_family = socket.AF_INET6 if ":" in where[0] else socket.AF_INET
        super().__init__(where, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._open) >= CONNECTIONS_MAX:
                ((greediest, _),) = Counter(self._open.values()).most_common(1)
                oldest = next(one for one, address in self._open.items() if address == greediest)
                del self._open[oldest]
                with contextlib.suppress(OSError):  # it is gone already
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread reads the end
            self._open[request] = client_address[0]
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a page that cannot be made, but not a client that has gone."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError | SwitchError):
            log.exception("a page cannot be made")


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = REQUEST_TIMEOUT_S
    server_version = f"p4switch/{__version__}"

    def do_GET(self) -> None:
        self._reply(with_body=True)

    def do_HEAD(self) -> None:
        self._reply(with_body=False)

    def _reply(self, *, with_body: bool) -> None:
        page = self.server.pages.answer(self.path.split("?", 1)[0])
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        self.end_headers()
        if with_body:
            self.wfile.write(page.body)

    def log_message(self, *_: object) -> None:
        """Requests are not logged."""
