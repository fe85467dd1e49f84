"""vLLM, LMCache's connector, LMCache's server and kvcast in a chain, on three nodes behind kvcast-switch.

Each node has an engine, a server and an agent. Nothing but the pool is between the nodes, and all servers but the first
are cold: what their engines do not compute, the first node's server has stored.
"""

from __future__ import annotations

import functools
import random
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("vllm")
pytest.importorskip("lmcache")

from bmv2_testbed import client
from bmv2_testbed.demo.vllm import answers_at_once
from bmv2_testbed.engines.engine_client import Engine, engine_arguments, running
from bmv2_testbed.engines.launcher import ONE_THREAD, launching
from bmv2_testbed.engines.small_models import make_model
from tests.engines import pool
from tests.engines.lmcache_at_once import STARTING_LINE
from tests.engines.lmcache_server import Server, plugin
from tests.engines.pool import agent_socket, by_cast, keys_in_pool, needs_links, sent_bytes
from tests.engines.starting_line import holding
from tests.waiting import until

HOLDER, READERS = 0, (1, 2)
HOSTS = 1 + len(READERS)
CHUNK_TOKENS = 64
PROMPT_TOKENS = 1024
CHUNKY = {"num_key_value_heads": 8, "head_dim": 64}
"""A chunk of 64 tokens is 1 MiB: bringing a prompt takes more than a second on links with a rate."""
SHARE_MAX = 1.5
"""Of the chunks' bytes, what the holder sends to two: 1 and headers on a machine with time, 2 without casts."""
ROUNDS_MAX = 6
LAYERS, FLOAT_BYTES = 4, 4
TOKEN_BYTES = 2 * LAYERS * CHUNKY["num_key_value_heads"] * CHUNKY["head_dim"] * FLOAT_BYTES
ANSWER_TOKENS = 8
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
    with pool.running(HOSTS, 256 * 2**20) as made:
        yield made


@pytest.fixture(scope="module")
def servers(testbed: client.Testbed, folder: Path) -> Iterator[list[Server]]:
    """One on each node."""
    loaded = {"module_path": "tests.engines.lmcache_at_once", "class_name": "AtOnceL2"}
    line = {STARTING_LINE: str(folder / STARTING_LINE), "load_deadline_s": 60}
    made = [
        Server(
            folder / f"server{host}.log",
            plugin(agent_socket(testbed, host), loaded, **line),
            chunk_tokens=CHUNK_TOKENS,
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
    model = make_model(folder / "model", **CHUNKY)
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


@needs_links
def test_two_cold_servers_that_ask_at_once_are_served_by_one_cast(
    start: Callable[[int | None], Engine], testbed: client.Testbed, folder: Path
) -> None:
    """On a machine that stands still for a second one of them may read alone: one round of several has to show the
    cast. What engines say is right in each.
    """
    computing, readers, shares = start(HOLDER), [start(host) for host in READERS], []
    for seed in range(3, 3 + ROUNDS_MAX):
        tokens, chunks = prompt(seed), len(keys_in_pool(testbed))
        (computed,) = computing.generate([tokens])
        await_chunks(testbed, chunks + PROMPT_TOKENS // CHUNK_TOKENS)
        sent, casts = sent_bytes(testbed, HOLDER), by_cast(testbed, READERS)
        with ThreadPoolExecutor(1) as thread:
            with holding(folder / STARTING_LINE, len(readers)):
                answers = thread.submit(answers_at_once, readers, [tokens] * len(readers), ANSWER_TOKENS)
            found = answers.result()
        assert [each.tokens for each in found] == [computed.tokens] * len(readers)
        assert [each.cached_tokens for each in found] == [PROMPT_TOKENS - 1] * len(readers)
        shares.append((sent_bytes(testbed, HOLDER) - sent) / (PROMPT_TOKENS * TOKEN_BYTES))
        if shares[-1] <= SHARE_MAX:
            assert all(now > then for now, then in zip(by_cast(testbed, READERS), casts, strict=True))
            return
    raise AssertionError(f"the holder sent {shares} times the chunks' bytes")
