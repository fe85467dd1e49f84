"""A member's word against the copies of others, on a running controller with running agents."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest

from controlplane.daemon import Controller
from kvclient.client import Status
from kvproto.rpc import control_pb2 as rpc
from tests.digests import digest
from tests.unit.controlplane.fake_agent import FakeAgent
from tests.unit.hostagent.agent_harness import MIB, Cluster, cluster_of_controller, key

pytestmark = pytest.mark.security

DEADLINE_S = 10.0
LIARS_POISON = digest(666)


@pytest.fixture
def made() -> Iterator[tuple[Cluster, Controller]]:
    """Two honest nodes under a controller."""
    with cluster_of_controller({}, {}) as made:
        yield made


async def attacked(controller: Controller, expected: bytes) -> None:
    """A member announces poison under the key and says, many times, that the honest copy is bad."""
    poison = rpc.ChunkRecord(key=key(1), size_bytes=MIB, digest=LIARS_POISON)
    async with FakeAgent(controller.grpc_address, 9, [poison], read_endpoint="127.79.0.9:1") as liar:
        await liar.attached()
        await liar.until(lambda: key(1) in liar.entries)
        for _ in range(20):
            for claimed in (expected, LIARS_POISON):
                liar.say(bad_copy=rpc.BadCopy(key=key(1), holder=0, expected=claimed, found=LIARS_POISON))
        await liar.until(lambda: list(liar.entries[key(1)].others) != [])
        offered = liar.entries[key(1)]
        assert offered.digest == expected, "who was there first is offered first"
        assert [one.digest for one in offered.others] == [LIARS_POISON], "and the other one, too, kept apart"
        assert list(offered.holders) == [0], "whatever the liar says"


def test_nobodys_word_drops_anothers_copy(made: tuple[Cluster, Controller]) -> None:
    it, controller = made
    body = random.Random(2).randbytes(MIB)
    it.client(0).put(key(1), None, body)
    it.until(lambda: it.agents[1].core.directory.find(key(1)) is not None)
    found = it.agents[0].core.pool.find(key(1))
    assert found is not None
    it.do(attacked(controller, found.digest))
    it.until(lambda: controller.core.decisions["bad_copy_rechecked"] == 1)
    with it.client(1).fetch([key(1)], deadline_s=DEADLINE_S) as got:
        assert (got.outcome, [bytes(view) for view in got.views]) == (Status.OK, [body])
    assert it.agents[0].core.pool.find(key(1)) is found, "the holder has compared its own copy, and keeps it"


def test_who_announces_poison_first_does_not_hide_the_honest_copy(made: tuple[Cluster, Controller]) -> None:
    it, controller = made
    body = random.Random(3).randbytes(MIB)
    poison = rpc.ChunkRecord(key=key(1), size_bytes=MIB, digest=LIARS_POISON)

    async def scenario() -> None:
        async with FakeAgent(controller.grpc_address, 9, [poison], read_endpoint="127.79.0.9:1") as liar:
            await liar.attached()
            await liar.until(lambda: key(1) in liar.entries)
            await asyncio.to_thread(lambda: it.client(0).put(key(1), None, body))
            await liar.until(lambda: list(liar.entries[key(1)].others) != [])
            await asyncio.to_thread(fetch_twice)

    def fetch_twice() -> None:
        client = it.client(1)
        with client.fetch([key(1)], deadline_s=DEADLINE_S) as got:
            assert got.outcome is not Status.OK, "the liar has nothing that belongs to its digest"
        with client.fetch([key(1)], deadline_s=DEADLINE_S) as got:
            assert (got.outcome, [bytes(view) for view in got.views]) == (Status.OK, [body])

    it.do(scenario())
