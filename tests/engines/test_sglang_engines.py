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
from tests.engines import pool
from tests.engines.pool import agent_socket, by_cast, keep_only_at, keys_in_pool, needs_links, sent_bytes
from tests.engines.sglang_at_once import STARTING_LINE
from tests.engines.sglang_client import PAGE_TOKENS, Engine, engine_arguments
from tests.engines.starting_line import holding
from tests.waiting import until

HOLDER, READERS = 0, (1, 2)
PROMPT_TOKENS = 2000
PAGES = (PROMPT_TOKENS - 1) // PAGE_TOKENS
CHUNKY = {"num_key_value_heads": 8, "head_dim": 64}
"""A page of 16 tokens is 256 KiB: bringing a prompt takes seconds on links with a rate."""
SHARE_MAX = 1.5
"""Of the pages' bytes, what the holder sends to two: 1 and headers on a machine with time, 2 without casts."""
ROUNDS_MAX = 6


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kvcast-sglang-") as made:
        yield Path(made)


@pytest.fixture(scope="module")
def testbed() -> Iterator[client.Testbed]:
    with pool.running(1 + len(READERS), 256 * 2**20) as made:
        yield made


@pytest.fixture(scope="module")
def engines(folder: Path, testbed: client.Testbed) -> Iterator[list[Engine]]:
    """On the second and the third node; nothing but the pool is between them."""
    model = make_model(folder / "model", **CHUNKY)
    backend = {
        "module_path": "tests.engines.sglang_at_once",
        "class_name": "AtOnceHiCache",
        STARTING_LINE: str(folder / STARTING_LINE),
    }
    made = [
        Engine(engine_arguments(model, agent_socket(testbed, host), backend=backend), folder / f"engine{host}.log")
        for host in READERS
    ]
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


@needs_links
def test_two_that_ask_at_once_are_served_by_one_cast(
    engines: list[Engine], testbed: client.Testbed, folder: Path
) -> None:
    """A third node holds what both lack, and sends it once.

    On a machine that stands still for a second one of them may read alone: one round of several has to show the cast.
    What they say is right in each.
    """
    first, shares = engines[0], []
    for seed in range(2, 2 + ROUNDS_MAX):
        before = set(keys_in_pool(testbed))
        prompt = [random.Random(seed).randrange(3, 4000) for _ in range(PROMPT_TOKENS)]
        computed = first.generate(prompt)
        until(lambda before=before: len(set(keys_in_pool(testbed)) - before) >= PAGES, "pages are written behind")
        size_bytes = keep_only_at(testbed, sorted(set(keys_in_pool(testbed)) - before), HOLDER, READERS)
        first.flush()
        sent, casts = sent_bytes(testbed, HOLDER), by_cast(testbed, READERS)
        with holding(folder / STARTING_LINE, len(engines)):
            for engine in engines:
                engine.begin(prompt)
        results = [engine.generated() for engine in engines]
        assert [result.ids for result in results] == [computed.ids] * 2
        assert [result.from_storage for result in results] == [PAGES * PAGE_TOKENS] * 2
        shares.append((sent_bytes(testbed, HOLDER) - sent) / size_bytes)
        if shares[-1] <= SHARE_MAX:
            assert all(now > then for now, then in zip(by_cast(testbed, READERS), casts, strict=True))
            return
    raise AssertionError(f"the holder sent {shares} times the pages' bytes")


def test_updated_weights_are_another_model(engines: list[Engine], testbed: client.Testbed, folder: Path) -> None:
    """Weights are changed in place, as reinforcement learning does: nothing of before is loaded, nothing of after is
    stored under the names of before, and engines with the same new weights share."""
    first, second = engines
    prompt = [random.Random(99).randrange(3, 4000) for _ in range(512)]
    pages = (len(prompt) - 1) // PAGE_TOKENS
    known = len(keys_in_pool(testbed))
    old = first.generate(prompt)
    until(lambda: len(keys_in_pool(testbed)) >= known + pages, "pages are written behind")
    trained = make_model(folder / "trained", seed=1, **CHUNKY)
    first.update(trained, flushes=False)
    kept = first.generate(prompt[:64] + prompt[:400])
    assert kept.from_storage == 0, "while the engine keeps KV of before, nothing is loaded or stored"
    first.flush()
    new = first.generate(prompt)
    assert new.ids != old.ids
    assert (new.cached, new.from_storage) == (0, 0)
    until(lambda: len(keys_in_pool(testbed)) >= known + 2 * pages, "pages are written behind")
    elsewhere = second.generate(prompt)
    assert (elsewhere.ids, elsewhere.from_storage) == (old.ids, pages * PAGE_TOKENS)
    second.update(trained)
    shared = second.generate(prompt)
    assert (shared.ids, shared.from_storage) == (new.ids, pages * PAGE_TOKENS)
    second.update(trained, version="step 1")
    named = second.generate(prompt)
    assert (named.ids, named.from_storage) == (new.ids, 0), "the caller's own name is another"
    until(lambda: len(keys_in_pool(testbed)) >= known + 3 * pages, "pages are written behind")
    first.update(trained, version="step 1")
    shared = first.generate(prompt)
    assert (shared.ids, shared.from_storage) == (new.ids, pages * PAGE_TOKENS)
    assert len(keys_in_pool(testbed)) <= known + 3 * (pages + 1), "nothing was stored while KV of before was there"
