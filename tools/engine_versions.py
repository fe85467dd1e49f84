"""Which versions of engines have what kvcast uses: the newest releases and pre-releases of the package index.

    python tools/engine_versions.py                  # docs/reference/versions.md, and a table on the terminal
    python tools/engine_versions.py --engine sglang --page -

For each engine pip names the versions and downloads the wheels of two, without their dependencies and without
installing them (some 400 MB for all); `tools/engine_interfaces.py` reads them. Exit status 1 if a newest *release*
lacks something, since then somebody's next installation breaks; what a pre-release lacks is a warning of what comes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from packaging.version import InvalidVersion, Version

INTERFACES: Final = Path(__file__).parent / "engine_interfaces.py"
PAGE: Final = Path(__file__).parent.parent / "docs/reference/versions.md"
DISTRIBUTIONS: Final = {
    "vllm": "vllm",
    "sglang": "sglang",
    "lmcache": "lmcache",
    "ucm": "uc-manager-cuda-cu130",
    "dynamo": "ai-dynamo-runtime",
}
"""By engine: the distribution that has its Python source."""
PYTHON: Final = {"ucm": "3.12"}
"""Whose wheels are built for another Python than most."""
PLATFORMS: Final = ("any", "manylinux2014_x86_64", *(f"manylinux_2_{n}_x86_64" for n in (17, 24, 27, 28, 31, 34, 35)))
HEAD: Final = """# Which versions of engines fit

`make versions` wrote this page on {day}. It reads the source of each engine's newest release and pre-release: is
every name there that kvcast imports, every method that it overrides or calls by name, with its parameters? Nothing of
an engine runs here; [what was tested](engines.md) is another table. [Words](../glossary.md).

| engine | package | version | kind | what kvcast uses of it |
|---|---|---|---|---|
"""


class RegistryError(Exception):
    """The index does not answer, or has no such wheel; the message says which."""


@dataclass(frozen=True, slots=True)
class Row:
    """A version and what it lacks."""

    engine: str
    distribution: str
    version: Version
    lacks: tuple[str, ...]

    @property
    def kind(self) -> str:
        return "pre-release" if self.version.is_prerelease else "release"


def newest(versions: Sequence[str]) -> list[Version]:
    """The newest release, and the newest pre-release if it is newer. What is no version (PEP 440) is passed over."""
    known = []
    for text in versions:
        try:
            known.append(Version(text))
        except InvalidVersion:
            continue
    releases = [version for version in known if not version.is_prerelease]
    ahead = [version for version in known if not releases or version > max(releases)]
    return ([max(releases)] if releases else []) + ([max(ahead)] if ahead else [])


def _pip(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise RegistryError(" ".join(errors) or done.stderr.strip() or f"pip {arguments[0]} failed")
    return done.stdout


def versions_of(distribution: str, python: str) -> list[str]:
    """All of the index for a Python, pre-releases among them. Raises RegistryError."""
    said = _pip(
        "index", "versions", "--pre", distribution, "--only-binary", ":all:", "--python-version", python, *_platforms()
    )
    for line in said.splitlines():
        if line.startswith("Available versions:"):
            return [name.strip() for name in line.partition(":")[2].split(",")]
    raise RegistryError(f"{distribution}: pip names no versions")


def wheel_of(distribution: str, version: Version, python: str, folder: Path) -> Path:
    """The downloaded wheel. Raises RegistryError."""
    place = folder / f"{distribution}-{version}"
    _pip(
        *("download", "--quiet", "--no-deps", "--dest", str(place), f"{distribution}=={version}"),
        *("--only-binary", ":all:", "--python-version", python, *_platforms()),
    )
    return next(place.glob("*.whl"))


def _platforms() -> Iterator[str]:
    for platform in PLATFORMS:
        yield from ("--platform", platform)


def lacks(engine: str, wheel: Path) -> tuple[str, ...]:
    """What a wheel lacks of what kvcast uses, a line each."""
    done = subprocess.run([sys.executable, INTERFACES, engine, wheel], capture_output=True, text=True, check=False)
    return tuple((done.stdout + done.stderr).splitlines()) if done.returncode else ()


def rows_of(engine: str, folder: Path) -> Iterator[Row]:
    """Of one engine, the release first. Raises RegistryError."""
    distribution, python = DISTRIBUTIONS[engine], PYTHON.get(engine, "3.11")
    for version in newest(versions_of(distribution, python)):
        print(f"{distribution} {version} ...", file=sys.stderr, flush=True)
        wheel = wheel_of(distribution, version, python, folder)
        yield Row(engine, distribution, version, lacks(engine, wheel))
        wheel.unlink()


def page(rows: Sequence[Row], day: str) -> str:
    """The page, of a day (ISO 8601)."""
    lines = [
        f"| {row.engine} | `{row.distribution}` | {row.version} | {row.kind} | {'; '.join(row.lacks) or 'all there'} |"
        for row in rows
    ]
    return HEAD.format(day=day) + "\n".join(lines) + "\n"


def main() -> int:
    """Ask, read, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", action="append", choices=sorted(DISTRIBUTIONS), help="only this one (repeatable)")
    parser.add_argument("--page", default=str(PAGE), help="file to write; - for standard output")
    args = parser.parse_args()
    if args.engine and args.page == str(PAGE):
        parser.error("--engine: a page of some engines is not that page: name another by --page")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="kvcast-versions-") as folder:
        for engine in args.engine or DISTRIBUTIONS:
            try:
                rows.extend(rows_of(engine, Path(folder)))
            except RegistryError as error:
                print(f"{DISTRIBUTIONS[engine]}: {error}", file=sys.stderr)
                return 2
    text = page(rows, datetime.now(UTC).date().isoformat())
    if args.page == "-":
        print(text, end="")
    else:
        Path(args.page).write_text(text, encoding="utf-8")
    for row in rows:
        for line in row.lacks:
            print(f"{row.distribution} {row.version} ({row.kind}): {line}", file=sys.stderr)
    return 1 if any(row.lacks and not row.version.is_prerelease for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
