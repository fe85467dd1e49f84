"""Transports with two rails, both of them the loopback: a peer's chunk comes by both."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from hostagent.config import DataConfig
from hostagent.memory.pool_memory import PoolMemory
from hostagent.transport.base import ChunkPlace, ReadOutcome, ReadRequest, TransportFacts
from hostagent.transport.host import HostTransport
from hostagent.transport.sockets import SocketsTransport
from hostagent.transport.verbs.transport import VerbsTransport
from kvchunk.ids import ChunkKey
from kvproto.wire.data import Fabric
from tests.contracts.transport import fake_nic
from tests.contracts.transport.harness import POOL_BYTES, RecordingSink, free_udp_port
from tests.waiting import eventually

KEY, PART, PARTS = ChunkKey(b"r" * 16), 64 << 10, 32


class RailSink(RecordingSink):
    """Knows on which rails the others are."""

    facts: tuple[TransportFacts, ...] = ()

    def rails_of(self, endpoint: str) -> tuple[str, ...]:
        return next((one.rail_endpoints for one in self.facts if one.read_endpoint == endpoint), ())


@pytest.mark.parametrize("kind", [SocketsTransport, VerbsTransport])
def test_a_chunk_comes_by_both_rails(kind: type[HostTransport]) -> None:
    async def run() -> None:
        with contextlib.ExitStack() as stack:
            if kind is VerbsTransport:
                stack.enter_context(fake_nic.in_place_of_real_ones())
            ports = {"cast_port": free_udp_port(), "control_port": free_udp_port(), "read_port": 0}
            pools = [PoolMemory(POOL_BYTES, prefault=False) for _ in range(2)]
            sinks = [RailSink() for _ in pools]
            transport = "verbs" if kind is VerbsTransport else "sockets"
            configs = [
                DataConfig(transport=transport, address=f"127.77.5.{index}", rails=("lo",), **ports)  # type: ignore[arg-type]
                for index in (1, 2)
            ]
            ends = [kind(config, pool) for config, pool in zip(configs, pools, strict=True)]
            facts = tuple([await end.start(sink, Fabric()) for end, sink in zip(ends, sinks, strict=True)])
            try:
                for sink in sinks:
                    sink.facts = facts
                body = bytes(range(256)) * (PART * PARTS // 256)
                pools[1].bytes_[: len(body)] = memoryview(body)
                sinks[1].held[KEY] = ChunkPlace(KEY, 0, len(body))
                ended: list[ReadOutcome] = []
                endpoint = facts[1].read_endpoint
                assert [way.endpoint for way in ends[0].ways_to(endpoint)] == [endpoint, *facts[1].rail_endpoints]
                for at in range(0, len(body), PART):
                    ends[0].reads.read(ReadRequest(endpoint, KEY, at, PART, at, ended.append, None, None, len(body)))
                await eventually(lambda: len(ended) == PARTS, "the reads' end")
                assert set(ended) == {ReadOutcome.DONE}
                assert bytes(pools[0].bytes_[: len(body)]) == body
                peer = ends[0].reads.peers[endpoint]  # type: ignore[attr-defined]
                assert all(rail.rate for rail in peer.rails.each)
            finally:
                for end in ends:
                    await end.close()

    asyncio.run(run())
