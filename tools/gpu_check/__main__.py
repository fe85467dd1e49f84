"""What kvcast's copies do on a GPU: checks a to g, a table and a JSON. `make gpu-check`; with a wheel of kvcast-client
in place of the checkout's `client/src`: PYTHONPATH=. python3 -m tools.gpu_check."""

from __future__ import annotations

import argparse
import json
import logging
import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from tools.gpu_check import copies, model
from tools.gpu_check.bench import Machine, Report

COPIES: dict[str, Callable[[Machine, Report], None]] = {
    "c": copies.bytes_are_right,
    "a": copies.registration,
    "b": copies.rates,
    "d": copies.order,
}
MODEL = {"f": model.same_tokens, "g": model.decode_steps, "e": model.break_even}
"""In the order of use: what is right comes before how quick it is."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the checks; 1 where bytes or tokens were wrong."""
    parser = argparse.ArgumentParser(prog="gpu-check", description=__doc__)
    parser.add_argument("--json", type=Path, help="where to write what was found")
    parser.add_argument("--quick", action="store_true", help="small sizes, as on a machine without a GPU")
    parser.add_argument("--only", default="", metavar="LETTERS", help="of the checks, such as bcd")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING)
    there = torch.cuda.is_available()
    if not there:
        torch.set_num_threads(1)  # threads of copies take turns on few cores
    machine = Machine(torch.device("cuda", 0) if there else torch.device("cpu"), args.quick or not there)
    report = Report()
    started_s = time.monotonic()
    print(f"{machine.name}, torch {torch.__version__}{', small sizes' * machine.is_quick}")
    for letter, check in COPIES.items():
        if not args.only or letter in args.only:
            check(machine, report)
    _with_model(machine, report, args.only)
    found = {
        "machine": machine.name,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "quick": machine.is_quick,
        "seconds": time.monotonic() - started_s,
        "ok": report.ok,
        "rows": report.rows,
    }
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(found, indent=1))
    print(f"{'all bytes and tokens right' if report.ok else 'WRONG BYTES OR TOKENS'}, {found['seconds']:.0f} s")
    return 0 if report.ok else 1


def _with_model(machine: Machine, report: Report, only: str) -> None:
    wanted = [letter for letter in MODEL if not only or letter in only]
    if not wanted:
        return
    try:
        made = model.make_model(machine)
    except ImportError as error:
        for letter in wanted:
            report.left_out(letter, "everything", str(error))
        return
    for letter in wanted:
        MODEL[letter](machine, report, made)


if __name__ == "__main__":
    sys.exit(main())
