"""OpenAI servers as users start them, by configuration only: one computes prompts, others decode, behind a proxy."""

from __future__ import annotations

import json
import random
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bmv2_testbed.engines.launcher import Launcher
from bmv2_testbed.engines.openai_server import serving
from tests.vllm.toy_proxy import post, proxying
from tests.vllm.vllm_suite import BLOCK_TOKENS, CHUNK_TOKENS, PATIENT, Truth, assert_same, random_tokens, until

PROMPT_TOKENS = 6 * CHUNK_TOKENS + 11
HIT_TOKENS = 6 * CHUNK_TOKENS
CACHE_BYTES = 64 * 2**20
ROLES = ("kv_producer", "kv_consumer", "kv_consumer")


@pytest.fixture(scope="module")
def servers(
    launcher: Launcher, folder: Path, models: Callable[..., Path], agent_sockets: list[str]
) -> Iterator[list[str]]:
    """URLs: one that computes prompts, two that decode, each on a node of its own."""
    arguments: list[dict[str, Any]] = []
    for role, agent_socket in zip(ROLES, agent_sockets, strict=True):
        transfer = {
            "kv_connector": "KvcastConnector",
            "kv_role": role,
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"socket": agent_socket, "chunk_tokens": CHUNK_TOKENS, **PATIENT},
        }
        arguments.append(
            {
                "model": str(models()),
                "served-model-name": "small",
                "dtype": "float32",
                "max-model-len": 4096,
                "block-size": BLOCK_TOKENS,
                "enforce-eager": True,
                "kv-cache-memory-bytes": CACHE_BYTES,
                "enable-prefix-caching": False,
                "kv-transfer-config": transfer,
            }
        )
    with serving(launcher, arguments, folder, "server", {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}) as urls:
        for url in urls:
            until(lambda url=url: _names_chunks(url), "a server has read its weights")
        yield urls


def _names_chunks(url: str) -> bool:
    """Whether it looks requests up: it begins to when it has read all bytes of its weights."""
    complete(url, [5, 6, 7], max_tokens=1)
    return metric(url, "lookups") > 0


def complete(url: str, prompt: list[int], max_tokens: int = 8, **more: Any) -> tuple[int, ...]:
    """The tokens of an answer."""
    with post(url, "/v1/completions", request(prompt, max_tokens, **more)) as answer:
        (choice,) = json.load(answer)["choices"]
    return tuple(choice["token_ids"])


def request(prompt: list[int], max_tokens: int, **more: Any) -> dict[str, Any]:
    body = {"model": "small", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    return {**body, "return_token_ids": True, **more}


def metric(url: str, name: str) -> float:
    """A metric of kvcast's in a server's own page; 0 while there is none."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"vllm:kvcast_{name}_total{{"))


@pytest.mark.parametrize("decoders", [1, 2])
def test_a_proxy_made_for_nixl(truth: Truth, servers: list[str], decoders: int) -> None:
    """One or two decoders; no address of one server is known to another."""
    producer, *consumers = servers[: 1 + decoders]
    prompts = [random_tokens(random.Random(90 + 10 * decoders + at), PROMPT_TOKENS) for at in range(2 * decoders)]
    before = sum(metric(url, "hit_tokens") for url in consumers)
    with proxying(producer, consumers) as proxy:
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
