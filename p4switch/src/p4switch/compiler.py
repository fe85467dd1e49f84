"""The compiler's passes in order: source -> checked tree -> IR -> verified IR -> C -> shared object."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from p4switch.arch import ARCHITECTURES
from p4switch.build import BuildError, build_shared_object
from p4switch.codegen.c_program import render
from p4switch.frontend.checker import check_program
from p4switch.frontend.hints import hinted, include_hinted
from p4switch.frontend.lint import lint
from p4switch.frontend.lower.lower_program import lower
from p4switch.frontend.parser import parse
from p4switch.frontend.preprocess import preprocess
from p4switch.frontend.source import CompileError, Diagnostic, Reporter
from p4switch.ir.program import Program
from p4switch.ir.verify import verify
from p4switch.runtime import INCLUDE_DIR

__all__ = ["BuildError", "CompileError", "CompiledProgram", "check", "compile_program", "compile_to_ir"]


FLAGS = ("-O2", "-fno-strict-aliasing", "-w")
"""Options for generated code: no warnings, it is not written to be read by a compiler's lint."""


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """A program ready to be loaded by the runtime."""

    ir: Program
    shared_object_path: Path
    warnings: tuple[Diagnostic, ...]


def compile_to_ir(
    path: Path | str,
    defines: Mapping[str, str] | None = None,
    include_dirs: Sequence[Path] = (),
    architecture: str | None = None,
    within: Sequence[Path] | None = None,
) -> tuple[Program, tuple[Diagnostic, ...]]:
    """The front end alone: verified IR and warnings. CompileError when the program is wrong or not supported, or is
    not for `architecture` (None: whichever its `main` is for). `within`: the folders that includes may come from,
    besides the compiler's own; None: any."""
    try:
        reporter = Reporter(preprocess(Path(path), defines or {}, [Path(d) for d in include_dirs], within))
    except CompileError as error:
        raise include_hinted(error) from None
    try:
        checked = check_program(parse(reporter), reporter)
        program = lower(checked, ARCHITECTURES, architecture)
    except CompileError as error:
        raise hinted(error, reporter.source) from None
    verify(program)
    lint(checked)
    return program, tuple(reporter.diagnostics)


def compile_program(
    path: Path | str,
    defines: Mapping[str, str] | None = None,
    include_dirs: Sequence[Path] = (),
    architecture: str | None = None,
    within: Sequence[Path] | None = None,
) -> CompiledProgram:
    """Compile a P4 program to a shared object.

    CompileError: the program is wrong or uses something unsupported (located diagnostics). BuildError: there is no
    C compiler, or it failed (one line).
    """
    program, warnings = compile_to_ir(path, defines, include_dirs, architecture, within)
    return CompiledProgram(program, _build(render(program)), warnings)


def _build(source: str) -> Path:
    """The shared object of a C text; the same text with the same compiler is compiled once."""
    with tempfile.TemporaryDirectory(prefix="p4switch-") as scratch:
        text = Path(scratch) / "program.c"
        text.write_text(source)
        return build_shared_object("program", [text], include_dirs=(INCLUDE_DIR,), flags=FLAGS)


def check(
    path: Path | str, defines: Mapping[str, str] | None = None, include_dirs: Sequence[Path] = ()
) -> list[Diagnostic]:
    """All diagnostics of a program, warnings included; nothing is compiled to C."""
    try:
        _, warnings = compile_to_ir(path, defines, include_dirs)
    except CompileError as problem:
        return list(problem.diagnostics)
    return list(warnings)
