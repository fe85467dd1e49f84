"""A small server that speaks as much of S3 as opendal uses, and refuses what a test says it should."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from hostagent.cold.cold_options import ColdConfig, SecretPlace

Refusals = dict[str, tuple[int, str, str]]
"""By method: status, S3's code, its message."""


@contextmanager
def s3_server(refusals: Refusals, *, lists: bool = True) -> Iterator[int]:
    """Its port. `lists`: who asks may list the bucket, so that a missing object is 404 and not 403."""
    objects: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Says nothing."""

        def say(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in {"content-length": str(len(body)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def refuse(self, status: int, code: str, message: str) -> None:
            self.say(
                status, f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
            )

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            name = self.path.partition("?")[0]
            refused = refusals.get(self.command)
            if refused is not None:
                self.refuse(*refused)
            elif self.command == "PUT":
                objects[name] = body
                self.say(200, etag='"x"')
            elif self.command == "DELETE":
                objects.pop(name, None)
                self.say(204)
            elif name not in objects:
                self.refuse(*((404, "NoSuchKey", "none") if lists else (403, "AccessDenied", "no s3:ListBucket")))
            else:
                self.say_object(objects[name])

        def say_object(self, content: bytes) -> None:
            asked = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
            if asked is None:
                self.say(200, content, etag='"x"')
                return
            first, last = int(asked[1]), min(int(asked[2]), len(content) - 1)
            where = f"bytes {first}-{last}/{len(content)}"
            self.say(206, content[first : last + 1], content_range=where, etag='"x"')

        do_GET = do_HEAD = do_PUT = do_DELETE = answer

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def s3_config(port: int) -> ColdConfig:
    """Of an agent that keeps its cold chunks there."""
    place = SecretPlace(variable="KVCAST_TEST_S3_SECRET")
    options = {"bucket": "pool", "endpoint": f"http://127.0.0.1:{port}", "region": "us-east-1"}
    return ColdConfig("s3", options, {"access_key_id": place, "secret_access_key": place}, timeout_s=20)
