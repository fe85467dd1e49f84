"""What operators and routers see: metrics, decisions of the gate, events in vLLM's own format."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bmv2_testbed.client import Testbed
from bmv2_testbed.engines.engine_client import Engine
from tests.vllm.vllm_suite import CHUNK_TOKENS, StartEngine, Truth, assert_same, one, random_tokens, until

TOLD_S = 300.0
POLL_MS = 20


class Events:
    """A router's ear at one engine."""

    def __init__(self, endpoint: str) -> None:
        import msgspec
        import zmq
        from vllm.distributed.kv_events import KVEventBatch

        self._decoder = msgspec.msgpack.Decoder(KVEventBatch)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.connect(endpoint)
        self._socket.setsockopt_string(zmq.SUBSCRIBE, "")
        self.seen: list[Any] = []

    def until(self, condition: Callable[[], bool], step: Callable[[], object]) -> None:
        """Take events until the condition holds; engines publish when they step."""
        import zmq

        give_up_s = time.monotonic() + TOLD_S
        while True:
            while self._socket.poll(POLL_MS):
                _, _, payload = self._socket.recv_multipart(zmq.NOBLOCK)
                self.seen += self._decoder.decode(payload).events
            if condition():
                return
            if time.monotonic() > give_up_s:
                raise AssertionError(f"not told; events by medium: {[(type(e).__name__, e.medium) for e in self.seen]}")
            step()

    def stored(self, prompt: list[int], medium: str) -> list[Any]:
        """What was told of a prompt's chunks, in their order."""
        chunks = [prompt[at : at + CHUNK_TOKENS] for at in range(0, len(prompt) - CHUNK_TOKENS + 1, CHUNK_TOKENS)]
        events = [event for event in self.seen if type(event).__name__ == "BlockStored" and event.medium == medium]
        return [event for chunk in chunks for event in events if event.token_ids == chunk]

    def removed(self, medium: str) -> set[Any]:
        """Hashes of blocks that are no longer there."""
        events = [event for event in self.seen if type(event).__name__ == "BlockRemoved" and event.medium == medium]
        return {value for event in events for value in event.block_hashes}

    def close(self) -> None:
        self._socket.close(linger=0)
        self._context.term()


@pytest.fixture
def events(second: Engine, events_endpoint: str) -> Iterator[Events]:
    made = Events(events_endpoint)
    # Until the subscription has reached the publisher, events pass by.
    chance = random.Random(20)
    made.until(lambda: bool(made.seen), lambda: second.generate([random_tokens(chance, 100)]))
    yield made
    made.close()


def hashes(stored: list[Any]) -> set[Any]:
    return {value for event in stored for value in event.block_hashes}


def idle_step(engine: Engine) -> Callable[[], object]:
    """Something that makes an engine step and is no news."""
    short = random_tokens(random.Random(22), 10)
    return lambda: engine.generate([short], max_tokens=1)


def test_events_tell_what_the_pool_holds_and_loses(second: Engine, events: Events, testbed: Testbed) -> None:
    prompt = random_tokens(random.Random(21), 150)
    step = idle_step(second)
    one(second, prompt, salt="ours")
    events.until(lambda: len(events.stored(prompt, "pool")) == 2, step)
    stored = events.stored(prompt, "pool")
    assert stored[0].parent_block_hash is None
    assert stored[1].parent_block_hash == stored[0].block_hashes[-1]
    on_gpu = [event for event in events.seen if type(event).__name__ == "BlockStored" and event.medium == "GPU"]
    assert hashes(stored) <= hashes(on_gpu)
    assert {(event.block_size, event.locality) for event in stored} == {(32, "REMOTE")}
    assert {event.kv_cache_spec_kind for event in stored} == {event.kv_cache_spec_kind for event in on_gpu}
    by_hash = dict(pair for event in on_gpu for pair in zip(event.block_hashes, event.extra_keys, strict=True))
    for event in stored:
        assert list(event.extra_keys) == [by_hash[value] for value in event.block_hashes]
    assert stored[0].extra_keys[0] == ("ours",)

    testbed.kill("agent1")
    testbed.restart("agent1")
    testbed.await_ready("agent1")
    testbed.await_cluster()
    # The engine has nothing to do and makes no step.
    events.until(lambda: events.removed("pool") >= hashes(stored), lambda: None)


def test_events_tell_what_the_switch_serves(first: Engine, second: Engine, events: Events, testbed: Testbed) -> None:
    prompt = random_tokens(random.Random(23), 3 * CHUNK_TOKENS + 5)
    one(first, prompt)
    keys = [key for key, _ in first.where(prompt)]
    testbed.serve_from_switch(keys[-1], len(keys))
    until(lambda: {where for _, where in second.where(prompt)} == {"SWITCH"}, "an agent hears what the switch serves")
    step = idle_step(second)
    assert one(second, prompt).cached_tokens == 3 * CHUNK_TOKENS
    events.until(lambda: len(events.stored(prompt, "switch")) == 3, step)
    # The second node has a copy now.
    events.until(lambda: len(events.stored(prompt, "pool")) == 3, step)
    events.until(lambda: events.removed("switch") >= hashes(events.stored(prompt, "switch")), step)


def test_the_gate_says_no_when_computing_is_faster(
    truth: Truth, first: Engine, start: StartEngine, models: Callable[..., Path], agent_sockets: list[str]
) -> None:
    fast = start(
        models(),
        agent_sockets[1],
        enable_prefix_caching=False,
        settings={"prefill_tokens_per_s": 1e9, "gate": "auto"},
    )
    prompt = random_tokens(random.Random(31), 600)
    before = first.metrics()
    one(first, prompt)
    measured = first.metrics()
    chunks = 600 // CHUNK_TOKENS
    assert measured["prefill_tokens_per_second"][""] > 0
    assert measured["lookups"][""] - value(before, "lookups") == 1
    assert measured["saves"]["stored"] - value(before, "saves", "stored") == chunks
    assert measured["saved_bytes"][""] > value(before, "saved_bytes")
    assert measured["save_seconds"]["count"] - value(before, "save_seconds", "count") == chunks
    assert measured["agent_away"][""] == 0

    fast.await_known(prompt)
    assert_same([one(fast, prompt).tokens], truth([prompt]))
    metrics = fast.metrics()
    assert metrics["misses"]["gate"] == 1
    assert metrics["prefill_tokens_per_second"][""] == 1e9
    assert value(metrics, "hit_tokens") == 0


def value(metrics: dict[str, dict[str, float]], name: str, label: str = "") -> float:
    return metrics.get(name, {}).get(label, 0)
