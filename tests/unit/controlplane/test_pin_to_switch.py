"""`kvcast pin --switch` against the running controller: it returns when the switch serves all, or says why not."""

from __future__ import annotations

import asyncio
import json

import pytest

from kvcast.cli import main
from kvproto.rpc import control_pb2 as rpc
from tests.contracts.switch_target.memory_target import MemorySwitch
from tests.unit.controlplane.fake_agent import agents
from tests.unit.controlplane.helpers import CHUNK, key
from tests.unit.controlplane.test_daemon import PREFIX, controller, operator, run


def refuse(task: rpc.Task) -> rpc.TaskResult:
    return rpc.TaskResult(
        task=task.task, status=rpc.TaskResult.FAILED, detail="3 of 8 segments were never acknowledged"
    )


def test_it_returns_when_the_switch_serves_all_of_it() -> None:
    async def steps() -> None:
        async with (
            controller(MemorySwitch()) as one,
            agents(one.grpc_address, PREFIX) as (holder,),
            operator(one.grpc_address) as ask,
        ):
            await holder.until(lambda: holder.switch.present and key("c") in holder.entries, "everything")
            reply = await ask.Pin(rpc.PinRequest(key_hex=key("c").hex(), in_switch=True, wait_ms=10_000))
            assert reply == rpc.PinReply(chunks=3, bytes=3 * CHUNK, served_chunks=3)

    run(steps())


def test_it_says_why_a_fill_failed_and_ls_does_too(capsys: pytest.CaptureFixture[str]) -> None:
    why = "n1: 3 of 8 segments were never acknowledged"

    async def steps() -> None:
        async with controller(MemorySwitch()) as one, agents(one.grpc_address, PREFIX) as (holder,):
            await holder.until(lambda: holder.switch.present and key("c") in holder.entries, "everything")
            holder.work = refuse
            command = ["pin", key("a").hex(), "--switch", "--timeout", "0.3", "--controller", one.grpc_address]
            assert await asyncio.to_thread(main, command) == 1
            said = capsys.readouterr().out
            assert "the switch serves 0 of them so far" in said
            assert why in said
            listing = ["ls", key("a").hex(), "--json", "--controller", one.grpc_address]
            assert await asyncio.to_thread(main, listing) == 0
            assert json.loads(capsys.readouterr().out)[0]["switch_problem"] == why
            holder.work = holder.do
            assert await asyncio.to_thread(main, command) == 0
            assert "the switch serves 1 of them" in capsys.readouterr().out

    run(steps())


def test_it_says_that_the_switch_is_full_whatever_went_wrong_before() -> None:
    async def steps() -> None:
        async with (
            controller(MemorySwitch(slots=8)) as one,
            agents(one.grpc_address, PREFIX) as (holder,),
            operator(one.grpc_address) as ask,
        ):
            await holder.until(lambda: holder.switch.present and key("c") in holder.entries, "everything")
            holder.work = refuse
            reply = await ask.Pin(rpc.PinRequest(key_hex=key("b").hex(), in_switch=True, wait_ms=300))
            assert "n1: 3 of 8 segments were never acknowledged" in reply.problems
            holder.work = holder.do
            reply = await ask.Pin(rpc.PinRequest(key_hex=key("b").hex(), in_switch=True, wait_ms=2000))
            assert reply.served_chunks == 1
            assert list(reply.problems) == ["no room: the rest of the switch is pinned, or on its way in or out"]

    run(steps())


def test_it_says_why_a_chunk_cannot_come_in() -> None:
    async def steps() -> None:
        async with (
            controller(MemorySwitch(slots=4)) as one,
            agents(one.grpc_address, PREFIX) as (holder,),
            operator(one.grpc_address) as ask,
        ):
            await holder.until(lambda: holder.switch.present and key("c") in holder.entries, "everything")
            reply = await ask.Pin(rpc.PinRequest(key_hex=key("b").hex(), in_switch=True, wait_ms=300))
            assert reply.served_chunks == 0
            assert list(reply.problems) == ["more segments than the switch has slots"]

    run(steps())
