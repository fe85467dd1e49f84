"""vLLM, LMCache's connector, LMCache's server and kvcast in a chain, on two nodes behind kvcast-switch.

Each node has an engine, a server and an agent. Nothing but the pool is between the nodes, and the second node's server
is cold: what its engine does not compute, the first node's server has stored.
"""

from __future__ import annotations

import functools
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("vllm")
pytest.importorskip("lmcache")

from bmv2_testbed import client
from bmv2_testbed.engines.engine_client import Engine, engine_arguments, running
from bmv2_testbed.engines.launcher import ONE_THREAD, launching
from bmv2_testbed.engines.small_models import make_model
from tests.engines import pool
from tests.engines.lmcache_server import Server, plugin
from tests.engines.pool import keys_in_pool, until

HOSTS = 2
CHUNK_TOKENS = 64
PROMPT_TOKENS = 1024
VOCABULARY = range(3, 4000)


def await_chunks(testbed: client.Testbed, count: int) -> None:
    """Servers store behind."""
    until(lambda: len(keys_in_pool(testbed)) >= count, f"{count} chunks are in the pool")


def prompt(seed: int) -> list[int]:
    return [random.Random(seed * 10_000 + place).choice(VOCABULARY) for place in range(PROMPT_TOKENS)]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kvcast-chain-") as made:
        yield Path(made)


@pytest.fixture(scope="module")
def testbed() -> Iterator[client.Testbed]:
    with pool.running(HOSTS, 64 * 2**20) as made:
        yield made


@pytest.fixture(scope="module")
def servers(testbed: client.Testbed, folder: Path) -> Iterator[list[Server]]:
    """One on each node."""
    made = [
        Server(
            folder / f"server{host}.log", plugin(str(testbed.directory / f"h{host}.sock")), chunk_tokens=CHUNK_TOKENS
        )
        for host in range(HOSTS)
    ]
    try:
        yield [server.await_up() for server in made]
    finally:
        for server in made:
            server.close()


@pytest.fixture(scope="module")
def start(servers: list[Server], folder: Path) -> Iterator[Callable[[int | None], Engine]]:
    """The engine of a node, started once; None: without LMCache."""
    model = make_model(folder / "model", "llama")
    with launching(folder, ONE_THREAD) as launcher, ExitStack() as engines:

        @functools.cache
        def make(host: int | None) -> Engine:
            arguments = engine_arguments(model, None, block_size=32, max_num_seqs=2)
            if host is not None:
                settings = {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": servers[host].port}
                arguments["kv_transfer_config"] = {
                    "kv_connector": "LMCacheMPConnector",
                    "kv_role": "kv_both",
                    "kv_connector_extra_config": settings,
                }
            name, program = f"engine-{host}", "tests.engines.chain_process"
            return engines.enter_context(running(launcher, arguments, folder, name, program=program))

        yield make


def test_a_cold_server_on_another_node_finds_all_but_the_last_token(
    start: Callable[[int | None], Engine], testbed: client.Testbed
) -> None:
    alone, first, second = start(None), start(0), start(1)
    tokens = prompt(1)
    (expected,) = alone.generate([tokens])
    (computed,) = first.generate([tokens])
    assert (computed.tokens, computed.cached_tokens) == (expected.tokens, 0)
    await_chunks(testbed, PROMPT_TOKENS // CHUNK_TOKENS)
    (found,) = second.generate([tokens])
    assert (found.tokens, found.cached_tokens) == (expected.tokens, PROMPT_TOKENS - 1)


def test_a_salt_shares_only_with_itself(start: Callable[[int | None], Engine], testbed: client.Testbed) -> None:
    first, second = start(0), start(1)
    tokens, chunks = prompt(2), len(keys_in_pool(testbed))
    (expected,) = first.generate([tokens], salt="one")
    await_chunks(testbed, chunks + PROMPT_TOKENS // CHUNK_TOKENS)
    (unsalted,) = second.generate([tokens])
    (other,) = second.generate([tokens], salt="other")
    (same,) = second.generate([tokens], salt="one")
    assert [one.cached_tokens for one in (expected, unsalted, other, same)] == [0, 0, 0, PROMPT_TOKENS - 1]
    assert len({one.tokens for one in (expected, unsalted, other, same)}) == 1
