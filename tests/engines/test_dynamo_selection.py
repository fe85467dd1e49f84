"""Dynamo's own selection of workers, told by agents what their nodes hold.

Real: Dynamo's indexer and scheduler (`SelectionService`, in this process, without etcd and NATS), ZMQ, two agents.
Nobody computes: a node's announcer is told which chunks exist, as an engine's connector is, and asks its agent where
they are. It publishes those that are in this node's own DRAM, in the form of vLLM's events.
"""

from __future__ import annotations

import asyncio
import random
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dynamo.llm")

import msgspec
import zmq
from dynamo.llm import SelectionService

from kvchunk.ids import ChunkKey, KvIdentity, prefix_keys
from kvclient.client import AgentClient
from kvclient.engines.core.announcements import Announcement, Announcements, ChunkFacts, Medium, Stored
from kvclient.messages import Where
from tests.engines.installed_interface import assert_has_all
from tests.unit.hostagent.agent_harness import cluster

BLOCK_TOKENS = 16
CHUNKS = 8
PATIENCE_S = 60.0
POLL_S = 0.05
MODEL = "m"
NAMESPACE = KvIdentity(MODEL, chunk_tokens=BLOCK_TOKENS)


class BlockStored(msgspec.Struct, array_like=True, tag=True, omit_defaults=True):
    """As vLLM publishes it: fields by position."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None


class BlockRemoved(msgspec.Struct, array_like=True, tag=True, omit_defaults=True):
    """As above."""

    block_hashes: list[int]
    medium: str | None


class Node:
    """A node's agent, and what tells the router of it."""

    def __init__(self, socket: str, endpoint: str, context: zmq.Context[Any]) -> None:
        self.client = AgentClient(socket)
        self.endpoint = endpoint
        self._announcements = Announcements(chunks_max=100, tell_media_apart=False)
        self._stream = context.socket(zmq.PUB)
        self._stream.bind(endpoint)
        self._sequence = 0

    def close(self) -> None:
        self.client.close()
        self._stream.close(linger=0)

    def put(self, prompt: list[int]) -> None:
        """As an engine that computed the prompt."""
        keys = prefix_keys(NAMESPACE, prompt)
        for key, parent in zip(keys, (None, *keys), strict=False):
            self.client.put(key, parent, bytes(4096))

    def drop(self, prompt: list[int], chunks: int) -> None:
        """The last chunks of a prompt leave this node."""
        assert all(self.client.drop(prefix_keys(NAMESPACE, prompt)[-chunks:]))

    def look(self, prompt: list[int]) -> None:
        """Ask the agent what it has of a prompt here, and publish what changed."""
        keys = prefix_keys(NAMESPACE, prompt)
        here = [where is Where.LOCAL for where in self.client.contains(keys)]
        news: list[Announcement] = []
        for chunk, (key, present) in enumerate(zip(keys, here, strict=True)):
            if present:
                news += self._announcements.chunk_in_pool((key,), Where.LOCAL, facts_of(prompt, keys, chunk))
            elif key in self._announcements:
                news += self._announcements.sweep_ended([(key,)], [Where.NOWHERE])
        self.publish(news)

    def publish(self, news: list[Announcement]) -> None:
        """One batch."""
        events = [event_of(one) for one in news]
        frames = [b"", self._sequence.to_bytes(8, "big"), msgspec.msgpack.encode((0.0, events, 0))]
        self._stream.send_multipart(frames)
        self._sequence += 1


def block_hash(key: ChunkKey) -> int:
    return int.from_bytes(key[:8], "big") >> 1


def facts_of(prompt: list[int], keys: list[ChunkKey], chunk: int) -> ChunkFacts:
    parent = block_hash(keys[chunk - 1]) if chunk else None
    tokens = array("I", prompt[chunk * BLOCK_TOKENS : (chunk + 1) * BLOCK_TOKENS])
    return ChunkFacts((block_hash(keys[chunk]),), parent, tokens, None)


def event_of(news: Announcement) -> BlockStored | BlockRemoved:
    if not isinstance(news, Stored):
        return BlockRemoved([int(str(one)) for one in news.block_hashes], "EXTERNAL")
    facts = news.facts
    hashes, parent = [int(str(one)) for one in facts.block_hashes], facts.parent_hash
    return BlockStored(
        hashes,
        int(str(parent)) if parent is not None else None,
        list(facts.tokens),
        BLOCK_TOKENS,
        None,
        "EXTERNAL",
        None,
    )


def prompt_of(seed: int) -> list[int]:
    chance = random.Random(f"dynamo {seed}")
    return [chance.randrange(3, 4000) for _ in range(CHUNKS * BLOCK_TOKENS)]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Node]]:
    """Workers 1 and 2 of the router."""
    with cluster(2, pool_bytes=4 << 20) as agents:
        context = zmq.Context()
        made = [
            Node(agent.config.api_socket, f"ipc://{tmp_path}/{agent.config.node}", context) for agent in agents.agents
        ]
        yield made
        for node in made:
            node.close()
        context.term()


class Router:
    """Dynamo's, with a worker for each node."""

    def __init__(self) -> None:
        self._service = SelectionService(indexer_threads=1)

    async def add(self, number: int, node: Node) -> None:
        """A worker, and wait until its events are heard: what is published before is lost."""
        worker = {
            "worker_id": number,
            "model_name": MODEL,
            "endpoint": f"http://127.0.0.1:{number}",
            "block_size": BLOCK_TOKENS,
            "kv_events_endpoints": {0: node.endpoint},
            "total_kv_blocks": 4096,
            "max_num_batched_tokens": 8192,
        }
        await self._service.upsert_worker(worker)
        prompt = prompt_of(-number)
        facts = facts_of(prompt, prefix_keys(NAMESPACE, prompt), 0)
        async with asyncio.timeout(PATIENCE_S):
            while (await self.blocks(prompt))[number] == 0:
                node.publish([Stored(Medium.POOL, facts)])
                await asyncio.sleep(POLL_S)

    async def blocks(self, prompt: list[int]) -> dict[int, int]:
        """Leading blocks of a prompt below the memory of each worker, as the router knows."""
        scores = await self._service.overlap_scores({"model_name": MODEL, "token_ids": prompt})
        return {each["worker_id"]: each["disk_blocks"] for each in scores["workers"]}

    async def await_blocks(self, prompt: list[int], expected: dict[int, int]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while await self.blocks(prompt) != expected:
                await asyncio.sleep(POLL_S)

    async def chosen(self, prompt: list[int]) -> int:
        """The worker that a prompt is sent to."""
        answer = await self._service.select({"model_name": MODEL, "token_ids": prompt})
        return int(answer["worker_id"])


async def follow(nodes: list[Node]) -> None:
    router = Router()
    for number, node in enumerate(nodes, 1):
        await router.add(number, node)
    for seed, holder in enumerate((2, 1, 2), 1):
        prompt, other = prompt_of(seed), 3 - holder
        nodes[holder - 1].put(prompt)
        for node in nodes:
            node.look(prompt)
        await router.await_blocks(prompt, {holder: CHUNKS, other: 0})
        assert [await router.chosen(prompt) for _ in range(4)] == [holder] * 4
        nodes[holder - 1].drop(prompt, chunks=CHUNKS // 2)
        nodes[other - 1].put(prompt)
        for node in nodes:
            node.look(prompt)
        await router.await_blocks(prompt, {holder: CHUNKS // 2, other: CHUNKS})
        assert [await router.chosen(prompt) for _ in range(4)] == [other] * 4


def test_requests_go_where_agents_have_their_blocks(nodes: list[Node]) -> None:
    asyncio.run(follow(nodes))


def test_this_dynamo_has_all_that_kvcast_uses() -> None:
    assert_has_all("dynamo")
