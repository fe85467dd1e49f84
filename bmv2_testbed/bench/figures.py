"""What a benchmark says: ratios out of times and counters, tables, JSON."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rich.table import Table

from bmv2_testbed.network.counters import InterfaceCounters
from kvproto.units import format_bytes, format_rate


@dataclass(frozen=True, slots=True)
class ReaderReport:
    """What one reader measured; times in seconds from its own start."""

    time_s: float
    end_s: float
    late_s: float
    cpu_s: float
    compared_bytes: int
    verified: bool
    reason: str
    origins: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class IncastFigures:
    """One incast. `_S`: in units of the prefix' size; `_ratio`: time over S/B.

    `mean_ratio` and `max_ratio` are over the readers on links of the full rate; a slow reader stands in `slow_ratios`.
    """

    mode: str
    target: str
    mean_ratio: float
    max_ratio: float
    holder_tx_S: float  # noqa: N815  S is the symbol of the prefix' size, not a case
    readers_tx_S: float  # noqa: N815
    busiest_tx_S: float  # noqa: N815
    """Of the reader that sent the most."""
    readers_rx_S: float  # noqa: N815
    verified: bool
    times_s: Sequence[float]
    offsets_s: Sequence[float]
    slow_ratios: Mapping[int, float]
    ideal_s: float
    late_max_s: float
    origins: Mapping[str, int]
    cpu_s: Mapping[str, float]
    counters: str
    problems: Sequence[str] = field(default=())
    fanout: str = ""
    """How kvcast's casts reach readers (`fabric.fanout`); empty: a peer."""
    unasked_rx_S: float = 0.0  # noqa: N815
    """What a reader got beyond the prefix, on average: frames' headers, and what others had asked for. Of random sets:
    what came to each port that did not ask."""
    core_tx_S: float = 0.0  # noqa: N815
    """Of the busiest link between racks, in the busier direction."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def incast_figures(
    *,
    mode: str,
    target: str,
    size_bytes: int,
    rate_bit_s: int,
    slow_readers: frozenset[int],
    offsets_s: Sequence[float],
    reports: Sequence[ReaderReport | None],
    holder: InterfaceCounters,
    readers: Sequence[InterfaceCounters],
    cpu_s: Mapping[str, float],
    counters: str,
    others: Sequence[InterfaceCounters] = (),
    cores: Sequence[InterfaceCounters] = (),
) -> IncastFigures:
    """Put the figures of one incast together. `reports[i]` is reader i's (None: it never reported); `slow_readers` has
    indices into `reports`; `holder`, `readers`, `cores` are what the counters grew by; `others`: the same of nodes that
    did not ask."""
    ideal_s = size_bytes * 8 / rate_bit_s
    times = [report.time_s if report is not None else float("inf") for report in reports]
    full_rate = [time_s / ideal_s for index, time_s in enumerate(times) if index not in slow_readers]
    origins: dict[str, int] = {}
    for report in reports:
        for name, count in (report.origins if report is not None else {}).items():
            origins[name] = origins.get(name, 0) + count
    problems = [
        f"reader {index}: {'no report' if report is None else report.reason}"
        for index, report in enumerate(reports)
        if report is None or not report.verified
    ]
    return IncastFigures(
        mode=mode,
        target=target,
        mean_ratio=statistics.fmean(full_rate),
        max_ratio=max(full_rate),
        holder_tx_S=holder.tx_bytes / size_bytes,
        readers_tx_S=sum(value.tx_bytes for value in readers) / size_bytes,
        busiest_tx_S=max((value.tx_bytes for value in readers), default=0) / size_bytes,
        readers_rx_S=sum(value.rx_bytes for value in readers) / size_bytes,
        verified=not problems and all(r is not None and r.compared_bytes == size_bytes for r in reports),
        times_s=times,
        offsets_s=list(offsets_s),
        slow_ratios={index: times[index] / ideal_s for index in sorted(slow_readers)},
        ideal_s=ideal_s,
        late_max_s=max((report.late_s for report in reports if report is not None), default=0.0),
        origins=origins,
        cpu_s=dict(cpu_s),
        counters=counters,
        problems=problems,
        unasked_rx_S=(
            statistics.fmean(value.rx_bytes for value in others) / size_bytes
            if others
            else max(0.0, statistics.fmean(value.rx_bytes for value in readers) / size_bytes - 1)
        ),
        core_tx_S=max((max(one.tx_bytes, one.rx_bytes) for one in cores), default=0) / size_bytes,
    )


def incast_table(cases: Sequence[IncastFigures], readers: int, size_bytes: int, rate_bit_s: int, what: str) -> Table:
    """The table that ends an incast run."""
    table = Table(
        title=f"{readers} readers, {format_bytes(size_bytes)}, links of {format_rate(rate_bit_s)}, {what} "
        f"(S/B = {size_bytes * 8 / rate_bit_s:.2f} s)",
        caption="times over S/B, from each reader's own start to its last compared byte; bytes in units of S",
    )
    cores = ("busiest core link",) if any(case.core_tx_S for case in cases) else ()
    sends = ("holder sends", "readers send", *cores)
    for heading in ("case", "mean", "max", "slow", *sends, "CPU s", "every byte compared"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for case in cases:
        slow = ", ".join(f"{ratio:.2f}" for ratio in case.slow_ratios.values())
        table.add_row(
            case.mode,
            f"{case.mean_ratio:.3f}",
            f"{case.max_ratio:.3f}",
            slow or "-",
            f"{case.holder_tx_S:.3f} S",
            f"{case.readers_tx_S:.3f} S",
            *(f"{case.core_tx_S:.3f} S" for _ in cores),
            f"{sum(case.cpu_s.values()):.2f}",
            "yes" if case.verified else f"NO: {case.problems[0]}",
        )
    return table


def mean_of(sets: Sequence[IncastFigures]) -> IncastFigures:
    """Means over several sets of readers, the greatest of maxima; all else is of the typical set."""
    return replace(
        typical(sets),
        mean_ratio=statistics.fmean(one.mean_ratio for one in sets),
        max_ratio=max(one.max_ratio for one in sets),
        holder_tx_S=statistics.fmean(one.holder_tx_S for one in sets),
        readers_tx_S=statistics.fmean(one.readers_tx_S for one in sets),
        unasked_rx_S=statistics.fmean(one.unasked_rx_S for one in sets),
        verified=all(one.verified for one in sets),
        problems=[problem for one in sets for problem in one.problems],
    )


def typical(runs: Sequence[IncastFigures]) -> IncastFigures:
    """The run whose mean is the median of all (the lower one of two in the middle)."""
    return sorted(runs, key=lambda figures: figures.mean_ratio)[(len(runs) - 1) // 2]


def spread_table(runs: Sequence[Mapping[str, IncastFigures]]) -> Table:
    """How far the runs of each case lie apart."""
    table = Table(title=f"{len(runs)} runs by turns", caption="means over S/B")
    for heading in ("case", "least", "median", "greatest"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for case in runs[0]:
        means = [run[case].mean_ratio for run in runs]
        table.add_row(case, f"{min(means):.3f}", f"{statistics.median(means):.3f}", f"{max(means):.3f}")
    return table
