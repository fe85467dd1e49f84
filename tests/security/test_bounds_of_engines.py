"""Engines that claim without end, and records that one side could take and the other refuse: with a running controller
and running agents."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from controlplane.config import parse
from controlplane.daemon import Controller
from hostagent import limits
from hostagent.pool.chunks import Chunk
from kvclient.attach import attach
from kvclient.connection import Connection
from kvclient.messages import NO_KEY, NO_POSITION, RESERVE, Kind, Status
from kvclient.request_encoding import Message, contains
from kvproto.limits import CLAIMS_PER_NODE_MAX, PREFIX_CHUNKS_MAX
from tests.digests import hashed
from tests.unit.controlplane.test_daemon import QUICK
from tests.unit.hostagent.agent_harness import MIB, Cluster, cluster, key

pytestmark = pytest.mark.security

BODY = bytes(range(256)) * 16


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[tuple[Cluster, Controller]]:
    with cluster(0) as it:
        controller = Controller(parse(QUICK, tmp_path))
        it.do(controller.start())
        try:
            for _ in range(2):
                it.add(controllers=[controller.grpc_address], pool_bytes=64 * MIB)
            it.until(lambda: len(controller.core.attachments.sessions) == 2)
            yield it, controller
        finally:
            for _, client in it.clients:
                client.close()
            for agent in it.agents:
                it.do(agent.stop())
            it.agents.clear()
            it.do(controller.stop())


@contextmanager
def own_connection(it: Cluster) -> Iterator[Connection]:
    """To the first agent, without our client's checks."""
    path = it.agents[0].config.api_socket
    with attach(path) as attached:
        connection = Connection(path, attached.sock, 60)
        try:
            yield connection
        finally:
            connection.close()


def knows(it: Cluster, index: int, number: int) -> bool:
    return it.agents[index].core.directory.find(key(number)) is not None


def test_connections_that_claim_without_end_are_refused_and_stop_nobody(pool: tuple[Cluster, Controller]) -> None:
    it, controller = pool
    claims = it.agents[0].core.claims
    for engine in range(10):
        numbers = range(1_000_000 * (engine + 1), 1_000_000 * (engine + 1) + 7168)
        mine = it.client(0)
        mine.claim([key(number) for number in numbers], 4096, [500.0] * len(numbers))
        assert mine.contains([key(1)])  # so all frames before it are taken
    assert claims.counts.made + claims.counts.refused == 71_680
    assert claims.claims_count <= CLAIMS_PER_NODE_MAX
    it.until(lambda: it.agents[1].core.claims.claims_count == claims.claims_count)
    assert controller.core.claims.claims_count == claims.claims_count
    assert controller.core.claims.refused_count == 0, "what the agent takes, the controller takes"
    it.client(0).put(key(1), None, BODY)
    it.until(lambda: knows(it, 1, 1))
    with it.client(1).fetch([key(1)], deadline_s=5.0) as fetched:
        assert bytes(fetched.views[0]) == BODY
    assert len(controller.core.attachments.sessions) == 2


def test_a_chunk_that_is_its_own_parent_is_refused_to_its_engine(pool: tuple[Cluster, Controller]) -> None:
    it, controller = pool
    mine = it.client(0)
    with pytest.raises(ValueError, match="not its own parent"):
        mine.put(key(2), key(2), BODY)
    with own_connection(it) as connection:
        for parent, position in ((key(2), NO_POSITION), (NO_KEY, PREFIX_CHUNKS_MAX)):
            asked = connection.start(Message(Kind.RESERVE, RESERVE.pack(key(2), parent, len(BODY), position)))
            assert connection.wait_for(asked).status == Status.MALFORMED
    it.client(0).put(key(3), None, BODY)
    it.until(lambda: knows(it, 1, 3))
    assert controller.core.decisions["record_refused_copy"] == 0


def test_a_bad_record_of_an_agent_costs_that_record(
    pool: tuple[Cluster, Controller], caplog: pytest.LogCaptureFixture
) -> None:
    """As an agent of an earlier release would have it in its pool, or on its disk."""
    it, controller = pool
    agent = it.agents[0]

    def put_bad() -> None:
        made = agent.core.pool.reserve(key(4), key(4), 4096)
        assert isinstance(made, Chunk)
        agent.core.pool.commit(made, hashed(4))

    with caplog.at_level(logging.WARNING):
        it.call(put_bad)
        it.client(0).put(key(5), None, BODY)
        it.until(lambda: knows(it, 1, 5) and agent.attachment.refused["copy"] == 1)
    assert not knows(it, 1, 4)
    assert controller.core.decisions["record_refused_copy"] == 1
    assert len(controller.core.attachments.sessions) == 2
    assert agent.metrics.flat()["refused_by_controller_total{copy}"] == 1
    said = [one.getMessage() for one in caplog.records if "its own parent" in one.getMessage()]
    assert len(said) == 2, "the controller once, the agent once"


def test_a_claim_of_no_size_is_refused_and_its_engine_goes_on(pool: tuple[Cluster, Controller]) -> None:
    it, _ = pool
    too_large = limits.CHUNK_BYTES_MAX + 1
    body = too_large.to_bytes(8, "big") + key(6) + (1_000_000).to_bytes(8, "big")
    with own_connection(it) as connection:
        connection.notify(Message(Kind.CLAIM, body, 1))
        assert connection.wait_for(connection.start(contains([key(6)]).message)).status == Status.OK
    assert it.agents[0].core.claims.counts.refused == 1
