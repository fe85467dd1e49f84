"""The second part of `tuning_loads`. Seeded."""

from __future__ import annotations

import math
import random
from itertools import count
from typing import Final

from planner.traces.generate import Generator, arrivals, ordered, request, side_by_side, zipf
from planner.traces.request import TraceRequest

DURATION_S: Final = 1800.0
_GROUP_SIZES: Final = (4, 8, 16, 32, 64)


def growing_groups(seed: int, duration_s: float = DURATION_S) -> list[TraceRequest]:
    """Rollouts of 4 to 64 members whose usual size grows, then falls again, over the trace: a prompt of 6 to 60 chunks,
    half of them behind one of 10 templates, 1 to 6 steps; a member drops out after each step one time in five."""
    rng, fresh = random.Random(seed), count()
    templates = [[next(fresh) for _ in range(rng.randint(2, 12))] for _ in range(10)]
    requests = []
    for begin_s in arrivals(rng, 0.0, duration_s, 14.0):
        usual = 4 * (1 - abs(2 * begin_s / duration_s - 1))
        size = rng.choices(_GROUP_SIZES, [math.exp(-abs(at - usual)) for at in range(len(_GROUP_SIZES))])[0]
        prompt = list(rng.choice(templates)) if rng.random() < 0.5 else []
        prompt += [next(fresh) for _ in range(rng.randint(6, 60))]
        tails: list[list[int]] = [[] for _ in range(size)]
        at_s = begin_s
        for _ in range(rng.randint(1, 6)):
            for tail in tails:
                requests.append(request(at_s + rng.uniform(0.0, 5.0), prompt + tail))
                tail += [next(fresh) for _ in range(rng.randint(1, 3))]
            tails = [tail for tail in tails if rng.random() < 0.8]
            at_s += 5.0 + rng.expovariate(1 / 10)
    return ordered(requests, duration_s)


def waves_of_groups(seed: int, duration_s: float = DURATION_S) -> list[TraceRequest]:
    """Training: 2 to 8 prompts of 4 to 30 chunks at a time, each sampled by a group of 4, 8, 16, 32 or 64 over 20 s,
    once more by half of the group a minute later, and one prompt in four again in the next epoch, a third of the trace
    later; between waves of generation the model learns for 30 s and nothing is asked."""
    rng, fresh = random.Random(seed), count()
    requests = []
    begin_s = 0.0
    while begin_s < duration_s:
        for _ in range(rng.randint(2, 8)):
            prompt = [next(fresh) for _ in range(rng.randint(4, 30))]
            epochs = (begin_s, begin_s + duration_s / 3) if rng.random() < 0.25 else (begin_s,)
            for epoch_s in epochs:
                for _ in range(rng.choice(_GROUP_SIZES)):
                    at_s = epoch_s + rng.uniform(0.0, 20.0)
                    answered = [*prompt, *(next(fresh) for _ in range(rng.randint(1, 4)))]
                    requests.append(request(at_s, answered))
                    if rng.random() < 0.5:
                        requests.append(request(at_s + rng.uniform(50.0, 70.0), [*answered, next(fresh)]))
        begin_s += 20.0 + 30.0
    return ordered(requests, duration_s)


def tool_loops(seed: int, duration_s: float = DURATION_S) -> list[TraceRequest]:
    """Agents that call tools: a role of 4 to 20 chunks (8 of them), a task, 3 to 60 steps that each add a tool's answer
    of 1 to 6 chunks; a tool takes a second, or half a minute one time in six. One step in eight starts 2 to 5 branches
    that each go 1 to 8 steps from there and leave one chunk to the agent."""
    rng, fresh = random.Random(seed), count()
    roles = [[next(fresh) for _ in range(rng.randint(4, 20))] for _ in range(8)]
    requests = []
    for begin_s in arrivals(rng, 0.0, duration_s, 30.0):
        state = [*rng.choice(roles), *(next(fresh) for _ in range(rng.randint(1, 6)))]
        at_s = begin_s
        for _ in range(rng.randint(3, 60)):
            requests.append(request(at_s, state))
            at_s += rng.expovariate(1 / 30 if rng.random() < 1 / 6 else 1.0)
            if rng.random() < 1 / 8:
                ends_s = []
                for _ in range(rng.randint(2, 5)):
                    branch, branch_s = list(state), at_s
                    for _ in range(rng.randint(1, 8)):
                        branch = branch + [next(fresh) for _ in range(rng.randint(1, 4))]
                        requests.append(request(branch_s, branch))
                        branch_s += rng.expovariate(1 / 3)
                    ends_s.append(branch_s)
                    state = [*state, next(fresh)]
                at_s = max(ends_s)
            state = state + [next(fresh) for _ in range(rng.randint(1, 6))]
    return ordered(requests, duration_s)


def shifting_tenants(seed: int, duration_s: float = DURATION_S) -> list[TraceRequest]:
    """A dozen tenants whose shares of the arrivals wander (each doubles or halves now and then): four with an API of 20
    to 200 templates (Zipf 0.7 to 1.3), four with chats of 1 to 12 turns, four that sample 4 to 16 answers."""
    rng, fresh = random.Random(seed), count()
    templates = [
        zipf(rng, [[next(fresh) for _ in range(rng.randint(1, 16))] for _ in range(rng.randint(20, 200))], exponent)
        for exponent in (0.7, 0.9, 1.1, 1.3)
    ]
    systems = [[next(fresh) for _ in range(rng.randint(1, 10))] for _ in range(4)]
    shares = [1.0] * 12
    requests = []
    for begin_s in arrivals(rng, 0.0, duration_s, 1.2):
        if rng.random() < 0.05:
            moved = rng.randrange(12)
            shares[moved] = min(16.0, max(1 / 16, shares[moved] * rng.choice((0.5, 2.0))))
        tenant = rng.choices(range(12), shares)[0]
        if tenant < 4:
            requests.append(request(begin_s, [*templates[tenant](), *(next(fresh) for _ in range(rng.randint(1, 2)))]))
        elif tenant < 8:
            blocks, at_s = list(systems[tenant - 4]), begin_s
            for _ in range(rng.randint(1, 12)):
                blocks = blocks + [next(fresh) for _ in range(rng.randint(1, 5))]
                requests.append(request(at_s, blocks))
                at_s += rng.lognormvariate(3.0, 1.0)
        else:
            prompt = [next(fresh) for _ in range(rng.randint(3, 20))]
            requests += [
                request(begin_s + rng.expovariate(1 / 6), [*prompt, next(fresh)]) for _ in range(rng.randint(4, 16))
            ]
    return ordered(requests, duration_s)


def long_documents(seed: int, duration_s: float = DURATION_S) -> list[TraceRequest]:
    """Documents of 30 to 250 chunks: whoever opens one asks 1 to 12 questions, half a minute apart (log-normal), and
    two times in three those questions and their answers stay in the prompt; one document in ten is opened by a whole
    team of 3 to 10 within five minutes."""
    rng, fresh = random.Random(seed), count()
    requests = []
    for begin_s in arrivals(rng, 0.0, duration_s, 9.0):
        document = [next(fresh) for _ in range(rng.randint(30, 250))]
        for _ in range(rng.randint(3, 10) if rng.random() < 0.1 else 1):
            asked, at_s = list(document), begin_s + (rng.uniform(0.0, 300.0) if rng.random() < 0.5 else 0.0)
            keeps = rng.random() < 2 / 3
            for _ in range(rng.randint(1, 12)):
                with_question = [*asked, next(fresh)]
                requests.append(request(at_s, with_question))
                asked = with_question if keeps else asked
                at_s += rng.lognormvariate(3.4, 1.0)
    return ordered(requests, duration_s)


def flash_crowds(seed: int, duration_s: float = DURATION_S) -> list[TraceRequest]:
    """150 prompts of 4 to 24 chunks (Zipf 0.8); every two minutes or so a new one that 30 to 200 ask for within 20
    seconds and some for minutes after; and a crawler that always reads: new pages, and as often the next of 800 pages
    that it reads in the same order for ever."""
    rng, fresh = random.Random(seed), count()
    choose = zipf(rng, [[next(fresh) for _ in range(rng.randint(4, 24))] for _ in range(150)], 0.8)
    requests = [request(at_s, [*choose(), next(fresh)]) for at_s in arrivals(rng, 0.0, duration_s, 1.0)]
    for begin_s in arrivals(rng, 0.0, duration_s, 120.0):
        prompt = [next(fresh) for _ in range(rng.randint(8, 40))]
        for _ in range(rng.randint(30, 200)):
            after_s = rng.uniform(0.0, 20.0) if rng.random() < 0.85 else rng.expovariate(1 / 180)
            requests.append(request(begin_s + after_s, [*prompt, next(fresh)]))
    pages = [[next(fresh) for _ in range(6)] for _ in range(800)]
    at_page = 0
    for at_s in arrivals(rng, 0.0, duration_s, 0.9):
        if rng.random() < 0.5:
            requests.append(request(at_s, [next(fresh) for _ in range(rng.randint(3, 12))]))
        else:
            requests.append(request(at_s, pages[at_page % len(pages)]))
            at_page += 1
    return ordered(requests, duration_s)


def drifting_days(seed: int, duration_s: float = DURATION_S) -> list[TraceRequest]:
    """Days of ten minutes with eight times as many arrivals at noon as at night; 250 templates (Zipf 1.0) of which one,
    of any rank, is replaced by a new one every six seconds; half of the requests go on as chats, slower by night."""
    rng, fresh = random.Random(seed), count()
    templates = [[next(fresh) for _ in range(rng.randint(2, 18))] for _ in range(250)]
    choose = zipf(rng, templates, 1.0)
    requests = []
    replaced_s = 0.0
    for begin_s in arrivals(rng, 0.0, duration_s, 0.5):
        while replaced_s < begin_s:
            templates[rng.randrange(250)] = [next(fresh) for _ in range(rng.randint(2, 18))]
            replaced_s += 6.0
        if rng.random() > _daylight(begin_s):
            continue
        blocks, at_s = [*choose(), next(fresh)], begin_s
        requests.append(request(at_s, blocks))
        while rng.random() < 0.5:
            at_s += rng.expovariate(1 / 25) / _daylight(at_s)
            blocks = blocks + [next(fresh) for _ in range(rng.randint(1, 4))]
            requests.append(request(at_s, blocks))
    return ordered(requests, duration_s)


def _daylight(at_s: float) -> float:
    """Share of the arrivals of noon: an eighth by night."""
    return 9 / 16 - 7 / 16 * math.cos(2 * math.pi * at_s / 600)


def retries(seed: int, duration_s: float = DURATION_S) -> list[TraceRequest]:
    """Prompts of 2 to 40 chunks, three in four behind one of 30 templates; one request in five fails and is sent again
    after 1, 2, 4, ... seconds (up to six times), and one answer in six is asked for anew 5 to 120 s later, up to four
    times. While a service is down (a minute, every five) nine of ten fail."""
    rng, fresh = random.Random(seed), count()
    choose = zipf(rng, [[next(fresh) for _ in range(rng.randint(2, 14))] for _ in range(30)], 0.6)
    requests = []
    for begin_s in arrivals(rng, 0.0, duration_s, 0.6):
        prompt = [*(choose() if rng.random() < 0.75 else []), *(next(fresh) for _ in range(rng.randint(2, 40)))]
        at_s = begin_s
        for _ in range(5):
            wait_s = 1.0
            for _ in range(7):
                requests.append(request(at_s, prompt))
                if rng.random() > (0.9 if at_s % 300 > 240 else 0.2):
                    break
                at_s += wait_s * rng.uniform(0.8, 1.2)
                wait_s *= 2
            if rng.random() > 1 / 6:
                break
            at_s += rng.uniform(5.0, 120.0)
    return ordered(requests, duration_s)


def editors(seed: int, duration_s: float = DURATION_S) -> list[TraceRequest]:
    """Programmers whose editor asks every few seconds: a prompt of 10 to 60 chunks of files, in which each edit changes
    a chunk and so everything behind it, mostly near the end; pauses of minutes, undo (the last version but one) one
    time in ten, and 3 to 8 programmers who start from the same files."""
    rng, fresh = random.Random(seed), count()
    requests = []
    for begin_s in arrivals(rng, 0.0, duration_s, 40.0):
        files = [next(fresh) for _ in range(rng.randint(10, 60))]
        for _ in range(rng.randint(3, 8)):
            before, now = files, files
            at_s = begin_s + rng.expovariate(1 / 120)
            for _ in range(rng.randint(10, 80)):
                requests.append(request(at_s, now))
                at_s += rng.expovariate(1 / 90 if rng.random() < 0.08 else 1 / 4)
                if rng.random() < 0.1:
                    before, now = now, before
                    continue
                same = max(1, len(now) - 1 - int(rng.expovariate(1 / 4)))
                edited = now[:same] + [next(fresh) for _ in range(max(1, len(files) - same))]
                before, now = now, edited
    return ordered(requests, duration_s)


def everything(seed: int, duration_s: float = DURATION_S) -> list[TraceRequest]:
    """Growing groups, tool loops, shifting tenants and drifting days side by side, every second request of each."""
    made = (growing_groups, tool_loops, shifting_tenants, drifting_days)
    return side_by_side([make(seed + at, duration_s)[::2] for at, make in enumerate(made)], duration_s)


MADE: Final[dict[str, Generator]] = {
    "growing_groups": growing_groups,
    "waves_of_groups": waves_of_groups,
    "tool_loops": tool_loops,
    "shifting_tenants": shifting_tenants,
    "long_documents": long_documents,
    "flash_crowds": flash_crowds,
    "drifting_days": drifting_days,
    "retries": retries,
    "editors": editors,
    "everything": everything,
}
