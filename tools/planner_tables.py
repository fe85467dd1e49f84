"""All tables of docs/research/planner.md that come from replays of traces, taken again with the present code.

    python tools/planner_tables.py [--table pays] [--most 2000] [--results out/tables] [--page docs/research/planner.md]

Each case is a `kvcast plan` without sweeps. What a case found stays in a file of `--results`, so that a run that was
ended goes on where it was; another `--most` or a commit that changes what a replay runs makes other files. With
`--page` each table goes, as soon as its cases are done, between the page's `<!-- table: NAME -->` and
`<!-- end of table -->`; otherwise they are printed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from kvlab.bars import bar
from planner.cluster.figures import Management, ReplayFigures
from planner.cluster.options import Cluster, Routing, Sharing
from planner.hardware import engine_of, find_model
from planner.plan import Noise, PlanOptions, run_plan
from planner.traces import open_trace
from planner.traces.catalog import CARRIED, ENVIRONMENT_VARIABLE, find_trace
from planner.units import format_seconds, link_rate
from planner.verdict import AGAINST, benefit

_GIB: Final = 1 << 30
_ROOT: Final = Path(__file__).resolve().parents[1]
_REPLAYED: Final = (
    "planner",
    "hostagent",
    "controlplane",
    "kvpolicy",
    "client/src",
    "kvproto/src",
    "tools/planner_tables.py",
)
"""What a replay runs, and this."""


@dataclass(frozen=True, slots=True)
class Case:
    """One plan."""

    trace: str
    requests: int = 0
    """0: all."""
    routing: Routing = Routing.ROUND_ROBIN
    speed: float = 1.0
    nodes: int = 16
    link: str = "100g"
    model: str = "llama-3-8b"
    sessions_in_cells: bool = True
    switch: bool = True

    @property
    def cluster(self) -> Cluster:
        """As `kvcast plan` makes it from its defaults."""
        model = find_model(self.model)
        return Cluster(
            engine_of(model, "h100", 8 if model.parameters > 30e9 else 1),
            nodes=self.nodes,
            link_rate=link_rate(self.link),
            local_dram_bytes=256 * _GIB,
            switch_bytes=16 * _GIB if self.switch else 0,
            routing=self.routing,
            sessions_in_cells=self.sessions_in_cells,
        )

    @property
    def name(self) -> str:
        """Of its file."""
        parts = [self.trace, self.requests or "all", self.routing.value, self.speed, self.nodes, self.link, self.model]
        return "-".join(map(str, [*parts, "session" if self.sessions_in_cells else "any"])).replace("/", "_")


_PAYS: Final = (
    Case("conversation"),
    Case("conversation", 4000, Routing.PREFIX),
    Case("toolmix", 4000),
    Case("tenant", 8000),
    Case("rollout8"),
    Case("mooncake_synthetic"),
    Case("azure", 2000),
)
_FAST: Final = (
    Case("rollout8", speed=16, nodes=32, link="100g"),
    Case("rollout8", speed=16, nodes=32, link="25g", model="deepseek-v3"),
    Case("rollout8", speed=16, nodes=32, link="25g", model="llama-3-70b"),
)
_CELLS: Final = tuple(
    Case(trace, 3000, speed=16, nodes=128, sessions_in_cells=together, switch=False)
    for trace in ("rollout8", "tenant")
    for together in (True, False)
)
_REGRET: Final = (Case("conversation", 1200), Case("toolmix", 800), Case("tenant", 1500), Case("rollout8", 800))


@dataclass(frozen=True, slots=True)
class Found:
    """What a case found."""

    case: Case
    replayed: int
    """Requests."""
    whole: bool
    """All of the trace."""
    replays: Mapping[Sharing, ReplayFigures]
    noise: Noise

    @property
    def title(self) -> str:
        """Of its row."""
        routing = ", `--routing prefix`" if self.case.routing is Routing.PREFIX else ""
        return f"{self.case.trace}{routing}, {'all ' if self.whole else ''}{self.replayed:,}"

    def times(self, sharing: Sharing) -> str:
        """Mean / 99th percentile, bold where it pays."""
        if sharing not in self.replays:
            return ""
        figures = self.replays[sharing]
        text = f"{format_seconds(figures.ttft_mean_s)} / {format_seconds(figures.ttft_p99_s)}"
        pays = sharing in AGAINST and benefit(sharing, self.replays, self.noise).pays
        return f"**{text}**" if pays else text


def _row(cells: Sequence[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    return "\n".join([_row(heads), "|" + "---|" * len(heads), *map(_row, rows)])


def pays(found: Sequence[Found]) -> str:
    """Time to first token of all options."""
    heads = ["trace, requests", *(one.value for one in Sharing)]
    return _table(heads, [[one.title, *map(one.times, Sharing)] for one in found])


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def fast(found: Sequence[Found]) -> str:
    """Rollouts that come quickly."""
    rows = []
    for one in found:
        name = f"{one.case.model}, {one.case.link}, {one.replayed:,} requests"
        for sharing, figures in one.replays.items():
            own, switch = figures.hits["local"], figures.hits["switch"]
            mean, p99 = one.times(sharing).strip("*").split(" / ")
            mean = f"**{mean}**" if one.times(sharing).startswith("*") else mean
            others = figures.hits["holder"] + figures.hits["cast"]
            rows.append([name, sharing.value, *(f"{100 * share:.1f} %" for share in (own, others, switch)), mean, p99])
            name = ""
    return _table(["model, link", "", "from own DRAM", "from others", "switch", "mean", "p99"], rows)


def cells(found: Sequence[Found]) -> str:
    """Two cells."""
    ways = (Sharing.NONE, Sharing.UNICAST, Sharing.CAST)
    rows = [
        [
            one.title,
            "by session" if one.case.sessions_in_cells else "anywhere",
            *(f"{one.times(way)}, {_percent(one.replays[way].hit)}" for way in ways),
        ]
        for one in found
    ]
    return _table(["trace, requests", "requests go", *(way.value for way in ways)], rows)


def regret(found: Sequence[Found]) -> str:
    """What decisions lost, of what fetches saved."""

    def share(figures: ReplayFigures) -> str:
        lost = f" ({100 * figures.regret_s / figures.saved_s:.1f} %)" if figures.saved_s else ""
        return f"{figures.regret_s:.2f} / {figures.saved_s:.1f} s{lost}"

    rows = [[one.title, *(share(one.replays[way]) for way in (Sharing.CAST, Sharing.UNICAST))] for one in found]
    return _table(["trace, requests", "casts: regret / saved", "unicast: regret / saved"], rows)


TABLES: Final[Mapping[str, tuple[Sequence[Case], Callable[[Sequence[Found]], str]]]] = {
    "regret": (_REGRET, regret),
    "pays": (_PAYS, pays),
    "cells": (_CELLS, cells),
    "fast": (_FAST, fast),
}


def run_case(case: Case, results: Path, commit: str, told: Callable[[str, float], None]) -> Found:
    """What the case found: from its file, or replayed now."""
    file = results / f"{commit}-{case.name}.json"
    _, trace = open_trace(case.trace, 1)
    some = trace[: case.requests] if case.requests else trace
    if not file.exists():
        options = PlanOptions(case.cluster, case.trace, case.speed, sweep=False)
        document = run_plan(options, some, told).to_json()
        results.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(".part")
        unfinished.write_text(json.dumps(document) + "\n")
        unfinished.replace(file)
    read = json.loads(file.read_text())
    replays = {Sharing(name): _figures(fields) for name, fields in read["replays"].items()}
    return Found(case, len(some), len(some) == len(trace), replays, Noise(**read["noise"]))


def _figures(fields: dict[str, Any]) -> ReplayFigures:
    given = fields | {"sharing": Sharing(fields["sharing"]), "management": Management(**fields["management"])}
    return ReplayFigures(**given)


def code_of(root: Path) -> str:
    """The last commit that changed what a replay runs, and a mark if that has changed since. A table that goes into its
    page, or a commit of pages, leaves what was found."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words, "--", *_REPLAYED], cwd=root, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    return git("log", "-1", "--format=%h") + ("-dirty" if git("status", "--porcelain") else "")


def put_into(page: str, name: str, table: str) -> str:
    """The page with another table between the marks of this name. Raises ValueError if it has none."""
    marks = re.compile(rf"(<!-- table: {name} -->\n).*?(\n<!-- end of table -->)", re.DOTALL)
    changed, count = marks.subn(lambda found: f"{found[1]}\n{table}\n{found[2]}", page)
    if count != 1:
        raise ValueError(f"the page has {count} places for the table {name!r}: one is needed")
    return changed


def main() -> int:
    """Make the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--table", action="append", choices=list(TABLES), help="may be given again (default all)")
    parser.add_argument("--most", type=int, default=0, metavar="N", help="replay no more requests of any trace")
    parser.add_argument("--results", type=Path, default=_ROOT / "out" / "planner-tables", help="a file for each case")
    parser.add_argument("--page", type=Path, help="put the tables there")
    options = parser.parse_args()
    commit = code_of(_ROOT)
    names = options.table or list(TABLES)
    wanted = list(dict.fromkeys(_at_most(case, options.most) for name in names for case in TABLES[name][0]))
    for name in dict.fromkeys(case.trace for case in wanted):
        if find_trace(name).path.parent == CARRIED:
            parser.error(f"the trace {name} is not here, only a small one: set {ENVIRONMENT_VARIABLE}")
    done: dict[Case, Found] = {}
    with bar(Console(stderr=True)) as shown:
        task = shown.add_task("", total=float(len(wanted)))

        def find(case: Case) -> Found:
            if case not in done:
                begun_s, number = time.monotonic(), len(done)

                def told(what: str, share: float) -> None:
                    shown.update(task, description=f"{case.name}: {what}", completed=number + share)

                done[case] = run_case(case, options.results, commit, told)
                took = f"{number + 1} of {len(wanted)}: {case.name}, {time.monotonic() - begun_s:.0f} s"
                print(took, file=sys.stderr, flush=True)
            return done[case]

        for name in names:
            cases, make = TABLES[name]
            _put(name, make([find(_at_most(case, options.most)) for case in cases]), options.page)
    return 0


def _put(name: str, table: str, page: Path | None) -> None:
    """A table into the page as it is by now, or printed."""
    if page is None:
        print(f"\n## {name}\n\n{table}", flush=True)
    else:
        page.write_text(put_into(page.read_text(), name, table))


def _at_most(case: Case, most: int) -> Case:
    return replace(case, requests=min(case.requests or most, most)) if most else case


if __name__ == "__main__":
    raise SystemExit(main())
