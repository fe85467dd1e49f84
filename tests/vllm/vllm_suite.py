"""Prompts and comparisons that the tests of this suite share."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence

from bmv2_testbed.engines.client import Engine, Generated

StartEngine = Callable[..., Engine]


def random_tokens(chance: random.Random, count: int) -> list[int]:
    """Tokens of the small models' vocabulary, without its special ones."""
    return [chance.randrange(3, 4000) for _ in range(count)]


def shared_prompts(
    seed: int, count: int, documents: int = 12, document_tokens: tuple[int, int] = (130, 700)
) -> list[list[int]]:
    """Prompts that share prefixes as conversations do: a document, part of it or all, and a question of its own."""
    chance = random.Random(seed)
    texts = [random_tokens(chance, chance.randint(*document_tokens)) for _ in range(documents)]
    prompts = []
    for _ in range(count):
        text = chance.choice(texts)
        kept = len(text) if chance.random() < 0.7 else chance.randint(1, len(text))
        prompts.append(text[:kept] + random_tokens(chance, chance.randint(1, 120)))
    return prompts


def tokens_of(results: Sequence[Generated | None]) -> list[tuple[int, ...]]:
    """Tokens of requests that all ended by themselves."""
    assert all(result is not None for result in results)
    return [result.tokens for result in results if result is not None]


class Truth:
    """What the engine without kvcast says, asked once a prompt."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[tuple[int, ...], tuple[int, ...]] = {}

    def __call__(self, prompts: Sequence[Sequence[int]], batch: int = 16) -> list[tuple[int, ...]]:
        missing = [prompt for prompt in dict.fromkeys(map(tuple, prompts)) if prompt not in self._known]
        for at in range(0, len(missing), batch):
            part = missing[at : at + batch]
            self._known.update(zip(part, tokens_of(self._engine.generate(part)), strict=True))
        return [self._known[tuple(prompt)] for prompt in prompts]


PROMPTS = shared_prompts(seed=7, count=int(os.environ.get("KVCAST_VLLM_PROMPTS", "200")))
"""Fewer only to try something on a busy machine."""


def run_batches(engine: Engine, prompts: list[list[int]], batch: int = 8) -> list[tuple[int, ...]]:
    found = []
    for at in range(0, len(prompts), batch):
        found += tokens_of(engine.generate(prompts[at : at + batch]))
    return found


def settled(engine: Engine) -> None:
    """Saves are over and nothing keeps blocks of the paged cache."""
    assert engine.ask("settle")
    assert engine.ask("blocks")["used"] == 0
