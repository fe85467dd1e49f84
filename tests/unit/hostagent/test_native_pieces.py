"""Reads of an RDMA transport whose NIC falls silent or breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from hostagent.transport.base import ReadOutcome
from hostagent.transport.verbs import abi
from kvchunk.ids import ChunkKey
from kvproto.ids import format_address
from kvproto.wire.data import Fabric
from tests.contracts.transport import fake_nic, harness

KEY = ChunkKey(b"k" * 16)
CHUNK = bytes(range(256)) * 4096
DEADLINE_S = 30.0

Scenario = Callable[[harness.Network, harness.Node, harness.Node], Awaitable[None]]


def play(scenario: Scenario) -> None:
    async def main() -> None:
        network = await harness.fake_verbs_network(Fabric(segment_bytes=1024))
        try:
            async with asyncio.timeout(DEADLINE_S):
                network.nodes[0].hold(KEY, CHUNK)
                await scenario(network, *network.nodes)
        finally:
            await network.close()

    asyncio.run(main())


def test_reads_end_though_no_event_tells_of_completions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_nic.FakeQueue, "ring", lambda _queue: None)

    async def scenario(network: harness.Network, one: harness.Node, two: harness.Node) -> None:
        assert await two.read(one, KEY, 0, len(CHUNK), 0) is ReadOutcome.DONE
        assert bytes(two.memory.view(0, len(CHUNK))) == CHUNK
        assert two.transport.counters.read_bytes_rdma == len(CHUNK)

    play(scenario)


def test_reads_go_over_tcp_once_the_completion_queue_is_broken() -> None:
    async def scenario(network: harness.Network, one: harness.Node, two: harness.Node) -> None:
        assert await two.read(one, KEY, 0, 1000, 0) is ReadOutcome.DONE
        assert network.wire is not None
        (pair,) = network.wire.nic(format_address(two.facts.address)).pairs(abi.QPT_RC)
        pair.sends.broken = True
        assert await two.read(one, KEY, 0, len(CHUNK), 0) is ReadOutcome.FAILED
        assert await two.read(one, KEY, 0, len(CHUNK), 0) is ReadOutcome.DONE
        assert two.transport.counters.read_bytes_rdma == 1000
        assert bytes(two.memory.view(0, len(CHUNK))) == CHUNK

    play(scenario)
