"""The compiler's passes in order: source -> checked tree -> IR -> verified IR -> C -> shared object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from p4switch.codegen.build import BuildError, build
from p4switch.codegen.program import render
from p4switch.frontend.lower.program import lower
from p4switch.frontend.pipeline import check_source
from p4switch.frontend.source import CompileError, Diagnostic
from p4switch.ir.program import Program
from p4switch.ir.verify import verify

__all__ = ["BuildError", "CompileError", "CompiledProgram", "check", "compile_program", "compile_to_ir"]


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """A program ready to be loaded by the runtime."""

    ir: Program
    c_source: str
    shared_object_path: Path
    warnings: tuple[Diagnostic, ...]


def compile_to_ir(
    path: Path | str, defines: Mapping[str, str] | None = None, include_dirs: Sequence[Path] = ()
) -> tuple[Program, tuple[Diagnostic, ...]]:
    """The front end alone: the verified IR and the warnings. CompileError when the program is wrong or not supported."""
    checked = check_source(Path(path), defines or {}, [Path(d) for d in include_dirs])
    program = lower(checked)
    verify(program)
    return program, tuple(checked.reporter.diagnostics)


def compile_program(
    path: Path | str, defines: Mapping[str, str] | None = None, include_dirs: Sequence[Path] = ()
) -> CompiledProgram:
    """Compile a P4 program to a shared object.

    CompileError: the program is wrong or uses something unsupported (located diagnostics). BuildError: there is no
    C compiler, or it failed (one line).
    """
    program, warnings = compile_to_ir(path, defines, include_dirs)
    source = render(program)
    return CompiledProgram(program, source, build(source), warnings)


def check(path: Path | str, defines: Mapping[str, str] | None = None, include_dirs: Sequence[Path] = ()) -> list[Diagnostic]:
    """All diagnostics of a program, warnings included; nothing is compiled to C."""
    try:
        _, warnings = compile_to_ir(path, defines, include_dirs)
    except CompileError as problem:
        return list(problem.diagnostics)
    return list(warnings)
