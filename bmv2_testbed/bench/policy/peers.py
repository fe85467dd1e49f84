"""Published cache policies, block by block, as peers of ours: LFU, LFUDA, GDSF, ARC, S3-FIFO, SIEVE, W-TinyLFU. Pure.

They know no prefixes: a request's chunks are asked for from the last to the first, so that by recency leaves go before
their ancestors, and a request hits with the leading chunks that were there. Written from their papers; tests compare
them with libCacheSim's on the same requests.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from bmv2_testbed.bench.policy.replay import Tick
from bmv2_testbed.bench.policy.trees import Forest

Queue: TypeAlias = OrderedDict[int, int]
"""Blocks, those that go next first, each with a number of the policy's own."""


class BlockCache(Protocol):
    """Room for a number of equal blocks."""

    def asked(self, block: int) -> bool:
        """A reader asks for a block: whether the cache had it. The policy decides whether it comes in."""
        ...


class Lfu:
    """Evicts what was used least since it came in; of equals, what was asked for longest ago."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._count: dict[int, int] = {}
        self._by_count: defaultdict[int, Queue] = defaultdict(OrderedDict)
        self._least = 1

    def asked(self, block: int) -> bool:
        """See `BlockCache`."""
        count = self._count.get(block, 0)
        if count:
            queue = self._by_count[count]
            del queue[block]
            if not queue:
                del self._by_count[count]
                self._least += self._least == count
        else:
            if len(self._count) == self._capacity:
                queue = self._by_count[self._least]
                del self._count[queue.popitem(last=False)[0]]
                if not queue:
                    del self._by_count[self._least]
            self._least = 1
        self._count[block] = count + 1
        self._by_count[count + 1][block] = 0
        return count > 0


class Lfuda:
    """LFU with dynamic aging (Arlitt et al., 2000): a block's priority is its count, plus the priority of what had been
    dropped last when it was asked for. GreedyDual-Size-Frequency with equal sizes and costs is the same policy."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._count: dict[int, int] = {}
        self._true: dict[int, tuple[int, int, int]] = {}
        self._order: list[tuple[int, int, int]] = []
        """Priority, moment, block; true if `_true` says the same."""
        self._age = 0
        self._moment = 0

    def asked(self, block: int) -> bool:
        """See `BlockCache`."""
        count = self._count.get(block, 0)
        if not count and len(self._count) == self._capacity:
            while self._true.get((entry := heapq.heappop(self._order))[2]) != entry:
                pass
            self._age = entry[0]
            del self._count[entry[2]], self._true[entry[2]]
        self._moment += 1
        self._count[block] = count + 1
        entry = self._true[block] = (self._age + count + 1, self._moment, block)
        heapq.heappush(self._order, entry)
        return count > 0


class Arc:
    """Adaptive replacement cache (Megiddo and Modha, FAST '03): what was asked for once, and what more often; how much
    room each has follows the hits among the blocks that either list dropped lately."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._target = 0.0
        """Room for what was asked for once."""
        self._once, self._often = Queue(), Queue()
        self._once_gone, self._often_gone = Queue(), Queue()

    def asked(self, block: int) -> bool:
        """See `BlockCache`."""
        for here in (self._once, self._often):
            if block in here:
                del here[block]
                self._often[block] = 0
                return True
        once_gone, often_gone, capacity = len(self._once_gone), len(self._often_gone), self._capacity
        if block in self._once_gone:
            self._target = min(capacity, self._target + max(1.0, often_gone / once_gone))
            self._replace(False)
            del self._once_gone[block]
            self._often[block] = 0
        elif block in self._often_gone:
            self._target = max(0.0, self._target - max(1.0, once_gone / often_gone))
            self._replace(True)
            del self._often_gone[block]
            self._often[block] = 0
        else:
            self._make_room()
            self._once[block] = 0
        return False

    def _make_room(self) -> None:
        """For a block that no list remembers."""
        known = len(self._once) + len(self._once_gone)
        everything = known + len(self._often) + len(self._often_gone)
        if known == self._capacity:
            if len(self._once) < self._capacity:
                self._once_gone.popitem(last=False)
                self._replace(False)
            else:
                self._once.popitem(last=False)
        elif everything >= self._capacity:
            if everything == 2 * self._capacity:
                self._often_gone.popitem(last=False)
            self._replace(False)

    def _replace(self, was_often: bool) -> None:
        """Let one go, if the cache is full."""
        if len(self._once) + len(self._often) < self._capacity:
            return
        once = len(self._once)
        if once and (once > self._target or (was_often and once == self._target) or not self._often):
            self._once_gone[self._once.popitem(last=False)[0]] = 0
        else:
            self._often_gone[self._often.popitem(last=False)[0]] = 0


class S3Fifo:
    """S3-FIFO (Yang et al., SOSP '23): a small queue, a main one, and a memory of what the small one let go; a block
    gets into the main queue when it was asked for more than once more in the small one, or again soon after. The first
    that come fill both."""

    _COUNT_MAX: Final = 3

    def __init__(self, capacity: int) -> None:
        self._small_max = max(1, capacity // 10)
        self._main_max = capacity - self._small_max
        self._capacity = capacity
        self._small, self._main, self._gone = Queue(), Queue(), Queue()
        self._was_full = False

    def asked(self, block: int) -> bool:
        """See `BlockCache`."""
        for queue in (self._small, self._main):
            if block in queue:
                queue[block] = min(self._COUNT_MAX, queue[block] + 1)
                return True
        known = block in self._gone
        if known:
            del self._gone[block]
        while len(self._small) + len(self._main) >= self._capacity:
            self._was_full = True
            if len(self._main) > self._main_max or not self._small:
                self._evict_main()
            else:
                self._evict_small()
        spills = not self._was_full and len(self._small) >= self._small_max
        (self._main if known or spills else self._small)[block] = 0
        return False

    def _evict_small(self) -> None:
        """Evict one; blocks before it that were asked for again move to the main queue."""
        while self._small:
            block, count = self._small.popitem(last=False)
            if count > 1:
                self._main[block] = 0
                continue
            self._gone[block] = 0
            if len(self._gone) > self._main_max:
                self._gone.popitem(last=False)
            return

    def _evict_main(self) -> None:
        while True:
            block, count = self._main.popitem(last=False)
            if not count:
                return
            self._main[block] = count - 1


class Sieve:
    """SIEVE (Zhang et al., NSDI '24): one queue in order of arrival; a hand goes from the oldest to the newest, spares
    what was asked for since it last passed, and takes the next."""

    _END: Final = -1

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._visited: dict[int, bool] = {}
        self._newer: dict[int, int] = {self._END: self._END}
        self._older: dict[int, int] = {self._END: self._END}
        self._hand = self._END

    def asked(self, block: int) -> bool:
        """See `BlockCache`."""
        if block in self._visited:
            self._visited[block] = True
            return True
        if len(self._visited) == self._capacity:
            self._evict()
        newest = self._older[self._END]
        self._newer[newest] = self._older[self._END] = block
        self._newer[block], self._older[block] = self._END, newest
        self._visited[block] = False
        return False

    def _evict(self) -> None:
        at = self._hand
        while at == self._END or self._visited[at]:
            if at != self._END:
                self._visited[at] = False
            at = self._newer[at]
        older, self._hand = self._older.pop(at), self._newer.pop(at)
        self._newer[older], self._older[self._hand] = self._hand, older
        del self._visited[at]


class WTinyLfu:
    """W-TinyLFU (Einziger et al., ACM TOS 2017): a window of a hundredth by recency, and a main part in two segments
    into which a block gets that was asked for more often, lately, than what it would displace. Counts are exact, where
    the paper has a sketch of them: they fade by half after ten times as many requests as there is room."""

    def __init__(self, capacity: int) -> None:
        self._window_max = max(1, capacity // 100)
        self._main_max = capacity - self._window_max
        self._protected_max = self._main_max * 8 // 10
        self._window, self._probation, self._protected = Queue(), Queue(), Queue()
        self._count: dict[int, int] = {}
        self._fade_every = 10 * capacity
        self._until_fade = self._fade_every

    def asked(self, block: int) -> bool:
        """See `BlockCache`."""
        self._counted(block)
        if block in self._window:
            self._window.move_to_end(block)
            return True
        if block in self._protected:
            self._protected.move_to_end(block)
            return True
        if block in self._probation:
            del self._probation[block]
            self._protected[block] = 0
            if len(self._protected) > self._protected_max:
                self._probation[self._protected.popitem(last=False)[0]] = 0
            return True
        self._window[block] = 0
        if len(self._window) > self._window_max:
            self._offer(self._window.popitem(last=False)[0])
        return False

    def _counted(self, block: int) -> None:
        self._count[block] = self._count.get(block, 0) + 1
        self._until_fade -= 1
        if not self._until_fade:
            self._until_fade = self._fade_every
            self._count = {known: count // 2 for known, count in self._count.items() if count > 1}

    def _offer(self, candidate: int) -> None:
        """The window let this one go: it gets into the main part, or leaves."""
        if len(self._probation) + len(self._protected) >= self._main_max:
            queue = self._probation or self._protected
            if not queue:
                return
            victim = next(iter(queue))
            if self._count.get(candidate, 0) <= self._count.get(victim, 0):
                return
            del queue[victim]
        self._probation[candidate] = 0


PEERS: Final[dict[str, Callable[[int], BlockCache]]] = {
    "lfu": Lfu,
    "lfuda-gdsf": Lfuda,
    "arc": Arc,
    "s3-fifo": S3Fifo,
    "sieve": Sieve,
    "w-tinylfu": WTinyLfu,
}


def replay_peer(trees: Forest, capacity: int, policy: str, tick: Tick = lambda _: None) -> float:
    """Token-weighted prefix hit of one of PEERS in a pool of `capacity` chunks."""
    return replay_blocks(trees, PEERS[policy](max(2, capacity)), tick)


def replay_blocks(trees: Forest, cache: BlockCache, tick: Tick = lambda _: None) -> float:
    """Token-weighted prefix hit of a cache that knows no prefixes."""
    asked = cache.asked
    hit = 0
    for at, step in enumerate(trees.steps):
        leading = len(step.path)
        for here in range(leading - 1, -1, -1):
            if not asked(step.path[here]):
                leading = here
        hit += step.hit_tokens(leading)
        tick(at)
    return hit / trees.tokens
