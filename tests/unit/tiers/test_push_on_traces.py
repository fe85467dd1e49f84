"""Gated pushes on the traces that come with the project: they help rollout groups and leave chat alone.

Requests go to the nodes in turn, and copies stay where they are: the case with the most fetches between nodes. The
policy is the controller's own; network and pools have room for everything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import planner.traces
from kvchunk.ids import ChunkKey
from kvpolicy.tiers.push import PushParameters, PushPolicy
from planner.traces import TraceRequest, read_trace

NODES = 16
MS = 1_000_000
"""Nanoseconds."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """Blocks of one trace; all of one size."""

    fetched: int
    """Blocks that engines wait for over the network."""
    pushed: int
    used: int
    """Of the pushed: asked for in time by the node that they were pushed to."""


def carried(name: str) -> list[TraceRequest]:
    return read_trace(Path(planner.traces.__file__).parent / "small" / name).requests


def replay(requests: Sequence[TraceRequest], parameters: PushParameters) -> Replayed:
    policy: PushPolicy[int] = PushPolicy(parameters)
    holders: defaultdict[int, set[int]] = defaultdict(set)
    fetched = 0
    for number, request in enumerate(requests):
        node, now_ns, found = number % NODES, int(request.arrival_ms * MS), True
        for position, block in enumerate(request.blocks):
            copies = holders[block]
            found = found and bool(copies)
            if not found and node not in copies:
                copies.add(node)  # computed here
                continue
            remote = node not in copies
            fetched += remote
            absent = [other for other in range(NODES) if other not in copies]
            key = ChunkKey(block.to_bytes(16, "big"))
            pushed = policy.fetched(key, 1, position, node, remote, lambda absent=absent: absent, now_ns)  # type: ignore[misc]
            for other in pushed:
                policy.sent(key, 1, other)
            copies.add(node)
            copies.update(pushed)
    return Replayed(fetched, policy.counts.pushed_bytes, policy.counts.used_bytes)


def test_rollouts_wait_less() -> None:
    requests = carried("rollout_small.jsonl")
    without, gated = replay(requests, PushParameters(enabled=False)), replay(requests, PushParameters())
    assert without.fetched > 1.5 * gated.fetched
    assert gated.fetched + gated.pushed < 2.5 * without.fetched
    assert gated.used > 0.2 * gated.pushed


def test_chat_is_left_alone() -> None:
    requests = carried("chat_small.jsonl")
    assert replay(requests, PushParameters()) == replay(requests, PushParameters(enabled=False))
