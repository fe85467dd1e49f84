"""Prompts, settings and comparisons that the tests of this suite share."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from bmv2_testbed.client import Testbed
from bmv2_testbed.engines.engine_client import Engine, Generated
from bmv2_testbed.errors import TestbedError
from tests.leftovers import leftovers

StartEngine = Callable[..., Engine]

BLOCK_TOKENS, CHUNK_TOKENS = 32, 64
"""Two blocks a chunk: the engine's own prefix cache may have half of one."""

SMALL = {
    "hidden_size": 128,
    "intermediate_size": 344,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
CHUNK_BYTES = CHUNK_TOKENS * 2 * 2 * 2 * 32 * 4
"""Layers, keys and values, heads, numbers a head, bytes of a float32."""

PATIENT = {
    "gate": "off",
    "load_deadline_s": 300,
    "lookup_timeout_s": 300,
    "lookup_wait_s": 1,
    "answer_timeout_s": 300,
}
"""What is in the pool is found and loaded, however slow the machine is at the moment."""

LEFTOVERS_PATIENCE_S = 120.0
PATIENCE_S = 300.0
_POLL_S = 0.02

MANY = 40


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for what other processes bring about and tell nobody."""
    give_up_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_s, f"not within {PATIENCE_S:.0f} s: {what}"
        time.sleep(_POLL_S)


def random_tokens(chance: random.Random, count: int) -> list[int]:
    """Tokens of the small models' vocabulary, without its special ones."""
    return [chance.randrange(3, 4000) for _ in range(count)]


def shared_prompts(
    seed: int, count: int, documents: int = 12, document_tokens: tuple[int, int] = (70, 300)
) -> list[list[int]]:
    """Prompts that share prefixes as conversations do: a document, part of it or all, and a question of its own.

    All are longer than a chunk.
    """
    chance = random.Random(seed)
    texts = [random_tokens(chance, chance.randint(*document_tokens)) for _ in range(documents)]
    prompts = []
    for _ in range(count):
        text = chance.choice(texts)
        kept = len(text) if chance.random() < 0.7 else chance.randint(1, len(text))
        prompts.append(text[:kept] + random_tokens(chance, max(CHUNK_TOKENS + 1 - kept, chance.randint(1, 60))))
    return prompts


def tokens_of(results: Sequence[Generated | None]) -> list[tuple[int, ...]]:
    """Tokens of requests that all ended by themselves."""
    assert all(result is not None for result in results)
    return [result.tokens for result in results if result is not None]


class Truth:
    """What the engine without kvcast says, asked once a prompt: tokens as far as they are certain."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[tuple[tuple[int, ...], int], tuple[int, ...]] = {}

    def __call__(self, prompts: Sequence[Sequence[int]], max_tokens: int = 8) -> list[tuple[int, ...]]:
        asked = [(tuple(prompt), max_tokens) for prompt in prompts]
        missing = list(dict.fromkeys(each for each in asked if each not in self._known))
        results = self._engine.generate([prompt for prompt, _ in missing], max_tokens=max_tokens, margins=True)
        for each, result in zip(missing, results, strict=True):
            assert result is not None
            self._known[each] = result.certain
        return [self._known[each] for each in asked]


def assert_same(said: Sequence[Sequence[int]], truth: Sequence[Sequence[int]]) -> None:
    """Every request's tokens begin with those that are certain; of many requests nearly all tokens are."""
    for index, (tokens, expected) in enumerate(zip(said, truth, strict=True)):
        assert tuple(tokens[: len(expected)]) == tuple(expected), f"request {index}"
    if len(said) >= MANY:
        assert sum(map(len, truth)) >= 0.95 * sum(map(len, said))


PROMPTS = shared_prompts(seed=7, count=int(os.environ.get("KVCAST_VLLM_PROMPTS", "200")))
"""Fewer only to try something on a busy machine."""


def run_batches(engine: Engine, prompts: Sequence[list[int]], batch: int = 20) -> list[tuple[int, ...]]:
    """Tokens of prompts, run together by so many; the pool has what one batch computed before the next begins."""
    found = []
    for at in range(0, len(prompts), batch):
        found += tokens_of(engine.generate(prompts[at : at + batch]))
        assert engine.ask("run_until_idle")
    return found


def one(engine: Engine, prompt: list[int], **more: Any) -> Generated:
    """One request alone; what it computed is in the pool afterwards."""
    (result,) = engine.generate([prompt], **more)
    assert result is not None
    assert engine.ask("run_until_idle")
    return result


def _knows_names(engine: Engine) -> bool:
    """All bytes of the weights have been read, in the background; an engine looks when a request comes."""
    one(engine, list(range(1, 9)))
    try:
        return bool(engine.where(list(range(CHUNK_TOKENS))))
    except TestbedError:
        return False


def await_names(engine: Engine) -> None:
    """Wait until an engine can name its chunks: what it computes before that is not shared."""
    until(lambda: _knows_names(engine), "the engine knows the names of its chunks")


def run_until_idle(engine: Engine) -> None:
    """Saves are over and nothing keeps blocks of the paged cache."""
    assert engine.ask("run_until_idle")
    assert engine.ask("blocks")["used"] == 0


def agent_metric(testbed: Testbed, host: int, name: str) -> float:
    """A metric without labels."""
    lines = [line for line in testbed.agent_metrics(host).splitlines() if line.startswith(f"kvcast_agent_{name} ")]
    return float(lines[0].rpartition(" ")[2])


def assert_nothing_left(testbed: Testbed) -> None:
    """No pin, no lease, no chunk half filled, no interest, no internal error in agents and switch."""
    left = leftovers(testbed, patience_s=LEFTOVERS_PATIENCE_S)
    assert not left, "\n".join(left)


def processors(arguments: dict[str, Any]) -> dict[str, str]:
    """Workers on a machine of one NUMA node have to be told their processors."""
    if not arguments:
        return {}
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("several workers need a processor each")
    return {"VLLM_CPU_OMP_THREADS_BIND": f"{allowed[0]}|{allowed[1]}"}
