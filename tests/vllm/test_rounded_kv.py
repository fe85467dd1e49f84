"""`kv_form: lossy` on a processor: the engine says how its keys and values lie, and goes on with what was rounded."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bmv2_testbed.engines.engine_client import Engine
from kvchunk.kv_layout import KvLayout
from kvclient.client import AgentClient, PutOutcome
from kvcodec import lossy
from kvcodec.native import native_loops
from tests.vllm.vllm_suite import BLOCK_TOKENS, CHUNK_TOKENS, StartEngine, one, random_tokens

CHUNKS = 4
LAYOUT = KvLayout(
    "fp32", (("l", 2), ("b", CHUNK_TOKENS // BLOCK_TOKENS), ("h", 2), ("p", 2), ("t", BLOCK_TOKENS), ("d", 32)), True
)
"""Of the small model's chunks."""


def scores(engine: Engine, prompt: list[int]) -> dict[str, float]:
    """Logarithms of the next token's probabilities, all of it but the rest of a chunk loaded."""
    request = {"id": "r", "tokens": prompt, "max_tokens": 1, "scores": 4096}
    answer = engine.ask("generate", requests=[{**request, "kv_transfer_params": {"kvcast.no_save": True}}])["r"]
    assert answer["cached_tokens"] == CHUNKS * CHUNK_TOKENS
    found: dict[str, float] = answer["scores"][0]
    return found


def divergence(exact: dict[str, float], other: dict[str, float]) -> float:
    """Kullback-Leibler, in nats."""
    return sum(math.exp(score) * (score - other[token]) for token, score in exact.items())


def test_an_engine_goes_on_with_kv_that_was_rounded(
    start: StartEngine, models: Callable[..., Path], agent_sockets: list[str], first: Engine
) -> None:
    engine = start(
        models(), agent_sockets[0], enable_prefix_caching=False, settings={"kv_form": "lossy"}, max_logprobs=-1
    )
    prompt = random_tokens(random.Random(14), CHUNKS * CHUNK_TOKENS + 7)
    one(engine, prompt)
    keys = [key for key, _ in engine.where(prompt)]
    assert not {key for key, _ in first.where(prompt)} & set(keys), "others' KV is exact"
    exact = scores(engine, prompt)
    loops = native_loops()
    with AgentClient(agent_sockets[0]) as agent:
        with agent.fetch(keys, deadline_s=300) as got:
            chunks = [bytes(view) for view in got.views]
        found = {}
        for name, level in (("fine", lossy.FINE), ("coarse", lossy.COARSE)):
            assert all(agent.drop(keys))
            for at, (key, chunk) in enumerate(zip(keys, chunks, strict=True)):
                stored = lossy.encode(memoryview(chunk), LAYOUT, loops, level)
                assert stored is not None
                assert len(stored) < len(chunk) / 4
                back = bytearray(len(chunk))
                lossy.decode(memoryview(stored), memoryview(back), loops)
                assert not np.array_equal(back, np.frombuffer(chunk, np.uint8))
                assert agent.put(key, keys[at - 1] if at else None, back) is PutOutcome.STORED
            found[name] = divergence(exact, scores(engine, prompt))
    assert 0 < found["fine"] < found["coarse"] < 0.5, found
