"""Entry of the lowering: finds `main` and its architecture, which then gathers the program."""

from __future__ import annotations

from collections.abc import Mapping

from p4switch.frontend import ast
from p4switch.frontend.checked_program import CheckedProgram
from p4switch.frontend.lower.annotations import qualified_name
from p4switch.frontend.lower.architecture import Architecture
from p4switch.frontend.lower.expressions import lower_expression
from p4switch.frontend.lower.instances import construct
from p4switch.frontend.lower.lowering import LanguageRules, Lowering
from p4switch.frontend.lower.statements import lower_statement
from p4switch.frontend.p4_types import TBlock
from p4switch.frontend.source import AbortError
from p4switch.ir.program import Program
from p4switch.recursion import deep_recursion


@deep_recursion()
def lower(checked: CheckedProgram, architectures: Mapping[str, Architecture], wanted: str | None = None) -> Program:
    """Lower a checked program to IR. `architectures`: those that there are, by their packages.

    CompileError when something in the program is not supported, or when it is not for `wanted` (None: any).
    """
    low = Lowering(checked, LanguageRules(lower_expression, lower_statement))
    try:
        main = _find_main(low)
        low.architecture = _architecture_of(low, main, architectures, wanted).begin(low)
        for decl in checked.program.declarations:
            if isinstance(decl, ast.Instantiation) and decl is not main:
                low.globals.bind(decl, construct(low, low.facts.callees[decl], decl, qualified_name("", decl)))
        program = low.architecture.program(main)
    except AbortError:
        checked.reporter.raise_if_errors()
        raise
    checked.reporter.raise_if_errors()
    return program


def _find_main(low: Lowering) -> ast.Instantiation:
    decl = low.checked.names.get("main")
    end = max(0, len(low.reporter.source.text.rstrip()) - 1)
    if not isinstance(decl, ast.Instantiation):
        raise low.reporter.fail(end, "the program has no 'main'")
    return decl


def _architecture_of(
    low: Lowering, main: ast.Instantiation, architectures: Mapping[str, Architecture], wanted: str | None
) -> Architecture:
    package = low.types[main]
    architecture = architectures.get(package.decl.name) if isinstance(package, TBlock) else None
    if architecture is None:
        raise low.unsupported(main.at, f"package {package}; known packages are {', '.join(architectures)}")
    if wanted not in (None, architecture.name):
        raise low.reporter.fail(main.at, f"this program is for {architecture.name}, and {wanted} is asked for")
    return architecture
