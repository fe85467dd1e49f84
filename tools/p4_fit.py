"""How much of a Tofino the data plane needs: compiles p4/tna and prints stages, memories, ALUs and PHV as a table.

    python tools/p4_fit.py                 # compile with the p4c-barefoot on PATH
    python tools/p4_fit.py --report FILE   # print a report that an earlier run has written

The numbers are p4c's own (`resources.json` and `phv.json`, which its Tofino back end writes with -g). Without a Tofino
back end on PATH it says "not run" and ends with status 3. The parser is checked too: p4c of February to August 2026
compiles every `select` to "match anything" without an error, and a program built so is worth nothing.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
PROGRAM = REPOSITORY / "p4" / "tna" / "kvcast.p4"
BUILD = REPOSITORY / "build" / "p4" / "tofino"
COMPILERS = ("p4c-barefoot", "bf-p4c")
STAGES_MOST = 11
"""What the program may use of Tofino's 12 stages; the rest is for what an operator adds."""
NOT_RUN = 3
"""Exit status where no compiler is at hand: neither fits nor fails. tools/check_p4.sh knows it."""


class FitError(Exception):
    """The program does not compile, does not fit, or its report is not what this tool knows; one line."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of resource, in the units that p4c counts it in."""

    name: str
    used: int
    available: int

    @property
    def share(self) -> float:
        return self.used / self.available


@dataclass(frozen=True, slots=True)
class FitReport:
    """What one program needs of one target."""

    target: str
    compiler: str
    stages: int
    """1 + the last stage that has a table, of ingress or egress."""
    stages_available: int
    resources: tuple[Resource, ...]


def read_report(resources: Mapping[str, Any], phv: Mapping[str, Any], compiler: str) -> FitReport:
    """Sums p4c's two reports up. Raises FitError when something is missing from them."""
    try:
        mau = resources["resources"]["mau"]
        stages = mau["mau_stages"]
        return FitReport(
            target=str(phv["target"]),
            compiler=compiler,
            stages=1 + max(stage["stage_number"] for stage in stages if stage["logical_tables"]["ids"]),
            stages_available=mau["nStages"],
            resources=(*(_memory(stages, mau["nStages"])), *_containers(phv)),
        )
    except (KeyError, TypeError, ValueError) as unknown:
        raise FitError(f"p4c's report has another form than this tool knows: {unknown!r}") from None


def _memory(stages: Sequence[Mapping[str, Any]], count: int) -> list[Resource]:
    """Per-stage resources over all stages."""
    first = stages[0]
    return [
        Resource(name, sum(len(stage[block][items]) for stage in stages), count * _product(first[block], sizes))
        for name, block, items, sizes in (
            ("SRAM blocks", "rams", "srams", ("nRows", "nColumns")),
            ("map RAMs", "map_rams", "maprams", ("nRows", "nUnits")),
            ("TCAM blocks", "tcams", "tcams", ("nRows", "nColumns")),
            ("stateful ALUs", "meter_alus", "meters", ("nAlus",)),
            ("statistics ALUs", "statistic_alus", "stats", ("nAlus",)),
            ("gateways", "gateways", "gateways", ("nRows", "nUnits")),
            ("logical tables", "logical_tables", "ids", ("size",)),
            ("hash bits", "hash_bits", "bits", ("nBits", "nFunctions")),
        )
    ]


def _product(block: Mapping[str, Any], sizes: Sequence[str]) -> int:
    product = 1
    for size in sizes:
        product *= int(block[size])
    return product


def _containers(phv: Mapping[str, Any]) -> list[Resource]:
    """PHV containers by width, those that the MAU can reach."""
    available: dict[int, set[int]] = {}
    for group in phv["resources"]:
        if group["group_type"] == "mau":
            available.setdefault(group["bit_width"], set()).update(group["addresses"])
    used = {container["phv_number"] for container in phv["containers"] if container["slices"]}
    return [
        Resource(f"PHV containers of {width} bits", len(addresses & used), len(addresses))
        for width, addresses in sorted(available.items())
    ]


def parser_matches(assembly: str) -> int:
    """Parser rows of a .bfa that compare something; 0 means that the compiler lost all selects."""
    parsers = re.findall(r"^parser .*\n((?:[ \t].*\n|\n)*)", assembly, re.MULTILINE)
    rows = re.findall(r"^\s+0[xbo]([0-9a-f*]+):", "".join(parsers), re.MULTILINE)
    return sum(set(row) != {"*"} for row in rows)


def table(report: FitReport) -> str:
    """The report as lines for a terminal or a page."""
    rows = [("stages", str(report.stages), str(report.stages_available), report.stages / report.stages_available)]
    rows += [(item.name, str(item.used), str(item.available), item.share) for item in report.resources]
    width = max(len(name) for name, *_ in rows)
    lines = [f"{report.target}, {report.compiler}"]
    lines += [f"{name:<{width}} {used:>6} of {of:>6} {share:>6.1%}" for name, used, of, share in rows]
    return "\n".join(lines)


def to_json(report: FitReport) -> str:
    return json.dumps(asdict(report), indent=1) + "\n"


def from_json(text: str) -> FitReport:
    """Raises FitError for what `to_json` did not write."""
    try:
        found = json.loads(text)
        resources = tuple(Resource(**item) for item in found.pop("resources"))
        return FitReport(**found, resources=resources)
    except (ValueError, TypeError, KeyError, AttributeError) as wrong:
        raise FitError(f"no report of this tool: {wrong}") from None


def compile_program(compiler: str, defines: Sequence[str], build: Path) -> FitReport:
    """Compiles for Tofino 1 and reads the reports. Raises FitError with the compiler's first error."""
    shutil.rmtree(build, ignore_errors=True)
    build.mkdir(parents=True)
    command = [compiler, "--std", "p4-16", "--target", "tofino", "--arch", "tna", "-g", *defines, "-o", str(build)]
    done = subprocess.run([*command, str(PROGRAM)], capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in (done.stderr + done.stdout).splitlines() if "error" in line.lower()]
        raise FitError(f"{compiler} refuses {PROGRAM.name}: {errors[0] if errors else f'status {done.returncode}'}")
    assembly = _one(build, "*.bfa").read_text()
    if parser_matches(assembly) == 0:
        raise FitError(f"{compiler} has compiled every select of the parser to match anything: use another release")
    resources = json.loads(_one(build, "resources.json").read_text())
    phv = json.loads(_one(build, "phv.json").read_text())
    return read_report(resources, phv, version(compiler))


def _one(build: Path, pattern: str) -> Path:
    found = sorted(build.rglob(pattern))
    if not found:
        raise FitError(f"the compiler has written no {pattern}")
    return found[0]


def version(compiler: str) -> str:
    """The compiler's name and what it says of its version."""
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    said = (done.stdout + done.stderr).strip().splitlines()
    return f"{compiler} {said[-1].removeprefix('Version ')}" if said else compiler


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--report", type=Path, metavar="FILE", help="print this report instead of compiling")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there")
    parser.add_argument("-D", dest="defines", action="append", default=[], metavar="NAME=VALUE")
    asked = parser.parse_args(arguments)
    try:
        if asked.report is not None:
            report = from_json(asked.report.read_text())
        else:
            compiler = next((name for name in COMPILERS if shutil.which(name)), None)
            if compiler is None:
                print(f"not run: none of {', '.join(COMPILERS)} (p4c's Tofino back end) is on PATH")
                return NOT_RUN
            report = compile_program(compiler, [f"-D{define}" for define in asked.defines], BUILD)
        print(table(report))
        if asked.json is not None:
            asked.json.write_text(to_json(report))
        if report.stages > STAGES_MOST:
            raise FitError(f"{report.stages} stages are more than the {STAGES_MOST} that the program may use")
    except (FitError, OSError) as failure:
        print(f"p4_fit: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
