"""`make soak MINUTES=15`: everything goes wrong under load; a report, and exit status 1 for what may never be."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections import Counter
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from bmv2_testbed.errors import TestbedError
from kvlab.bars import progress
from tests.soak.report import Report
from tests.soak.run import soak

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "build" / "soak" / "report.json"


def main(words: list[str] | None = None) -> int:
    """Exit status: 0 all is well, 1 something was wrong, hung or leaked, 2 there is no soak here."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=15.0, help="of trouble (default 15)")
    parser.add_argument("--seed", type=int, help="the same troubles in the same order (default: others each time)")
    parser.add_argument("--json", type=Path, default=REPORT, help=f"where the report goes, too (default {REPORT})")
    args = parser.parse_args(words)
    seed = secrets.randbelow(1 << 16) if args.seed is None else args.seed
    try:
        with progress(Console(stderr=True)) as (say, moved):
            report = soak(seed, args.minutes * 60, say, moved)
    except TestbedError as error:
        print(f"make soak: seed {seed}: {error}", file=sys.stderr)
        return 2
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps({"seed": seed, "minutes": args.minutes, **report.to_json()}, indent=1) + "\n")
    tell(report, seed, Console())
    return 1 if report.bad else 0


def counted(what: Counter[str]) -> str:
    """Most frequent ones first."""
    return ", ".join(f"{count:,} {name}" for name, count in what.most_common()) or "nothing"


def speed_text(report: Report) -> str:
    """What attackers leave to honest hosts."""
    share, error = report.speed_under_attack, report.speed_error
    if share is None:
        return "not measured"
    attacked, quiet = (report.chunks_per_s(attacked=attacked) or 0.0 for attacked in (True, False))
    about = "" if error is None else f" ± {error:.0%}"
    text = f"{share:.0%}{about} ({attacked:.1f} chunks/s, {quiet:.1f} beside as many harmless frames)"
    work = report.work_under_attack
    return text if work is None else f"{text}; {work:.0%} for each second of CPU"


def tell(report: Report, seed: int, console: Console) -> None:
    """The report as a person reads it."""
    table = Table(title=f"soak, seed {seed}", show_header=False)
    table.add_column(style="dim")
    table.add_column()
    outcomes, refused = counted(report.outcomes), counted(report.refused) if report.refused else ""
    opened, ended = (sum(report.silent.get(what, {}).values()) for what in ("opened", "ended"))
    silence = f"{opened:,}, {ended:,} ended by daemons"
    growth = ", ".join(f"{name} {size / 2**20:+.1f} MiB" for name, size in sorted(report.rss_growth_bytes.items()))
    recovery = ", ".join(
        f"{kind} {median(times):.1f} s (at most {max(times):.1f})" for kind, times in sorted(report.recovery_s.items())
    )
    for name, value in (
        ("fetches", f"{report.fetches:,}: {outcomes}"),
        ("chunks compared", f"{report.chunks:,}"),
        ("wrong", str(report.wrong)),
        ("late", str(report.late)),
        ("hung", str(report.hung)),
        ("leaked", "\n".join(report.leaked) or "nothing"),
        ("leases", counted(report.leases) + f"; {report.lost_with_others_bytes} chunks were others when this was said"),
        ("forks", f"{counted(report.forks)}; untold: {counted(report.untold)}"),
        ("probes", f"{report.probes:,}; unanswered: {counted(report.unanswered)}"),
        ("silent connections", silence),
        ("shown", "\n".join(report.shown) or "nothing that a terminal obeys"),
        ("puts", f"{report.puts:,}" + (f"; refused: {refused}" if refused else "")),
        ("median complete fetch", f"{median(report.fetch_s) * 1e3:.0f} ms" if report.fetch_s else "none"),
        ("speed under attack", speed_text(report)),
        ("troubles", f"{report.troubles.total()} of {len(report.troubles)} kinds"),
        ("agent away", f"{report.away} tries of engines"),
        ("RSS growth", growth or "nobody lived all along"),
        ("back after", recovery or "never"),
    ):
        table.add_row(name, value)
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
