"""From a trace to what each node does: which stretch, which node, and what the pool holds at the start. Pure.

Scale: one block of 512 tokens stands for 64 MiB of Llama-3-8B KV (bf16, 128 KiB a token) on a 100 Gbit/s link. Both are
divided alike (`bmv2_testbed.scale`): a block of 64 KiB on a 100 Mbit/s link takes the same 5 ms, and seconds stay
seconds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from bmv2_testbed.content import KEY_BYTES
from planner.traces import TraceRequest

RECOMPUTE_S_PER_BLOCK: Final = 0.0163
"""Modelled: 64 MiB of KV a block made at 33 Gbit/s, the rate below which one H100 recomputes Llama-3-8B faster."""


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request as its node will run it: start in seconds after the replay's, block ids in prefix order."""

    start_s: float
    node: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """A stretch of a trace for some nodes, and what each node's pool holds when it begins."""

    trace: str
    nodes: int
    requests: tuple[PlannedRequest, ...]
    warm: Mapping[int, Sequence[tuple[int, int | None]]]
    """Blocks that each node puts before the start, each with the block before it in its prefix."""
    block_bytes: int

    @property
    def blocks(self) -> int:
        return sum(len(request.blocks) for request in self.requests)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ReplayPlan:
        fields = json.loads(text)
        return cls(
            trace=fields["trace"],
            nodes=fields["nodes"],
            requests=tuple(
                PlannedRequest(request["start_s"], request["node"], tuple(request["blocks"]))
                for request in fields["requests"]
            ),
            warm={int(node): [(block, parent) for block, parent in held] for node, held in fields["warm"].items()},
            block_bytes=fields["block_bytes"],
        )


def block_key(trace: str, block: int) -> bytes:
    """Key of a block; ids are chained over the prefix already, so the id and the trace's name say it all."""
    return hashlib.blake2b(f"{trace}/{block}".encode(), digest_size=KEY_BYTES).digest()


def plan_replay(
    trace: str,
    requests: Sequence[TraceRequest],
    *,
    nodes: int,
    start_s: float,
    length_s: float,
    compression: float,
    block_bytes: int,
) -> ReplayPlan:
    """Take the stretch [start_s, start_s + length_s) of the trace, `compression` times faster, over nodes in turn.

    What the trace asked for before the stretch, and asks for again in it, is in the pool at the beginning: at the node
    that would have computed it, which is the one that was asked first.
    """
    first_ms, end_ms = start_s * 1000, (start_s + length_s) * 1000
    planned = []
    owner: dict[int, int] = {}
    parents: dict[int, int | None] = {}
    wanted: set[int] = set()
    for index, request in enumerate(requests):
        if request.arrival_ms >= end_ms:
            break
        node = index % nodes
        if request.arrival_ms < first_ms:
            for parent, block in zip((None, *request.blocks), request.blocks, strict=False):
                if block not in owner:
                    owner[block] = node
                    parents[block] = parent
            continue
        planned.append(PlannedRequest((request.arrival_ms - first_ms) / 1000 / compression, node, request.blocks))
        wanted.update(request.blocks)
    warm: dict[int, list[tuple[int, int | None]]] = {}
    for block, node in owner.items():
        if block in wanted:
            warm.setdefault(node, []).append((block, parents[block]))
    return ReplayPlan(trace, nodes, tuple(planned), warm, block_bytes)


def recompute_times_s(plan: ReplayPlan) -> list[float]:
    """Modelled: time to the KV of each request's prompt without a pool, with a cache of its own at each node that
    never forgets. The nodes' caches begin with what they computed themselves before."""
    cached: list[set[int]] = [set() for _ in range(plan.nodes)]
    for node, held in plan.warm.items():
        cached[node].update(block for block, _ in held)
    times = []
    for request in plan.requests:
        known = cached[request.node]
        hits = leading_hits(request.blocks, known)
        times.append((len(request.blocks) - hits) * RECOMPUTE_S_PER_BLOCK)
        known.update(request.blocks)
    return times


def leading_hits(blocks: Sequence[int], known: set[int]) -> int:
    """How many leading blocks are known."""
    for index, block in enumerate(blocks):
        if block not in known:
            return index
    return len(blocks)


def densest_start_s(requests: Sequence[TraceRequest], length_s: float, after_s: float) -> float:
    """Where the stretch of that length with most requests begins, not before `after_s` (so that there is a past)."""
    arrivals = [request.arrival_ms / 1000 for request in requests if request.arrival_ms / 1000 >= after_s]
    best, best_count, low = after_s, 0, 0
    for high, arrival in enumerate(arrivals):
        while arrivals[low] <= arrival - length_s:
            low += 1
        if high - low + 1 > best_count:
            best, best_count = arrivals[low], high - low + 1
    return best
