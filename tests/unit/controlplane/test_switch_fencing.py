"""A switch takes every write that names its primary's election id: so nobody leads under an id that another one had."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest
from finsy.proto import U128, p4r

from controlplane.core.switch.target import Standby, SwitchEvent, Up
from controlplane.p4runtime.codec import V1ModelCodec
from controlplane.p4runtime.p4runtime_target import P4RuntimeOptions, P4RuntimeTarget
from p4switch.testing import memory_switch

DEADLINE_S = 60.0
PROGRAM = Path(__file__).resolve().parents[3] / "p4" / "v1model" / "kvcast.p4"
DEFINES = {"SLOTS": "64", "SEGMENT_BYTES": "256", "INTEREST": "256", "HEAT_CELLS": "256"}


class Session:
    """One controller's session, and what it was told."""

    def __init__(self, address: str, configured_id: int, election_id: int | None = None) -> None:
        self.told: asyncio.Queue[SwitchEvent] = asyncio.Queue()
        target = P4RuntimeTarget(P4RuntimeOptions(address, election_id=configured_id, reconnect_s=0.05), V1ModelCodec())
        self._run = asyncio.create_task(target.run(self.told.put_nowait, election_id))

    async def hears(self, kind: type) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not isinstance(await self.told.get(), kind):
                pass

    async def end(self) -> None:
        self._run.cancel()
        await asyncio.gather(self._run, return_exceptions=True)


@contextlib.asynccontextmanager
async def sessions(*made: Session) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for one in made:
            await one.end()


async def refusal_of_write(address: str, election_id: int) -> grpc.StatusCode:
    """What becomes of a write under this id, by whoever sends it."""
    async with grpc.aio.insecure_channel(address) as channel:
        write: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/p4.v1.P4Runtime/Write")
        request = p4r.WriteRequest(device_id=1, election_id=U128.encode(election_id))
        try:
            await write(request.SerializeToString())
        except grpc.aio.AioRpcError as error:
            return error.code()
        return grpc.StatusCode.OK


def test_a_primary_whose_place_was_taken_writes_no_more() -> None:
    async def steps(address: str) -> None:
        first, second = Session(address, 10), Session(address, 5)
        async with sessions(first, second):
            await first.hears(Up)
            await second.hears(Standby)
            assert await refusal_of_write(address, 10) is grpc.StatusCode.OK
            await first.end()
            await second.hears(Up)
            assert await refusal_of_write(address, 10) is grpc.StatusCode.PERMISSION_DENIED

    with memory_switch(PROGRAM, ports=2, defines=DEFINES, flood_group=1) as switch:
        asyncio.run(steps(switch.address))


def test_an_epoch_is_the_election_id_and_the_higher_one_wins() -> None:
    async def steps(address: str) -> None:
        first = Session(address, 10, election_id=1_700_000_000_000)
        async with sessions(first):
            await first.hears(Up)
            assert await refusal_of_write(address, 1_700_000_000_000) is grpc.StatusCode.OK
            second = Session(address, 10, election_id=1_700_000_000_001)
            async with sessions(second):
                await second.hears(Up)
                await first.hears(Standby)
                assert await refusal_of_write(address, 1_700_000_000_000) is grpc.StatusCode.PERMISSION_DENIED
                assert await refusal_of_write(address, 1_700_000_000_001) is grpc.StatusCode.OK

    with memory_switch(PROGRAM, ports=2, defines=DEFINES, flood_group=1) as switch:
        asyncio.run(steps(switch.address))


@pytest.mark.parametrize("configured", [10, 11])
def test_who_comes_back_has_an_id_that_nobody_had_in_between(configured: int) -> None:
    async def steps(address: str) -> None:
        first, second = Session(address, 10), Session(address, 5)
        async with sessions(first, second):
            await first.hears(Up)
            await second.hears(Standby)
            await first.end()
            await second.hears(Up)
            await second.end()
            third = Session(address, configured)
            async with sessions(third):
                await third.hears(Up)
                assert await refusal_of_write(address, 10) is grpc.StatusCode.PERMISSION_DENIED

    with memory_switch(PROGRAM, ports=2, defines=DEFINES, flood_group=1) as switch:
        asyncio.run(steps(switch.address))
