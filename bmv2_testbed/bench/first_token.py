"""`kvcast bench ttft`: time to first token where a prompt's KV comes from, compared with vLLM's own prefix cache.

All engines are on one machine and take turns: for each prompt an engine that computes it, one that has it in vLLM's own
prefix cache, one whose node's pool has it, one whose node has to fetch it, and at last several whose nodes fetch
another one at once.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from bmv2_testbed import client
from bmv2_testbed.client import Testbed
from bmv2_testbed.demo.vllm import SETTINGS, answers_at_once
from bmv2_testbed.engines.engine_client import Engine, Generated, engine_arguments, running
from bmv2_testbed.engines.launcher import ONE_THREAD, Launcher, launching
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.spec import Target, TestbedSpec, host_name

POOL_BYTES: Final = 512 * 2**20
ANSWER_TOKENS: Final = 4
BLOCK_TOKENS: Final = 32
"""The fewest that vLLM's attention on CPUs takes. By default its own prefix cache finds 128 tokens at a time there."""


class Case(StrEnum):
    """Where the KV of a prompt comes from."""

    COMPUTED = "computed"
    OWN = "vLLM's own prefix cache"
    LOCAL = "this node's pool"
    REMOTE = "another node's pool"
    AT_ONCE = "another node's pool, several engines at once"


@dataclass(frozen=True, slots=True)
class FirstTokenPlan:
    """How much of it."""

    prompt_tokens: int = 2000
    chunk_tokens: int = 64
    repeat: int = 11
    engines_at_once: int = 4
    seed: int = 1
    target: Target = Target.P4SWITCH


@dataclass(frozen=True, slots=True)
class FirstTokenFigures:
    """Times to first token in seconds, one for each prompt; of several engines at once the slowest."""

    seconds: dict[Case, list[float]]
    same_tokens: bool

    def median_s(self, case: Case) -> float:
        return statistics.median(self.seconds[case])

    def ratio(self, case: Case, to: Case) -> float:
        """Median of one in medians of another."""
        return self.median_s(case) / self.median_s(to)


def run_first_token_bench(
    plan: FirstTokenPlan, model: Path, folder: Path, say: Callable[[str], None]
) -> FirstTokenFigures:
    """Raises TestbedError, also where a prompt was not found whole."""
    chance = random.Random(plan.seed)
    prompts = [[chance.randrange(3, 4000) for _ in range(plan.prompt_tokens)] for _ in range(2 * plan.repeat + 1)]
    spec = TestbedSpec(
        target=plan.target,
        hosts=1 + plan.engines_at_once,
        seed=plan.seed,
        pool_bytes=POOL_BYTES,
        # A chunk is where the turn says: the controller pushes none.
        controller_settings={"push": {"enabled": False}},
    )
    with ExitStack() as stack:
        say(f"network of {spec.hosts} hosts")
        testbed = stack.enter_context(client.running(spec))
        say("vLLM")
        launcher = stack.enter_context(launching(folder, ONE_THREAD))
        bench = _Bench(plan, _start(stack, launcher, testbed, plan, model, folder, say))
        say("warming up")
        bench.turn(prompts[0], prompts[0])
        bench.forget()
        for number in range(plan.repeat):
            say(f"prompt {number + 1} of {plan.repeat}")
            bench.turn(prompts[1 + 2 * number], prompts[2 + 2 * number])
    return FirstTokenFigures(bench.seconds, bench.same_tokens)


def _start(
    stack: ExitStack,
    launcher: Launcher,
    testbed: Testbed,
    plan: FirstTokenPlan,
    model: Path,
    folder: Path,
    say: Callable[[str], None],
) -> dict[str, Engine]:
    """Engines by name: plain and own without kvcast, and one for each host. The pool serves all but h0."""

    common: dict[str, Any] = {"block_size": BLOCK_TOKENS, "enable_prefix_caching": False}

    def pooled(host: int) -> dict[str, Any]:
        return engine_arguments(
            model,
            str(testbed.directory / f"{host_name(host)}.sock"),
            chunk_tokens=plan.chunk_tokens,
            settings={**SETTINGS, "save": "off" if host else "all"},
            **common,
        )

    arguments = {
        "plain": engine_arguments(model, None, **common),
        "own": engine_arguments(model, None, **{**common, "enable_prefix_caching": True}),
        **{host_name(host): pooled(host) for host in range(1 + plan.engines_at_once)},
    }
    engines = {}
    for name, each in arguments.items():
        say(f"engine: {name}")
        engines[name] = stack.enter_context(running(launcher, each, folder, name))
    return engines


class _Bench:
    """Engines and what they took."""

    def __init__(self, plan: FirstTokenPlan, engines: dict[str, Engine]) -> None:
        self._plain, self._own, self._holder, *self._readers = engines.values()
        self._whole_tokens = plan.prompt_tokens // plan.chunk_tokens * plan.chunk_tokens
        self.forget()
        self.same_tokens = True

    def forget(self) -> None:
        """Drop the times so far: those fetches warmed the engines up."""
        self.seconds: dict[Case, list[float]] = {case: [] for case in Case}

    def turn(self, prompt: list[int], shared: list[int]) -> None:
        """`prompt` in each of the ways for one engine, then `shared` to all readers at once."""
        self._own.generate([prompt], max_tokens=1)
        for each in (prompt, shared):
            self._holder.generate([each], max_tokens=1)
        if not self._holder.ask("run_until_idle"):
            raise TestbedError("the engine did not save a prompt")
        for reader in self._readers:
            for each in (prompt, shared):
                reader.await_known(each)
        said = [
            self._ask(Case.COMPUTED, [self._plain], prompt, 0),
            self._ask(Case.OWN, [self._own], prompt, 1),
            self._ask(Case.LOCAL, [self._holder], prompt, self._whole_tokens),
            self._ask(Case.REMOTE, self._readers[:1], prompt, self._whole_tokens),
        ]
        at_once = self._ask(Case.AT_ONCE, self._readers, shared, self._whole_tokens)
        self.same_tokens = self.same_tokens and len(set().union(*said)) == 1 and len(at_once) == 1

    def _ask(
        self, case: Case, engines: Sequence[Engine], prompt: list[int], cached_tokens: int
    ) -> set[tuple[int, ...]]:
        """The different answers of engines asked at once, who must have found `cached_tokens` or more."""
        answers: list[Generated] = answers_at_once(engines, [prompt] * len(engines), ANSWER_TOKENS)
        found = min(answer.cached_tokens for answer in answers)
        if found < cached_tokens:
            raise TestbedError(f"{case}: {found} of {cached_tokens} tokens were found")
        self.seconds[case].append(max(answer.first_token_s for answer in answers))
        return {answer.tokens for answer in answers}
