"""What `kvcast demo-vllm` does: real vLLM engines on the hosts of a testbed share the KV of a document."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bmv2_testbed import client
from bmv2_testbed.client import Testbed
from bmv2_testbed.engines.client import Engine, Generated, await_engine, engine_arguments, engine_argv, running
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.network.counters import InterfaceCounters
from bmv2_testbed.spec import TestbedSpec, Wiring, host_name

COLD_ENGINES = 4
WARM_HOST, ASKED_HOST, FIRST_COLD_HOST = 0, 1, 2
LINK_BIT_S = 1_000_000_000
POOL_BYTES = 256 * 2**20
CHUNK_TOKENS = 128
MODEL = {
    "hidden_size": 512,
    "intermediate_size": 1376,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
}
"""Computing 4,000 tokens takes a CPU about as much longer than moving their 32 MB as a GPU needs for a real model."""
SETTLE_S = 60.0
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class VllmDemoPlan:
    """How much of it."""

    document_tokens: int = 4000
    question_tokens: int = 24
    answer_tokens: int = 16
    seed: int = 1
    wiring: Wiring = Wiring.NAMESPACES
    rate_bit_s: int = LINK_BIT_S


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """One engine's answer."""

    name: str
    result: Generated
    same_tokens: bool
    """As the engine without kvcast."""
    chunks_from: dict[str, float]


@dataclass(frozen=True, slots=True)
class VllmDemoFigures:
    """Everything measured."""

    plain: Generated
    """The engine without kvcast: it computes everything."""
    asked: EngineFigures
    """Another engine's document, through the pool."""
    cold: Sequence[EngineFigures]
    """Four at once."""
    document_bytes: int
    holder_sent_bytes: int
    """By the warm host while the four fetched."""
    prefill_tokens_per_s: float

    @property
    def good(self) -> bool:
        return all(figures.same_tokens for figures in (self.asked, *self.cold))


def run_vllm_demo(plan: VllmDemoPlan, model: Path, folder: Path, say: Say) -> VllmDemoFigures:
    """Run it all. Raises TestbedError with what went wrong."""
    chance = random.Random(plan.seed)

    def tokens(count: int) -> list[int]:
        return [chance.randrange(3, 4000) for _ in range(count)]

    documents = [tokens(plan.document_tokens) for _ in range(2)]
    questions = [tokens(plan.question_tokens) for _ in range(1 + COLD_ENGINES)]
    warm_up = tokens(1024)
    prompts = [documents[0] + questions[0]] + [documents[1] + question for question in questions[1:]]
    say("engine without kvcast")
    with running(engine_arguments(model, None, enable_prefix_caching=False), folder, "plain") as engine:
        engine.generate([warm_up], max_tokens=plan.answer_tokens)
        plain = [_one(engine.generate([prompt], max_tokens=plan.answer_tokens)) for prompt in prompts]
    spec = TestbedSpec(
        wiring=plan.wiring,
        hosts=FIRST_COLD_HOST + COLD_ENGINES,
        rate_bit_s=plan.rate_bit_s,
        seed=plan.seed,
        pool_bytes=POOL_BYTES,
    )
    say(f"network of {spec.hosts} hosts, controller, switch")
    with ExitStack() as stack:
        testbed = stack.enter_context(client.running(spec))
        say(f"{spec.hosts} engines")
        engines = _start_engines(testbed, stack, spec, model)
        for engine in engines:
            engine.generate([warm_up], max_tokens=plan.answer_tokens)
        say("one engine reads a document, another answers a question on it")
        _read(engines[WARM_HOST], documents[0])
        answered = _one(engines[ASKED_HOST].generate([prompts[0]], max_tokens=plan.answer_tokens))
        asked = _figures("second engine", engines[ASKED_HOST], answered, plain[0])
        say("one engine reads a document, four answer questions on it at once")
        _read(engines[WARM_HOST], documents[1])
        before = _sent(testbed)
        with ThreadPoolExecutor(COLD_ENGINES) as threads:
            futures = [
                threads.submit(engine.generate, [prompt], max_tokens=plan.answer_tokens)
                for engine, prompt in zip(engines[FIRST_COLD_HOST:], prompts[1:], strict=True)
            ]
            answers = [_one(future.result()) for future in futures]
        sent = _sent(testbed).tx_bytes - before.tx_bytes
        cold = [
            _figures(f"cold engine {index + 1}", engine, answer, truth)
            for index, (engine, answer, truth) in enumerate(
                zip(engines[FIRST_COLD_HOST:], answers, plain[1:], strict=True)
            )
        ]
        rate = engines[ASKED_HOST].metrics()["prefill_tokens_per_second"][""]
        chunk_bytes = engines[WARM_HOST].metrics()["saved_bytes"][""] / engines[WARM_HOST].metrics()["saves"]["stored"]
        for engine in engines:
            engine.ask("stop")
    document_bytes = int(plan.document_tokens // CHUNK_TOKENS * chunk_bytes)
    return VllmDemoFigures(plain[0], asked, cold, document_bytes, sent, rate)


def _start_engines(testbed: Testbed, stack: ExitStack, spec: TestbedSpec, model: Path) -> list[Engine]:
    """One a host. They are made two at a time: each takes a processor for a while, and memory for good."""
    inside = testbed.status()["directory"]

    def start(host: int) -> Engine:
        name = f"engine{host}"
        arguments = engine_arguments(
            model,
            f"{inside}/{host_name(host)}.sock",
            chunk_tokens=CHUNK_TOKENS,
            # The document lies in the pool alone: the engines' own caches would hide it.
            enable_prefix_caching=False,
        )
        testbed.run(name, host_name(host), engine_argv(f"{inside}/{name}.sock", arguments))
        return await_engine(
            testbed.directory / f"{name}.sock",
            lambda: testbed.status()["processes"].get(name) is None,
            lambda: testbed.log(name),
        )

    engines = [start(host) for host in range(spec.hosts)]
    for engine in engines:
        stack.callback(engine.close)
    return engines


def _read(engine: Engine, document: list[int]) -> None:
    """An engine computes a document; returns when all of it is in its node's pool and announced."""
    engine.generate([document], max_tokens=1)
    if not engine.ask("settle"):
        raise TestbedError("the engine did not save the document")
    # The agent announces 30 ms after a put, and the controller tells the others at once.
    time.sleep(0.5)


def _sent(testbed: Testbed) -> InterfaceCounters:
    return testbed.counters()[host_name(WARM_HOST)]


def _figures(name: str, engine: Engine, answered: Generated, truth: Generated) -> EngineFigures:
    return EngineFigures(name, answered, answered.tokens == truth.tokens, engine.metrics().get("hits", {}))


def _one(results: Sequence[Generated | None]) -> Generated:
    (result,) = results
    if result is None or result.finish_reason == "error":
        raise TestbedError("an engine did not answer")
    return result
