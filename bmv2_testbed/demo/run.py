"""What `kvcast demo` does, in order; the command only parses and prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bmv2_testbed import client
from bmv2_testbed.bench.figures import IncastFigures
from bmv2_testbed.bench.incast import IncastPlan, IncastRun, Mode
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.scale import SCALES, Scale
from bmv2_testbed.spec import Target, TestbedSpec, Wiring
from bmv2_testbed.workloads.plan import ReplayPlan, densest_start_s, plan_replay
from bmv2_testbed.workloads.replay_run import ReplayFigures, replay, replay_without_pool
from planner.traces import TraceError, dequantise, find_trace, is_quantised

NODES = 8
_POOL_BYTES = 192 * 2**20


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """How much of everything; the defaults take about three minutes on two cores."""

    incast_bytes: int | None = None
    """None: what suits the target."""
    stretch_s: float = 48.0
    compression: float = 4.0
    traces: Sequence[str] = ("conversation", "rollout8")
    seed: int = 1
    target: Target = Target.P4SWITCH
    wiring: Wiring = Wiring.NAMESPACES

    @property
    def scale(self) -> Scale:
        """Rates and sizes of the target; the incast's as asked for."""
        scale = SCALES[self.target]
        return scale if self.incast_bytes is None else replace(scale, incast_bytes=self.incast_bytes)


@dataclass(frozen=True, slots=True)
class DemoFigures:
    """Everything that the demo measured (and, where it says so, modelled)."""

    incast: Sequence[tuple[str, IncastFigures]]
    replays: Sequence[tuple[str, Sequence[ReplayFigures]]]
    """By title of the trace."""

    @property
    def verified(self) -> bool:
        return all(figures.verified for _, figures in self.incast) and not any(
            figures.wrong_blocks or figures.problems for _, group in self.replays for figures in group
        )


Say = Callable[[str], None]
Moved = Callable[[float], None]


def run_demo(plan: DemoPlan, say: Say, moved: Moved, show: Callable[[DemoFigures], None]) -> DemoFigures:
    """Run it all; `show` gets the figures so far after each part."""
    incast = run_incasts(plan, say, moved)
    show(DemoFigures(incast, ()))
    replays = []
    for name in plan.traces:
        replays.append(run_trace(plan, name, say, moved))
        show(DemoFigures((), replays[-1:]))
    return DemoFigures(incast, replays)


def run_incasts(plan: DemoPlan, say: Say, moved: Moved) -> list[tuple[str, IncastFigures]]:
    """The incast in all modes at once, and the two of the switch staggered."""
    base = IncastPlan(
        readers=NODES,
        rate_bit_s=plan.scale.link_bit_s,
        size_bytes=plan.scale.incast_bytes,
        chunk_bytes=plan.scale.chunk_bytes,
        seed=plan.seed,
        target=plan.target,
        wiring=plan.wiring,
    )
    cases = [(mode, False) for mode in Mode] + [(Mode.CAST, True), (Mode.CACHE, True)]
    found = []
    for mode, stagger in cases:
        label = f"{mode.value}, {'staggered' if stagger else 'at once'}"

        def announce(text: str, label: str = label) -> None:
            say(f"incast {label}: {text.partition(': ')[2]}")

        figures, _ = IncastRun(replace(base, stagger=stagger), announce, moved).mode(mode)
        found.append((label, replace(figures, mode=label)))
    return found


def plan_of(plan: DemoPlan, name: str) -> tuple[str, ReplayPlan]:
    """Title and plan of a trace: its busiest stretch, with a past of ten stretches where it is long enough."""
    try:
        trace = find_trace(name)
        requests = trace.requests()
    except TraceError as error:
        raise TestbedError(str(error)) from error
    if is_quantised(requests):
        requests = dequantise(requests, plan.seed)
    length_ms = requests[-1].arrival_ms
    after_s = min(10 * plan.stretch_s, length_ms / 1000 / 3)
    start_s = densest_start_s(requests, plan.stretch_s, after_s)
    stretch = plan_replay(
        name,
        requests,
        nodes=NODES,
        start_s=start_s,
        length_s=plan.stretch_s,
        compression=plan.compression,
        block_bytes=plan.scale.block_bytes,
    )
    title = f"{trace.title}, {plan.stretch_s:.0f} s from {start_s:.0f} s on, {plan.compression:g} times as fast"
    return title, stretch


def run_trace(plan: DemoPlan, name: str, say: Say, moved: Moved) -> tuple[str, list[ReplayFigures]]:
    """A stretch of a trace without the pool (modelled) and with it in three ways."""
    title, stretch = plan_of(plan, name)
    found = [replay_without_pool(stretch)]
    for mode in Mode:
        label = {Mode.UNICAST: "unicast pool", Mode.CAST: "cast", Mode.CACHE: "cast + switch cache"}[mode]
        say(f"{name}, {label}: network of {NODES} hosts")
        with client.running(_replay_testbed(plan, mode)) as testbed:
            found.append(replay(testbed, stretch, label, lambda text: say(f"{name}, {text}"), moved))
    return title, found


def _replay_testbed(plan: DemoPlan, mode: Mode) -> TestbedSpec:
    plain = mode is Mode.UNICAST
    return TestbedSpec(
        target=Target.BRIDGE if plain and plan.wiring is Wiring.NAMESPACES else plan.target,
        wiring=plan.wiring,
        hosts=NODES,
        rate_bit_s=plan.scale.link_bit_s,
        seed=plan.seed,
        segment_bytes=plan.target.segment_bytes,
        slots=plan.scale.slots,
        plain=plain,
        pool_bytes=_POOL_BYTES,
        controller_settings={"policy": {"admission": mode is Mode.CACHE}},
    )
