"""Makes the small synthetic traces carried along, for machines without the real ones. Seeded: same file every time."""

from __future__ import annotations

import json
import random
from typing import Any, Final

_DURATION_MS: Final = 120_000
_BLOCK_TOKENS: Final = 512


def _request(arrival_ms: float, blocks: list[int]) -> dict[str, Any]:
    return {
        "timestamp": round(arrival_ms),
        "input_length": len(blocks) * _BLOCK_TOKENS,
        "output_length": 128,
        "hash_ids": blocks,
    }


def chat(seed: int) -> list[dict[str, Any]]:
    """Chat: sessions of a few turns, each turn repeats the whole conversation; all share one system block."""
    rng = random.Random(seed)
    fresh = iter(range(1, 1_000_000))
    requests = []
    arrival_ms = 0.0
    while arrival_ms < _DURATION_MS:
        arrival_ms += rng.expovariate(1 / 700)
        blocks = [0]
        turn_ms = arrival_ms
        for _ in range(1 + int(rng.expovariate(1 / 2))):
            blocks = blocks + [next(fresh) for _ in range(rng.randint(1, 24))]
            requests.append(_request(turn_ms, blocks))
            turn_ms += rng.expovariate(1 / 20_000)
    return sorted((r for r in requests if r["timestamp"] < _DURATION_MS), key=lambda r: r["timestamp"])


def rollouts(seed: int, parallel: int = 8) -> list[dict[str, Any]]:
    """Agent steps run by `parallel` rollouts at a time: one long prompt asked for by all within a second or two."""
    rng = random.Random(seed)
    fresh = iter(range(1_000_000))
    requests = []
    arrival_ms = 0.0
    while arrival_ms < _DURATION_MS:
        arrival_ms += rng.expovariate(1 / 6_000)
        prompt = [next(fresh) for _ in range(rng.randint(8, 48))]
        tails: list[list[int]] = [[] for _ in range(parallel)]
        step_ms = arrival_ms
        for _ in range(rng.randint(1, 4)):
            for tail in tails:
                requests.append(_request(step_ms + rng.random() * 1500, prompt + tail))
                tail += [next(fresh) for _ in range(rng.randint(1, 4))]
            step_ms += rng.expovariate(1 / 8_000)
    return sorted((r for r in requests if r["timestamp"] < _DURATION_MS), key=lambda r: r["timestamp"])


def texts() -> dict[str, str]:
    """The traces by the names of their files."""
    made = {"chat_small.jsonl": chat(1), "rollout_small.jsonl": rollouts(2)}
    return {
        name: "".join(json.dumps(request, separators=(",", ":")) + "\n" for request in requests)
        for name, requests in made.items()
    }
