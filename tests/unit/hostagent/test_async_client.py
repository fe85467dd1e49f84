"""The client of an event loop: what a cancelled task leaves behind, and an agent that does not answer.

What it shares with the other client is in tests/contracts/local_reads.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator

import pytest

from kvclient.asynchronous import AsyncAgentClient
from kvclient.client import AgentUnavailableError, ChunkToPut, Status
from tests.unit.hostagent.agent_harness import MIB, Cluster, cluster, key


@pytest.fixture
def pair() -> Iterator[Cluster]:
    with cluster(2) as made:
        yield made


async def _connected(pair: Cluster, index: int = 0, **options: float) -> AsyncAgentClient:
    return await AsyncAgentClient.connected(pair.agents[index].config.api_socket, **options)


def test_a_cancelled_fetch_ends_at_the_agent(pair: Cluster) -> None:
    async def engine() -> None:
        async with await _connected(pair) as waiting, await _connected(pair) as computing:
            computing.claim([key(1)], 1000, [30.0])
            assert await computing.stats()
            fetch = asyncio.create_task(waiting.fetch([key(1)], deadline_s=30))
            await asyncio.to_thread(pair.until, lambda: pair.agents[0].core.waits.waiting_count == 1)
            fetch.cancel()
            with pytest.raises(asyncio.CancelledError):
                await fetch
            await asyncio.to_thread(pair.until, lambda: pair.agents[0].core.waits.waiting_count == 0)
            await computing.put(key(1), None, bytes(1000))
            with await waiting.fetch([key(1)], deadline_s=5) as got:
                assert got.count == 1, "the connection goes on"
        await asyncio.to_thread(pair.until, lambda: pair.agents[0].core.pool.pins_count == 0)

    asyncio.run(engine())


def test_what_comes_for_a_fetch_that_was_cancelled_goes_back(pair: Cluster) -> None:
    async def engine() -> None:
        async with await _connected(pair, 1) as there, await _connected(pair) as here:
            for number in range(8):
                await there.put(key(number), None, os.urandom(MIB // 2))
                pair.publish(number, 1)
            for turns in range(8):
                fetch = asyncio.create_task(here.fetch([key(turns)], deadline_s=20, any_order=True))
                for _ in range(turns):
                    await asyncio.sleep(0)
                fetch.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await fetch
            assert await here.stats()
            await asyncio.to_thread(pair.until, lambda: pair.agents[0].core.pool.pins_count == 0)

    asyncio.run(engine())


def test_a_cancelled_put_keeps_no_room(pair: Cluster) -> None:
    async def engine() -> None:
        async with await _connected(pair) as client:
            for turns in range(6):
                put = asyncio.create_task(client.put(key(turns), None, bytes(MIB)))
                for _ in range(turns):
                    await asyncio.sleep(0)
                put.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await put
            assert await client.stats()
            await asyncio.to_thread(pair.until, lambda: pair.agents[0].core.pool.usage().filling_bytes == 0)
            await client.put(key(9), None, bytes(MIB))

    asyncio.run(engine())


def test_a_writer_that_raises_gives_the_room_back(pair: Cluster) -> None:
    def write(view: memoryview) -> None:
        raise RuntimeError("the device is lost")

    async def engine() -> None:
        async with await _connected(pair) as client:
            with pytest.raises(RuntimeError):
                await client.put_each([ChunkToPut(key(1), None, 1000, write)])
            await asyncio.to_thread(pair.until, lambda: pair.agents[0].core.pool.usage().filling_bytes == 0)
            await client.put(key(1), None, bytes(1000))

    asyncio.run(engine())


def test_tasks_share_a_client_and_all_hear_that_the_agent_went(pair: Cluster) -> None:
    async def engine() -> None:
        async with await _connected(pair) as client, await _connected(pair) as computing:
            computing.claim([key(1), key(2)], 1000, [30.0, 30.0])
            assert await computing.stats()
            stream = client.fetch_stream([key(2)], deadline_s=30)
            fetches = [asyncio.create_task(client.fetch([key(1)], deadline_s=30)) for _ in range(3)]
            await asyncio.to_thread(pair.until, lambda: pair.agents[0].core.waits.waiting_count >= 1)
            await asyncio.to_thread(pair.replace, 0)
            for fetch in fetches:
                with pytest.raises(AgentUnavailableError):
                    await fetch
            with pytest.raises(AgentUnavailableError):
                _ = [view async for view in stream]
            with pytest.raises(AgentUnavailableError):
                await client.contains([key(1)])

    asyncio.run(engine())


def test_an_agent_that_owes_an_answer_is_given_up(pair: Cluster) -> None:
    async def engine() -> None:
        async with await _connected(pair, answer_timeout_s=0.05) as client:
            pair.call(lambda: asyncio.get_running_loop().call_later(0, is_over.wait, 20.0) and None)
            try:
                with pytest.raises(AgentUnavailableError, match="does not answer"):
                    await client.stats()
            finally:
                is_over.set()

    is_over = threading.Event()
    asyncio.run(engine())


def test_a_stream_that_is_left_early(pair: Cluster) -> None:
    async def engine() -> None:
        async with await _connected(pair) as client:
            async with client.fetch_stream([key(1)], deadline_s=20, expected_s=20.0) as stream:
                pass
            assert (stream.count, stream.outcome) == (0, Status.CANCELLED)
            await asyncio.to_thread(pair.until, lambda: pair.agents[0].core.waits.waiting_count == 0)

    asyncio.run(engine())
