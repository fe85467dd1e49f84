"""Makes the small synthetic traces carried along, for machines without the real ones. Seeded: same file every time.

`python -m planner.traces.synthesise DIRECTORY`
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
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


def _lines(requests: list[dict[str, Any]]) -> Iterator[str]:
    return (json.dumps(request, separators=(",", ":")) + "\n" for request in requests)


def main() -> int:
    """Write both traces into a directory."""
    directory = Path(sys.argv[1])
    (directory / "chat_small.jsonl").write_text("".join(_lines(chat(1))))
    (directory / "rollout_small.jsonl").write_text("".join(_lines(rollouts(2))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
