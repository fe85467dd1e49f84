"""What `kvcast demo-vllm` does: real vLLM engines on the hosts of a testbed share the KV of a document."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bmv2_testbed import client
from bmv2_testbed.client import Testbed
from bmv2_testbed.engines.engine_client import Engine, Generated, engine_arguments, running
from bmv2_testbed.engines.launcher import ONE_THREAD, Launcher, launching
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.network.counters import InterfaceCounters
from bmv2_testbed.spec import TestbedSpec, host_name

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
SETTINGS = {
    # A machine that plays six hosts and a switch at once may be slow at it: shown is the pool, not the gate.
    "gate": "off",
    "load_deadline_s": 60,
    "lookup_timeout_s": 60,
    "answer_timeout_s": 60,
}
ALONE = {"kvcast.no_load": True, "kvcast.no_save": True}
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class VllmDemoPlan:
    """How much of it."""

    document_tokens: int = 4000
    question_tokens: int = 24
    answer_tokens: int = 16
    cold_engines: int = 4
    seed: int = 1
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
    """Several at once."""
    document_bytes: int
    holder_sent_bytes: int
    """By the warm host while they fetched."""
    prefill_tokens_per_s: float

    @property
    def good(self) -> bool:
        return all(figures.same_tokens for figures in (self.asked, *self.cold))


def run_vllm_demo(plan: VllmDemoPlan, model: Path, folder: Path, say: Say) -> VllmDemoFigures:
    """Run it all. Raises TestbedError with what went wrong."""
    texts = _texts(plan)
    spec = TestbedSpec(
        hosts=FIRST_COLD_HOST + plan.cold_engines, rate_bit_s=plan.rate_bit_s, seed=plan.seed, pool_bytes=POOL_BYTES
    )
    with ExitStack() as stack:
        say("vLLM")
        launcher = stack.enter_context(launching(folder, ONE_THREAD))
        say("engine without kvcast")
        plain = _plain_answers(launcher, plan, texts, model, folder)
        say(f"network of {spec.hosts} hosts, controller, switch")
        testbed = stack.enter_context(client.running(spec))
        say(f"{spec.hosts} engines")
        engines = _start_engines(launcher, testbed, stack, model, folder)
        for engine in engines:
            engine.generate([texts.warm_up], max_tokens=plan.answer_tokens, kv_transfer_params=ALONE)
        say("one engine reads a document, another answers a question on it")
        _read(engines[WARM_HOST], texts.documents[0], engines[ASKED_HOST : ASKED_HOST + 1])
        answered = one_answer(engines[ASKED_HOST].generate([texts.prompts[0]], max_tokens=plan.answer_tokens))
        asked = _figures("second engine", engines[ASKED_HOST], answered, plain[0])
        say(f"one engine reads a document, {plan.cold_engines} answer questions on it at once")
        _read(engines[WARM_HOST], texts.documents[1], engines[FIRST_COLD_HOST:])
        before = _sent(testbed)
        answers = answers_at_once(engines[FIRST_COLD_HOST:], texts.prompts[1:], plan.answer_tokens)
        sent = _sent(testbed).tx_bytes - before.tx_bytes
        cold = [
            _figures(f"cold engine {index + 1}", engine, answer, truth)
            for index, (engine, answer, truth) in enumerate(
                zip(engines[FIRST_COLD_HOST:], answers, plain[1:], strict=True)
            )
        ]
        rate = engines[ASKED_HOST].metrics()["prefill_tokens_per_second"][""]
        warm = engines[WARM_HOST].metrics()
        document_bytes = int(plan.document_tokens // CHUNK_TOKENS * warm["saved_bytes"][""] / warm["saves"]["stored"])
    return VllmDemoFigures(plain[0], asked, cold, document_bytes, sent, rate)


@dataclass(frozen=True, slots=True)
class _Texts:
    warm_up: list[int]
    documents: Sequence[list[int]]
    prompts: Sequence[list[int]]
    """One question on the first document, then one per cold engine on the second."""


def _texts(plan: VllmDemoPlan) -> _Texts:
    chance = random.Random(plan.seed)

    def tokens(count: int) -> list[int]:
        return [chance.randrange(3, 4000) for _ in range(count)]

    documents = [tokens(plan.document_tokens) for _ in range(2)]
    asked = [documents[0], *[documents[1]] * plan.cold_engines]
    return _Texts(tokens(1024), documents, [document + tokens(plan.question_tokens) for document in asked])


def _plain_answers(launcher: Launcher, plan: VllmDemoPlan, texts: _Texts, model: Path, folder: Path) -> list[Generated]:
    """What an engine without kvcast says, and when. Only the first question on a document costs computing it."""
    with running(launcher, engine_arguments(model, None, enable_prefix_caching=True), folder, "plain") as engine:
        engine.generate([texts.warm_up], max_tokens=plan.answer_tokens)
        answers = [engine.generate([prompt], max_tokens=plan.answer_tokens, margins=True) for prompt in texts.prompts]
        return [one_answer(answer) for answer in answers]


def answers_at_once(
    engines: Sequence[Engine], prompts: Sequence[list[int]], answer_tokens: int, **more: Any
) -> list[Generated]:
    """Each engine's answer to its prompt, all asked at the same time. Raises TestbedError where one does not answer."""
    with ThreadPoolExecutor(len(engines)) as threads:
        futures = [
            threads.submit(engine.generate, [prompt], max_tokens=answer_tokens, **more)
            for engine, prompt in zip(engines, prompts, strict=True)
        ]
        return [one_answer(future.result()) for future in futures]


def _start_engines(launcher: Launcher, testbed: Testbed, stack: ExitStack, model: Path, folder: Path) -> list[Engine]:
    """One for each host's agent. An engine's only way to the network is that agent."""
    engines = []
    for host in range(testbed.spec().hosts):
        arguments = engine_arguments(
            model,
            str(testbed.directory / f"{host_name(host)}.sock"),
            chunk_tokens=CHUNK_TOKENS,
            settings=SETTINGS,
            # The document lies in the pool alone: the engines' own caches would hide it.
            enable_prefix_caching=False,
        )
        engines.append(stack.enter_context(running(launcher, arguments, folder, f"engine{host}")))
    return engines


def _read(engine: Engine, document: list[int], readers: Sequence[Engine]) -> None:
    """An engine computes a document; returns when all of it is in its node's pool and the readers' nodes know."""
    engine.generate([document], max_tokens=1)
    if not engine.ask("run_until_idle"):
        raise TestbedError("the engine did not save the document")
    for reader in readers:
        reader.await_known(document)


def _sent(testbed: Testbed) -> InterfaceCounters:
    return testbed.counters()[host_name(WARM_HOST)]


def _figures(name: str, engine: Engine, answered: Generated, truth: Generated) -> EngineFigures:
    same = answered.tokens[: len(truth.certain)] == truth.certain
    return EngineFigures(name, answered, same, engine.metrics().get("hits", {}))


def one_answer(results: Sequence[Generated | None]) -> Generated:
    """The only answer. Raises TestbedError where there is none."""
    (result,) = results
    if result is None or result.finish_reason == "error":
        raise TestbedError("an engine did not answer")
    return result
