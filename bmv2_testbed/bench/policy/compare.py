"""Policies side by side over cases (a trace and a size of the pool): who wins where, by how much, means. The caller
hands in the CPU clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bmv2_testbed.bench.policy.peers import PEERS, replay_peer
from bmv2_testbed.bench.policy.replay import Tick, replay_belady, replay_lru, replay_ours
from bmv2_testbed.bench.policy.trees import Forest, session_ends

OURS: Final = "ours"
WITHOUT_HINTS: Final = "ours-without-hints"
BELADY: Final = "belady"
TIE: Final = 0.0005
"""Hit ratios this close are equal: three digits are shown."""

Replay = Callable[[int, Tick], float]
"""(capacity, tick) -> token-weighted prefix hit."""


@dataclass(frozen=True, slots=True)
class PolicyHit:
    """One policy on one trace at one size of the pool, as the JSON file has it."""

    trace: str
    policy: str
    pool: float
    """Share of the footprint."""
    chunks: int
    """Room of that pool."""
    hit: float
    """Tokens of leading chunks found in the pool / all input tokens."""
    chunk_us: float
    """CPU time of the replay per chunk asked for, known or new; what it brings in and evicts included."""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What one case says of ours."""

    trace: str
    pool: float
    ours: float
    best: float
    """Of the best peer."""
    winner: str
    """That peer; ours where none is ahead by more than TIE."""
    belady: float

    @property
    def is_loss(self) -> bool:
        """Whether a peer is ahead."""
        return self.winner != OURS


@dataclass(frozen=True, slots=True)
class PolicySummary:
    """One policy over all cases."""

    policy: str
    mean: float
    ahead: int
    """Cases in which it is ahead of ours by more than TIE."""
    chunk_us: float
    """Mean of the cases."""


def replays(trees: Forest, hints: bool) -> dict[str, Replay]:
    """Every policy on a trace: ours first, Belady last, which knows the future."""
    ends = session_ends(trees) if hints else None
    every: dict[str, Replay] = {
        OURS: lambda capacity, tick: replay_ours(trees, capacity, tick, ends),
        "lru": lambda capacity, tick: replay_lru(trees, capacity, tick),
    }
    if hints:
        every[WITHOUT_HINTS] = lambda capacity, tick: replay_ours(trees, capacity, tick)
    for name in PEERS:
        every[name] = lambda capacity, tick, name=name: replay_peer(trees, capacity, name, tick)  # type: ignore[misc]
    every[BELADY] = lambda capacity, tick: replay_belady(trees, capacity, tick)
    return every


def compare(
    traces: Mapping[str, Forest],
    pools: Sequence[float],
    hints: bool,
    clock_s: Callable[[], float],
    begun: Callable[[str, str, float], Tick],
) -> Iterator[PolicyHit]:
    """Every policy on every trace at every size. `begun(trace, policy, pool)` is called before each replay and
    returns what is called at each request; `clock_s`: CPU time of this process."""
    for trace, trees in traces.items():
        asked = sum(len(step.path) for step in trees.steps)
        every = replays(trees, hints)
        for pool in pools:
            capacity = max(1, int(trees.count * pool))
            for policy, replay in every.items():
                tick = begun(trace, policy, pool)
                began_s = clock_s()
                hit = replay(capacity, tick)
                yield PolicyHit(trace, policy, pool, capacity, hit, 1e6 * (clock_s() - began_s) / asked)


def replay_count(hints: bool) -> int:
    """Replays of each trace at each size."""
    return len(PEERS) + 3 + hints


def case_results(hits: Sequence[PolicyHit]) -> list[CaseResult]:
    """Ours beside the best peer, by case, in the order in which they were replayed."""
    results = []
    for trace, pool in dict.fromkeys((hit.trace, hit.pool) for hit in hits):
        found = {hit.policy: hit.hit for hit in hits if (hit.trace, hit.pool) == (trace, pool)}
        peers = {policy: hit for policy, hit in found.items() if policy not in (OURS, WITHOUT_HINTS, BELADY)}
        peer = max(peers, key=lambda policy: peers[policy])
        winner = peer if peers[peer] > found[OURS] + TIE else OURS
        results.append(CaseResult(trace, pool, found[OURS], peers[peer], winner, found[BELADY]))
    return results


def summaries(hits: Sequence[PolicyHit]) -> list[PolicySummary]:
    """Every policy over all cases, the best mean first."""
    ours = {(hit.trace, hit.pool): hit.hit for hit in hits if hit.policy == OURS}
    found = []
    for policy in dict.fromkeys(hit.policy for hit in hits):
        own = [hit for hit in hits if hit.policy == policy]
        ahead = sum(hit.hit > ours[hit.trace, hit.pool] + TIE for hit in own)
        mean = sum(hit.hit for hit in own) / len(own)
        found.append(PolicySummary(policy, mean, ahead, sum(hit.chunk_us for hit in own) / len(own)))
    return sorted(found, key=lambda one: -one.mean)
