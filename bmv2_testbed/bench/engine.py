"""`kvcast bench vllm`: time to first token of a real engine with the pool, side by side with engines without it."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bmv2_testbed import client
from bmv2_testbed.engines.engine_client import Engine, engine_arguments, running
from bmv2_testbed.engines.launcher import launching
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.spec import TestbedSpec, host_name

POOL_BYTES = 512 * 2**20
TIMED = {
    "kv_connector": "TimedConnector",
    "kv_connector_module_path": "bmv2_testbed.engines.timed_connector",
}


@dataclass(frozen=True, slots=True)
class EngineBenchPlan:
    """How much of everything."""

    prompt_tokens: int = 4000
    repeat: int = 7
    misses: int = 40
    seed: int = 1
    dtype: str = "bfloat16"
    """As models are served. Only in float32 do tokens have to be the same: see docs/reference/vllm.md."""


@dataclass(frozen=True, slots=True)
class EngineBenchFigures:
    """Medians; seconds."""

    recompute_s: float
    """Time to first token of an engine without kvcast."""
    pool_s: float
    """The same prompts, their KV in this node's pool."""
    refused_s: float
    """The same prompts, their KV at another node, with a gate that says no."""
    own_s: float
    """The same prompts in the prefix cache of an engine without kvcast: no pool can be quicker than that."""
    recompute_all_s: Sequence[float]
    pool_all_s: Sequence[float]
    refused_all_s: Sequence[float]
    own_all_s: Sequence[float]
    miss_wall_s: float
    """What a request that finds nothing spends in the connector's calls on the engine's thread, in an engine that saves
    nothing."""
    miss_cpu_s: float
    miss_calls: Mapping[str, Sequence[float]]
    """Of that, by call of the connector: calls a request, seconds, CPU seconds."""
    saved_miss_cpu_s: float
    """The same in an engine that saves the prompt's KV, until all of it is in the pool."""
    saved_miss_calls: Mapping[str, Sequence[float]]
    same_tokens: bool

    @property
    def pool_ratio(self) -> float:
        return self.pool_s / self.recompute_s

    @property
    def own_ratio(self) -> float:
        return self.own_s / self.recompute_s

    @property
    def refused_ratio(self) -> float:
        return self.refused_s / self.recompute_s


def run_engine_bench(
    plan: EngineBenchPlan, model: Path, folder: Path, say: Callable[[str], None]
) -> EngineBenchFigures:
    """Four engines, prompts in turn. Raises TestbedError."""
    chance = random.Random(plan.seed)

    def prompt() -> list[int]:
        return [chance.randrange(3, 4000) for _ in range(plan.prompt_tokens)]

    prompts = [prompt() for _ in range(plan.repeat)]
    spec = TestbedSpec(hosts=2, seed=plan.seed, pool_bytes=POOL_BYTES)
    common: dict[str, Any] = {"enable_prefix_caching": False, "dtype": plan.dtype}
    refusing = {"prefill_tokens_per_s": 1e9, "save": "off"}
    with ExitStack() as stack:
        say("network")
        testbed = stack.enter_context(client.running(spec))
        say("vLLM")
        launcher = stack.enter_context(launching(folder))
        sockets = [str(testbed.directory / f"{host_name(host)}.sock") for host in range(2)]
        engines = []
        for name, arguments in (
            ("plain", engine_arguments(model, None, **common)),
            ("pool", engine_arguments(model, sockets[0], connector=TIMED, **common)),
            ("refused", engine_arguments(model, sockets[1], connector=TIMED, settings=refusing, **common)),
            ("own", engine_arguments(model, None, **{**common, "enable_prefix_caching": True})),
        ):
            say(f"engine: {name}")
            engines.append(stack.enter_context(running(launcher, arguments, folder, name)))
        _, pool, refused, own = engines
        for engine in engines:
            first_token(engine, prompt())
        say("misses")
        missed = _misses(refused, [prompt() for _ in range(plan.misses)])
        saved = _misses(pool, [prompt() for _ in range(plan.misses)])
        for each in prompts:
            first_token(pool, each)
            first_token(own, each)
        _run_until_idle(pool)
        times: list[list[float]] = [[] for _ in engines]
        same = True
        for index, each in enumerate(prompts):
            say(f"prompt {index + 1} of {plan.repeat}")
            said = []
            for engine, into in zip(engines, times, strict=True):
                seconds, tokens = first_token(engine, each)
                into.append(seconds)
                said.append(tokens)
            same = same and len(set(said)) == 1
        if refused.metrics()["misses"].get("gate", 0) < plan.repeat:
            raise TestbedError("the gate did not refuse what it was to refuse")
    recompute, pooled, refusals, owned = times
    return EngineBenchFigures(
        recompute_s=statistics.median(recompute),
        pool_s=statistics.median(pooled),
        refused_s=statistics.median(refusals),
        own_s=statistics.median(owned),
        recompute_all_s=recompute,
        pool_all_s=pooled,
        refused_all_s=refusals,
        own_all_s=owned,
        miss_wall_s=sum(seconds for _, seconds, _ in missed.values()),
        miss_cpu_s=sum(seconds for _, _, seconds in missed.values()),
        miss_calls=missed,
        saved_miss_cpu_s=sum(seconds for _, _, seconds in saved.values()),
        saved_miss_calls=saved,
        same_tokens=same,
    )


def first_token(engine: Engine, prompt: Sequence[int]) -> tuple[float, tuple[int, ...]]:
    """(time to first token, tokens) of one request alone."""
    (result,) = engine.generate([prompt], max_tokens=4)
    if result is None or not result.tokens:
        raise TestbedError("an engine did not answer")
    return result.first_token_s, result.tokens


def _misses(engine: Engine, prompts: Sequence[Sequence[int]]) -> dict[str, tuple[float, float, float]]:
    """(calls, seconds, CPU seconds) a request in each of the connector's calls, for prompts that nobody has seen."""
    before = engine.ask("spent")
    for prompt in prompts:
        first_token(engine, prompt)
        _run_until_idle(engine)
    after = engine.ask("spent")

    def spent(name: str, column: int) -> float:
        return float(after[name][column] - before[name][column]) / len(prompts)

    return {name: (spent(name, 0), spent(name, 1), spent(name, 2)) for name in after}


def _run_until_idle(engine: Engine) -> None:
    if not engine.ask("run_until_idle"):
        raise TestbedError("an engine did not finish its saves")
