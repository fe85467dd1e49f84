"""P4 programs that a controller pushes to p4switch: the front end of its compiler."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from random import Random
from typing import ClassVar

from p4switch.compiler import check as diagnostics_of
from p4switch.compiler import compile_to_ir
from p4switch.frontend.source import CompileError
from p4switch_compiler import random_programs
from p4switch_compiler.test_source_fuzz import SOURCES, STRANGE, broken
from tests.fuzz.reached import ROOT
from tests.fuzz.target import Case, check

_CONTROLS = sorted(path for folder in ("p4/v1model", "p4/include") for path in (ROOT / folder).glob("*.p4"))


class P4Sources:
    """One step: the text of a program; another: a file that it may include, under the name "part.p4"."""

    name: ClassVar[str] = "p4-sources"
    checks: ClassVar[str] = "located diagnostics or verified IR; nothing included from outside the folders given"
    limit_s: ClassVar[float] = 10.0
    words: ClassVar[tuple[bytes, ...]] = (
        *(word.encode() for word in STRANGE),
        b'#include "part.p4"\n',
        b"#include <",
        b'#include "/etc/passwd"\n',
        b'#include "../../../../etc/passwd"\n',
        b"#define A A\n",
        b"#define F(x) F(x) F(x)\n",
        b"#if (((((",
        b"#endif\n",
        b"#elif 1/0\n",
        b"@pragma ",
        b"(" * 3000,
        b"typedef A A;",
        b"0x" + b"f" * 5000,
        b"99999w1",
        b"bit<9999999999>",
        b"/*",
        b"\\\n",
        b"struct s { s s; }",
        b"\xff",
    )

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kvcast-fuzz-")
        self._program = Path(self._folder.name) / "program.p4"
        self._part = Path(self._folder.name) / "part.p4"

    def fresh(self, random: Random) -> Case:
        if random.random() < 0.2:
            return [b'#include <core.p4>\n#include "part.p4"\n', random.choice(_CONTROLS).read_bytes()]
        pick = random.random()
        source = random.choice(SOURCES) if pick < 0.5 else random_programs.Generator(random.randrange(200)).program()
        return [(broken(random, source) if random.random() < 0.8 else source).encode()]

    def run(self, case: Case) -> None:
        self._part.write_bytes(case[1] if len(case) > 1 else b"")
        self._program.write_bytes(case[0] if case else b"")
        for diagnostic in diagnostics_of(self._program):
            check(diagnostic.message, "a diagnostic without a message")
            check(diagnostic.line > 0 and diagnostic.column > 0, "a diagnostic without a place")
        secret = Path(self._folder.name).parent
        try:
            compile_to_ir(self._program, within=[Path(self._folder.name)])
        except CompileError as error:
            for diagnostic in error.diagnostics:
                check("root:" not in str(diagnostic), f"a diagnostic quotes a file outside of {secret}")

    def close(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._folder.cleanup()
