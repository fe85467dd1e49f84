"""OpenAI servers as users start them, by configuration only: one computes prompts, others decode, behind a proxy."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from bmv2_testbed.engines.launcher import Launcher
from tests.vllm.pd_servers import HIT_TOKENS, PROMPT_TOKENS, complete, metric, prefill_servers, request
from tests.vllm.toy_proxy import post, proxying
from tests.vllm.vllm_router import prefill_and_decode, routing
from tests.vllm.vllm_suite import Truth, assert_same, random_tokens, until


@pytest.fixture(scope="module")
def servers(
    launcher: Launcher, folder: Path, models: Callable[..., Path], agent_sockets: list[str]
) -> Iterator[list[str]]:
    """URLs: one that computes prompts, two that decode, each on a node of its own."""
    with prefill_servers(launcher, folder, models(), agent_sockets) as urls:
        yield urls


@pytest.fixture
def proxy_of(folder: Path, request: pytest.FixtureRequest) -> Callable[..., AbstractContextManager[str]]:
    """Makes a proxy for one server that computes prompts and others that decode."""
    if request.param == "toy":
        return proxying
    return lambda producer, consumers: routing(folder, *prefill_and_decode(producer, consumers))


@pytest.mark.parametrize("proxy_of", ["toy", "vllm-router"], indirect=True)
@pytest.mark.parametrize("decoders", [1, 2])
def test_a_proxy_made_for_nixl(
    truth: Truth,
    servers: list[str],
    decoders: int,
    proxy_of: Callable[..., AbstractContextManager[str]],
    request: pytest.FixtureRequest,
) -> None:
    """One or two decoders; no address of one server is known to another."""
    producer, *consumers = servers[: 1 + decoders]
    chance = random.Random(request.node.name)
    prompts = [random_tokens(chance, PROMPT_TOKENS) for _ in range(2 * decoders)]
    before = sum(metric(url, "hit_tokens") for url in consumers)
    with proxy_of(producer, consumers) as proxy:
        said = [complete(proxy, prompt) for prompt in prompts]
    assert_same(said, truth(prompts))
    until(
        lambda: sum(metric(url, "hit_tokens") for url in consumers) - before == len(prompts) * HIT_TOKENS,
        "all but the rest of each prompt came from the first server",
    )
    assert metric(producer, "hit_tokens") == 0


def test_clients_that_stream_and_go_away(truth: Truth, servers: list[str]) -> None:
    producer, *consumers = servers
    prompt = random_tokens(random.Random(120), PROMPT_TOKENS)
    with proxying(producer, consumers) as proxy:
        with post(proxy, "/v1/completions", request(prompt, 400, stream=True)) as answer:
            assert answer.readline().startswith(b"data: ")
        tokens: list[int] = []
        with post(proxy, "/v1/completions", request(prompt, 8, stream=True)) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    tokens += json.loads(line[6:])["choices"][0]["token_ids"]
    assert_same([tokens], truth([prompt]))
