"""Makes the holdout set: loads that no policy was tuned on, to see whether what was chosen for others holds on them.

Frozen: a change of a policy must not follow from a result on these, and none of them may change because of a result.
A trace for which that is broken leaves the set, and new ones are made. Seeded.
"""

from __future__ import annotations

import random
from itertools import count
from typing import Final

from planner.traces.generate import Generator, arrivals, ordered, request, side_by_side, zipf
from planner.traces.request import TraceRequest

DURATION_S: Final = 1800.0


def rollout_batches(seed: int, duration_s: float = DURATION_S) -> list[TraceRequest]:
    """Training in batches: every 40 s or so 2 to 6 tasks of 8 to 40 chunks behind one of 4 system prompts, each rolled
    out by 16 members in 2 to 5 turns; a turn takes 2 to 15 s and adds 1 to 5 chunks."""
    rng, fresh = random.Random(seed), count()
    systems = [[next(fresh) for _ in range(rng.randint(4, 16))] for _ in range(4)]
    requests = []
    for batch_s in arrivals(rng, 0.0, duration_s, 40.0):
        for _ in range(rng.randint(2, 6)):
            task = [*rng.choice(systems), *(next(fresh) for _ in range(rng.randint(8, 40)))]
            turns = rng.randint(2, 5)
            for _ in range(16):
                state, at_s = list(task), batch_s + rng.uniform(0.0, 4.0)
                for _ in range(turns):
                    requests.append(request(at_s, state))
                    state = state + [next(fresh) for _ in range(rng.randint(1, 5))]
                    at_s += rng.uniform(2.0, 15.0)
    return ordered(requests, duration_s)


def voted_answers(seed: int, duration_s: float = DURATION_S) -> list[TraceRequest]:
    """Questions of 3 to 30 chunks, half behind one of 12 instructions, answered 4 to 64 times one after the other until
    enough answers agree; one question in six comes back a minute later, for as many answers again."""
    rng, fresh = random.Random(seed), count()
    instructions = [[next(fresh) for _ in range(rng.randint(2, 10))] for _ in range(12)]
    requests = []
    for begin_s in arrivals(rng, 0.0, duration_s, 5.0):
        question = list(rng.choice(instructions)) if rng.random() < 0.5 else []
        question += [next(fresh) for _ in range(rng.randint(3, 30))]
        many = rng.choice((4, 8, 16, 32, 64))
        for again in range(2 if rng.random() < 1 / 6 else 1):
            at_s = begin_s + again * 60.0
            for _ in range(many):
                requests.append(request(at_s, [*question, next(fresh)]))
                at_s += rng.expovariate(1.0)
    return ordered(requests, duration_s)


def assistants(seed: int, duration_s: float = DURATION_S) -> list[TraceRequest]:
    """Chats with 25 assistants (Zipf 0.9) whose prompts have 2 to 30 chunks: 1 to 20 turns, 40 s apart in the middle
    (log-normal), each with 1 to 6 chunks; one chat in eight is taken up again after 2 to 5 minutes."""
    rng, fresh = random.Random(seed), count()
    choose = zipf(rng, [[next(fresh) for _ in range(rng.randint(2, 30))] for _ in range(25)], 0.9)
    requests = []
    for begin_s in arrivals(rng, 0.0, duration_s, 2.5):
        said, at_s = list(choose()), begin_s
        for part in range(2 if rng.random() < 1 / 8 else 1):
            at_s += part * rng.uniform(120.0, 300.0)
            for _ in range(1 + int(rng.expovariate(1 / 5)) % 20):
                said = said + [next(fresh) for _ in range(rng.randint(1, 6))]
                requests.append(request(at_s, said))
                at_s += rng.lognormvariate(3.7, 0.8)
    return ordered(requests, duration_s)


def tool_users(seed: int, duration_s: float = DURATION_S) -> list[TraceRequest]:
    """Agents with one of 15 sets of tools (6 to 40 chunks, Zipf 1.0) that call a tool every few seconds, 2 to 25 times.
    One run in five fails on the way and begins anew from its task; a plan after every sixth step drops all answers."""
    rng, fresh = random.Random(seed), count()
    choose = zipf(rng, [[next(fresh) for _ in range(rng.randint(6, 40))] for _ in range(15)], 1.0)
    requests = []
    for begin_s in arrivals(rng, 0.0, duration_s, 6.0):
        task = [*choose(), *(next(fresh) for _ in range(rng.randint(1, 8)))]
        at_s = begin_s
        for _ in range(2 if rng.random() < 0.2 else 1):
            state = list(task)
            for step in range(rng.randint(2, 25)):
                requests.append(request(at_s, state))
                at_s += rng.lognormvariate(1.2, 0.9)
                if step % 6 == 5:
                    task = [*task, next(fresh)]
                    state = list(task)
                else:
                    state = state + [next(fresh) for _ in range(rng.randint(1, 4))]
    return ordered(requests, duration_s)


def library(seed: int, duration_s: float = DURATION_S) -> list[TraceRequest]:
    """120 documents of 10 to 120 chunks (Zipf 0.8), one of which, of any rank, is replaced every 20 s; 1 to 4 questions
    by each reader, 20 s apart; every fourth reader looks once into 20 to 80 chunks that no other reader has."""
    rng, fresh = random.Random(seed), count()
    documents = [[next(fresh) for _ in range(rng.randint(10, 120))] for _ in range(120)]
    choose = zipf(rng, documents, 0.8)
    requests = []
    replaced_s = 0.0
    for begin_s in arrivals(rng, 0.0, duration_s, 1.5):
        while replaced_s < begin_s:
            documents[rng.randrange(120)] = [next(fresh) for _ in range(rng.randint(10, 120))]
            replaced_s += 20.0
        if rng.random() < 0.25:
            requests.append(request(begin_s, [next(fresh) for _ in range(rng.randint(20, 80))]))
            continue
        document, at_s = list(choose()), begin_s
        for _ in range(rng.randint(1, 4)):
            requests.append(request(at_s, [*document, next(fresh)]))
            at_s += rng.expovariate(1 / 20)
    return ordered(requests, duration_s)


def templates_and_jobs(seed: int, duration_s: float = DURATION_S) -> list[TraceRequest]:
    """An API with 400 templates of 1 to 12 chunks (Zipf 1.1); twice in ten minutes a job of two minutes sends 300
    prompts of 2 to 20 chunks behind a template of its own, each once or, one in three, again half a minute later."""
    rng, fresh = random.Random(seed), count()
    choose = zipf(rng, [[next(fresh) for _ in range(rng.randint(1, 12))] for _ in range(400)], 1.1)
    requests = [request(at_s, [*choose(), next(fresh)]) for at_s in arrivals(rng, 0.0, duration_s, 0.8)]
    for begin_s in arrivals(rng, 0.0, duration_s, 300.0):
        template = [next(fresh) for _ in range(rng.randint(4, 16))]
        for _ in range(300):
            asked = [*template, *(next(fresh) for _ in range(rng.randint(2, 20)))]
            at_s = begin_s + rng.uniform(0.0, 120.0)
            requests.append(request(at_s, asked))
            if rng.random() < 1 / 3:
                requests.append(request(at_s + rng.uniform(20.0, 40.0), [*asked, next(fresh)]))
    return ordered(requests, duration_s)


def day_of_a_cluster(seed: int, duration_s: float = DURATION_S) -> list[TraceRequest]:
    """Chats, tools, documents and answers that are voted on, side by side, every second request of each."""
    made = (assistants, tool_users, library, voted_answers)
    return side_by_side([make(seed + at, duration_s)[::2] for at, make in enumerate(made)], duration_s)


def training_beside_chats(seed: int, duration_s: float = DURATION_S) -> list[TraceRequest]:
    """Chats all the time, and batches of rollouts in every other 100 s."""
    batches = [one for one in rollout_batches(seed + 1, duration_s) if one.arrival_ms // 100_000 % 2 == 1]
    return side_by_side([assistants(seed, duration_s), batches], duration_s)


def mixed_groups(seed: int, duration_s: float = DURATION_S) -> list[TraceRequest]:
    """Groups of any size from 4 to 64 on prompts of 4 to 50 chunks, one in three behind one of 6 system prompts; each
    member takes 1 to 6 turns of 1 to 4 chunks at its own pace, and the weaker half stops after the second."""
    rng, fresh = random.Random(seed), count()
    systems = [[next(fresh) for _ in range(rng.randint(3, 14))] for _ in range(6)]
    requests = []
    for begin_s in arrivals(rng, 0.0, duration_s, 12.0):
        prompt = list(rng.choice(systems)) if rng.random() < 1 / 3 else []
        prompt += [next(fresh) for _ in range(rng.randint(4, 50))]
        turns = rng.randint(1, 6)
        for member in range(size := rng.randint(4, 64)):
            state, at_s = list(prompt), begin_s + rng.expovariate(1 / 3)
            for _ in range(turns if member < size / 2 else min(2, turns)):
                requests.append(request(at_s, state))
                state = state + [next(fresh) for _ in range(rng.randint(1, 4))]
                at_s += rng.lognormvariate(1.6, 0.7)
    return ordered(requests, duration_s)


def groups_and_library(seed: int, duration_s: float = DURATION_S) -> list[TraceRequest]:
    """Groups of 4 to 64 beside readers of documents, every third request of each."""
    made = (mixed_groups, library)
    return side_by_side([make(seed + at, duration_s)[::3] for at, make in enumerate(made)], duration_s)


def votes_tools_and_templates(seed: int, duration_s: float = DURATION_S) -> list[TraceRequest]:
    """Answers that are voted on, tools, and an API with its jobs, side by side; every second request of each."""
    made = (voted_answers, tool_users, templates_and_jobs)
    return side_by_side([make(seed + 10 + at, duration_s)[::2] for at, make in enumerate(made)], duration_s)


MADE: Final[dict[str, Generator]] = {
    "rollout_batches": rollout_batches,
    "voted_answers": voted_answers,
    "assistants": assistants,
    "tool_users": tool_users,
    "library": library,
    "templates_and_jobs": templates_and_jobs,
    "day_of_a_cluster": day_of_a_cluster,
    "training_beside_chats": training_beside_chats,
    "mixed_groups": mixed_groups,
    "groups_and_library": groups_and_library,
    "votes_tools_and_templates": votes_tools_and_templates,
}
