"""Replays of a trace through a pool: ours (`kvpolicy.value`), with prefix-aware LRU and Belady for comparison. Pure.

A request hits with as many leading chunks as the pool has; then all its chunks count as used, and those that it lacked
come in, in prefix order, as far as the policy lets them. Nothing a request uses is evicted for it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence

from bmv2_testbed.bench.policy.trees import Forest
from kvchunk.ids import ChunkKey
from kvpolicy.value import POLICIES, CacheValues, Policy, Touch

Tick = Callable[[int], None]


def replay_ours(
    trees: Forest,
    capacity: int,
    tick: Tick = lambda _: None,
    ends: Sequence[Sequence[int]] | None = None,
    policies: tuple[Policy, ...] = POLICIES,
) -> float:
    """Token-weighted prefix hit of a pool of `capacity` chunks. `ends`: what engines say after each request."""
    return replay_into(CacheValues(capacity, policies=policies), trees, tick, ends)


def replay_into(
    values: CacheValues, trees: Forest, tick: Tick = lambda _: None, ends: Sequence[Sequence[int]] | None = None
) -> float:
    """`replay_ours` through a pool that the caller made for single chunks of one byte."""
    keys = [ChunkKey(chunk.to_bytes(16, "big")) for chunk in range(trees.count)]
    touches = [
        Touch(keys[chunk], keys[parent] if parent >= 0 else None, position, 1)
        for chunk, (parent, position) in enumerate(zip(trees.parents, trees.positions, strict=True))
    ]
    hit = 0
    for at, step in enumerate(trees.steps):
        leading = next((here for here, chunk in enumerate(step.path) if keys[chunk] not in values), len(step.path))
        hit += step.hit_tokens(leading)
        now_ns = int(step.at_s * 1e9)
        values.fetched([touches[chunk] for chunk in step.path], now_ns)
        _bring_in(values, [touches[chunk] for chunk in step.path], leading, now_ns)
        if ends is not None and ends[at]:
            values.finished([keys[chunk] for chunk in ends[at]], now_ns)
        tick(at)
    return hit / trees.tokens


def _bring_in(values: CacheValues, path: Sequence[Touch], leading: int, now_ns: int) -> None:
    own = {touch.key for touch in path}
    for touch in path[leading:]:
        if len(values) >= values.capacity_bytes:
            displaced = values.displaced_by(touch, now_ns, lambda key: key not in own)
            if displaced is None:
                return
            for victim in displaced:
                values.remove(victim)
        if touch.key not in values:
            values.add([touch], now_ns)


def replay_lru(trees: Forest, capacity: int, tick: Tick = lambda _: None) -> float:
    """Least recently used, leaves first."""
    return _replay_scored(trees, capacity, lambda at, _: float(at), tick)


def replay_belady(trees: Forest, capacity: int, tick: Tick = lambda _: None) -> float:
    """Evict the leaf whose next use is furthest away; a chunk that would be that leaf stays out. Knows the future."""
    uses: list[list[int]] = [[] for _ in range(trees.count)]
    for at, step in enumerate(trees.steps):
        for chunk in step.path:
            uses[chunk].append(at)
    following: list[Iterator[int]] = []
    for chunk_uses in uses:
        after = iter(chunk_uses)
        next(after)
        following.append(after)
    never = len(trees.steps)
    return _replay_scored(trees, capacity, lambda _, chunk: -float(next(following[chunk], never)), tick)


def _replay_scored(trees: Forest, capacity: int, score: Callable[[int, int], float], tick: Tick) -> float:
    """Keep what scores highest; `score(request, chunk)` is asked at each use and stays until the next."""
    pool = _ScoredPool(trees, capacity)
    hit = 0
    for at, step in enumerate(trees.steps):
        leading = next((here for here, chunk in enumerate(step.path) if not pool.present[chunk]), len(step.path))
        hit += step.hit_tokens(leading)
        for chunk in step.path:
            pool.scores[chunk] = score(at, chunk)
        if leading:
            pool.offer_leaf(step.path[leading - 1])
        for here in range(leading, len(step.path)):
            if not pool.bring_in(step.path[here], step.path[here - 1] if here else -1):
                break
        tick(at)
    return hit / trees.tokens


class _ScoredPool:
    """Chunks by score, leaves first: a heap of leaves, put right when an entry comes to the top."""

    def __init__(self, trees: Forest, capacity: int) -> None:
        self.present = bytearray(trees.count)
        self.scores = [0.0] * trees.count
        self._trees = trees
        self._capacity = capacity
        self._children = [0] * trees.count
        self._used = 0
        self._leaves: list[tuple[float, int, int]] = []

    def offer_leaf(self, chunk: int) -> None:
        if not self._children[chunk]:
            heapq.heappush(self._leaves, (self.scores[chunk], -self._trees.positions[chunk], chunk))

    def bring_in(self, chunk: int, parent: int) -> bool:
        if self._used >= self._capacity and not self._make_room(self.scores[chunk], parent):
            return False
        self.present[chunk] = 1
        self._used += 1
        if parent >= 0:
            self._children[parent] += 1
        self.offer_leaf(chunk)
        return True

    def _make_room(self, score: float, parent: int) -> bool:
        kept: tuple[float, int, int] | None = None
        made = False
        while self._leaves and not made:
            told, _, leaf = self._leaves[0]
            if not self.present[leaf] or self._children[leaf] or told != self.scores[leaf]:
                heapq.heappop(self._leaves)
            elif leaf == parent:
                kept = heapq.heappop(self._leaves)
            elif told >= score:
                break
            else:
                heapq.heappop(self._leaves)
                self._remove(leaf)
                made = True
        if kept is not None:
            heapq.heappush(self._leaves, kept)
        return made

    def _remove(self, leaf: int) -> None:
        self.present[leaf] = 0
        self._used -= 1
        above = self._trees.parents[leaf]
        if above >= 0:
            self._children[above] -= 1
            self.offer_leaf(above)
