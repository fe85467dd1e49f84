"""Names, annotations and strings of a pushed P4 program: what its author writes as they like."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from random import Random
from typing import ClassVar

from p4switch.codegen.c_program import render
from p4switch.compiler import compile_to_ir
from p4switch.frontend.source import CompileError
from p4switch_compiler.renamed_programs import code_of, renamed, sources
from tests.fuzz.target import Case, check


def _plain(number: int) -> str:
    return f"n{number}"


class P4Names:
    """The first step: which program; each other one: a name or a text, used in turn."""

    name: ClassVar[str] = "p4-names"
    checks: ClassVar[str] = "the generated C is the same whatever tables, fields, messages and the rest are called"
    limit_s: ClassVar[float] = 10.0
    words: ClassVar[tuple[bytes, ...]] = (
        b"*/",
        b"/*",
        b'"',
        b'");',
        b"\\",
        b"\n",
        b"%n",
        b"%s",
        b"??/",
        b"\0",
        b"{}",
        b"#include </etc/passwd>\n",
        b"__attribute__((constructor)) static void f(void) {}",
        b"while",
        b"v0",
        b"\x1b]0;",
        b"\xe2\x80\xae",
        b".",
    )

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kvcast-fuzz-")
        self._program = Path(self._folder.name) / "program.p4"
        self._sources = sources()
        self._plain = [code_of(self._generated(renamed(source, _plain, _plain))) for source in self._sources]

    def fresh(self, random: Random) -> Case:
        texts = (b"".join(random.choices(self.words, k=random.randint(0, 4))) for _ in range(random.randint(1, 8)))
        return [bytes([random.randrange(256)]), *texts]

    def run(self, case: Case) -> None:
        which = sum(case[0]) % len(self._sources) if case else 0
        texts = [step.decode(errors="replace") for step in case[1:]] or ["x"]

        def naming(number: int) -> str:
            return f"{number} {texts[number % len(texts)]}"

        with contextlib.suppress(CompileError):
            found = self._generated(renamed(self._sources[which], naming, naming))
            check(found.isascii(), "a character that no C has")
            check(code_of(found) == self._plain[which], "names changed the code")

    def _generated(self, source: str) -> str:
        self._program.write_text(source)
        return render(compile_to_ir(self._program)[0])

    def close(self) -> None:
        self._folder.cleanup()
