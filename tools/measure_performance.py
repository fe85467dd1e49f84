"""Measures the figures of docs/research/performance.md: one JSON per case, and the table between the markers.

`python tools/measure_performance.py [--repeat 3]`, as root, on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bmv2_testbed.bench.fetch import WAYS

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "research" / "performance.md"
FIGURES = ROOT / "docs" / "research" / "performance"
BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"


@dataclass(frozen=True, slots=True)
class Case:
    """A row of the table: options of `kvcast bench incast`, and what it must reach."""

    name: str
    title: str
    options: str
    wanted: str


CASES = (
    Case("unicast", "unicast pool, all at once", "--mode unicast --peer all", ""),
    Case("cast", "cast, all at once", "--mode cast", "<= 1.10; <= 1.15 S; <= 0.05 S"),
    Case("cast_staggered", "cast, staggered", "--mode cast --stagger", "<= 1.15; <= 2.2 S; <= 0.08 S"),
    Case("cache", "switch cache, all at once", "--mode cache", "<= 1.10; <= 0.05 S; <= 0.08 S"),
    Case("cache_staggered", "switch cache, staggered", "--mode cache --stagger", "<= 1.10; <= 0.05 S; <= 0.08 S"),
    Case("slow", "cast, one reader at 50 Mbit/s (the others)", "--mode cast --slow 50mbit", "<= 1.15; <= 2.2 S"),
    Case("loss", "cast, 1 % loss at every switch port", "--mode cast --loss 0.01", "<= 1.3; <= 1.6 S"),
)


def measure(options: list[str]) -> dict[str, Any]:
    """Run `kvcast bench` once; its JSON. Ends the program if a byte was wrong."""
    with tempfile.NamedTemporaryFile(suffix=".json") as record:
        argv = [sys.executable, "-m", "kvcast.cli", "bench", *options, "--json", record.name]
        subprocess.run(argv, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        figures: dict[str, Any] = json.loads(Path(record.name).read_text())
    return figures


def median_run(case: Case, repeat: int) -> dict[str, Any]:
    """The run with the median of mean_ratio, along with the other means."""
    runs = sorted(
        (measure(["incast", *case.options.split()]) for _ in range(repeat)), key=lambda run: run["mean_ratio"]
    )
    chosen = runs[len(runs) // 2]
    chosen["mean_ratio_of_all_runs"] = [run["mean_ratio"] for run in runs]
    return chosen


def _cpu_s(run: dict[str, Any]) -> float:
    return float(sum(run["cpu_s"].values()))


def table(figures: dict[str, dict[str, Any]], fetches: dict[str, Any]) -> str:
    """Markdown of everything measured."""
    machine = next(iter(figures.values()))["machine"]
    lines = [
        f"Machine: {machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}, Python {machine['python']}.",
        "",
        "| case | mean | max | holder sends | readers send | CPU s | must reach (mean; holder; readers) |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in CASES:
        run = figures[case.name]
        means = ", ".join(f"{mean:.3f}" for mean in run["mean_ratio_of_all_runs"])
        lines.append(
            f"| {case.title} | **{run['mean_ratio']:.3f}** ({means}) | {run['max_ratio']:.3f} | "
            f"{run['holder_tx_S']:.3f} S | {run['readers_tx_S']:.3f} S | {_cpu_s(run):.1f} | {case.wanted} |"
        )
        lines += [
            f"| peer: {name} | {peer['mean_ratio']:.3f} | {peer['max_ratio']:.3f} | {peer['holder_tx_S']:.3f} S | "
            f"{peer['readers_tx_S']:.3f} S | {_cpu_s(peer):.1f} | |"
            for name, peer in run["peers"].items()
        ]
    lines += ["", "| one reader alone, not shaped | size | p50 | GB/s |", "|---|---|---|---|"]
    lines += [
        f"| {case['target']}, {WAYS[case['source']]} | {case['size_bytes']} B | "
        f"{case['p50_s'] * 1e6:.0f} µs | {case['gbytes_s_p50']:.3f} |"
        for case in fetches["cases"]
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure everything, write JSON and table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="runs of each case; the median is taken (default 3)")
    args = parser.parse_args()
    FIGURES.mkdir(exist_ok=True)
    figures = {}
    for case in CASES:
        figures[case.name] = median_run(case, args.repeat)
        print(f"{case.title}: {figures[case.name]['mean_ratio']:.3f}", flush=True)
        (FIGURES / f"{case.name}.json").write_text(json.dumps(figures[case.name], indent=1) + "\n")
    fetches = measure(["fetch"])
    (FIGURES / "fetch.json").write_text(json.dumps(fetches, indent=1) + "\n")
    before, rest = DOCUMENT.read_text().split(BEGIN)
    DOCUMENT.write_text(before + BEGIN + table(figures, fetches) + END + rest.split(END)[1])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
