"""The GPU of a workload's node: every request has one turn, whenever its answer comes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any, cast

import pytest

from bmv2_testbed.workloads import gpu as gpu_module
from bmv2_testbed.workloads.gpu import Gpu, Job
from kvclient.client import AgentClient
from planner.workloads.scaled_terms import terms_of
from planner.workloads.workload_catalog import Name, Prompt, workload

JOB = Job(Prompt(0.0, 0, (0, 1)), [b"a", b"b"], 0.0)


class Answer:
    """Both chunks of the prompt, at once, when `comes` is set."""

    count = 2

    def __init__(self, comes: threading.Event) -> None:
        self.comes = comes

    def __iter__(self) -> Iterator[memoryview]:
        self.comes.wait()
        return iter(())


class SlowAgent:
    """Answers a fetch when `comes` is set."""

    def __init__(self) -> None:
        self.comes = threading.Event()

    def fetch_stream(self, keys: object, **_: object) -> Answer:
        return Answer(self.comes)

    def contains(self, keys: object) -> list[object]:
        return []


def test_an_answer_that_comes_as_its_request_is_parked_gives_it_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = SlowAgent()

    class LetsOthersRun(threading.Condition):
        """Whoever parked the request loses the processor, until its answer is noted, as soon as it has no lock."""

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None:
            super().__exit__(kind, error, trace)
            if JOB.parked and not JOB.answered.is_set() and not agent.comes.is_set():
                agent.comes.set()
                JOB.answered.wait()

    monkeypatch.setattr(gpu_module.threading, "Condition", LetsOthersRun)
    kept: list[Any] = []

    def keep(keys: object, got: object) -> None:
        kept.append(got)
        assert len(kept) == 1, "its thread ends here: nobody would wait for a request that is done twice"

    terms = terms_of(workload(Name.SCALE_OUT), 100_000_000)
    gpu = Gpu(cast("AgentClient", agent), terms, merges=False, save=lambda job, place: None, keep=keep)
    gpu.arrive(JOB)
    gpu.end()
    assert len(kept) == 1
    assert gpu.done == [JOB]
