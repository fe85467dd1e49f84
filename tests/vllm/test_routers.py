"""What a router makes of our events: Dynamo's own indexer, fed by vLLM's own publisher, and vLLM's own decoder.

Dynamo is no part of this environment. `KVCAST_DYNAMO_PYTHON` names a Python that has `ai-dynamo` and
`ai-dynamo-runtime`; without it that part is skipped.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvchunk.ids import ChunkKey
from kvclient.engines.core.announcements import Announcements
from kvclient.messages import Where
from tests.vllm.vllm_suite import BLOCK_TOKENS, CHUNK_TOKENS, random_tokens, until

DYNAMO = os.environ.get("KVCAST_DYNAMO_PYTHON") or (sys.executable if importlib.util.find_spec("dynamo") else "")
KIND = "full_attention"
TOKENS = random_tokens(random.Random(130), 2 * CHUNK_TOKENS)


def request_of(tokens: list[int], **more: Any) -> Any:
    """A vLLM request with vLLM's own hashes of its blocks."""
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256_cbor
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256_cbor)
    hasher = get_request_block_hasher(BLOCK_TOKENS, sha256_cbor)
    return Request("r", tokens, SamplingParams(max_tokens=1), None, block_hasher=hasher, **more)


def told(request: Any, medium: str, where: Where = Where.LOCAL) -> tuple[list[Any], list[Any]]:
    """Events that tell of a request's chunks, and those that withdraw them."""
    from kvclient.engines.vllm.events import EventForm, chunk_facts

    form = EventForm(medium, BLOCK_TOKENS, KIND)
    announcements = Announcements(chunks_max=100, tell_media_apart=medium == "kvcast")
    stored: list[Any] = []
    for chunk in range(len(TOKENS) // CHUNK_TOKENS):
        facts = chunk_facts(request, chunk, CHUNK_TOKENS, BLOCK_TOKENS)
        assert facts is not None
        stored += form.to_vllm(announcements.chunk_in_pool((ChunkKey(bytes([chunk]) * 16),), where, facts))
    return stored, form.to_vllm(announcements.withdraw())


@pytest.mark.parametrize(
    ("medium", "where", "said", "locality"),
    [
        ("EXTERNAL", Where.SWITCH, "EXTERNAL", None),
        ("STORAGE", Where.REMOTE, "STORAGE", None),
        ("kvcast", Where.REMOTE, "pool", "REMOTE"),
        ("kvcast", Where.SWITCH, "switch", "REMOTE"),
    ],
)
def test_events_as_vllm_decodes_them(medium: str, where: Where, said: str, locality: str | None) -> None:
    import msgspec
    from vllm.distributed.kv_events import KVEventBatch

    stored, removed = told(request_of(TOKENS, cache_salt="s", session_id="talk"), medium, where)
    batch = KVEventBatch(ts=0.0, events=stored + removed)
    seen = msgspec.msgpack.Decoder(KVEventBatch).decode(msgspec.msgpack.encode(batch)).events
    blocks = CHUNK_TOKENS // BLOCK_TOKENS
    assert [event.token_ids for event in seen[:2]] == [TOKENS[:CHUNK_TOKENS], TOKENS[CHUNK_TOKENS:]]
    assert [event.extra_keys[0] for event in seen[:2]] == [("s",), None], "a salt is in the first block's hash"
    assert {len(event.extra_keys) for event in seen[:2]} == {blocks}
    assert {(event.medium, event.locality) for event in seen} == {(said, locality)}
    assert {(event.kv_cache_spec_kind, event.session_id) for event in seen[:2]} == {(KIND, "talk")}
    assert [event.block_hashes for event in seen[2:]] == [event.block_hashes for event in seen[:2]]


class Indexer:
    """Dynamo's, over HTTP."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        payload = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(f"{self._url}{path}", payload, {"Content-Type": "application/json"})
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return json.load(answer)

    def is_up(self) -> bool:
        try:
            return bool(self.ask("/workers"))
        except (urllib.error.URLError, OSError):
            return False

    def matched(self, worker: int, tokens: list[int]) -> int:
        """Tokens of a prompt that the worker has at hand somewhere."""
        found = self.ask("/query", {"token_ids": tokens, "model_name": "m"})["instances"].get(str(worker), {})
        return int(found.get("longest_matched", 0))


@contextmanager
def indexing(folder: Path, workers: dict[int, str]) -> Iterator[Indexer]:
    """Dynamo's indexer for these workers' events."""
    from tests.ports import free_port

    port = free_port()
    argv = [DYNAMO, "-m", "dynamo.indexer", "--port", str(port), "--block-size", str(BLOCK_TOKENS), "--model-name", "m"]
    argv += ["--workers", ",".join(f"{worker}={endpoint}" for worker, endpoint in workers.items())]
    # A Python of its own: nothing of this environment belongs to it.
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    with open(folder / "indexer.log", "wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT, env=environment)
        try:
            indexer = Indexer(port)
            until(indexer.is_up, "Dynamo's indexer is up")
            yield indexer
        finally:
            process.terminate()
            process.wait()


@pytest.mark.skipif(not DYNAMO, reason="no Dynamo here: KVCAST_DYNAMO_PYTHON")
@pytest.mark.parametrize(("medium", "taken"), [("EXTERNAL", True), ("STORAGE", True), ("CPU", True), ("kvcast", False)])
def test_dynamos_indexer_sees_the_pool(medium: str, taken: bool, tmp_path: Path) -> None:
    """Of two workers the one that knows the chunks has them, until it withdraws them."""
    from vllm.distributed.kv_events import KVEventBatch, ZmqEventPublisher

    endpoints = {worker: f"ipc://{tmp_path}/{worker}.sock" for worker in (1, 2)}
    publishers = {
        worker: ZmqEventPublisher(data_parallel_rank=0, endpoint=endpoint) for worker, endpoint in endpoints.items()
    }
    stored, removed = told(request_of(TOKENS), medium)
    # Known to the indexer whatever it makes of ours: what it has seen this of, it has heard.
    heard = told(request_of(TOKENS[::-1]), "CPU")[0]
    try:
        with indexing(tmp_path, endpoints) as indexer:

            def publish(events: list[Any]) -> None:
                publishers[2].publish(KVEventBatch(ts=0.0, events=events))

            def is_heard() -> bool:
                publish(heard)
                return indexer.matched(2, TOKENS[::-1]) > 0

            until(is_heard, "the indexer listens")
            publish(stored)
            publish(told(request_of([*TOKENS[1:], 3]), "CPU")[0])
            until(lambda: indexer.matched(2, [*TOKENS[1:], 3]) > 0, "the indexer has heard what came before")
            assert (indexer.matched(1, TOKENS), indexer.matched(2, TOKENS)) == (0, len(TOKENS) if taken else 0)
            publish(removed)
            until(lambda: indexer.matched(2, TOKENS) == 0, "withdrawn")
    finally:
        for publisher in publishers.values():
            publisher.shutdown()
