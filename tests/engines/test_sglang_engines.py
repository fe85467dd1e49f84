"""Real SGLang engines on the CPU, with agents, a controller and a switch around them: the same tokens."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("sglang")

from bmv2_testbed import client
from bmv2_testbed.engines.small_models import make_model
from kvclient.client import AgentClient, Where
from tests.engines import pool
from tests.engines.pool import keys_in_pool, until
from tests.engines.sglang_client import PAGE_TOKENS, Engine, engine_arguments

HOSTS = 3
PROMPT_TOKENS = 4000


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kvcast-sglang-") as made:
        yield Path(made)


@pytest.fixture(scope="module")
def testbed() -> Iterator[client.Testbed]:
    with pool.running(HOSTS, 128 * 2**20) as made:
        yield made


@pytest.fixture(scope="module")
def sockets(testbed: client.Testbed) -> list[str]:
    return [str(testbed.directory / f"h{host}.sock") for host in range(HOSTS)]


@pytest.fixture(scope="module")
def engines(folder: Path, sockets: list[str]) -> Iterator[list[Engine]]:
    """On the second and the third node; nothing but the pool is between them."""
    model = make_model(folder / "model", "llama")
    made = [Engine(engine_arguments(model, sockets[host]), folder / f"engine{host}.log") for host in (1, 2)]
    try:
        yield [engine.await_up() for engine in made]
    finally:
        for engine in made:
            engine.close()


def test_after_a_flush_the_same_tokens_come_from_the_pool(engines: list[Engine], testbed: client.Testbed) -> None:
    first, second = engines
    prompt = [random.Random(1).randrange(3, 4000) for _ in range(512)]
    pages = (len(prompt) - 1) // PAGE_TOKENS
    computed = first.generate(prompt)
    assert (computed.cached, computed.from_storage) == (0, 0)
    until(lambda: len(keys_in_pool(testbed)) >= pages, "pages are written behind")
    first.flush()
    again, elsewhere = first.generate(prompt), second.generate(prompt)
    assert (again.ids, again.from_storage) == (computed.ids, pages * PAGE_TOKENS)
    assert (elsewhere.ids, elsewhere.from_storage) == (computed.ids, pages * PAGE_TOKENS)


def test_two_that_ask_at_once_get_the_same_from_a_third_node(
    engines: list[Engine], testbed: client.Testbed, sockets: list[str]
) -> None:
    first = engines[0]
    before = set(keys_in_pool(testbed))
    prompt = [random.Random(2).randrange(3, 4000) for _ in range(PROMPT_TOKENS)]
    pages = (len(prompt) - 1) // PAGE_TOKENS
    computed = first.generate(prompt)
    until(lambda: len(set(keys_in_pool(testbed)) - before) >= pages, "pages are written behind")
    keys = sorted(set(keys_in_pool(testbed)) - before)
    with AgentClient(sockets[0]) as holder, AgentClient(sockets[1]) as writer:
        with holder.fetch_each(keys, deadline_s=60) as got:
            assert all(got.present)
        until(lambda: all(writer.drop(keys)) or not any(writer.drop(keys)), "dropped where they were computed")
        until(lambda: set(writer.contains(keys)) == {Where.REMOTE}, "only the first node holds them")
    first.flush()
    for engine in engines:
        engine.begin(prompt)
    results = [engine.generated() for engine in engines]
    assert [result.ids for result in results] == [computed.ids] * 2
    assert [result.from_storage for result in results] == [pages * PAGE_TOKENS] * 2
