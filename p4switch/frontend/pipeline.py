"""The front end's passes in order: preprocess, lex and parse, check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from p4switch.frontend import ast
from p4switch.frontend.check_decl import Checker
from p4switch.frontend.parser import parse
from p4switch.frontend.preprocess import preprocess
from p4switch.frontend.source import AbortError, CompileError, Reporter, deep_recursion


@dataclass(frozen=True, slots=True)
class CheckedProgram:
    """A program without errors: its annotated tree, the checker's tables of names, and the warnings."""

    program: ast.Program
    checker: Checker
    reporter: Reporter


def check_source(path: Path, defines: Mapping[str, str], include_dirs: Sequence[Path]) -> CheckedProgram:
    """Preprocess, parse and type-check. CompileError with all diagnostics when anything is wrong."""
    source = preprocess(path, defines, include_dirs)
    reporter = Reporter(source)
    try:
        with deep_recursion():
            program = parse(reporter)
    except AbortError as problem:
        raise CompileError(reporter.diagnostics) from problem
    checker = Checker(reporter)
    with deep_recursion():
        checker.program(program)
    reporter.raise_if_errors()
    return CheckedProgram(program, checker, reporter)
