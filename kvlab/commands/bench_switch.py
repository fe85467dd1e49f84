"""`kvcast bench switch`: how fast the switch itself is, apart from agents and links."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator, Mapping

from bmv2_testbed.bench.switch_get import run_get_comparison
from bmv2_testbed.bench.switch_pipeline import run_switch_pipeline
from kvcast.errors import UsageError
from kvcast.terminal import Terminal
from kvlab.figures import write_figures
from kvlab.wiring import add_json
from p4switch.bench.__main__ import line, parts
from p4switch.bench.packets import Measurement
from p4switch.errors import SwitchError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the benchmark."""
    names = _parts(quick=True)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(names)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="smaller tables")
    add_json(parser)


def _parts(quick: bool) -> Mapping[str, Callable[[], Iterator[Measurement]]]:
    return {"kvcast": run_switch_pipeline, **parts(quick), "simple_switch_get": run_get_comparison}


def run(args: argparse.Namespace) -> int:
    """Run it; UsageError where something is missing (root for the part `wire`)."""
    known = _parts(args.quick)
    unknown = [part for part in args.parts if part not in known]
    if unknown:
        raise UsageError(f"bench switch has no part {unknown[0]!r}; there are {', '.join(known)}")
    figures: list[Measurement] = []
    try:
        for part in args.parts or known:
            for figure in known[part]():
                figures.append(figure)
                print(line(figure), flush=True)
    except SwitchError as error:
        raise UsageError(str(error)) from error
    finally:
        write_figures(Terminal(), args.json, [dataclasses.asdict(figure) for figure in figures])
    return 0
