"""The plan: which replays answer the questions, run side by side on the machine's cores."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Protocol

import numpy as np

from kvproto.limits import MEMBERS_MAX
from planner.bursts import Burst, bursts
from planner.cells import replay_cells
from planner.cluster.figures import ReplayFigures
from planner.cluster.options import Cluster, Scenario, Sharing
from planner.cluster.replay import Replay
from planner.cluster.requests import Request, requests_of
from planner.errors import PlanError
from planner.hardware import Engine, engine_of, find_model
from planner.traces import Trace, TraceRequest

NODES: Final = (2, 4, 8, 16, 32, 64)
LINKS_GBIT_S: Final = (10, 25, 50, 100, 200, 400)
SPEEDS: Final = (0.25, 1.0, 4.0, 16.0)
MODELS: Final = ("deepseek-v3", "llama-3-8b", "llama-3-70b", "llama-2-7b")
"""From least to most KV per token, and the sizes of engine that they run on."""
NODES_MAX: Final = 16 * MEMBERS_MAX
"""Of a plan: sixteen cells."""
_PR_SET_PDEATHSIG: Final = 1
"""See prctl(2)."""
_BIG_PARAMETERS: Final = 30e9
"""A model with more parameters (at two bytes each) does not fit on one accelerator: it gets a node of eight."""


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What the user asks for."""

    cluster: Cluster
    trace_name: str
    speed: float = 1.0
    sweep: bool = True
    sweep_requests: int = 1500
    """The sweeps replay this many requests, from the beginning of the trace (cold caches)."""
    jobs: int = 1


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One value on an axis, and what each way to share gives there."""

    axis: str
    label: str
    value: float
    figures: dict[Sharing, ReplayFigures]


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """What the trace is like."""

    requests: int
    duration_s: float
    tokens_mean: float
    chunks: int
    """Distinct ones."""
    footprint_bytes: int
    reusable: float
    """Share of tokens that one infinite cache for all nodes would serve."""
    once: float
    """Share of chunks that are used once."""
    reusable_late: float = 0.0
    """`reusable` of the last third alone."""
    hashed: bool = True
    """Whether the trace says what its requests share."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Largest share by which times to first token changed when arrivals were moved by some milliseconds: what chance
    does through queues and routing. Smaller differences between options mean nothing."""

    ttft_mean: float = 0.0
    ttft_p99: float = 0.0

    @classmethod
    def of(cls, base: ReplayFigures, others: Sequence[ReplayFigures]) -> Noise:
        """Spread of the same replay with moved arrivals."""
        return cls(
            max((abs(one.ttft_mean_s / base.ttft_mean_s - 1) for one in others), default=0.0),
            max((abs(one.ttft_p99_s / base.ttft_p99_s - 1) for one in others), default=0.0),
        )


@dataclass(frozen=True, slots=True)
class PlanFigures:
    """Everything that the plan found out."""

    options: PlanOptions
    trace: TraceFacts
    replays: dict[Sharing, ReplayFigures]
    points: list[SweepPoint] = field(default_factory=list)
    bursts: list[Burst] = field(default_factory=list)
    noise: Noise = field(default_factory=Noise)

    def to_json(self) -> dict[str, Any]:
        """As plain values. `core_cpu_s` is measured; everything else is the same in each run."""
        cluster = self.options.cluster
        return {
            "trace": self.options.trace_name,
            "model": cluster.engine.model.name,
            "nodes": cluster.nodes,
            "link_bit_s": cluster.link_rate * 8,
            "local_dram_bytes": cluster.local_dram_bytes,
            "local_disk_bytes": cluster.local_disk_bytes,
            "switch_bytes": cluster.switch_bytes,
            "routing": cluster.routing.value,
            "speed": self.options.speed,
            "chunk_bytes": cluster.chunk_bytes,
            "prefill_tokens_per_s": cluster.engine.prefill_tokens_per_s,
            "replays": {sharing.value: figures.to_json() for sharing, figures in self.replays.items()},
            "sweeps": [
                {
                    "axis": point.axis,
                    "label": point.label,
                    "value": point.value,
                    "figures": {sharing.value: one.to_json() for sharing, one in point.figures.items()},
                }
                for point in self.points
            ],
            "noise": asdict(self.noise),
            "bursts": [burst.to_json() for burst in self.bursts],
        }


def check(cluster: Cluster) -> None:
    """Raises PlanError for a cluster that cannot be replayed."""
    if not 2 <= cluster.nodes <= NODES_MAX:
        raise PlanError(
            f"{cluster.nodes} nodes: a replay has 2 to {NODES_MAX:,}, beyond {MEMBERS_MAX} in cells;"
            " for more use --scale"
        )
    if cluster.local_dram_bytes < cluster.chunk_bytes:
        raise PlanError(
            f"--local-dram of {cluster.local_dram_bytes} bytes does not hold one chunk of {cluster.chunk_bytes} bytes"
        )
    if 0 < cluster.local_disk_bytes < cluster.chunk_bytes:
        raise PlanError(
            f"--local-disk of {cluster.local_disk_bytes} bytes does not hold one chunk of {cluster.chunk_bytes} bytes"
        )


def sharings(cluster: Cluster) -> tuple[Sharing, ...]:
    """The options worth comparing: a switch cache only where there is one."""
    return tuple(one for one in Sharing if one is not Sharing.CAST_SWITCH or cluster.switch_bytes)


def facts_of(trace: Trace, cluster: Cluster) -> TraceFacts:
    """Count what the trace has. Raises PlanError for an empty one."""
    requests = trace.requests
    if not requests:
        raise PlanError("the trace has no requests")
    uses: dict[int, int] = {}
    spared = []
    for request in requests:
        leading = next((place for place, block in enumerate(request.blocks) if block not in uses), len(request.blocks))
        spared.append(max(0, min(leading * cluster.chunk_tokens, request.input_tokens - 1)))
        for block in request.blocks:
            uses[block] = uses.get(block, 0) + 1
    tokens = [request.input_tokens for request in requests]
    late = len(requests) * 2 // 3
    return TraceFacts(
        requests=len(requests),
        duration_s=(requests[-1].arrival_ms - requests[0].arrival_ms) / 1000,
        tokens_mean=float(np.mean(tokens)),
        chunks=len(uses),
        footprint_bytes=len(uses) * cluster.chunk_bytes,
        reusable=sum(spared) / max(1, sum(tokens)),
        once=sum(count == 1 for count in uses.values()) / max(1, len(uses)),
        reusable_late=sum(spared[late:]) / max(1, sum(tokens[late:])),
        hashed=trace.block_tokens is not None,
    )


def sweep_points(options: PlanOptions) -> list[tuple[str, str, float, Scenario]]:
    """(axis, label, value, scenario without a way to share): one axis at a time leaves the plan's own settings."""
    base = Scenario(options.cluster, Sharing.NONE, options.speed)

    def with_cluster(**changes: Any) -> Scenario:
        return replace(base, cluster=replace(base.cluster, **changes))

    points = [("nodes", str(nodes), float(nodes), with_cluster(nodes=nodes)) for nodes in NODES]
    points += [("link", f"{rate}g", float(rate), with_cluster(link_rate=rate * 1e9 / 8)) for rate in LINKS_GBIT_S]
    points += [("rate", f"x{speed:g}", speed, replace(base, speed=options.speed * speed)) for speed in SPEEDS]
    engines = [(name, _engine(name, base.cluster.engine)) for name in MODELS]
    points += [("model", name, engine.model.bytes_per_token, with_cluster(engine=engine)) for name, engine in engines]
    return [point for point in points if point[3].cluster.local_dram_bytes >= point[3].cluster.chunk_bytes]


def _engine(name: str, like: Engine) -> Engine:
    model = find_model(name)
    return engine_of(model, like.accelerator, 8 if model.parameters > _BIG_PARAMETERS else 1)


_JITTER_SEEDS: Final = (1, 2, 3)
_SWEPT: Final = (Sharing.NONE, Sharing.UNICAST, Sharing.RELAY, Sharing.CAST)


class Watcher(Protocol):
    """Who looks on while a plan is made, which can take minutes."""

    def moved(self, what: str, share: float) -> None:
        """What runs, and the share of all replays that is done."""
        ...

    def replayed(self, sharing: Sharing, figures: ReplayFigures) -> None:
        """One of the plan's own options is done."""
        ...


def run_plan(options: PlanOptions, trace: Trace, watcher: Watcher) -> PlanFigures:
    """Replay everything. Raises PlanError."""
    check(options.cluster)
    facts, requests = facts_of(trace, options.cluster), trace.requests
    main = [Scenario(options.cluster, sharing, options.speed) for sharing in sharings(options.cluster)]
    points = sweep_points(options) if options.sweep else []
    swept = [*_SWEPT, Sharing.CAST_SWITCH] if options.cluster.switch_bytes else list(_SWEPT)
    tasks = [(scenario, 0) for scenario in main]
    tasks += [(replace(main[0], jitter_seed=seed), 0) for seed in _JITTER_SEEDS]
    tasks += [(replace(point[3], sharing=sharing), options.sweep_requests) for point in points for sharing in swept]
    results: list[ReplayFigures | None] = [None] * len(tasks)

    def tell(index: int, done: float) -> None:
        scenario = tasks[index][0]
        watcher.moved(f"{scenario.sharing.value}, {scenario.cluster.nodes} nodes", done / len(tasks))

    for index, figures in _replays(requests, tasks, options.jobs, tell):
        results[index] = figures
        if index < len(main):
            watcher.replayed(main[index].sharing, figures)
    found = [one for one in results if one is not None]
    replays = dict(zip((scenario.sharing for scenario in main), found, strict=False))
    noise = Noise.of(found[0], found[len(main) : len(main) + len(_JITTER_SEEDS)])
    rest = iter(found[len(main) + len(_JITTER_SEEDS) :])
    swept_points = [
        SweepPoint(axis, label, value, {sharing: next(rest) for sharing in swept}) for axis, label, value, _ in points
    ]
    tokens = int(np.median([request.input_tokens for request in requests]))
    counts = [count for count in (1, 2, 4, 8, 16, 32) if count < max(3, options.cluster.nodes)]
    return PlanFigures(options, facts, replays, swept_points, bursts(options.cluster, tokens, counts), noise)


_LOOK_S: Final = 0.5
"""How often a plan looks how far its worker processes are."""

_TRACE: list[TraceRequest] = []
"""Of a worker process, set when it starts."""


_SHARES: list[MutableSequence[float]] = []
"""How far each task is, as the worker processes say it; set when they start."""


def _begin(parent: int, trace: list[TraceRequest], shares: MutableSequence[float]) -> None:
    """In a worker: it ends with the process that started it, however that ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before it could be noticed
        os._exit(1)
    _TRACE[:] = trace
    _SHARES[:] = [shares]


def _replay(index: int, scenario: Scenario, count: int) -> ReplayFigures:
    """A task of a worker process."""

    def moved(share: float) -> None:
        _SHARES[0][index] = share

    return _replayed(scenario, count, moved)


def _replayed(scenario: Scenario, count: int, progress: Callable[[float], None]) -> ReplayFigures:
    requests: list[Request] = requests_of(_TRACE[:count] if count else _TRACE, scenario.speed, scenario.jitter_seed)
    if scenario.cluster.nodes > MEMBERS_MAX:
        return replay_cells(scenario, requests, progress)
    return Replay(scenario).run(requests, progress)


def _replays(
    trace: Sequence[TraceRequest],
    tasks: Sequence[tuple[Scenario, int]],
    jobs: int,
    within: Callable[[int, float], None],
) -> Iterator[tuple[int, ReplayFigures]]:
    """Figures of all tasks, as they come; (scenario, requests of the trace: 0 is all). `within`: which one is at work
    and how many are done, as a fraction."""
    if jobs <= 1:
        _TRACE[:] = trace
        for index, (scenario, count) in enumerate(tasks):
            yield index, _replayed(scenario, count, lambda share, index=index: within(index, index + share))  # type: ignore[misc]
        return
    context = multiprocessing.get_context("spawn")
    shares = context.Array("d", len(tasks), lock=False)
    with ProcessPoolExecutor(
        jobs, mp_context=context, initializer=_begin, initargs=(os.getpid(), list(trace), shares)
    ) as pool:
        futures = {pool.submit(_replay, index, *task): index for index, task in enumerate(tasks)}
        left = set(futures)
        try:
            while left:
                done, left = wait(left, _LOOK_S, FIRST_COMPLETED)
                for future in done:
                    shares[futures[future]] = 1.0
                    yield futures[future], future.result()
                if left:
                    within(min(futures[future] for future in left), sum(shares))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
