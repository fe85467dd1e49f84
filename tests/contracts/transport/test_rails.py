"""Transports with two rails, both of them the loopback: a peer's chunk comes by both."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import numpy as np
import pytest

from hostagent.config import DataConfig
from hostagent.memory.pool_memory import PoolMemory
from hostagent.transport.base import ChunkPlace, ReadOutcome, ReadRequest, TransportFacts, Way
from hostagent.transport.host import HostTransport
from hostagent.transport.rail_casts import RailCasts
from hostagent.transport.sockets import SocketsTransport
from hostagent.transport.verbs.transport import VerbsTransport
from kvchunk.ids import ChunkKey
from kvproto.fanout import Fanout
from kvproto.ids import Member
from kvproto.wire.data import Fabric
from tests.contracts.transport import fake_nic
from tests.contracts.transport.harness import POOL_BYTES, RecordingSink, free_udp_port
from tests.waiting import eventually

KEY, PART, PARTS = ChunkKey(b"r" * 16), 64 << 10, 32


class RailSink(RecordingSink):
    """Knows on which rails the others are."""

    facts: tuple[TransportFacts, ...] = ()

    def way_left(self, endpoint: str, way: Way) -> None:
        raise AssertionError(f"{endpoint} is not read by {way} any more")

    def rails_of(self, endpoint: str) -> tuple[str, ...]:
        return next((one.rail_endpoints for one in self.facts if one.read_endpoint == endpoint), ())


@pytest.mark.parametrize("kind", [SocketsTransport, VerbsTransport])
def test_a_chunk_comes_by_both_rails(kind: type[HostTransport]) -> None:
    async def run() -> None:
        with contextlib.ExitStack() as stack:
            if kind is VerbsTransport:
                stack.enter_context(fake_nic.in_place_of_real_ones())
            cast_port = free_udp_port()
            pools = [PoolMemory(POOL_BYTES, prefault=False) for _ in range(2)]
            sinks = [RailSink() for _ in pools]
            transport = "verbs" if kind is VerbsTransport else "sockets"
            configs = [
                DataConfig(
                    transport=transport,
                    address=f"127.77.5.{index}",
                    rails=("lo",),
                    cast_port=cast_port,
                    control_port=free_udp_port(),  # of its own: the second rail of both has one address
                    read_port=0,
                )
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


class OneRail:
    """A `RailCast` that notes what it is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[object, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., int]:
        def note(*words: object) -> int:
            self.heard.append((name, *words))
            return 7

        return note


def test_further_rails_cast_where_holders_keep_interest() -> None:
    first, opened, failed = OneRail(), [], []

    def open_part(rail: int) -> OneRail:
        opened.append(rail)
        return parts.setdefault(rail, OneRail())

    parts: dict[int, OneRail] = {}
    casts = RailCasts(first, 3, open_part, lambda *what: failed.append(what))  # type: ignore[arg-type]
    place = ChunkPlace(KEY, 0, PART)
    # Behind a kvcast switch only the first rail has one; what the others are asked for is given back.
    assert casts.use_fabric(Fabric()) == 7
    casts.cast_by(2, place, 0, 5, (1,))
    assert (opened, failed) == ([], [(2, KEY, 5)])
    fabric = Fabric(fanout=Fanout.MULTICAST, member=Member(1))
    assert casts.use_fabric(fabric) == 7
    assert opened == [1, 2]
    casts.cast_by(2, place, 0, 5, (1,))
    missing = np.ones(1, np.bool_)
    casts.expect(place, missing)
    casts.forget(KEY)
    for part in parts.values():
        assert part.heard[0] == ("use_fabric", fabric)
        assert part.heard[-2:] == [("expect", place, missing), ("forget", KEY)]
    assert ("cast", place, 0, 5, (1,)) in parts[2].heard
    assert not any(what[0] == "cast" for what in parts[1].heard)
    # An interface that was made anew has sockets of its own; what had not left is given back first.
    casts.bind_anew()
    assert opened == [1, 2, 1, 2]
    assert ("give_up",) in parts[1].heard
    casts.use_fabric(Fabric())
    assert parts[2].heard[-2:] == [("give_up",), ("close",)]
