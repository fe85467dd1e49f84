"""Plan and testbed side by side: rows that differ by more than the planner promises, and what is known of why. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from planner.workloads.workload_catalog import Mode, Name

TOLERANCE: Final = 0.10
"""What the planner promises."""
_MACHINE_SHARE: Final = 0.05
"""Rows without a pool differ by less on a quiet machine: nothing but waiting happens in them."""
_BLOCKS_SHARE: Final = 0.05


class Expected(Protocol):
    """What the planner says of a row."""

    @property
    def mean_s(self) -> float: ...
    @property
    def computed_blocks(self) -> int: ...
    @property
    def given_up(self) -> int: ...


class Measured(Protocol):
    """A row of the testbed."""

    @property
    def workload(self) -> Name: ...
    @property
    def mode(self) -> Mode: ...
    @property
    def mean_s(self) -> float: ...
    @property
    def computed_blocks(self) -> int: ...
    @property
    def given_up(self) -> int: ...
    @property
    def error(self) -> float: ...
    @property
    def predicted(self) -> Expected: ...


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that differs by more than the tolerance."""

    workload: Name
    mode: Mode
    error: float
    cause: str

    def __str__(self) -> str:
        return f"{self.workload}, {self.mode}: the plan is {self.error:+.0%} off: {self.cause}"


def differences(rows: Sequence[Measured], tolerance: float = TOLERANCE) -> list[Difference]:
    """Rows whose mean the planner misses by more, with the cause as far as the rows show it."""
    baselines = {row.workload: row for row in rows if row.mode is Mode.NONE}
    # A row without any request that ended has no mean, and compares with nothing.
    return [
        Difference(row.workload, row.mode, row.error, _cause(row, baselines.get(row.workload)))
        for row in rows
        if not abs(row.error) <= tolerance
    ]


def _cause(row: Measured, baseline: Measured | None) -> str:
    if baseline is not None and abs(baseline.error) > _MACHINE_SHARE:
        return (
            f"the machine is busy: without a pool, where nothing is brought, the plan is {baseline.error:+.0%} off, too"
        )
    planned, computed = row.predicted.computed_blocks, row.computed_blocks
    if abs(computed - planned) > _BLOCKS_SHARE * max(planned, computed):
        gave_up = f"; {row.given_up} fetches were given up, {row.predicted.given_up} planned"
        return f"engines computed {computed} blocks, {planned} planned{gave_up if row.given_up else ''}"
    return "the same blocks were computed; transfers and waits took longer or shorter than planned"
