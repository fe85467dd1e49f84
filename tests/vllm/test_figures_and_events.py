"""What operators and routers see: metrics, decisions of the gate, events in vLLM's own format."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm_suite import StartEngine, Truth, random_tokens, tokens_of

from bmv2_testbed.client import Testbed
from bmv2_testbed.engines.client import Engine

WAIT_MS = 30_000


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
        self._socket.RCVTIMEO = WAIT_MS
        self.seen: list[Any] = []

    def until(self, condition: Callable[[list[Any]], bool], step: Callable[[], object]) -> None:
        """Take events until the condition holds; engines publish when they step."""
        import zmq

        for _ in range(400):
            while self._socket.poll(50):
                _, _, payload = self._socket.recv_multipart(zmq.NOBLOCK)
                self.seen += self._decoder.decode(payload).events
            if condition(self.seen):
                return
            step()
        raise AssertionError(f"not told; events by medium: {[(type(e).__name__, e.medium) for e in self.seen]}")

    def close(self) -> None:
        self._socket.close()
        self._context.term()


def of(events: list[Any], name: str, medium: str) -> list[Any]:
    return [event for event in events if type(event).__name__ == name and event.medium == medium]


@pytest.fixture(scope="module")
def endpoint(folder: Path) -> str:
    """One that the engine binds: a TCP address of one interface it would connect to."""
    return f"ipc://{folder}/events.sock"


@pytest.fixture(scope="module")
def telling(start: StartEngine, models: Callable[..., Path], agent_sockets: list[str], endpoint: str) -> Engine:
    return start(
        models(),
        agent_sockets[0],
        enable_prefix_caching=True,
        settings={"events_sweep_s": 0.1},
        kv_events_config={
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": endpoint,
        },
    )


@pytest.fixture
def events(telling: Engine, endpoint: str) -> Iterator[Events]:
    made = Events(endpoint)
    # Until the subscription has reached the publisher, events pass by.
    made.until(lambda seen: bool(seen), lambda: telling.generate([random_tokens(random.Random(), 300)]))
    made.seen.clear()
    yield made
    made.close()


def test_events_tell_what_the_pool_holds_and_loses(telling: Engine, events: Events, testbed: Testbed) -> None:
    prompt = random_tokens(random.Random(21), 300)
    idle = random_tokens(random.Random(22), 20)

    def step() -> None:
        telling.generate([idle], max_tokens=1)

    telling.generate([prompt])
    telling.ask("settle")
    events.until(lambda seen: len(of(seen, "BlockStored", "pool")) >= 2, step)
    stored = of(events.seen, "BlockStored", "pool")[:2]
    assert [event.token_ids for event in stored] == [prompt[:128], prompt[128:256]]
    assert stored[0].parent_block_hash is None
    assert stored[1].parent_block_hash == stored[0].block_hashes[-1]
    on_gpu = [event for event in events.seen if type(event).__name__ == "BlockStored" and event.medium == "GPU"]
    assert stored[0].block_hashes[0] in {value for event in on_gpu for value in event.block_hashes}
    assert {(event.block_size, event.locality) for event in stored} == {(128, "REMOTE")}

    testbed.kill("agent0")
    testbed.restart("agent0")
    testbed.await_ready("agent0")
    events.until(
        lambda seen: (
            {value for event in of(seen, "BlockRemoved", "pool") for value in event.block_hashes}
            >= {event.block_hashes[0] for event in stored}
        ),
        step,
    )


def test_the_gate_says_no_when_computing_is_faster(
    truth: Truth, start: StartEngine, models: Callable[..., Path], agent_sockets: list[str]
) -> None:
    warm = start(models(), agent_sockets[0], enable_prefix_caching=False)
    fast = start(models(), agent_sockets[1], enable_prefix_caching=False, settings={"prefill_tokens_per_s": 1e9})
    prompt = random_tokens(random.Random(31), 1500)
    warm.generate([prompt])
    assert warm.ask("settle")
    assert tokens_of(fast.generate([prompt])) == truth([prompt])
    metrics = fast.metrics()
    assert metrics["misses"]["gate"] == 1
    assert metrics["prefill_tokens_per_second"][""] == 1e9
    assert "hit_tokens" not in metrics or metrics["hit_tokens"][""] == 0
    measured = warm.metrics()
    assert measured["prefill_tokens_per_second"][""] > 0
    assert measured["lookups"][""] == 1
    assert measured["saves"]["stored"] == 1500 // 128
    assert measured["saved_bytes"][""] > 0
    assert measured["save_seconds"]["count"] == 1500 // 128
    assert measured["agent_away"].get("", 0) == 0
