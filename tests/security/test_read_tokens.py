"""Strangers and members of other tenants against the reads of running agents, under a running controller."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.config import parse
from controlplane.daemon import Controller
from hostagent.transport.read_protocol import (
    ANSWER,
    KIND_LEAVES,
    KIND_OPEN,
    KIND_READ,
    KIND_TOKEN,
    RANGE,
    STATUS_ABSENT,
    STATUS_OK,
    pack_request,
    pack_tokens,
)
from hostagent.transport.read_tokens import Refusal
from kvclient.client import AgentClient, Status
from tests.unit.controlplane.test_daemon import QUICK
from tests.unit.hostagent.agent_harness import MIB, Cluster, cluster, key

pytestmark = pytest.mark.security

OWNERS = {"acme/*": ["n0", "n1"], "globex": ["n2"]}
BODY = random.Random(8).randbytes(MIB)
DEADLINE_S = 10.0


@pytest.fixture(scope="module")
def made() -> Iterator[Cluster]:
    """n0 and n1 are acme's, n2 is globex's; n0 has chunk 1 of acme's and chunk 2 of everybody's."""
    with cluster(0) as it:

        async def start() -> Controller:
            controller = Controller(parse(QUICK | {"namespaces": OWNERS}, Path()))
            await controller.start()
            return controller

        controller = it.do(start())
        try:
            for _ in range(3):
                it.add(controllers=[controller.grpc_address])
            client = it.client(0)
            client.put(key(1), None, BODY, namespace="acme/llama")
            client.put(key(2), None, BODY)
            it.until(lambda: all(agent.core.directory.find(key(2)) is not None for agent in it.agents))
            yield it
        finally:
            for _, open_client in it.clients:
                open_client.close()
            for agent in it.agents:
                it.do(agent.stop())
            it.agents.clear()
            it.do(controller.stop())


class Stranger:
    """A TCP connection to an agent's read endpoint, from an address of one's choice."""

    def __init__(self, made: Cluster, holder: int = 0, address: str = "127.79.0.200") -> None:
        host, _, port = made.agents[holder].facts.read_endpoint.rpartition(":")
        self.sock = socket.create_connection((host, int(port)), timeout=DEADLINE_S, source_address=(address, 0))

    def ask(self, kind: int, number: int, size_bytes: int = 4096) -> tuple[int, bytes]:
        """(status, bytes) of the answer."""
        self.sock.sendall(pack_request(kind, 7, RANGE.pack(0, size_bytes, key(number))))
        return self.answer()

    def answer(self) -> tuple[int, bytes]:
        head = self._take(ANSWER.size)
        _, _, status, _, _, body_bytes = ANSWER.unpack(head)
        return status, self._take(body_bytes)

    def _take(self, size_bytes: int) -> bytes:
        got = b""
        while len(got) < size_bytes:
            part = self.sock.recv(size_bytes - len(got))
            if not part:
                raise ConnectionResetError
            got += part
        return got


@contextlib.contextmanager
def stranger(made: Cluster, **where: object) -> Iterator[Stranger]:
    one = Stranger(made, **where)  # type: ignore[arg-type]
    with one.sock:
        yield one


def dropped(made: Cluster, index: int, reason: str) -> int:
    return made.call(lambda: made.agents[index].transport.counters.dropped.get(reason, 0))


@pytest.mark.parametrize("kind", [KIND_READ, KIND_OPEN, KIND_LEAVES])
def test_who_shows_no_token_gets_nothing_and_hears_why(made: Cluster, kind: int) -> None:
    before = dropped(made, 0, "read_unadmitted_no_token")
    with stranger(made) as one:
        assert one.ask(kind, 2) == (Refusal.NO_TOKEN, b"")
        assert one.ask(kind, 3) == (Refusal.NO_TOKEN, b""), "the same whether the chunk is here or not"
    assert dropped(made, 0, "read_unadmitted_no_token") == before + 2


def test_a_token_that_was_overheard_is_good_from_no_other_address(made: Cluster) -> None:
    overheard = made.call(lambda: made.agents[1].tokens.shown)
    with stranger(made) as thief:
        thief.sock.sendall(pack_tokens(overheard))
        assert thief.ask(KIND_READ, 2) == (Refusal.WRONG_TOKEN, b"")
    with stranger(made, address="127.79.0.2") as n1:
        n1.sock.sendall(pack_tokens(overheard))
        assert n1.ask(KIND_READ, 2) == (STATUS_OK, BODY[:4096])


def test_a_member_gets_no_chunk_of_another_tenant(made: Cluster) -> None:
    token = made.call(lambda: made.agents[2].tokens.shown)
    with stranger(made, address="127.79.0.3") as globex:
        globex.sock.sendall(pack_tokens(token))
        assert globex.ask(KIND_READ, 2)[0] == STATUS_OK, "what is everybody's"
        for kind in (KIND_READ, KIND_LEAVES):
            assert globex.ask(kind, 1) == (STATUS_ABSENT, b""), "as if it were not here"
    assert dropped(made, 0, "read_foreign_namespace") >= 2


def test_bytes_that_are_no_tokens_end_the_connection_or_open_nothing(made: Cluster) -> None:
    chooser = random.Random(3)
    for size in (1, 47, 48, 49, 1000, 65536):
        with stranger(made) as one:
            one.sock.sendall(pack_tokens(chooser.randbytes(size)))
            assert one.ask(KIND_READ, 2) == (Refusal.WRONG_TOKEN, b"")
    for size in (0, 65537, (1 << 64) - 1):
        with stranger(made) as one:
            one.sock.sendall(pack_request(KIND_TOKEN, 0, struct.pack("!QQ16s", size, 0, bytes(16))))
            with pytest.raises(ConnectionResetError):
                one.ask(KIND_READ, 2)


def test_honest_nodes_read_each_other(made: Cluster) -> None:
    client: AgentClient = made.client(1)
    with client.fetch([key(1)], deadline_s=DEADLINE_S) as got:
        assert (got.outcome, [bytes(view) for view in got.views]) == (Status.OK, [BODY])
    found = made.agents[1].core.pool.find(key(1))
    assert found is not None
    assert found.namespace == "acme/llama", "a copy keeps its tenant"
    client.drop([key(1)])
