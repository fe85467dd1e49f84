"""What `kvcast demo-pd` does: one vLLM engine computes prompts, others decode them, on hosts of a testbed."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from bmv2_testbed import client
from bmv2_testbed.client import Testbed
from bmv2_testbed.demo.prefill_systems import OverKvcast, OverNixl, PrefillSystem
from bmv2_testbed.demo.vllm import CHUNK_TOKENS, LINK_BIT_S, POOL_BYTES, Say, one_answer
from bmv2_testbed.engines.engine_client import Engine, Generated, engine_arguments, running
from bmv2_testbed.engines.launcher import ONE_THREAD, Launcher, launching
from bmv2_testbed.engines.small_models import kv_token_bytes
from bmv2_testbed.spec import TestbedSpec, host_name


@dataclass(frozen=True, slots=True)
class PrefillDemoPlan:
    """How much of it."""

    prompt_tokens: int = 4000
    answer_tokens: int = 4
    with_nixl: bool = False
    """Whether vLLM's NIXL connector does the same afterwards, where `nixl_refusal` names nothing against it."""
    decoders: int = 4
    rounds: int = 3
    """Of each kind: with one decoder, and with all."""
    seed: int = 1
    rate_bit_s: int = LINK_BIT_S


@dataclass(frozen=True, slots=True)
class PrefillRound:
    """One prompt: computed once, decoded by some."""

    system: str
    decoders: int
    first_token_s: tuple[float, ...]
    """Of each decoder, from when the engine that computes is asked."""
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

    @property
    def systems(self) -> Sequence[str]:
        """In the order in which they ran."""
        return list(dict.fromkeys(each.system for each in self.rounds))

    def of(self, system: str, decoders: int) -> PrefillRound:
        """The rounds of a system with so many decoders as one: medians over rounds, each decoder by its rank."""
        rounds = [each for each in self.rounds if (each.system, each.decoders) == (system, decoders)]
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
    spec = TestbedSpec(hosts=1 + plan.decoders, rate_bit_s=plan.rate_bit_s, seed=plan.seed, pool_bytes=POOL_BYTES)
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
        systems: list[PrefillSystem] = [OverKvcast(testbed), *([OverNixl(testbed)] if plan.with_nixl else [])]
        rounds: list[PrefillRound] = []
        for system in systems:
            say(f"{spec.hosts} engines with {system.name}")
            with ExitStack() as stopping:
                engines = [
                    stopping.enter_context(_engine(launcher, system, model, folder, host)) for host in range(spec.hosts)
                ]
                system.warm_up(engines, prompts[0][: 2 * CHUNK_TOKENS])
                for number, count in enumerate(counts, start=1):
                    say(f"{system.name}: one engine computes a prompt, {count} decode{'s' if count == 1 else ''}")
                    rounds.append(_round(testbed, system, engines[: 1 + count], prompts[number], truth[number]))
    chunks_tokens = plan.prompt_tokens // CHUNK_TOKENS * CHUNK_TOKENS
    computing_s = statistics.median(each.first_token_s for each in truth[1:])
    return PrefillDemoFigures(computing_s, chunks_tokens * kv_token_bytes(model), rounds)


def _engine(
    launcher: Launcher, system: PrefillSystem, model: Path, folder: Path, host: int
) -> AbstractContextManager[Engine]:
    return running(
        launcher,
        system.arguments(model, host),
        folder,
        f"{system.name}{host}",
        system.environment(host),
        network=system.network(host),
    )


def _round(
    testbed: Testbed, system: PrefillSystem, engines: Sequence[Engine], prompt: list[int], truth: Generated
) -> PrefillRound:
    before = _sent_bytes(testbed)
    asked_s, answers = system.answers(engines, prompt, len(truth.tokens))
    return PrefillRound(
        system.name,
        len(answers),
        tuple(answer.first_token_at_s - asked_s for answer in answers),
        tuple(answer.cached_tokens for answer in answers),
        _sent_bytes(testbed) - before,
        all(answer.tokens[: len(truth.certain)] == truth.certain for answer in answers),
    )


def _sent_bytes(testbed: Testbed) -> int:
    """What the node of the engine that computes has sent since it is there."""
    return testbed.counters()[host_name(0)].tx_bytes
