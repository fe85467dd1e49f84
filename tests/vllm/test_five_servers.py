"""One server computes prompts, four decode, behind vllm-router: a minute to start on two cores."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bmv2_testbed.engines.launcher import Launcher
from tests.vllm.pd_servers import HIT_TOKENS, PROMPT_TOKENS, complete, metric, prefill_servers
from tests.vllm.vllm_router import prefill_and_decode, routing
from tests.vllm.vllm_suite import Truth, assert_same, random_tokens, until

DECODERS = 4


def test_four_decoders_behind_vllms_router(
    truth: Truth,
    launcher: Launcher,
    folder: Path,
    models: Callable[..., Path],
    agent_sockets: list[str],
) -> None:
    """Different prompts one after the other, then one prompt to all at once. Two engines share a node."""
    chance = random.Random(18)
    prompts = [random_tokens(chance, PROMPT_TOKENS) for _ in range(DECODERS)]
    shared = random_tokens(chance, PROMPT_TOKENS)
    sockets = [agent_sockets[0], *(agent_sockets[1 + number % 2] for number in range(DECODERS))]
    with prefill_servers(launcher, folder, models(), sockets) as (producer, *consumers):
        with routing(folder, *prefill_and_decode(producer, consumers)) as router:
            said = [complete(router, prompt) for prompt in prompts]
            with ThreadPoolExecutor(DECODERS) as together:
                said += together.map(lambda _: complete(router, shared), range(DECODERS))
        assert_same(said, truth([*prompts, *[shared] * DECODERS]))
        until(
            lambda: sum(metric(url, "hit_tokens") for url in consumers) == 2 * DECODERS * HIT_TOKENS,
            "decoders compute the rest of prompts, and nothing else",
        )
        hits = [metric(url, "hit_tokens") for url in consumers]
        assert all(hits), f"the router used some decoders only: {hits}"
