"""What `kvcast demo` does, in order; the command only parses and prints."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from bmv2_testbed.bench.figures import IncastFigures
from bmv2_testbed.bench.incast import IncastPlan, IncastRun, Mode
from bmv2_testbed.bench.peer_servers import Peer
from bmv2_testbed.scale import SCALES, Scale
from bmv2_testbed.spec import Target
from bmv2_testbed.workloads.rows import Row, RowsPlan, run_rows
from planner.workloads import workload_catalog as catalog
from planner.workloads.workload_catalog import NODES, Name

_SHARED: Final = (catalog.Mode.NONE, catalog.Mode.UNICAST, catalog.Mode.CAST)
_LEFT_ALONE: Final = (catalog.Mode.NONE, catalog.Mode.MERGED)
MODES: Final[Mapping[Name, Sequence[catalog.Mode]]] = {
    Name.SCALE_OUT: _SHARED,
    Name.DOCUMENTS: _SHARED,
    Name.ROLLOUTS: (*_SHARED, catalog.Mode.MERGED),
    Name.CHATS: _LEFT_ALONE,
    Name.SLOW_LINK: _LEFT_ALONE,
}
"""What the demo shows of each workload; `kvcast bench workloads` runs all."""
INCASTS: Final[Sequence[Mode | Peer]] = (Mode.UNICAST, Peer.CHAIN, *(mode for mode in Mode if mode is not Mode.UNICAST))
"""The incasts that it shows, in order."""


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """How much of everything; the defaults take under five minutes on two cores."""

    incast_bytes: int | None = None
    """None: what suits the target."""
    workloads: Sequence[Name] = tuple(Name)
    length_s: float = math.inf
    """Only what arrives in the first seconds of each workload."""
    seed: int = 1
    target: Target = Target.P4SWITCH

    @property
    def scale(self) -> Scale:
        """Rates and sizes of the target; the incast's as asked for."""
        scale = SCALES[self.target]
        return scale if self.incast_bytes is None else replace(scale, incast_bytes=self.incast_bytes)

    @property
    def rows(self) -> RowsPlan:
        """The workloads."""
        return RowsPlan(self.workloads, target=self.target, seed=self.seed, length_s=self.length_s, only=MODES)


@dataclass(frozen=True, slots=True)
class DemoFigures:
    """Everything that the demo measured."""

    incast: Sequence[IncastFigures]
    rows: Sequence[Row]
    """In the order of workloads and modes."""

    @property
    def verified(self) -> bool:
        return all(figures.verified for figures in self.incast) and all(row.verified for row in self.rows)

    def by_workload(self) -> dict[Name, list[Row]]:
        """Rows by workload, in order."""
        names = dict.fromkeys(row.workload for row in self.rows)
        return {name: [row for row in self.rows if row.workload is name] for name in names}


Say = Callable[[str], None]
Moved = Callable[[float], None]


def run_demo(
    plan: DemoPlan, say: Say, moved: Moved, show_incast: Callable[[Sequence[IncastFigures]], None]
) -> DemoFigures:
    """Run it all; `show_incast` gets the incast's figures before the workloads begin."""
    incast = run_incasts(plan, say, moved)
    show_incast(incast)
    rows = list(run_rows(plan.rows, say, moved)) if plan.rows.groups else []
    order = [(name, mode) for name in plan.workloads for mode in MODES[name]]
    return DemoFigures(incast, sorted(rows, key=lambda row: order.index((row.workload, row.mode))))


def run_incasts(plan: DemoPlan, say: Say, moved: Moved) -> list[IncastFigures]:
    """The incast in all modes; a chain of readers runs on the links of unicast."""
    base = IncastPlan(
        readers=NODES,
        rate_bit_s=plan.scale.link_bit_s,
        size_bytes=plan.scale.incast_bytes,
        chunk_bytes=plan.scale.chunk_bytes,
        seed=plan.seed,
        target=plan.target,
    )
    run = IncastRun(base, lambda text: say(f"incast, {text}"), moved)
    found = {}
    for mode in Mode:
        found[mode.value], peers = run.mode(mode, [Peer.CHAIN] if mode is Mode.UNICAST else [])
        found |= peers
    return [found[case.value] for case in INCASTS]
