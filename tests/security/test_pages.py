"""What the daemons' HTTP pages tell strangers on the network: nothing that names a chunk."""

from __future__ import annotations

import asyncio
import http.client
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.config import parse
from controlplane.daemon import Controller
from kvdaemon.http import Answer, HttpServer
from tests.unit.controlplane.test_daemon import QUICK
from tests.unit.hostagent.agent_harness import Cluster, cluster, key

pytestmark = pytest.mark.security


def own_address() -> str:
    """An address of this machine that is not loopback; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has loopback only: nobody else could ask")
        address: str = sock.getsockname()[0]
    if address.startswith("127."):
        pytest.skip("this machine has loopback only: nobody else could ask")
    return address


def ask(host: str, port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(host, port, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, b"" if answer.getheader("Content-Type") == "text/event-stream" else answer.read()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def made() -> Iterator[tuple[Cluster, Controller]]:
    """A controller whose pages are everywhere, and an agent with a chunk."""
    with cluster(0) as it:

        async def start() -> Controller:
            controller = Controller(parse(QUICK | {"metrics": "0.0.0.0:0"}, Path()))
            await controller.start()
            return controller

        controller = it.do(start())
        try:
            it.add(controllers=[controller.grpc_address])
            client = it.client(0)
            client.put(key(1), None, random.Random(1).randbytes(4096), namespace="secret plans")
            it.until(lambda: it.agents[0].core.directory.find(key(1)) is not None)
            yield it, controller
        finally:
            for _, open_client in it.clients:
                open_client.close()
            for agent in it.agents:
                it.do(agent.stop())
            it.agents.clear()
            it.do(controller.stop())


def test_strangers_get_no_page_that_names_chunks(made: tuple[Cluster, Controller]) -> None:
    _, controller = made
    port = int(controller.metrics_address.rpartition(":")[2])
    for path in ("/", "/live", f"/v1/cost?keys={key(1).hex()}"):
        status, body = ask(own_address(), port, path)
        assert status == 403
        assert b"is for this machine only" in body
        assert ask("127.0.0.1", port, path)[0] == 200


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/nonsense"])
def test_what_strangers_get_names_no_chunk_and_no_namespace(made: tuple[Cluster, Controller], path: str) -> None:
    it, controller = made
    pages = [(own_address(), int(controller.metrics_address.rpartition(":")[2])), it.agents[0].http_address]
    for host, port in pages:
        _, body = ask(host, port, path)
        assert body
        assert key(1).hex().encode() not in body
        assert b"secret plans" not in body


def test_an_agent_listens_on_loopback_and_tells_its_machine_only(made: tuple[Cluster, Controller]) -> None:
    it, _ = made
    host, port = it.agents[0].http_address
    assert host == "127.0.0.1"
    assert ask(host, port, f"/v1/cost?keys={key(1).hex()}")[0] == 200
    with pytest.raises(ConnectionRefusedError):
        ask(own_address(), port, "/metrics")


def test_a_private_page_is_private_whatever_the_method() -> None:
    async def scenario() -> list[bytes]:
        server = HttpServer({"/": lambda: Answer("text/plain", b"keys")}, private={"/": "come nearer"})
        _, port = await server.listen("0.0.0.0", 0, "")
        said = []
        for request in (b"GET / HTTP/1.1", b"HEAD / HTTP/1.1", b"POST / HTTP/1.1", b"GET /?a=b HTTP/1.1"):
            reader, writer = await asyncio.open_connection(own_address(), port)
            writer.write(request + b"\r\n\r\n")
            said.append(await reader.read())
            writer.close()
        await server.close()
        return said

    for answer in asyncio.run(scenario()):
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert b"keys" not in answer
