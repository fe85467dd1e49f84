"""Jobs in the background of engines, beside real agents: who goes first, who is preempted, and the two that ship."""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from kvchunk.kv_layout import parse_layout
from kvclient.attach import AgentUnavailableError
from kvclient.background import BUSY, JOBS_MAX, Background
from kvclient.jobs import reencode, warm
from kvclient.messages import Where
from tests.unit.hostagent.agent_harness import cluster, key
from tests.waiting import until

ENDS_S = 60.0


class Engines:
    """Says whether engines wait, as a test wants it; counts how often it was asked."""

    def __init__(self) -> None:
        self.waiting = False
        self.asked = itertools.count()

    def stats(self) -> dict[str, float]:
        next(self.asked)
        return {BUSY: float(self.waiting)}


def steps(said: list[str], name: str, count: int, at: dict[int, threading.Event] | None = None) -> Iterator[None]:
    for number in range(count):
        said.append(f"{name}{number}")
        if at and number in at:
            at[number].wait(ENDS_S)
        yield


def test_a_job_of_higher_priority_goes_between_two_steps() -> None:
    said: list[str] = []
    first = threading.Event()
    with Background(Engines()) as background:
        low = background.submit(steps(said, "low", 3, {0: first}))
        until(lambda: said == ["low0"], "it has begun")
        same = background.submit(steps(said, "same", 1))
        high = background.submit(steps(said, "high", 2), priority=1)
        first.set()
        assert [each.result(ENDS_S) for each in (high, low, same)] == [2, 3, 1]
    assert said == ["low0", "high0", "high1", "low1", "low2", "same0"]


def test_engines_that_wait_preempt_all_jobs() -> None:
    said: list[str] = []
    engines, first = Engines(), threading.Event()
    with Background(engines, patience_s=ENDS_S) as background:
        job = background.submit(steps(said, "job", 2, {0: first}))
        until(lambda: said == ["job0"], "it has begun")
        engines.waiting = True
        first.set()
        before = next(engines.asked)
        until(lambda: next(engines.asked) > before + 10, "it has looked several times")
        assert said == ["job0"]
        engines.waiting = False
        assert job.result(ENDS_S) == 2


def test_a_node_that_is_never_idle_gets_its_work_done() -> None:
    engines = Engines()
    engines.waiting = True
    said: list[str] = []
    with Background(engines, patience_s=0.01) as background:
        assert background.submit(steps(said, "job", 3)).result(ENDS_S) == 3


def test_a_jobs_failure_is_its_own() -> None:
    def failing() -> Iterator[None]:
        yield
        raise LookupError("no such prefix")

    said: list[str] = []
    with Background(Engines()) as background:
        bad, good = background.submit(failing()), background.submit(steps(said, "good", 2))
        assert good.result(ENDS_S) == 2
        with pytest.raises(LookupError, match="no such prefix"):
            bad.result(ENDS_S)


def test_what_is_left_when_it_closes_is_cancelled_and_more_is_refused() -> None:
    said: list[str] = []
    engines = Engines()
    engines.waiting = True
    background = Background(engines, patience_s=ENDS_S)
    waiting = [background.submit(steps(said, "job", 1)) for _ in range(JOBS_MAX)]
    with pytest.raises(ValueError, match="jobs wait already"):
        background.submit(steps(said, "job", 1))
    background.close()
    assert all(each.cancelled() for each in waiting) and not said
    with pytest.raises(RuntimeError, match="this Background is closed"):
        background.submit(steps(said, "job", 1))


def test_prefixes_that_are_expected_are_brought() -> None:
    with cluster(2) as made:
        keys = [key(number) for number in range(6)]
        for number, (one, before) in enumerate(zip(keys, [None, *keys], strict=False)):
            made.client(0).put(one, before, hashlib.shake_128(one).digest(20_000))
            made.publish(number, 0)
        assert made.client(1).background(warm(made.client(1), [keys[:3], keys])).result(ENDS_S) == 2
        assert made.client(1).contains(keys) == [Where.LOCAL] * 6
        assert made.client(1).stats()[BUSY] == 0


def test_chunks_are_given_to_engines_of_another_layout() -> None:
    given, wanted = parse_layout("bf16.l2.b4.p2.t16.h2.d8"), parse_layout("bf16.p2.l2.t64.h2.d8")
    content = np.arange(given.numbers, dtype=np.uint16)
    with cluster(1) as made:
        client = made.client(0)
        client.put(key(1), None, content)
        job = reencode(client, [(key(1), key(11)), (key(2), key(12))], given, wanted)
        assert client.background(job, priority=1).result(ENDS_S) == 2
        with client.fetch([key(11)], deadline_s=ENDS_S) as found:
            seen = np.frombuffer(found.views[0], np.uint16).reshape(2, 2, 4, 16, 2, 8)
        assert (seen == content.reshape(2, 4, 2, 16, 2, 8).transpose(2, 0, 1, 3, 4, 5)).all()
        assert client.contains([key(12)]) == [Where.NOWHERE], "what is not there is left out"


def test_an_agent_that_goes_fails_the_job() -> None:
    with cluster(1) as made:
        client = made.client(0)
        with Background(client) as background:
            client.close()
            job = background.submit(warm(client, [[key(1)]]))
            with pytest.raises(AgentUnavailableError):
                job.result(ENDS_S)
