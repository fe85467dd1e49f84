"""A proxy for one prefill and one or more decoders, which speaks to servers as the proxies made for NIXL do.

It knows nothing of kvcast: it passes on whatever `kv_transfer_params` the first server answers with.
"""

from __future__ import annotations

import itertools
import json
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PREFILL = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
ANSWER_S = 300.0
PIECE_BYTES = 4096


def post(url: str, path: str, body: dict[str, Any]) -> Any:
    """An open answer to a request."""
    request = urllib.request.Request(
        f"{url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    return urllib.request.urlopen(request, timeout=ANSWER_S)


class _Handler(BaseHTTPRequestHandler):
    server: ToyProxy
    protocol_version = "HTTP/1.0"

    def do_POST(self) -> None:
        """Prefill here, decode there."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        first = {**body, "kv_transfer_params": PREFILL, "stream": False, "max_tokens": 1}
        first.pop("stream_options", None)
        with post(self.server.prefiller, self.path, first) as answer:
            parameters = json.load(answer).get("kv_transfer_params")
        if parameters:
            body["kv_transfer_params"] = parameters
        with post(next(self.server.decoders), self.path, body) as answer:
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.headers["Content-Type"])
            self.end_headers()
            while piece := answer.read1(PIECE_BYTES):
                self.wfile.write(piece)
                self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class ToyProxy(ThreadingHTTPServer):
    """Listens at a port of its own on loopback."""

    daemon_threads = True

    def __init__(self, prefiller: str, decoders: Sequence[str]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.prefiller = prefiller
        self.decoders = itertools.cycle(decoders)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away in the middle is none of ours."""


@contextmanager
def proxying(prefiller: str, decoders: Sequence[str]) -> Iterator[str]:
    """A proxy for the time of a `with` block: its URL."""
    proxy = ToyProxy(prefiller, decoders)
    thread = threading.Thread(target=proxy.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{proxy.server_address[1]}"
    finally:
        proxy.shutdown()
        thread.join()
        proxy.server_close()
