"""Which programs of public repositories compile here, and which p4c takes beside.

    python -m p4switch_compiler.survey_programs FOLDER [--p4c p4c-bm2-ss]

FOLDER has a clone for each repository. A program is a file with a `main` for v1model or TNA; what it includes is
looked for in its folder, those above it, and their `include`, `p4src`, `common` and `shared`. Prints a line for each
repository, then each program that does not compile, why, and (v1model) whether p4c takes it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from p4switch.compiler import CompileError, compile_to_ir

MAIN = re.compile(r"^\s*(V1Switch|Switch)\s*(<[^;]*>)?\s*\([^;]*\)\s*main\s*;", re.MULTILINE)
INCLUDES = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
INCLUDED = ("include", "includes", "p4include", "p4src", "common", "shared")
DEFINES = {"DASH": {"TARGET_BMV2_V1MODEL": "1"}, "sonic-pins": {"PLATFORM_BMV2": "1"}, "onos": {"CPU_PORT": "255"}}
"""By the end of a folder's name: what the repository's own Makefile defines for programs that need it."""


def programs(folder: Path) -> Iterator[Path]:
    """Files with a `main`, or that include one from beside them, as DASH's does."""
    texts = {path: path.read_text(errors="replace") for path in sorted(folder.rglob("*.p4"))}
    with_main = {path for path, text in texts.items() if MAIN.search(text)}
    pieces: set[Path] = set()
    for path, text in texts.items():
        pieces_here = {path.parent / name for name in INCLUDES.findall(text)} & with_main
        if pieces_here:
            yield path
        pieces |= pieces_here
    yield from sorted(with_main - pieces)


def included(path: Path, root: Path) -> list[Path]:
    above = [folder for folder in path.parents if folder.is_relative_to(root)]
    return [found for folder in above for found in (folder, *(folder / name for name in INCLUDED)) if found.is_dir()]


def refusal(path: Path, root: Path, p4c: str | None) -> str:
    """Why the program does not compile here; empty: it does."""
    folders = included(path, root)
    needed = next((d for name, d in DEFINES.items() if root.name.endswith(name)), {})
    why = ""
    for defines in (needed, {}):
        try:
            compile_to_ir(path, defines, folders)
            return ""
        except CompileError as error:
            first = error.diagnostics[0]
            why = f"{first.message} ({Path(first.file).name}:{first.line})"
    if p4c is None or "tna.p4" in path.read_text(errors="replace"):
        return why
    with tempfile.TemporaryDirectory() as scratch:
        words = [p4c, *(f"-I{f}" for f in folders), "-o", f"{scratch}/out.json", str(path)]
        taken = any(
            subprocess.run([*words, *(f"-D{n}={v}" for n, v in defines.items())], capture_output=True).returncode == 0
            for defines in (needed, {})
        )
    return f"{why}; p4c {'takes it' if taken else 'refuses it'}"


def main() -> None:
    """Print the survey."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--p4c", help="p4c-bm2-ss, for what is refused here")
    args = parser.parse_args()
    refused: list[str] = []
    with ProcessPoolExecutor(2) as pool:
        for root in sorted(one for one in args.folder.iterdir() if one.is_dir()):
            found = list(programs(root))
            reasons = list(pool.map(partial(refusal, root=root, p4c=args.p4c), found, chunksize=4))
            print(f"{root.name}: {reasons.count('')} of {len(found)} compile", flush=True)
            refused += [
                f"{one.relative_to(args.folder)}: {why}" for one, why in zip(found, reasons, strict=True) if why
            ]
    print(*refused, sep="\n")


if __name__ == "__main__":
    main()
