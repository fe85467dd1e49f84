"""Counts the product's lines of code by distribution, and those of built wheels, and fails above the limits.

    python tools/count_lines.py                  # the checkout
    python tools/count_lines.py --wheels dist    # the wheels in a folder

Counted are the lines of .py, .c, .h and .p4 files; generated files and tests do not count.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PRODUCT_LINES_MAX: Final = 161_500
"""Of all distributions, tools and examples. A feature that needs more room makes it elsewhere."""
WHEEL_LINES_MAX: Final = {"kvcast": 70_000}
"""By distribution: what a GPU node installs."""
DISTRIBUTIONS: Final = {
    "kvcast-client": ("client/",),
    "kvproto": ("kvproto/", "p4/"),
    "p4switch": ("p4switch/",),
    "kvcast": ("kvcodec/", "kvpolicy/", "kvdaemon/", "controlplane/", "hostagent/", "kvcast/"),
    "kvcast-lab": ("bmv2_testbed/", "kvlab/", "kvsim/", "planner/"),
}
"""Folders of the checkout by distribution; the rest is in none."""
_CODE: Final = re.compile(r"\.(py|c|h|p4)$")
_GENERATED: Final = re.compile(r"_pb2(_grpc)?\.py$")
_TEST: Final = re.compile(r"(^|/)tests/")


def is_counted(name: str) -> bool:
    """Whether a file's lines count."""
    return bool(_CODE.search(name)) and not _GENERATED.search(name) and not _TEST.search(name)


def of_checkout(root: Path) -> Counter[str]:
    """Lines by distribution of the files that git knows."""
    listed = subprocess.run(["git", "ls-files"], cwd=root, check=True, capture_output=True, text=True)
    names = [name for name in listed.stdout.splitlines() if is_counted(name) and (root / name).is_file()]
    lines: Counter[str] = Counter()
    for name in names:
        lines[_distribution(name)] += _line_count((root / name).read_bytes())
    return lines


def of_wheels(wheels: Iterable[Path]) -> Counter[str]:
    """Lines by distribution of what each wheel holds."""
    lines: Counter[str] = Counter()
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as packed:
            count = sum(_line_count(packed.read(name)) for name in packed.namelist() if is_counted(name))
        lines[wheel.name.split("-")[0].replace("_", "-")] += count
    return lines


def _distribution(name: str) -> str:
    return next((one for one, folders in DISTRIBUTIONS.items() if name.startswith(folders)), "in no wheel")


def _line_count(content: bytes) -> int:
    return len(content.splitlines())


def table(lines: Mapping[str, int]) -> str:
    """A line for each distribution and one for their sum."""
    return "\n".join(f"{count:9,}  {name}" for name, count in [*lines.items(), ("in all", sum(lines.values()))])


def above_limits(lines: Mapping[str, int], limits: Mapping[str, int]) -> list[str]:
    """What is above its limit, a sentence each."""
    return [
        f"{name} has {lines[name]:,} lines, and its limit is {limit:,}: delete what is not needed"
        for name, limit in limits.items()
        if lines.get(name, 0) > limit
    ]


def main() -> int:
    """Print the table; 1 above a limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="count the wheels there instead of the checkout")
    args = parser.parse_args()
    if args.wheels is not None:
        lines = of_wheels(sorted(args.wheels.glob("*.whl")))
        problems = above_limits(lines, WHEEL_LINES_MAX)
    else:
        lines = of_checkout(ROOT)
        problems = above_limits({"the product": sum(lines.values())}, {"the product": PRODUCT_LINES_MAX})
    print(table(lines))
    print(*problems, sep="\n", end="\n" if problems else "", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
