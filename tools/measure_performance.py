"""Measures the figures of docs/research/performance.md: one JSON per case, and the tables between the markers.

`python tools/measure_performance.py [--runs 5] [--only CASE]`, as root, on a machine that does nothing else. Runs of a
case take turns in a CPU group of their own (`kvcast bench incast --isolate`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
DOCUMENT: Final = ROOT / "docs" / "research" / "performance.md"
FIGURES: Final = ROOT / "docs" / "research" / "performance"
BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"
INCAST: Final = "--nodes 8 --rate 100mbit --size 16MiB --chunk 1MiB --isolate"


@dataclass(frozen=True, slots=True)
class Case:
    """A row of the table: options of `kvcast bench incast`, and the mean over S/B that it must reach."""

    name: str
    title: str
    options: str
    must: str = ""


CASES: Final = (
    Case("unicast", "unicast pool, at once", "--mode unicast"),
    Case("cast", "cast, at once", "--mode cast", "1.06"),
    Case("cast_staggered", "cast, staggered", "--mode cast --stagger", "1.07"),
    Case("cache", "served by the switch, at once", "--mode cache", "1.07"),
    Case("cache_staggered", "served by the switch, staggered", "--mode cache --stagger", "1.06"),
    Case("loss", "cast, 1 % loss at every port of the switch", "--mode cast --loss 0.01", "1.15"),
    Case("slow", "cast, one reader at half rate: the others", "--mode cast --slow 50mbit", "1.08"),
    Case("cast_busy", "cast, at once, beside two busy loops", "--mode cast --busy 2", "1.15"),
    Case("cast_busy_staggered", "cast, staggered, beside two busy loops", "--mode cast --busy 2 --stagger", "1.15"),
    Case("cache_busy", "switch, at once, beside two busy loops", "--mode cache --busy 2", "1.15"),
    Case("cache_busy_staggered", "switch, staggered, beside two busy loops", "--mode cache --busy 2 --stagger", "1.15"),
    Case("multicast", "by multicast, at once", "--mode multicast", "1.07"),
    Case("multicast_staggered", "by multicast, staggered", "--mode multicast --stagger", "1.09"),
    Case("relay", "by relays, at once", "--mode relay", "1.10"),
    Case("relay_staggered", "by relays, staggered", "--mode relay --stagger", "1.10"),
    Case("relay_loss", "by relays, 1 % loss at every port", "--mode relay --loss 0.01", "1.15"),
    Case("relay_slow", "by relays, one reader at half rate: the others", "--mode relay --slow 50mbit", "1.10"),
)
PEERS: Final = ("--mode cast --mode cache --peer all", "--mode cast --mode cache --peer all --stagger")
"""At once and staggered."""
PROGRAMS: Final = {
    "cast": "kvcast, cast",
    "cache": "kvcast, served by the switch",
    "chain": "chain of readers",
    "mooncake": "Mooncake Store, 3 replicas",
    "redis": "Redis",
    "tcp": "sendfile over TCP",
}


def measure(options: str, runs: int) -> dict[str, Any]:
    """Run `kvcast bench incast`; its JSON. Ends the program if a byte was wrong."""
    with tempfile.NamedTemporaryFile(suffix=".json") as record:
        argv = [sys.executable, "-m", "kvcast.cli", "bench", "incast", *INCAST.split(), *options.split()]
        argv += ["--runs", str(runs), "--json", record.name]
        subprocess.run(argv, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        figures: dict[str, Any] = json.loads(Path(record.name).read_text())
    return figures


def kept(figures: Mapping[str, Any]) -> dict[str, Any]:
    """What goes into a file: the median run of each mode and peer, and of the other runs their means."""
    means = {name: [run[name]["mean_ratio"] for run in figures["runs"]] for name in figures["runs"][0]}
    return {**{name: value for name, value in figures.items() if name != "runs"}, "mean_ratio_of_all_runs": means}


def spread(figures: Mapping[str, Any], name: str) -> str:
    """Median of the means of a mode or a peer, the least and the greatest."""
    means = figures["mean_ratio_of_all_runs"][name]
    return f"**{statistics.median(means):.3f}** ({min(means):.3f} to {max(means):.3f})"


def table(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """Markdown of all cases."""
    machine = next(iter(figures.values()))["machine"]
    lines = [
        f"Machine: {machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}, Python {machine['python']}.",
        "",
        "| case | must | mean over S/B | longest | holder sends | readers send | CPU s |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in CASES:
        ((mode, run),) = figures[case.name]["modes"].items()
        lines.append(
            f"| {case.title} | {case.must} | {spread(figures[case.name], mode)} | {run['max_ratio']:.3f} | "
            f"{run['holder_tx_S']:.2f} S | {run['readers_tx_S']:.3f} S | {sum(run['cpu_s'].values()):.1f} |"
        )
    return "\n".join(lines) + "\n"


def table_of_peers(at_once: Mapping[str, Any], staggered: Mapping[str, Any]) -> str:
    """Markdown of all programs that do the same, in the same runs."""
    lines = ["| program | at once | staggered | holder sends | readers send |", "|---|---|---|---|---|"]
    for name, title in PROGRAMS.items():
        if name not in at_once["mean_ratio_of_all_runs"]:
            continue  # it is not installed here
        runs = [{**figures["modes"], **figures["peers"]}[name] for figures in (at_once, staggered)]
        sent = " / ".join(f"{run['holder_tx_S']:.2f}" for run in runs)
        readers = " / ".join(f"{run['readers_tx_S']:.2f}" for run in runs)
        means = " | ".join(spread(figures, name) for figures in (at_once, staggered))
        lines.append(f"| {title} | {means} | {sent} S | {readers} S |")
    return "\n".join(lines) + "\n"


def put_into(document: str, tables: str) -> str:
    """The document with these tables between its markers."""
    before, rest = document.split(BEGIN)
    return before + BEGIN + tables + END + rest.split(END)[1]


def main() -> int:
    """Measure everything, write JSON and tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="of each case, by turns (default 5)")
    wanted = {case.name: case.options for case in CASES} | dict(zip(("peers", "peers_staggered"), PEERS, strict=True))
    parser.add_argument("--only", action="append", choices=[*wanted], help="the others stay as they are (repeatable)")
    args = parser.parse_args()
    FIGURES.mkdir(exist_ok=True)
    for name in args.only or wanted:
        figures = kept(measure(wanted[name], args.runs))
        print(f"{name}: {', '.join(spread(figures, one) for one in figures['modes'])}", flush=True)
        (FIGURES / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n")
    figures = {name: json.loads((FIGURES / f"{name}.json").read_text()) for name in wanted}
    tables = table(figures) + "\n" + table_of_peers(figures["peers"], figures["peers_staggered"])
    DOCUMENT.write_text(put_into(DOCUMENT.read_text(), tables))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
