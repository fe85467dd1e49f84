"""KVCache in the Wild: its traces' format is read as it is meant, and loads generated with its statistics have them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.traces.catalog import open_trace
from planner.traces.in_the_wild import PUBLISHED, WILD, reuse_of
from planner.traces.records import TimeUnit

SLACK = 0.05


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", WILD)
def test_generated_loads_have_the_published_statistics(name: str, seed: int) -> None:
    published = PUBLISHED[name]
    found = reuse_of(WILD[name](seed), published.soon_s)
    assert found.hits == pytest.approx(published.reuse.hits, abs=SLACK)
    assert found.soon == pytest.approx(published.reuse.soon, abs=SLACK)
    if published.reuse.by_hottest is not None:
        assert found.by_hottest == pytest.approx(published.reuse.by_hottest, abs=SLACK)


@pytest.mark.parametrize("name", WILD)
def test_a_generated_load_says_that_it_is(name: str) -> None:
    title, trace = open_trace(name, seed=4)
    assert "generated" in title and "generated" in trace.said()
    assert trace.requests == WILD[name](4)
    assert trace.requests != WILD[name](5)


def test_seconds_and_blocks_of_16_tokens(tmp_path: Path) -> None:
    """A chat of two turns as the provider's files have it; the second turn begins with all of the first."""
    first = list(range(100))
    turns = [
        {"chat_id": 7, "parent_chat_id": -1, "timestamp": 61.25, "input_length": 1600, "turn": 1, "hash_ids": first},
        {"chat_id": 8, "parent_chat_id": 7, "timestamp": 75.5, "input_length": 2110, "turn": 2}
        | {"hash_ids": first + list(range(500, 532))},
    ]
    lines = [turn | {"output_length": 9, "type": "text"} for turn in turns]
    path = tmp_path / "qwen_traceA_blksz_16.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    _, trace = open_trace(str(path), seed=1)
    assert (trace.unit, trace.block_tokens, trace.form) == (TimeUnit.S, 16, "Bailian's JSON lines")
    one, other = trace.requests
    assert other.arrival_ms - one.arrival_ms == pytest.approx(14_250)
    assert one.blocks[:3] == other.blocks[:3], "3 x 512 of the 1600 tokens are chunks that both share"
    assert len(set(one.blocks) & set(other.blocks)) == 3
