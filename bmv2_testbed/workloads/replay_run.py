"""Runs a replay plan on a testbed and says what it cost and brought."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bmv2_testbed.bench.rendezvous import Rendezvous
from bmv2_testbed.client import Testbed
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.limits import FETCH_DEADLINE_S, START_DEADLINE_S
from bmv2_testbed.processes import last_line, python_module
from bmv2_testbed.spec import host_name
from bmv2_testbed.workloads.plan import RECOMPUTE_S_PER_BLOCK, ReplayPlan, recompute_times_s


@dataclass(frozen=True, slots=True)
class ReplayFigures:
    """One replay. Times in seconds; `ready_s`: measured fetch plus modelled computing of blocks not fetched."""

    mode: str
    trace: str
    requests: int
    blocks: int
    sources: Mapping[str, int]
    """Blocks by where they came from; `computed`: nowhere (modelled)."""
    fetch_s: Sequence[float]
    """Measured, of requests that fetched at least one block from elsewhere; empty without a pool."""
    ready_s: Sequence[float]
    uplink_bytes: Sequence[int]
    """What each node sent on its data link."""
    downlink_bytes: Sequence[int]
    verified_bytes: int
    wrong_blocks: int
    problems: Sequence[str]

    @property
    def busiest_uplink_bytes(self) -> int:
        return max(self.uplink_bytes, default=0)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def replay_without_pool(plan: ReplayPlan) -> ReplayFigures:
    """Modelled: every node computes what it has not computed before. Nothing is measured here."""
    times = recompute_times_s(plan)
    computed = round(sum(times) / RECOMPUTE_S_PER_BLOCK)
    return ReplayFigures(
        mode="no pool (modelled)",
        trace=plan.trace,
        requests=len(plan.requests),
        blocks=plan.blocks,
        sources={"local": plan.blocks - computed, "computed": computed},
        fetch_s=[],
        ready_s=times,
        uplink_bytes=[0] * plan.nodes,
        downlink_bytes=[0] * plan.nodes,
        verified_bytes=0,
        wrong_blocks=0,
        problems=[],
    )


def replay(
    testbed: Testbed, plan: ReplayPlan, mode: str, say: Callable[[str], None], moved: Callable[[float], None]
) -> ReplayFigures:
    """Run the plan, one process a node, host i as node i."""
    inside = testbed.status()["directory"]
    (testbed.directory / "plan.json").write_text(plan.to_json())
    names = [f"node{node}" for node in range(plan.nodes)]
    length_s = max(request.start_s for request in plan.requests)
    with Rendezvous(testbed.directory, inside) as rendezvous:
        say(f"{mode}: nodes put what the trace asked for before")
        for node, name in enumerate(names):
            words = ["--plan", f"{inside}/plan.json", "--node", str(node), "--rendezvous", rendezvous.address]
            words += ["--agent", f"{inside}/{host_name(node)}.sock"]
            testbed.run(name, host_name(node), python_module("bmv2_testbed.workloads.replay_node", *words))
        rendezvous.await_ready(len(names), time.monotonic() + START_DEADLINE_S, lambda: _check_alive(testbed, names))
        before = testbed.counters()
        say(f"{mode}: {len(plan.requests)} requests in {length_s:.0f} s")
        start_s = time.monotonic() + 0.2
        rendezvous.start(dict.fromkeys(names, start_s))
        reports = rendezvous.results(
            start_s + length_s + FETCH_DEADLINE_S, lambda: moved(min(1.0, (time.monotonic() - start_s) / length_s))
        )
        after = testbed.counters()
    problems = [f"{name}: no report: {last_line(testbed.log(name))}" for name in names if name not in reports]
    for name in names:
        if testbed.wait(name, 5) is None:
            testbed.kill(name)
        testbed.forget(name)
    grown = [after[host_name(node)].since(before[host_name(node)]) for node in range(plan.nodes)]
    return _figures(plan, mode, list(reports.values()), grown, problems)


def _figures(
    plan: ReplayPlan, mode: str, reports: Sequence[Mapping[str, Any]], grown: Sequence[Any], problems: list[str]
) -> ReplayFigures:
    sources: dict[str, int] = {}
    fetch_s: list[float] = []
    ready_s: list[float] = []
    wanted = fetched = 0
    for report in reports:
        for name, count in report["sources"].items():
            sources[name] = sources.get(name, 0) + count
        columns = (report["fetch_s"], report["wanted_blocks"], report["fetched_blocks"], report["remote_blocks"])
        for time_s, want, got, remote in zip(*columns, strict=True):
            wanted += want
            fetched += got
            ready_s.append(time_s + (want - got) * RECOMPUTE_S_PER_BLOCK)
            if remote:
                fetch_s.append(time_s)
        problems += report["problems"]
    sources["computed"] = wanted - fetched
    verified = sum(report["verified_bytes"] for report in reports)
    if verified != fetched * plan.block_bytes:
        problems.append(f"{fetched * plan.block_bytes - verified} bytes were not what they must be")
    if len(ready_s) != len(plan.requests):
        problems.append(f"{len(plan.requests) - len(ready_s)} requests did not end")
    return ReplayFigures(
        mode=mode,
        trace=plan.trace,
        requests=len(plan.requests),
        blocks=plan.blocks,
        sources=sources,
        fetch_s=fetch_s,
        ready_s=ready_s,
        uplink_bytes=[value.tx_bytes for value in grown],
        downlink_bytes=[value.rx_bytes for value in grown],
        verified_bytes=verified,
        wrong_blocks=sum(report["wrong_blocks"] for report in reports),
        problems=problems,
    )


def _check_alive(testbed: Testbed, names: Sequence[str]) -> None:
    processes = testbed.status()["processes"]
    for name in names:
        if processes.get(name) is not None:
            raise TestbedError(f"{name} ended before the start: {last_line(testbed.log(name))}")
