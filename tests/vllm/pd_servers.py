"""OpenAI servers as users start them, by configuration only."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bmv2_testbed.engines.launcher import Launcher
from tests.vllm.openai_server import serving
from tests.vllm.toy_proxy import post
from tests.vllm.vllm_suite import BLOCK_TOKENS, CHUNK_TOKENS, PATIENT, until

PROMPT_TOKENS = 6 * CHUNK_TOKENS + 11
HIT_TOKENS = 6 * CHUNK_TOKENS
CACHE_BYTES = 64 * 2**20
MODEL = "small"


@contextmanager
def prefill_servers(launcher: Launcher, folder: Path, model: Path, agent_sockets: Sequence[str]) -> Iterator[list[str]]:
    """A server for each agent, the first of which computes prompts: their URLs. They are ready to share."""
    roles = ["kv_producer", *["kv_consumer"] * (len(agent_sockets) - 1)]
    servers = [arguments(model, one, kv_role=role) for one, role in zip(agent_sockets, roles, strict=True)]
    with ready(launcher, folder, servers) as urls:
        yield urls


def arguments(model: Path, agent_socket: str, *, kv_role: str = "kv_both", **more: Any) -> dict[str, Any]:
    """Of one server's command line. It has no prefix cache of its own: what it hits is the pool's."""
    transfer = {
        "kv_connector": "KvcastConnector",
        "kv_role": kv_role,
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"socket": agent_socket, "chunk_tokens": CHUNK_TOKENS, **PATIENT},
    }
    return {
        "model": str(model),
        "served-model-name": MODEL,
        "dtype": "float32",
        "max-model-len": 4096,
        "block-size": BLOCK_TOKENS,
        "enforce-eager": True,
        "kv-cache-memory-bytes": CACHE_BYTES,
        "enable-prefix-caching": False,
        "kv-transfer-config": transfer,
        **more,
    }


@contextmanager
def ready(launcher: Launcher, folder: Path, servers: Sequence[dict[str, Any]]) -> Iterator[list[str]]:
    """Servers that have read their weights: their URLs."""
    with serving(launcher, servers, folder, "server", {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}) as urls:
        for url in urls:
            until(lambda url=url: names_chunks(url), "a server has read its weights")
        yield urls


def names_chunks(url: str) -> bool:
    """Whether it looks requests up: it begins to when it has read all bytes of its weights."""
    complete(url, [5, 6, 7], max_tokens=1)
    return metric(url, "lookups") > 0


def complete(url: str, prompt: list[int], max_tokens: int = 8, **more: Any) -> tuple[int, ...]:
    """The tokens of an answer."""
    with post(url, "/v1/completions", request(prompt, max_tokens, **more)) as answer:
        (choice,) = json.load(answer)["choices"]
    return tuple(choice["token_ids"])


def request(prompt: list[int], max_tokens: int, **more: Any) -> dict[str, Any]:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    return {**body, "return_token_ids": True, **more}


def metric(url: str, name: str) -> float:
    """A metric of kvcast's in a server's own page; 0 while there is none."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"vllm:kvcast_{name}_total{{"))
