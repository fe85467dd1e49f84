"""Workloads on a testbed, a row for each workload and mode; one testbed for all of them.

Between groups of modes agents and the controller start again, the latter with or without the switch, and with or
without admission to its cache: what agents learned of links that were full by unicast would mislead them with casts.
A few requests that are not counted come first, since the first fetch of a process takes some 30 ms longer than others.
Without a pool and by unicast the switch forwards as any switch does.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from bmv2_testbed import client
from bmv2_testbed.bench.group import agent_socket
from bmv2_testbed.bench.rendezvous import Rendezvous
from bmv2_testbed.client import Testbed
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.limits import START_DEADLINE_S
from bmv2_testbed.processes import ProcessorTimes, last_line, python_module
from bmv2_testbed.scale import SCALES, Scale
from bmv2_testbed.spec import Target, TestbedSpec, host_name
from planner.workloads.prediction import POOL_BYTES, Prediction, predict
from planner.workloads.scaled_terms import terms_of
from planner.workloads.workload_catalog import NODES, Mode, Name, Workload, workload

_SPARE_S: Final = 60.0
"""Longest time that requests may take beyond the last arrival."""
_HEAD_START_S: Final = 0.3
_WARM_UP: Final = (Name.SCALE_OUT, 0.1)
"""Of this workload, what arrives in so many seconds: one request at each node."""
_GROUPS: Final[Sequence[Sequence[Mode]]] = ((Mode.NONE, Mode.UNICAST), (Mode.CAST, Mode.MERGED), (Mode.CAST_SWITCH,))
"""Modes that the same daemons serve, in the order in which they are run."""
_STRAY_BYTES_MAX: Final = 1 << 20
"""That hosts may receive for nothing: ARP, and what the switch does not know at first."""


@dataclass(frozen=True, slots=True)
class Row:
    """One workload in one mode. Times in seconds."""

    workload: Name
    mode: Mode
    ready_s: Sequence[float]
    """From each request's arrival until the KV of its prompt was there."""
    wanted_blocks: int
    """Of all prompts."""
    distinct_blocks: int
    """The same counted once, without what nodes held before."""
    computed_blocks: int
    sources: Mapping[str, int]
    """Blocks that came from elsewhere, by how."""
    decisions: Mapping[str, int]
    """Of the gates, by choice."""
    regret_s: float
    saved_s: float
    given_up: int
    uplink_bytes: int
    """That all nodes sent."""
    processors: ProcessorTimes
    """Of agents, engines, switch and controller, all together."""
    problems: Sequence[str]
    predicted: Prediction

    @property
    def mean_s(self) -> float:
        return float(np.mean(self.ready_s)) if self.ready_s else float("nan")

    @property
    def p99_s(self) -> float:
        return float(np.quantile(self.ready_s, 0.99)) if self.ready_s else float("nan")

    @property
    def verified(self) -> bool:
        """Every request ended, and every byte that was fetched is what it must be."""
        return not self.problems

    @property
    def error(self) -> float:
        """By what share the planner's mean is beyond the measured one."""
        return self.predicted.mean_s / self.mean_s - 1

    def to_json(self) -> dict[str, Any]:
        """The row of a file of figures."""
        return {
            "workload": self.workload.value,
            "mode": self.mode.value,
            "mean_ms": self.mean_s * 1e3,
            "p99_ms": self.p99_s * 1e3,
            "computed_blocks": self.computed_blocks,
            "predicted_mean_ms": self.predicted.mean_s * 1e3,
            "predicted_p99_ms": self.predicted.p99_s * 1e3,
            "predicted_computed_blocks": self.predicted.computed_blocks,
            "regret_s": self.regret_s,
            "saved_s": self.saved_s,
            "verified": self.verified,
            "requests": len(self.ready_s),
            "wanted_blocks": self.wanted_blocks,
            "distinct_blocks": self.distinct_blocks,
            "sources": dict(self.sources),
            "decisions": dict(self.decisions),
            "given_up": self.given_up,
            "uplink_bytes": self.uplink_bytes,
            "predicted_uplink_bytes": self.predicted.uplink_bytes,
            "processors_used_s": self.processors.used_s,
            "processors_waited_s": self.processors.waited_s,
            "happened": happened(self),
            "problems": list(self.problems),
        }


def happened(row: Row) -> str:
    """One sentence of what became of the blocks."""
    came = {how: row.sources.get(how, 0) for how in ("cast", "holder", "switch")}
    words = {"cast": "came by cast", "holder": "were read from a node", "switch": "were served by the switch"}
    parts = [f"{came[how]} {words[how]}" for how in came if came[how]]
    again = row.computed_blocks - row.distinct_blocks
    if row.computed_blocks:
        computed = f"{row.computed_blocks} blocks were computed"
        if row.distinct_blocks and again > 0:
            computed += f", {again} of them again"
        elif not row.distinct_blocks:
            computed += " that a node had already"
        parts.insert(0, computed)
    elif parts:
        parts.insert(0, "no block was computed")
    if row.given_up:
        parts.append(f"{row.given_up} fetches were given up")
    return "; ".join(parts) + "." if parts else "Nothing was needed."


@dataclass(frozen=True, slots=True)
class RowsPlan:
    """What to run."""

    workloads: Sequence[Name] = tuple(Name)
    modes: Sequence[Mode] = tuple(Mode)
    target: Target = Target.P4SWITCH
    seed: int = 1
    length_s: float = math.inf
    """Only what arrives in the first seconds of each workload."""
    only: Mapping[Name, Sequence[Mode]] = field(default_factory=dict)
    """Of some workloads fewer modes."""

    @property
    def scale(self) -> Scale:
        return SCALES[self.target]

    @property
    def groups(self) -> list[list[tuple[Name, Mode]]]:
        """Rows by the daemons that serve them."""
        chosen = {name: self.only.get(name, self.modes) for name in self.workloads}
        grouped = [
            [(name, mode) for name in self.workloads for mode in group if mode in chosen[name] and mode in self.modes]
            for group in _GROUPS
        ]
        return [group for group in grouped if group]

    def testbed(self) -> TestbedSpec:
        """The testbed, with a controller that programs the hosts' ports into the switch, whatever the first mode."""
        first = self.groups[0][0][1]
        return TestbedSpec(
            target=self.target,
            hosts=NODES,
            rate_bit_s=self.scale.link_bit_s,
            seed=self.seed,
            segment_bytes=self.target.segment_bytes,
            slots=self.scale.slots,
            pool_bytes=POOL_BYTES,
            controller_settings=controller_settings(first),
        )


def is_plain(mode: Mode) -> bool:
    """Whether the switch only forwards."""
    return mode in (Mode.NONE, Mode.UNICAST)


def controller_settings(mode: Mode) -> dict[str, Any]:
    """What the controller of a mode has to know."""
    return {"policy": {"admission": mode is Mode.CAST_SWITCH}}


def strays(sent_bytes: int, received_bytes: int) -> list[str]:
    """What is wrong where nothing is cast and hosts receive more than was sent: then all of them share one link."""
    if received_bytes <= 1.5 * sent_bytes + _STRAY_BYTES_MAX:
        return []
    return [f"the switch floods: hosts sent {sent_bytes} bytes and received {received_bytes}"]


Say = Callable[[str], None]
Moved = Callable[[float], None]


def run_rows(plan: RowsPlan, say: Say, moved: Moved) -> Iterator[Row]:
    """Run all rows on one testbed, and yield each as soon as it is done."""
    say(f"network of {NODES} hosts")
    with client.running(plan.testbed()) as testbed:
        for number, group in enumerate(plan.groups):
            mode = group[0][1]
            # Only now: a switch that no controller has programmed floods, and hosts would share one link.
            if number or is_plain(mode):
                say(f"{mode}: agents and controller start again")
                testbed.start_daemons_again(plain=is_plain(mode), settings=controller_settings(mode))
            _warm_up(plan, testbed, group[-1][1], say)
            for name, mode in group:
                yield _run_row(plan, testbed, workload(name, plan.seed, plan.length_s), mode, say, moved)


def _warm_up(plan: RowsPlan, testbed: Testbed, mode: Mode, say: Say) -> None:
    name, length_s = _WARM_UP
    short = replace(plan, length_s=length_s)
    row = _run_row(short, testbed, workload(name, plan.seed, length_s), mode, say, lambda _: None, "warm-up")
    if not row.verified:
        raise TestbedError(f"the first requests by {mode} failed: {'; '.join(row.problems)}")


def _run_row(
    plan: RowsPlan, testbed: Testbed, made: Workload, mode: Mode, say: Say, moved: Moved, label: str = ""
) -> Row:
    """`label`: what chunks are named after; by itself the workload and the mode."""
    title = f"{made.name}, {mode}"
    label = label or f"{made.name}/{mode}"
    say(f"{title}: nodes get ready")
    inside = testbed.status()["directory"]
    names = [f"node{node}" for node in range(NODES)]
    link_bit_s = plan.scale.link_bit_s
    words = ["--workload", made.name, "--mode", mode, "--label", label, "--seed", str(plan.seed)]
    words += ["--link", str(link_bit_s), "--length", str(plan.length_s)]
    with Rendezvous(testbed.directory, inside) as rendezvous:
        for node, name in enumerate(names):
            own = ["--node", str(node), "--agent", agent_socket(testbed, node), "--rendezvous", rendezvous.address]
            testbed.run(name, host_name(node), python_module("bmv2_testbed.workloads.engine_node", *words, *own))
        rendezvous.await_ready(NODES, time.monotonic() + START_DEADLINE_S, lambda: _check_alive(testbed, names))
        # What the planner needs to think about is thought of while nothing is measured.
        predicted = predict(made, mode, terms_of(made, link_bit_s), plan.scale.slots * plan.target.segment_bytes)
        before, processors_before = testbed.counters(), testbed.processor_times()
        say(f"{title}: {len(made.prompts)} requests in {made.length_s:.1f} s")
        start_s = time.monotonic() + _HEAD_START_S
        rendezvous.start(dict.fromkeys(names, start_s))
        reports = rendezvous.results(
            start_s + made.length_s + _SPARE_S, lambda: moved(min(1.0, (time.monotonic() - start_s) / made.length_s))
        )
        after, processors = testbed.counters(), testbed.processor_times()
    problems = [f"{name}: no report: {last_line(testbed.log(name))}" for name in names if name not in reports]
    for name in names:
        if testbed.wait(name, 5) is None:
            testbed.kill(name)
        testbed.forget(name)
    moved_bytes = [after[host].since(before[host]) for host in after]
    sent = sum(one.tx_bytes for one in moved_bytes)
    if is_plain(mode):
        problems += strays(sent, sum(one.rx_bytes for one in moved_bytes))
    took = [times.since(processors_before[name]) for name, times in processors.items() if name in processors_before]
    return row_of(
        made, mode, predicted, list(reports.values()), sent, sum(took, start=ProcessorTimes(0.0, 0.0)), problems
    )


def row_of(
    made: Workload,
    mode: Mode,
    predicted: Prediction,
    reports: Sequence[Mapping[str, Any]],
    uplink_bytes: int,
    processors: ProcessorTimes,
    problems: list[str],
) -> Row:
    """Sum up what the nodes report."""
    ready_s = [time_s for report in reports for time_s in report["ready_s"]]
    if len(ready_s) != len(made.prompts):
        problems.append(f"{len(made.prompts) - len(ready_s)} requests did not end")
    wrong = sum(report["fetched_bytes"] - report["verified_bytes"] for report in reports)
    if wrong:
        problems.append(f"{wrong} bytes were not what they must be")
    sources: Counter[str] = Counter()
    figures: Counter[str] = Counter()
    for report in reports:
        sources.update(report["sources"])
        figures.update(report["figures"])
    decisions = {
        name.removeprefix("gate_decisions_total{").removesuffix("}"): round(count)
        for name, count in sorted(figures.items())
        if name.startswith("gate_decisions_total{") and count
    }
    held = {block for prefixes in made.held.values() for prefix in prefixes for block in prefix}
    return Row(
        workload=made.name,
        mode=mode,
        ready_s=ready_s,
        wanted_blocks=sum(len(prompt.blocks) for prompt in made.prompts),
        distinct_blocks=len({block for prompt in made.prompts for block in prompt.blocks} - held),
        computed_blocks=sum(report["computed_blocks"] for report in reports),
        sources=dict(sources),
        decisions=decisions,
        regret_s=sum(seconds for name, seconds in figures.items() if name.startswith("gate_regret_seconds_total")),
        saved_s=figures["gate_saved_seconds_total"],
        given_up=round(figures["gate_given_up_total"]),
        uplink_bytes=uplink_bytes,
        processors=processors,
        problems=problems,
        predicted=predicted,
    )


def _check_alive(testbed: Testbed, names: Sequence[str]) -> None:
    processes = testbed.status()["processes"]
    for name in names:
        if processes.get(name) is not None:
            raise TestbedError(f"{name} ended before the start: {last_line(testbed.log(name))}")
