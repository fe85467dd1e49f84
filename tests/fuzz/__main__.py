"""`make fuzz SECONDS=60`: all fuzzers side by side; a table of what they did, and files that replay what broke."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import time
from pathlib import Path

from rich.console import Console

from kvlab.bars import progress
from tests.fuzz.child import Outcome, Running, child, environment, replay
from tests.fuzz.crash import load
from tests.fuzz.reached import ROOT
from tests.fuzz.targets import NAMES, NATIVE, made_by

FOLDER = ROOT / "build" / "fuzz"
_LOOK_S = 0.2


def main(words: list[str] | None = None) -> int:
    """Exit status: 0 nothing broke, 1 something did, 2 the command line is wrong."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, help="of all of them together, on this machine (default 60)")
    parser.add_argument("--inputs", type=int, help="stop each after so many inputs instead")
    parser.add_argument("--seed", type=int, help="the same inputs in the same order (default: another one each time)")
    parser.add_argument("--target", action="append", choices=NAMES, help="only this one; may be given again")
    parser.add_argument("--replay", type=Path, help="a file of an input that broke something: run that alone")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"where files and report go (default {FOLDER})")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes side by side")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(words)
    if args.child:
        return child(
            args.target[0], args.seed, args.seconds, args.inputs, args.folder / f"{args.target[0]}.last", args.folder
        )
    if args.replay is not None:
        return _replay(args.replay, args.folder)
    seconds = 60.0 if args.seconds is None and args.inputs is None else args.seconds
    seed = secrets.randbelow(1 << 32) if args.seed is None else args.seed
    outcomes = _run(args.target or list(NAMES), seed, seconds, args.inputs, max(1, args.jobs), args.folder)
    _tell(outcomes, seed, args.folder)
    return 1 if any(one.files for one in outcomes) else 0


def _replay(path: Path, folder: Path) -> int:
    """In a process that was started as the fuzzer's own are."""
    name, _ = load(path)
    if name in NATIVE and "P4SWITCH_CFLAGS" not in os.environ:
        folder.mkdir(parents=True, exist_ok=True)
        report = folder / f"{name}.sanitizer"
        command = [sys.executable, "-m", "tests.fuzz", "--replay", str(path.absolute())]
        given = environment(name, report)
        if "P4SWITCH_CFLAGS" in given:
            os.chdir(ROOT)
            os.execve(sys.executable, command, given)
    return replay(path)


def _run(
    names: list[str], seed: int, seconds: float | None, inputs: int | None, jobs: int, folder: Path
) -> list[Outcome]:
    share_s = None if seconds is None else seconds * min(jobs, len(names)) / len(names)
    waiting, running, outcomes = list(names), list[Running](), list[Outcome]()
    began_s = time.monotonic()
    try:
        with progress(Console(stderr=True)) as (say, moved):
            while waiting or running:
                while waiting and len(running) < jobs:
                    running.append(Running(waiting.pop(0), seed, share_s, inputs, folder))
                    say(", ".join(one.name for one in running))
                time.sleep(_LOOK_S)
                for one in list(running):
                    outcome = one.outcome()
                    if outcome is not None:
                        outcomes.append(outcome)
                        running.remove(one)
                done = len(outcomes) / len(names)
                moved(done if seconds is None else max(done, min(0.99, (time.monotonic() - began_s) / seconds)))
    finally:
        for one in running:
            one.kill()
    return outcomes


def _tell(outcomes: list[Outcome], seed: int, folder: Path) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"fuzzers, seed {seed}")
    console.print(f"  {'target':<28}{'inputs':>10}{'inputs/s':>10}{'lines':>8}  broken by")
    for one in sorted(outcomes, key=lambda outcome: outcome.target):
        figures = one.figures
        name = f"{one.target} (sanitizers)" if one.sanitized else one.target
        broken = f"{len(one.files)} inputs" if one.files else "nothing"
        console.print(f"  {name:<28}{figures.inputs:>10,}{figures.inputs_per_s:>10,.0f}{figures.lines:>8,}  {broken}")
        console.print(f"    {figures.checks or made_by(one.target).checks}", style="dim")
    report = {
        "seed": seed,
        "targets": {
            one.target: {
                "inputs": one.figures.inputs,
                "inputs_per_s": round(one.figures.inputs_per_s, 1),
                "lines": one.figures.lines,
                "kept": one.figures.kept,
                "sanitizers": one.sanitized,
                "broken_by": one.files,
            }
            for one in outcomes
        },
    }
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    for path in (path for one in outcomes for path in one.files):
        last = json.loads(Path(path).read_text())["error"][-1:]
        console.print(f"{path}: {last[0] if last else ''}")
        console.print(f"  replay it: .venv/bin/python -m tests.fuzz --replay {path}")


if __name__ == "__main__":
    sys.exit(main())
