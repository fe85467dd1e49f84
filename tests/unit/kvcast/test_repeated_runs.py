"""One algorithm stands once: product code repeats no run of RUN_LINES lines, whatever lies between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = (
    *(
        "bmv2_testbed",
        "client/src",
        "kvproto/src",
        "controlplane",
        "hostagent",
        "kvcast",
        "kvcodec",
        "kvdaemon",
        "kvlab",
        "kvpolicy",
        "kvsim",
        "p4",
    ),
    *("p4switch/src", "planner", "tools"),
)
SUFFIXES = {".py", ".c", ".h", ".p4", ".sh"}
RUN_LINES = 12
NO_CODE = ("#", "//", "/*", "*", "import ", "from ")
"""How lines begin that do not count."""


def code_of(text: str) -> list[tuple[int, str]]:
    """The lines that count, with their numbers: no blank ones, comments, imports or lone brackets."""
    lines = ((number, " ".join(line.split())) for number, line in enumerate(text.splitlines(), 1))
    return [(number, line) for number, line in lines if line.strip("()[]{},;") and not line.startswith(NO_CODE)]


def repeated(files: Mapping[str, str]) -> list[str]:
    """Where runs begin that stand in more than one place."""
    places: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, text in files.items():
        lines = code_of(text)
        for first in range(len(lines) - RUN_LINES + 1):
            run = tuple(line for _, line in lines[first : first + RUN_LINES])
            places[run].append(f"{name}:{lines[first][0]}")
    return [" = ".join(found) for found in places.values() if len(found) > 1]


def product() -> Iterable[Path]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            generated = "_pb2" in path.name
            if path.suffix in SUFFIXES and not generated and path.is_file():
                yield path


def test_nothing_stands_twice() -> None:
    files = {str(path.relative_to(ROOT)): path.read_text() for path in product()}
    assert len(files) > 500
    assert repeated(files) == []


def test_a_run_that_stands_twice_is_found() -> None:
    run = "\n".join(f"step({number})" for number in range(RUN_LINES))
    assert repeated({"a.py": f"before()\n{run}\n", "b.py": f"import a\n\n  # why\n{run}\nafter()"}) == [
        "a.py:2 = b.py:4"
    ]
    assert repeated({"a.py": run, "b.py": run.replace("step(5)", "other()")}) == []
