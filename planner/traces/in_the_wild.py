"""Loads with the statistics that "KVCache Cache in the Wild" (Wang et al., arXiv 2506.02634) publishes of a large cloud
provider, for machines without its traces: https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon, which
`kvcast plan --trace FILE` reads as they are. Generated, and called so everywhere; only what `PUBLISHED` lists is the
provider's. Seeded.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from planner.traces.generate import Generator, arrivals, ordered, request, zipf
from planner.traces.request import TraceRequest

DURATION_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Reuse:
    """How requests reuse what earlier ones computed, in a cache without bounds. All are shares of 1."""

    hits: float
    """Of all blocks asked for: those that an earlier request had."""
    soon: float
    """Of the reuses: those within `soon_s` of the block's last use."""
    by_hottest: float | None
    """Of the reuses: those of the tenth of the blocks that is reused most. None: not published."""


@dataclass(frozen=True, slots=True)
class Published:
    """What the paper says of one of its two traces."""

    reuse: Reuse
    soon_s: float


CONSUMERS: Final = "wild_consumers"
BUSINESSES: Final = "wild_businesses"
PUBLISHED: Final[Mapping[str, Published]] = {
    CONSUMERS: Published(Reuse(hits=0.54, soon=0.8, by_hottest=0.77), soon_s=600.0),
    BUSINESSES: Published(Reuse(hits=0.62, soon=0.8, by_hottest=None), soon_s=10.0),
}


def consumers(seed: int, duration_s: float = DURATION_S) -> list[TraceRequest]:
    """Chats (trace A): half of them of one turn, behind short prompts of the application; turns are minutes apart, and
    a few chats go on for long."""
    rng, fresh = random.Random(seed), count()
    choose = zipf(rng, [[next(fresh) for _ in range(rng.randint(1, 4))] for _ in range(200)], 1.2)
    requests = []
    for begin_s in arrivals(rng, 0.0, duration_s, 1.5):
        said, at_s = [*choose(), *(next(fresh) for _ in range(rng.randint(1, 6)))], begin_s
        turns = 1 if rng.random() < 0.62 else 2 + int(rng.paretovariate(1.1))
        for _ in range(min(turns, 30)):
            requests.append(request(at_s, said))
            said = said + [next(fresh) for _ in range(rng.randint(1, 2))]
            at_s += rng.lognormvariate(6.6, 1.4)
    return ordered(requests, duration_s)


def businesses(seed: int, duration_s: float = DURATION_S) -> list[TraceRequest]:
    """Programs that call the API (trace B): requests of one turn behind an application's prompt and what its burst of
    calls is about, seconds apart."""
    rng, fresh = random.Random(seed), count()
    choose = zipf(rng, [[next(fresh) for _ in range(rng.randint(2, 10))] for _ in range(120)], 0.9)
    requests = []
    for begin_s in arrivals(rng, 0.0, duration_s, 8.0):
        about, at_s = [*choose(), *(next(fresh) for _ in range(rng.randint(0, 5)))], begin_s
        for _ in range(1 + int(rng.expovariate(1 / 5))):
            requests.append(request(at_s, [*about, *(next(fresh) for _ in range(rng.randint(1, 7)))]))
            at_s += rng.expovariate(1 / 4.5)
    return ordered(requests, duration_s)


WILD: Final[Mapping[str, Generator]] = {CONSUMERS: consumers, BUSINESSES: businesses}


def reuse_of(requests: Sequence[TraceRequest], soon_s: float) -> Reuse:
    """Measure what `PUBLISHED` says."""
    last_ms: dict[int, float] = {}
    reuses: Counter[int] = Counter()
    asked = soon = 0
    for one in requests:
        for block in one.blocks:
            asked += 1
            if block in last_ms:
                reuses[block] += 1
                soon += one.arrival_ms - last_ms[block] <= soon_s * 1000
            last_ms[block] = one.arrival_ms
    hits = reuses.total()
    hottest = sum(number for _, number in reuses.most_common(len(last_ms) // 10))
    return Reuse(hits / asked, soon / hits, hottest / hits)
