"""Several nodes want one prompt and say so (`kvcast.group`): one computes it, the others get its chunks."""

from __future__ import annotations

import random
import threading
from typing import Any

from bmv2_testbed.client import Testbed
from bmv2_testbed.engines.engine_client import Engine, Generated
from tests.vllm.vllm_suite import (
    CHUNK_TOKENS,
    Truth,
    assert_nothing_left,
    assert_same,
    one,
    random_tokens,
    run_until_idle,
    tokens_of,
)

CHUNKS = 40
GROUP = "kvcast.group"
PLACE = "kvcast.group_place"
PATIENT_GROUP = 600
"""Its last member would begin by itself after 300 s: later than any machine lets the first one begin."""


def test_one_of_a_group_computes(truth: Truth, first: Engine, second: Engine) -> None:
    """The one with the first place, although the other one is asked at the same time."""
    for seed, engine in enumerate((first, second)):
        one(engine, random_tokens(random.Random(80 + seed), 1000))  # an engine claims when it knows how fast it is
    prompt = random_tokens(random.Random(82), CHUNKS * CHUNK_TOKENS + 9)
    said: dict[int, Generated] = {}

    def ask(place: int, engine: Engine) -> None:
        parameters: dict[str, Any] = {GROUP: PATIENT_GROUP, PLACE: place * (PATIENT_GROUP - 1)}
        (result,) = engine.generate([prompt], kv_transfer_params=parameters)
        assert result is not None
        said[place] = result

    asking = [threading.Thread(target=ask, args=each) for each in enumerate((second, first))]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert_same(tokens_of([said[0], said[1]]), truth([prompt]) * 2)
    assert said[0].cached_tokens == 0, "it computes"
    assert said[1].cached_tokens == CHUNKS * CHUNK_TOKENS, "it gets all whole chunks"


def test_whoever_is_left_alone_computes(truth: Truth, first: Engine) -> None:
    prompt = random_tokens(random.Random(83), 3 * CHUNK_TOKENS + 5)
    for parameters in ({GROUP: 4, PLACE: 1}, {GROUP: 4}):
        result = one(first, prompt, kv_transfer_params=parameters | {"kvcast.no_save": True})
        assert result.cached_tokens == 0
        assert_same([result.tokens], truth([prompt]))


def test_nothing_is_left_behind(first: Engine, second: Engine, testbed: Testbed) -> None:
    for engine in (first, second):
        run_until_idle(engine)
    assert_nothing_left(testbed)
