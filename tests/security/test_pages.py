"""What the daemons' HTTP pages tell strangers on the network: nothing that names a chunk."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bmv2_testbed.processes import child_environment
from kvdaemon.http import Answer, HttpServer
from p4switch_runtime.namespaces import namespace, run
from tests.security.pages_of_daemons import KEY, NAMESPACE

pytestmark = [
    pytest.mark.security,
    pytest.mark.root,
    pytest.mark.enters_namespace,
    pytest.mark.skipif(os.geteuid() != 0, reason="a network with strangers needs a namespace, and that needs root"),
]
ROOT = Path(__file__).resolve().parents[2]
STRANGER = "198.51.100.7"
"""An address that is not loopback: whoever asks it is seen as coming from it (RFC 5737)."""


def ask(host: str, port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(host, port, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, b"" if answer.getheader("Content-Type") == "text/event-stream" else answer.read()
    finally:
        connection.close()


@dataclass(frozen=True)
class Pages:
    controller_port: int
    agent: tuple[str, int]


@pytest.fixture(scope="module", autouse=True)
def network() -> Iterator[None]:
    """A network of the test's own, in which this machine has an address that others could reach."""
    with namespace():
        run(f"ip address add {STRANGER}/32 dev lo")
        yield


@pytest.fixture(scope="module")
def pages(network: None) -> Iterator[Pages]:
    argv = [sys.executable, "-m", "tests.security.pages_of_daemons"]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=child_environment()
    ) as daemons:
        assert daemons.stdout is not None
        said = json.loads(daemons.stdout.readline())
        host, port = said["agent"]
        yield Pages(said["controller_port"], (host, port))
        daemons.communicate(timeout=60)
    assert daemons.returncode == 0


def test_strangers_get_no_page_that_names_chunks(pages: Pages) -> None:
    for path in ("/", "/live", "/v1/events", f"/v1/cost?keys={KEY.hex()}"):
        status, body = ask(STRANGER, pages.controller_port, path)
        assert status == 403
        assert b"is for this machine only" in body
        assert ask("127.0.0.1", pages.controller_port, path)[0] == 200


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/nonsense"])
def test_what_strangers_get_names_no_chunk_and_no_namespace(pages: Pages, path: str) -> None:
    for host, port in ((STRANGER, pages.controller_port), pages.agent):
        _, body = ask(host, port, path)
        assert body
        assert KEY.hex().encode() not in body
        assert NAMESPACE.encode() not in body


def test_an_agent_listens_on_loopback_and_tells_its_machine_only(pages: Pages) -> None:
    host, port = pages.agent
    assert host == "127.0.0.1"
    assert ask(host, port, f"/v1/cost?keys={KEY.hex()}")[0] == 200
    with pytest.raises(ConnectionRefusedError):
        ask(STRANGER, port, "/metrics")


def test_a_private_page_is_private_whatever_the_method() -> None:
    async def scenario() -> list[bytes]:
        server = HttpServer({"/": lambda: Answer("text/plain", b"keys")}, private={"/": "come nearer"})
        _, port = await server.listen("0.0.0.0", 0, "")
        said = []
        for request in (b"GET / HTTP/1.1", b"HEAD / HTTP/1.1", b"POST / HTTP/1.1", b"GET /?a=b HTTP/1.1"):
            reader, writer = await asyncio.open_connection(STRANGER, port)
            writer.write(request + b"\r\n\r\n")
            said.append(await reader.read())
            writer.close()
        await server.close()
        return said

    for answer in asyncio.run(scenario()):
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert b"keys" not in answer
