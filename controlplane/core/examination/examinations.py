"""Lets agents and switch take the steps of an examination, and collects how they ended. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from controlplane.core.cluster import Cluster
from controlplane.core.examination.observations import Observations, Surroundings
from controlplane.core.examination.script import (
    Ask,
    Batch,
    Examination,
    FillSwitch,
    Outcome,
    Script,
    Step,
    Subject,
)
from controlplane.core.examination.trial import Trial
from controlplane.core.examination.verdict import findings
from controlplane.core.ids import ChunkKey, NodeIndex
from controlplane.core.nodes import Node, NodeState
from controlplane.core.operations import OperatorError
from controlplane.core.switch.chunk_states import ChunkState
from controlplane.core.switch_cache.cache import SwitchCache
from controlplane.core.switch_link import SwitchLink
from controlplane.core.tasks import Housekeeping, ProbeStep
from kvproto.rpc import control_pb2 as rpc
from kvproto.wire.data import FILL_OVERHEAD_BYTES

ADMISSION_NS = 1_000_000_000
"""A chunk that the switch has not let in by then finds no room there: what is pinned stays."""
TOTAL_NS_MAX = 60_000_000_000
"""Agents drop the chunks of an examination after a minute: an answer that comes later says nothing."""


@dataclass(slots=True)
class _Run:
    number: int
    script: Script
    observations: Observations | None = None
    """None: it is a trial of groups."""
    steps: tuple[Step, ...] = ()
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    """By index of the step."""
    ordered_ns: int = 0
    phase: str = ""
    fills: set[ChunkKey] = field(default_factory=set)
    """What was brought into the switch."""


class Examinations:
    """Owns the one examination that may be under way: its script, its steps and how they ended."""

    def __init__(self, cluster: Cluster, switch_cache: SwitchCache | None, link: SwitchLink) -> None:
        """`switch_cache`: None where there is no kvcast switch."""
        self._cluster = cluster
        self._nodes = cluster.nodes
        self._tasks = cluster.tasks
        self._switch_cache = switch_cache
        self._link = link
        self._next_number = cluster.options.incarnation
        """Differs between controllers."""
        self._run: _Run | None = None
        self._began_ns = 0

    @property
    def phase(self) -> str:
        """What is being tried; empty: nothing."""
        return self._run.phase if self._run is not None else ""

    def begin(self, surroundings: Surroundings) -> int:
        """Start one; returns its number. Raises OperatorError while another one runs."""
        if self._run is not None and self._run.observations is None:
            self.end(self._run.number)  # an operator waits for no trial
        if self._run is not None:
            raise OperatorError("FAILED_PRECONDITION", "another examination is under way: try again when it has ended")
        number = self._take_number()
        now_ns, segment_bytes = self._cluster.now_ns, self._link.segment_bytes
        seen = Observations(surroundings, segment_bytes, segment_bytes + FILL_OVERHEAD_BYTES, self._link.state)
        seen.fanout, seen.fanout_why = self._cluster.way, self._cluster.why
        for name in self._nodes.configured_ports:
            if self._nodes.named(name) is None:
                seen.absent[name] = "it is in `nodes` of the configuration and has not attached"
        for node in self._nodes:
            if not node.attached:
                seen.absent[node.facts.name] = "it is not attached any more"
            else:
                seen.racks.setdefault(node.facts.rack, []).append(node.facts.name)
        subjects = [self._subject(node) for node in self._nodes if node.attached]
        subjects.sort(key=lambda subject: subject.name)
        groups = None
        if seen.fanout.keeps:
            trial = Trial(number, subjects, seen.packet_bytes, standing=False)
            seen.groups, groups = trial.seen, trial.script()
        examination = Examination(number, subjects, seen, now_ns, groups)
        self._begin(_Run(number, examination.script(), seen))
        return number

    def try_groups(self, nodes: Sequence[Node], *, standing: bool) -> tuple[int, Trial]:
        """Begin a trial of what the network does with groups; see `Trial`. Nothing else may be under way."""
        number = self._take_number()
        subjects = [self._subject(node) for node in nodes]
        trial = Trial(number, subjects, self._link.segment_bytes + FILL_OVERHEAD_BYTES, standing=standing)
        self._begin(_Run(number, trial.script()))
        return number, trial

    def has_ended(self, number: int) -> bool:
        """Whether a trial is over, or was given up for an operator's examination."""
        run = self._run
        if run is None or run.number != number:
            return True
        if run.steps:
            return False
        self._run = None
        return True

    def _take_number(self) -> int:
        self._next_number += 1
        return self._next_number - 1

    def _begin(self, run: _Run) -> None:
        self._run, self._began_ns = run, self._cluster.now_ns
        self._next_batch(None)

    def findings(self, number: int) -> list[rpc.Finding] | None:
        """Of an examination that has ended, once; None while it runs."""
        run = self._run
        if run is None or run.number != number or run.steps or run.observations is None:
            return None
        return findings(run.observations)

    def end(self, number: int) -> None:
        """Nobody waits for it any more: leave nothing behind."""
        run = self._run
        if run is None or run.number != number:
            return
        self._run = None
        run.script.close()
        for task in self._tasks.matching(lambda one: isinstance(one, ProbeStep)):
            self._tasks.cancel(task)
        unfinished = bool(run.steps)
        for node in self._nodes:
            if unfinished and node.state is NodeState.ATTACHED:
                drop = rpc.Task(probe=rpc.Probe(examination=number, drop=rpc.ProbeDrop()))
                self._tasks.add(node.index, Housekeeping("probe_drop"), drop)
        self._empty_switch(run)

    def step_ended(self, purpose: ProbeStep, result: rpc.TaskResult) -> None:
        """A node says how a step went, or cannot say it any more."""
        run = self._run
        if run is not None and purpose.examination == run.number and purpose.index not in run.outcomes:
            now_ns = self._cluster.now_ns
            run.outcomes[purpose.index] = Outcome(result, now_ns - run.ordered_ns, now_ns)

    def advance(self) -> None:
        """Look whether the switch has what it should have; go on when a batch has ended."""
        run = self._run
        if run is None or not run.steps:
            return
        self._look_at_fills(run)
        while run.steps and len(run.outcomes) == len(run.steps):
            self._next_batch([run.outcomes[index] for index in range(len(run.steps))])

    # -- inside

    def _next_batch(self, outcomes: list[Outcome] | None) -> None:
        run, now_ns = self._run, self._cluster.now_ns
        if run is None:
            return
        run.outcomes.clear()
        run.steps = ()
        batch = self._ask_script(run, outcomes)
        if batch is not None and now_ns - self._began_ns > TOTAL_NS_MAX:
            if run.observations is not None:
                run.observations.unfinished = "what would have taken more than a minute"
            run.script.close()
            batch = None
        if batch is None:
            self._empty_switch(run)
            return
        run.phase, run.steps, run.ordered_ns = batch.phase, batch.steps, now_ns
        for index, step in enumerate(batch.steps):
            if isinstance(step, Ask):
                self._tasks.add(step.node, ProbeStep(run.number, index), rpc.Task(probe=step.probe), step.timeout_ms)
        fills = [step.key for step in batch.steps if isinstance(step, FillSwitch)]
        if fills and self._switch_cache is not None:
            run.fills.update(fills)
            self._switch_cache.pin(fills)

    @staticmethod
    def _ask_script(run: _Run, outcomes: list[Outcome] | None) -> Batch | None:
        """What it wants next, which is never nothing; None: it has ended."""
        try:
            batch = next(run.script) if outcomes is None else run.script.send(outcomes)
            while not batch.steps:
                batch = run.script.send([])
        except StopIteration:
            return None
        return batch

    def _look_at_fills(self, run: _Run) -> None:
        cache, now_ns = self._switch_cache, self._cluster.now_ns
        for index, step in enumerate(run.steps):
            if not isinstance(step, FillSwitch) or index in run.outcomes or cache is None:
                continue
            result = rpc.TaskResult(status=rpc.TaskResult.DONE)
            state, waited_ns = cache.state(step.key), now_ns - run.ordered_ns
            if state is not ChunkState.SERVING:
                failed = cache.fill_problem(step.key)
                refused = cache.problem(step.key) if state is ChunkState.ABSENT and not failed else ""
                if waited_ns < (ADMISSION_NS if refused else step.timeout_ns):
                    continue
                status = rpc.TaskResult.REFUSED if refused else rpc.TaskResult.FAILED
                detail = failed or refused or f"not served after {step.timeout_ns / 1e9:g} s"
                result = rpc.TaskResult(status=status, detail=detail)
            run.outcomes[index] = Outcome(result, now_ns - run.ordered_ns, now_ns)

    def _empty_switch(self, run: _Run) -> None:
        if self._switch_cache is not None and run.fills:
            self._switch_cache.unpin(run.fills)
            for key in sorted(run.fills):
                self._switch_cache.evict(key, save=False)
        run.fills.clear()

    def _subject(self, node: Node) -> Subject:
        return Subject(
            NodeIndex(node.index),
            node.facts.name,
            node.facts.version,
            node.facts.data_ip,
            node.free_bytes,
            lambda: "" if node.member is not None else node.port_problem or "the switch has not seen it yet",
        )
