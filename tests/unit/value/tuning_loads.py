"""Loads that policies were tuned on: on none of them may a policy fall below LRU. Seeded.

All of them, and those of `former_holdout_loads`, once were the holdout set. They left it when a policy was changed by
what they showed; `planner.traces.holdout` is the set of today.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import count
from typing import Final

from planner.traces.generate import Generator, arrivals, ordered, request, side_by_side, zipf
from planner.traces.request import TraceRequest
from tests.unit.value import former_holdout_loads

DURATION_S: Final = 3600.0


def long_chats(seed: int, duration_s: float = DURATION_S) -> list[TraceRequest]:
    """Few sessions of many short turns (mean 25, a minute apart) on 64 templates of 1 to 20 chunks, Zipf 1.2."""
    rng, fresh = random.Random(seed), count()
    templates = [[next(fresh) for _ in range(rng.randint(1, 20))] for _ in range(64)]
    choose = zipf(rng, templates, 1.2)
    requests = []
    for begin_s in arrivals(rng, 0.0, duration_s, 12.0):
        blocks, at_s = list(choose()), begin_s
        for _ in range(1 + int(rng.expovariate(1 / 25))):
            blocks = blocks + [next(fresh) for _ in range(rng.randint(1, 4))]
            requests.append(request(at_s, blocks))
            at_s += rng.expovariate(1 / 60)
    return ordered(requests, duration_s)


def phases(seed: int, duration_s: float = DURATION_S) -> list[TraceRequest]:
    """A quarter each: an API with 300 templates (Zipf 1.1), rollouts in groups of 4, 16 and 32, short chats, and the
    API again with templates that nobody has seen."""
    rng, fresh = random.Random(seed), count()
    quarter_s = duration_s / 4
    requests = []
    for begin_s in (0.0, 3 * quarter_s):
        choose = zipf(rng, [[next(fresh) for _ in range(rng.randint(2, 30))] for _ in range(300)], 1.1)
        requests += [
            request(at_s, [*choose(), *(next(fresh) for _ in range(rng.randint(1, 3)))])
            for at_s in arrivals(rng, begin_s, begin_s + quarter_s, 0.4)
        ]
    for begin_s in arrivals(rng, quarter_s, 2 * quarter_s, 6.0):
        prompt = [next(fresh) for _ in range(rng.randint(10, 60))]
        for _ in range(rng.choice((4, 16, 32))):
            tail = [next(fresh) for _ in range(rng.randint(1, 6))]
            requests.append(request(begin_s + 3 * rng.random(), prompt + tail))
    for begin_s in arrivals(rng, 2 * quarter_s, 3 * quarter_s, 1.5):
        blocks: list[int] = []
        at_s = begin_s
        for _ in range(rng.randint(1, 3)):
            blocks = blocks + [next(fresh) for _ in range(rng.randint(2, 16))]
            requests.append(request(at_s, blocks))
            at_s += rng.expovariate(1 / 15)
    return ordered(requests, duration_s)


def scans(seed: int, duration_s: float = DURATION_S) -> list[TraceRequest]:
    """400 documents of 12 chunks asked about again and again (Zipf 0.6), and every ten minutes, for three, a batch job
    that reads prompts once, ten times as many as anybody else asks for."""
    rng, fresh = random.Random(seed), count()
    choose = zipf(rng, [[next(fresh) for _ in range(12)] for _ in range(400)], 0.6)
    requests = [request(at_s, [*choose(), next(fresh)]) for at_s in arrivals(rng, 0.0, duration_s, 1.5)]
    requests += [
        request(at_s, [next(fresh) for _ in range(20)])
        for at_s in arrivals(rng, 0.0, duration_s, 0.75)
        if at_s % 600 > 420
    ]
    return ordered(requests, duration_s)


def tree_search(seed: int, duration_s: float = DURATION_S) -> list[TraceRequest]:
    """Agents that search: each task grows a tree of 5 to 80 states from a prompt of 4 to 16 chunks and one of 12 tool
    prefixes. A step goes on from one of the eight newest states (depth first), or from any, one time in four."""
    rng, fresh = random.Random(seed), count()
    tools = [[next(fresh) for _ in range(rng.randint(2, 10))] for _ in range(12)]
    requests = []
    for begin_s in arrivals(rng, 0.0, duration_s, 9.0):
        states = [[*rng.choice(tools), *(next(fresh) for _ in range(rng.randint(4, 16)))]]
        at_s = begin_s
        for _ in range(rng.randint(5, 80)):
            state = rng.choice(states if rng.random() < 0.25 else states[-8:])
            states.append(state + [next(fresh) for _ in range(rng.randint(1, 3))])
            requests.append(request(at_s, states[-1]))
            at_s += rng.expovariate(1 / 4)
    return ordered(requests, duration_s)


def retrieval(seed: int, duration_s: float = DURATION_S) -> list[TraceRequest]:
    """A template of 2 chunks, then 1 to 3 of 3,000 documents of 2 to 8 chunks (Zipf 0.9), the most popular first, so
    that a document is found again only behind the same ones; then a question. Every fifth asks once more."""
    rng, fresh = random.Random(seed), count()
    template = [next(fresh) for _ in range(2)]
    lengths = [rng.randint(2, 8) for _ in range(3000)]
    choose = zipf(rng, [[document] for document in range(3000)], 0.9)
    behind: dict[tuple[int, ...], list[int]] = {(): template}
    requests = []
    for at_s in arrivals(rng, 0.0, duration_s, 0.8):
        documents = tuple(sorted({choose()[0] for _ in range(rng.randint(1, 3))}))
        for depth, document in enumerate(documents, 1):
            if documents[:depth] not in behind:
                new = [next(fresh) for _ in range(lengths[document])]
                behind[documents[:depth]] = behind[documents[: depth - 1]] + new
        asked = [*behind[documents], next(fresh)]
        requests.append(request(at_s, asked))
        if rng.random() < 0.2:
            requests.append(request(at_s + rng.expovariate(1 / 40), [*asked, next(fresh)]))
    return ordered(requests, duration_s)


def day_and_night(seed: int, duration_s: float = DURATION_S) -> list[TraceRequest]:
    """Forty tenants, each with a template of 3 to 25 chunks and chats of 1 to 6 turns, half of them awake at a time: a
    day lasts half an hour, and by night a tenant has a twentieth of its arrivals."""
    rng, fresh = random.Random(seed), count()
    requests = []
    for tenant in range(40):
        template = [next(fresh) for _ in range(rng.randint(3, 25))]
        for begin_s in arrivals(rng, 0.0, duration_s, 20.0):
            awake = (begin_s / (duration_s / 2) + tenant / 40) % 1.0 < 0.5
            if not awake and rng.random() > 0.05:
                continue
            blocks, at_s = list(template), begin_s
            for _ in range(rng.randint(1, 6)):
                blocks = blocks + [next(fresh) for _ in range(rng.randint(1, 5))]
                requests.append(request(at_s, blocks))
                at_s += rng.expovariate(1 / 45)
    return ordered(requests, duration_s)


def groups(seed: int, duration_s: float = DURATION_S, sizes: Sequence[int] = (4, 8, 16, 32, 64)) -> list[TraceRequest]:
    """Rollouts: a prompt of 8 to 48 chunks asked for by a group of one of these sizes within two seconds, which takes 1
    to 4 steps, a few seconds apart, each member with a tail of its own."""
    rng, fresh = random.Random(seed), count()
    requests = []
    for begin_s in arrivals(rng, 0.0, duration_s, 6.0):
        prompt = [next(fresh) for _ in range(rng.randint(8, 48))]
        tails: list[list[int]] = [[] for _ in range(rng.choice(sizes))]
        at_s = begin_s
        for _ in range(rng.randint(1, 4)):
            for tail in tails:
                requests.append(request(at_s + 2 * rng.random(), prompt + tail))
                tail += [next(fresh) for _ in range(rng.randint(1, 4))]
            at_s += rng.expovariate(1 / 8)
    return ordered(requests, duration_s)


def samples(seed: int, duration_s: float = DURATION_S) -> list[TraceRequest]:
    """4 to 32 answers to one question, sampled one after the other within a minute, and never asked for again; prompts
    of 4 to 24 chunks share one of 20 templates."""
    rng, fresh = random.Random(seed), count()
    templates = [[next(fresh) for _ in range(rng.randint(1, 8))] for _ in range(20)]
    requests = []
    for begin_s in arrivals(rng, 0.0, duration_s, 4.0):
        prompt = [*rng.choice(templates), *(next(fresh) for _ in range(rng.randint(4, 24)))]
        at_s = begin_s
        for _ in range(rng.randint(4, 32)):
            requests.append(request(at_s, [*prompt, *(next(fresh) for _ in range(rng.randint(1, 2)))]))
            at_s += rng.expovariate(1 / 2)
    return ordered(requests, duration_s)


def mixture(seed: int, duration_s: float = DURATION_S) -> list[TraceRequest]:
    """Groups of 8 and 32, samples and long chats side by side, for machines that do everything at once."""
    parts = [groups(seed, duration_s, (8, 32)), samples(seed + 1, duration_s), long_chats(seed + 2, duration_s)]
    return side_by_side([made[:: 1 + part % 2] for part, made in enumerate(parts)], duration_s)


MADE: Final[dict[str, Generator]] = {
    "long_chats": long_chats,
    "phases": phases,
    "scans": scans,
    "tree_search": tree_search,
    "retrieval": retrieval,
    "day_and_night": day_and_night,
    "groups_of_4": lambda seed, duration_s=DURATION_S: groups(seed, duration_s, (4,)),
    "groups_of_16": lambda seed, duration_s=DURATION_S: groups(seed, duration_s, (16,)),
    "groups_of_64": lambda seed, duration_s=DURATION_S: groups(seed, duration_s, (64,)),
    "groups": groups,
    "samples": samples,
    "mixture": mixture,
    **former_holdout_loads.MADE,
}
