"""Plan and testbed side by side: rows that differ by more than the planner promises, and what is known of why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bmv2_testbed.workloads.rows import Row
from planner.workloads.workload_catalog import Mode, Name

TOLERANCE: Final = 0.10
"""What the planner promises."""
_MACHINE_SHARE: Final = 0.05
"""Rows without a pool differ by less on a quiet machine: nothing but waiting happens in them."""
_SHARE: Final = 0.05
"""Counts of blocks and bytes that differ by less are as planned."""
_CROWDED: Final = 4
"""Processes that wait for a processor this many times as long as they have one share the machine with others. Alone on
two cores, eight agents, engines and a switch wait 1.5 to 2.5 times as long."""
_BURST_SHARE: Final = 0.5
"""Of the time that requests are missing: waiting that is longer than without a pool by more is named."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that differs by more than the tolerance."""

    workload: Name
    mode: Mode
    error: float
    causes: Sequence[str]
    """What was measured besides the times and is not as planned, or shows a machine that is too small for a testbed."""
    explained: bool
    """The machine was crowded: the row says nothing of the planner, whose nodes have processors of their own."""

    def __str__(self) -> str:
        causes = "; ".join(self.causes) or "nothing else that was measured differs"
        return f"{self.workload}, {self.mode}: the plan is {self.error:+.0%} off: {causes}"


def differences(rows: Sequence[Row], tolerance: float = TOLERANCE) -> list[Difference]:
    """Rows whose mean the planner misses by more, with the cause as far as the rows show it."""
    baselines = {row.workload: row for row in rows if row.mode is Mode.NONE}
    # A row without any request that ended has no mean, and compares with nothing.
    return [_difference(row, baselines.get(row.workload)) for row in rows if not abs(row.error) <= tolerance]


def _difference(row: Row, baseline: Row | None) -> Difference:
    causes = [_processors(row)] if _is_short_of_processors(row) else []
    if baseline is not None:
        if abs(baseline.error) > _MACHINE_SHARE:
            causes.append(f"without a pool, where nothing is brought, the plan is {baseline.error:+.0%} off, too")
        causes += _waited_longer(row, baseline)
    planned = row.predicted
    if _differ(row.computed_blocks, planned.computed_blocks):
        causes.append(
            f"engines computed {row.computed_blocks} blocks, {planned.computed_blocks} planned"
            f" ({row.given_up} fetches were given up, {planned.given_up} planned)"
        )
    if _differ(row.uplink_bytes, planned.uplink_bytes):
        causes.append(f"nodes sent {row.uplink_bytes / 1e6:.1f} MB, {planned.uplink_bytes / 1e6:.1f} planned")
    return Difference(row.workload, row.mode, row.error, causes, _is_short_of_processors(row))


def _differ(measured: int, planned: int) -> bool:
    return abs(measured - planned) > _SHARE * max(measured, planned)


def _missing_s(row: Row) -> float:
    """By how much all requests together were later than planned."""
    return len(row.ready_s) * (row.mean_s - row.predicted.mean_s)


def _is_short_of_processors(row: Row) -> bool:
    """The machine was crowded while the row ran, and processes waited at least as long as requests are missing."""
    times = row.processors
    return times.waited_s > _CROWDED * times.used_s and 0 < _missing_s(row) <= times.waited_s


def _waited_longer(row: Row, baseline: Row) -> list[str]:
    """Bursts of work for which agents and switch have too few processors: the planner's nodes have their own."""
    longer_s, missing_s = row.processors.waited_s - baseline.processors.waited_s, _missing_s(row)
    if not 0 < _BURST_SHARE * missing_s < longer_s:
        return []
    said = f"processes waited {longer_s:.1f} s longer for processors than without a pool, and requests came"
    return [f"{said} {missing_s:.1f} s later, all together"]


def _processors(row: Row) -> str:
    return (
        f"the machine is crowded: agents, engines and switch waited {row.processors.waited_s:.1f} s for processors and"
        f" used {row.processors.used_s:.1f} s; requests came {_missing_s(row):.1f} s later, all together"
    )
