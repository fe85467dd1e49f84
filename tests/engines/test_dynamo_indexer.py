"""Dynamo's own indexer and our controller answer `/query` alike, for the same chunks on the same nodes.

Real: `python -m dynamo.indexer` of ai-dynamo, told by ZMQ in the form of vLLM's events; our controller, told by an
agent of the tests. Nobody computes.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dynamo.indexer")

import msgspec
import zmq

from kvchunk.ids import ChunkKey, KvIdentity, prefix_keys
from kvproto.rpc import control_pb2 as rpc
from tests.digests import digest
from tests.ports import free_port
from tests.unit.controlplane.fake_agent import FakeAgent
from tests.unit.controlplane.helpers import CHUNK
from tests.unit.controlplane.test_daemon import controller

pytestmark = pytest.mark.engines

BLOCK_TOKENS = 16
MODEL = "m"
IDENTITY = KvIdentity(MODEL, chunk_tokens=BLOCK_TOKENS)
TOKENS = list(range(4 * BLOCK_TOKENS + 3))
NODE = "1"
"""Dynamo's workers are numbers."""
PATIENCE_S = 60.0


class BlockStored(msgspec.Struct, array_like=True, tag=True, omit_defaults=True):
    """As vLLM publishes it: fields by position."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None


def asked(url: str, body: object) -> Any:
    with urllib.request.urlopen(url, json.dumps(body).encode() if body is not None else None, timeout=10) as reply:
        return json.load(reply)


def post(address: str, tokens: Sequence[int]) -> Any:
    request = urllib.request.Request(
        f"http://{address}/query",
        json.dumps({"model_name": MODEL, "token_ids": tokens}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as reply:
        return json.load(reply)


async def patiently(what: Any, until: Any) -> Any:
    """Ask until the answer is as it should be: neither server says when it has heard."""
    answer: Any = None
    async with asyncio.timeout(PATIENCE_S):
        while answer is None or not until(answer):
            try:
                answer = await asyncio.to_thread(what)
            except (OSError, urllib.error.URLError):
                answer = None
            await asyncio.sleep(0.05)
    return answer


def records(keys: Sequence[ChunkKey], *, on_disk: bool) -> list[rpc.ChunkRecord]:
    return [
        rpc.ChunkRecord(
            key=one,
            parent=keys[at - 1] if at else b"",
            size_bytes=CHUNK,
            digest=digest(at),
            position=at,
            on_disk=on_disk,
        )
        for at, one in enumerate(keys)
    ]


async def ours(memory_count: int, disk_count: int) -> list[Any]:
    """Our answers to the prompt, to its beginning, to another prompt and to none."""
    keys = prefix_keys(IDENTITY, TOKENS)
    models = {MODEL: {"namespace": IDENTITY.digest().hex(), "chunk_tokens": BLOCK_TOKENS}}
    disk = records(keys[:disk_count], on_disk=True)
    async with controller(models=models) as one, FakeAgent(one.grpc_address, 1, disk, node=NODE) as agent:
        await agent.attached()
        agent.announce(*records(keys[:memory_count], on_disk=False))
        await agent.until(lambda: all(agent.holders(key) for key in keys[:memory_count]), "chunks in its pool")
        await agent.until(lambda: all(key in agent.entries for key in keys[:disk_count]), "chunks on its disk")
        return [await asyncio.to_thread(post, one.metrics_address, tokens) for tokens in questions()]


async def theirs(memory_count: int, disk_count: int, folder: Path) -> list[Any]:
    """Dynamo's indexer's answers to the same."""
    address, events = f"127.0.0.1:{free_port()}", f"tcp://127.0.0.1:{free_port()}"
    publisher = zmq.Context.instance().socket(zmq.PUB)
    publisher.bind(events)
    argv = [sys.executable, "-m", "dynamo.indexer", "--port", address.rpartition(":")[2]]
    argv += ["--block-size", str(BLOCK_TOKENS), "--workers", f"{NODE}={events}", "--model-name", MODEL]
    with (folder / "indexer.log").open("wb") as log:
        indexer = subprocess.Popen(argv, stdout=log, stderr=log, cwd=folder)
    try:
        await patiently(lambda: asked(f"http://{address}/workers", None), bool)
        hashes = list(range(1001, 1001 + len(TOKENS) // BLOCK_TOKENS))
        sequence = 0

        def publish(count: int, medium: str) -> None:
            nonlocal sequence
            if count:
                stored = BlockStored(hashes[:count], None, TOKENS[: count * BLOCK_TOKENS], BLOCK_TOKENS, None, medium)
                batch = msgspec.msgpack.encode([0.0, [stored], 0])
                publisher.send_multipart([b"", sequence.to_bytes(8, "big"), batch])
                sequence += 1

        def tell_and_ask() -> Any:
            # A subscriber hears nothing of what was published before it was there.
            publish(memory_count, "CPU")
            publish(disk_count, "DISK")
            return post(address, TOKENS)

        longest = max(memory_count, disk_count) * BLOCK_TOKENS
        wanted = {"cpu": memory_count * BLOCK_TOKENS, "disk": longest}

        def heard(answer: Any) -> bool:
            found = answer["instances"].get(NODE, {})
            return {tier: found.get(tier) for tier in wanted} == wanted

        await patiently(tell_and_ask, heard)
        return [await asyncio.to_thread(post, address, tokens) for tokens in questions()]
    finally:
        indexer.terminate()
        indexer.wait(PATIENCE_S)
        publisher.close(0)


def questions() -> list[list[int]]:
    return [TOKENS, TOKENS[: 2 * BLOCK_TOKENS], [7, *TOKENS], TOKENS[:5], []]


@pytest.mark.parametrize(("memory_count", "disk_count"), [(4, 0), (2, 0), (0, 3), (2, 4)])
def test_both_say_the_same(tmp_path: Path, memory_count: int, disk_count: int) -> None:
    async def steps() -> None:
        expected = await theirs(memory_count, disk_count, tmp_path)
        assert expected[0]["instances"], "it knows the chunks"
        assert await ours(memory_count, disk_count) == expected

    asyncio.run(steps())
