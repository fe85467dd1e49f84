"""Five workloads that show where a pool pays and where it does not, for eight nodes with one GPU each.

Times are real ones: a block is 2,048 tokens of Llama 3 8B, 256 MiB of KV, and an H100 computes it in 68 ms or more. A
testbed divides blocks and links alike (`planner.workloads.scaled_terms`), so that seconds stay seconds.

Every prompt ends with a short question of its own, which no cache has. Everything is drawn from a seed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

NODES: Final = 8
CHUNK_TOKENS: Final = 2048
"""Of a block: what an engine with chunked prefill computes in a step. Smaller ones would make a testbed's two cores,
which do the work of eight nodes and a switch, part of what is measured."""
QUESTION_TOKENS: Final = 64
LINK_BIT_S: Final = 102_400_000_000
"""About 100 Gbit/s; exactly what makes a block 256 KiB on a testbed's 100 Mbit/s."""
SLOW_LINK_BIT_S: Final = 12_800_000_000
"""Less than half of the rate at which an H100 makes KV of Llama 3 8B (break-even: 28.5 Gbit/s)."""


class Name(StrEnum):
    """How commands and figures call a workload."""

    SCALE_OUT = "scale-out"
    DOCUMENTS = "documents"
    ROLLOUTS = "rollouts"
    CHATS = "chats"
    SLOW_LINK = "slow-link"


class Mode(StrEnum):
    """What the nodes' pool can do."""

    NONE = "none"
    """Nothing is brought: each node has what it computed itself."""
    UNICAST = "unicast"
    """A pool on ordinary switches: every reader reads for itself."""
    CAST = "cast"
    """The switch copies chunks in flight."""
    CAST_SWITCH = "cast+switch"
    """The switch keeps hot chunks, too."""
    MERGED = "merged"
    """Casts, and engines wait for what others compute."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request: arrival in seconds after the first moment, node, blocks in prefix order."""

    at_s: float
    node: int
    blocks: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Of all blocks and of the question behind them."""
        return len(self.blocks) * CHUNK_TOKENS + QUESTION_TOKENS


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in order of arrival, and what nodes hold before the first one."""

    name: Name
    title: str
    prompts: tuple[Prompt, ...]
    held: Mapping[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    """By node: prefixes of blocks."""
    link_bit_s: int = LINK_BIT_S
    """Of every node."""

    @property
    def length_s(self) -> float:
        """From the first moment to the last arrival."""
        return max(prompt.at_s for prompt in self.prompts)


def workload(name: Name, seed: int = 1, length_s: float = math.inf) -> Workload:
    """One of the five; only what arrives in the first `length_s` seconds."""
    made = _MAKERS[name](random.Random(f"{name}/{seed}"))
    return replace(made, prompts=tuple(prompt for prompt in made.prompts if prompt.at_s <= length_s))


def _sorted(prompts: Iterator[Prompt]) -> tuple[Prompt, ...]:
    return tuple(sorted(prompts, key=lambda prompt: (prompt.at_s, prompt.node)))


def _scale_out(rng: random.Random) -> Workload:
    blocks = tuple(range(15))

    def prompts() -> Iterator[Prompt]:
        for node in range(NODES):
            at_s = 0.05 * rng.random()
            for _ in range(6):
                yield Prompt(at_s, node, blocks)
                at_s += 0.4 + 0.6 * rng.random()

    title = "a system prompt of 30k tokens at one node; 7 more begin to serve it, 6 requests a node"
    return Workload(Name.SCALE_OUT, title, _sorted(prompts()), {0: (blocks,)})


def _questions(
    rng: random.Random, documents: int, blocks: int
) -> tuple[tuple[Prompt, ...], dict[int, tuple[int, ...]]]:
    """Every 1.6 s a document at another node, and two questions about it at each node."""
    held = {3 * number % NODES: tuple(range(number * blocks, (number + 1) * blocks)) for number in range(documents)}

    def prompts() -> Iterator[Prompt]:
        for number, document in enumerate(held.values()):
            for node in range(NODES):
                first_s = 1.6 * number + 0.1 * rng.random()
                yield Prompt(first_s, node, document)
                yield Prompt(first_s + 0.4 + 0.4 * rng.random(), node, document)

    return _sorted(prompts()), held


def _documents(rng: random.Random) -> Workload:
    prompts, held = _questions(rng, documents=3, blocks=10)
    title = "every 1.6 s a document of 20k tokens at one node, 2 questions about it at each of 8 nodes"
    return Workload(Name.DOCUMENTS, title, prompts, {node: (document,) for node, document in held.items()})


def _slow_link(rng: random.Random) -> Workload:
    prompts, held = _questions(rng, documents=3, blocks=4)
    title = "the same with documents of 8k tokens over 12.8 Gbit/s, below break-even"
    return Workload(
        Name.SLOW_LINK, title, prompts, {node: (document,) for node, document in held.items()}, SLOW_LINK_BIT_S
    )


def _rollouts(rng: random.Random) -> Workload:
    def prompts() -> Iterator[Prompt]:
        first = 0
        for group in range(12):
            blocks = tuple(range(first, first + rng.randint(3, 7)))
            first = blocks[-1] + 1
            for sample in range(2 * NODES):
                yield Prompt(0.45 * group + 1.2 * rng.random(), (group + sample) % NODES, blocks)

    title = "every 0.45 s a prompt that nobody has, 6k to 14k tokens, 16 samples of it over 8 loaded nodes"
    return Workload(Name.ROLLOUTS, title, _sorted(prompts()))


def _chats(rng: random.Random) -> Workload:
    def prompts() -> Iterator[Prompt]:
        first = 0
        for session in range(3 * NODES):
            at_s, blocks = 1.3 * rng.random(), list(range(first, first + rng.randint(1, 3)))
            for _ in range(4):
                yield Prompt(at_s, session % NODES, tuple(blocks))
                at_s += 1.0 + 0.6 * rng.random()
                blocks.append(blocks[-1] + 1)
            first = blocks[-1] + 1

    title = "24 chats of 4 turns, 2k tokens more each turn, every chat at a node of its own"
    return Workload(Name.CHATS, title, _sorted(prompts()))


_MAKERS: Final[Mapping[Name, Callable[[random.Random], Workload]]] = {
    Name.SCALE_OUT: _scale_out,
    Name.DOCUMENTS: _documents,
    Name.ROLLOUTS: _rollouts,
    Name.CHATS: _chats,
    Name.SLOW_LINK: _slow_link,
}
