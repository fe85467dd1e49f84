"""What `kvcast demo-pd` does: one vLLM engine computes prompts, others decode them, on hosts of a testbed.

Each round asks decoders and the engine that computes at the same moment: the decoders wait for keys that do not exist
yet, and get each chunk while the next is computed.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bmv2_testbed import client
from bmv2_testbed.client import Testbed
from bmv2_testbed.demo.vllm import (
    ALONE,
    CHUNK_TOKENS,
    LINK_BIT_S,
    POOL_BYTES,
    SETTINGS,
    Say,
    answers_at_once,
    one_answer,
)
from bmv2_testbed.engines.engine_client import Engine, Generated, engine_arguments, running
from bmv2_testbed.engines.launcher import ONE_THREAD, launching
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.spec import TestbedSpec, Wiring, host_name

PREFILL: Final = {"do_remote_decode": True}
DECODE: Final = {"do_remote_prefill": True}
"""What a proxy sends that asks both sides at once."""
KNOWN_S: Final = 60.0
POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class PrefillDemoPlan:
    """How much of it."""

    prompt_tokens: int = 4000
    answer_tokens: int = 4
    decoders: int = 4
    rounds: int = 3
    """Of each kind: with one decoder, and with all."""
    seed: int = 1
    wiring: Wiring = Wiring.NAMESPACES
    rate_bit_s: int = LINK_BIT_S


@dataclass(frozen=True, slots=True)
class PrefillRound:
    """One prompt: computed once, decoded by some."""

    decoders: int
    first_token_s: tuple[float, ...]
    """Of each decoder, from its request on."""
    cached_tokens: tuple[int, ...]
    sent_bytes: int
    """By the node that computed, until all had their first token."""
    same_tokens: bool
    """All as the engine without kvcast."""


@dataclass(frozen=True, slots=True)
class PrefillDemoFigures:
    """Everything measured."""

    computing_s: float
    """Until the first token of an engine without kvcast."""
    prompt_bytes: int
    """The KV of a prompt's whole chunks."""
    rounds: Sequence[PrefillRound]

    @property
    def good(self) -> bool:
        return all(each.same_tokens for each in self.rounds)

    def of(self, decoders: int) -> PrefillRound:
        """The rounds with so many decoders as one: medians over rounds, each decoder by its rank."""
        rounds = [each for each in self.rounds if each.decoders == decoders]
        ranks = zip(*(sorted(each.first_token_s) for each in rounds), strict=True)
        return replace(
            rounds[0],
            first_token_s=tuple(statistics.median(times) for times in ranks),
            sent_bytes=int(statistics.median(each.sent_bytes for each in rounds)),
            same_tokens=all(each.same_tokens for each in rounds),
        )


def run_prefill_demo(plan: PrefillDemoPlan, model: Path, folder: Path, say: Say) -> PrefillDemoFigures:
    """Run it all. Raises TestbedError with what went wrong."""
    chance = random.Random(plan.seed)
    counts = [1, plan.decoders] * plan.rounds
    prompts = [[chance.randrange(3, 4000) for _ in range(plan.prompt_tokens)] for _ in range(1 + len(counts))]
    spec = TestbedSpec(
        wiring=plan.wiring, hosts=1 + plan.decoders, rate_bit_s=plan.rate_bit_s, seed=plan.seed, pool_bytes=POOL_BYTES
    )
    with ExitStack() as stack:
        say("vLLM")
        launcher = stack.enter_context(launching(folder, ONE_THREAD))
        say("engine without kvcast")
        with running(launcher, engine_arguments(model, None, enable_prefix_caching=False), folder, "plain") as engine:
            truth = [
                one_answer(engine.generate([prompt], max_tokens=plan.answer_tokens, margins=True)) for prompt in prompts
            ]
        say(f"network of {spec.hosts} hosts, controller, switch")
        testbed = stack.enter_context(client.running(spec))
        say(f"{spec.hosts} engines")
        engines = []
        for host in range(spec.hosts):
            arguments = engine_arguments(
                model,
                str(testbed.directory / f"{host_name(host)}.sock"),
                chunk_tokens=CHUNK_TOKENS,
                settings=SETTINGS,
                connector={"kv_role": "kv_consumer" if host else "kv_producer"},
                enable_prefix_caching=False,
                max_num_batched_tokens=1024,
            )
            engines.append(stack.enter_context(running(launcher, arguments, folder, f"engine{host}")))
        for engine in engines:
            engine.generate([prompts[0][: 2 * CHUNK_TOKENS]], max_tokens=plan.answer_tokens, kv_transfer_params=ALONE)
        rounds = []
        for number, count in enumerate(counts, start=1):
            say(f"one engine computes a prompt, {count} decode{'s' if count == 1 else ''}")
            rounds.append(_round(testbed, plan, engines[: 1 + count], prompts[number], truth[number]))
        metrics = engines[0].metrics()
        chunks = plan.prompt_tokens // CHUNK_TOKENS
        prompt_bytes = int(chunks * metrics["saved_bytes"][""] / metrics["saves"]["stored"])
    return PrefillDemoFigures(statistics.median(each.first_token_s for each in truth[1:]), prompt_bytes, rounds)


def _round(
    testbed: Testbed, plan: PrefillDemoPlan, engines: Sequence[Engine], prompt: list[int], truth: Generated
) -> PrefillRound:
    producer, *decoders = engines
    before = _sent_bytes(testbed)
    with ThreadPoolExecutor(1) as thread:
        decoding = thread.submit(
            answers_at_once, decoders, [prompt] * len(decoders), plan.answer_tokens, kv_transfer_params=DECODE
        )
        _await_decoders(testbed, len(decoders))
        one_answer(producer.generate([prompt], max_tokens=1, kv_transfer_params=PREFILL))
        answers = decoding.result()
    return PrefillRound(
        len(decoders),
        tuple(answer.first_token_s for answer in answers),
        tuple(answer.cached_tokens for answer in answers),
        _sent_bytes(testbed) - before,
        all(answer.tokens[: len(truth.certain)] == truth.certain for answer in answers),
    )


def _await_decoders(testbed: Testbed, count: int) -> None:
    """Return when all decoders wait for the prompt: what follows is the network's time, not the engines'."""
    give_up_s = time.monotonic() + KNOWN_S
    while sum(_waiting_fetches(testbed, 1 + host) for host in range(count)) < count:
        if time.monotonic() > give_up_s:
            raise TestbedError(f"not all of {count} decoders wait for their prompt after {KNOWN_S:.0f} s")
        time.sleep(POLL_S)


def _waiting_fetches(testbed: Testbed, host: int) -> int:
    lines = testbed.agent_metrics(host).splitlines()
    return sum(
        int(float(line.rpartition(" ")[2])) for line in lines if line.startswith("kvcast_agent_waiting_fetches ")
    )


def _sent_bytes(testbed: Testbed) -> int:
    """What the producer's node has sent since it is there."""
    return testbed.counters()[host_name(0)].tx_bytes
