"""A *simulated* API server of Kubernetes: objects of two kinds with resource versions, as its documentation says.

It is not Kubernetes. It keeps Leases and ConfigMaps in memory, refuses a change that names another version than the
object has (409), and does as the test says: slow, refusing, without memory. (kmock 0.8 takes a change whatever version
it names: of two candidates both would win.) It takes what the chart's Role grants, and nothing else: to create an
object, and to get and to replace one by its name.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_PATH = re.compile(
    r"/(?:api/v1|apis/coordination\.k8s\.io/v1)/namespaces/(?P<namespace>[^/]+)/(?P<kind>leases|configmaps)"
    r"(?:/(?P<name>[^/?]+))?(?:\?.*)?"
)
_KUBECONFIG = """apiVersion: v1
kind: Config
current-context: test
clusters: [{{name: test, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: test, user: {{token: secret}}}}]
contexts: [{{name: test, context: {{cluster: test, user: test}}}}]
"""


class SimulatedKubeApi:
    """Use `running`."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        """By kind, namespace and name."""
        self.delay_s = 0.0
        self.refuses: HTTPStatus | None = None
        self.requests: list[tuple[str, str]] = []
        self._versions = itertools.count(100)
        self._lock = threading.Lock()

    def answer(self, method: str, path: str, body: Any) -> tuple[HTTPStatus, dict[str, Any]]:
        """What a request gets."""
        self.requests.append((method, path))
        time.sleep(self.delay_s)  # it is slow, and other requests go on
        found = _PATH.fullmatch(path)
        if self.refuses is not None:
            return self.refuses, _status(self.refuses)
        if found is None:
            return HTTPStatus.NOT_FOUND, _status(HTTPStatus.NOT_FOUND)
        kind, namespace, name = found["kind"], found["namespace"], found["name"] or body["metadata"]["name"]
        with self._lock:
            return self._do(method, (kind, namespace, name), body)

    def _do(self, method: str, key: tuple[str, str, str], body: Any) -> tuple[HTTPStatus, dict[str, Any]]:
        there = self.objects.get(key)
        if method == "POST" and there is None:
            return HTTPStatus.CREATED, self._keep(key, body)
        if method == "POST":
            return HTTPStatus.CONFLICT, _status(HTTPStatus.CONFLICT)
        if there is None:
            return HTTPStatus.NOT_FOUND, _status(HTTPStatus.NOT_FOUND)
        if method == "PUT":
            if body["metadata"].get("resourceVersion", "") not in ("", there["metadata"]["resourceVersion"]):
                return HTTPStatus.CONFLICT, _status(HTTPStatus.CONFLICT)
            return HTTPStatus.OK, self._keep(key, body)
        return HTTPStatus.OK, there

    def _keep(self, key: tuple[str, str, str], body: Any) -> dict[str, Any]:
        body["metadata"] |= {"namespace": key[1], "resourceVersion": str(next(self._versions))}
        self.objects[key] = body
        return dict(body)


@contextlib.contextmanager
def running(folder: Path, port: int = 0) -> Iterator[tuple[SimulatedKubeApi, Path]]:
    """A server on loopback, and a kubeconfig that leads to it."""
    api = SimulatedKubeApi()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, answer = api.answer(self.command, self.path, json.loads(sent) if sent else {})
            content = json.dumps(answer).encode()
            with contextlib.suppress(OSError):  # whoever asked has waited long enough
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        do_GET = do_POST = do_PUT = _handle

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    config = folder / "kubeconfig"
    config.write_text(_KUBECONFIG.format(port=server.server_address[1]))
    try:
        yield api, config
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _status(status: HTTPStatus) -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": int(status), "reason": status.phrase}
