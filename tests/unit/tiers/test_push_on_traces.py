"""Gated pushes on the traces that come with the project: they help rollout groups and leave chat alone."""

from __future__ import annotations

from pathlib import Path

import planner.traces
from bmv2_testbed.bench.push import measure_pushes
from planner.traces import TraceRequest, read_trace


def carried(name: str) -> list[TraceRequest]:
    return read_trace(Path(planner.traces.__file__).parent / "small" / name)


def test_rollouts_wait_less() -> None:
    figures = measure_pushes("rollout8", carried("rollout_small.jsonl"), 16)
    assert figures.cut > 1.5
    assert figures.bytes_ratio < 2.5
    assert figures.used > 0.2 * figures.pushed


def test_chat_is_left_alone() -> None:
    figures = measure_pushes("conversation", carried("chat_small.jsonl"), 16)
    assert figures.pushed == 0
    assert figures.cut == figures.bytes_ratio == 1.0
