"""What an architecture does in the lowering of one program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from p4switch.frontend import ast
from p4switch.frontend.callee import Callee
from p4switch.frontend.lower.bindings import Instance
from p4switch.ir import expr as ir
from p4switch.ir.program import Program

FunctionRule: TypeAlias = Callable[[ast.Call, Callee], ir.Expr | None]
"""Lowers a call of an extern function: emits statements, gives the value if there is one."""

MethodRule: TypeAlias = Callable[[ast.Call, Callee, Instance], ir.Expr | None]
"""Lowers a call of a method of an extern instance."""

InstanceRule: TypeAlias = Callable[[ast.Declaration, Callee, str], Instance]
"""Makes an instance: its declaration (annotations, place), constructor and arguments, and its control-plane name."""


@dataclass(frozen=True, slots=True)
class ArchitectureRules:
    """An architecture during the lowering of one program.

    The language and core.p4 (packets, verify, tables, actions, parsers, controls) are the lowering's; everything that
    is declared `extern` elsewhere is looked up here by name. A name that is missing is a located diagnostic.
    """

    name: str
    functions: Mapping[str, FunctionRule]
    methods: Mapping[tuple[str, str], MethodRule]
    instances: Mapping[str, InstanceRule]
    program: Callable[[ast.Instantiation], Program]
    """Lowers the package's blocks in order and gathers the program. AbortError after a reported problem."""
    check_assignment: Callable[[int, ast.Expr, ast.Expr], None]
    """Refuses an assignment (offset, target, value) that would have no effect here; AbortError after a report."""
