"""What an architecture gives the compiler: its externs, and how its package's arguments make a program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from p4switch.frontend import ast
from p4switch.frontend.check_call import Callee
from p4switch.frontend.lower.base import Instance
from p4switch.frontend.types import EnumValue
from p4switch.ir import expr as ir
from p4switch.ir.program import Program
from p4switch.ir.stmt import HashAlgorithm

if TYPE_CHECKING:
    from p4switch.frontend.lower.program import ProgramLowering

FunctionRule: TypeAlias = Callable[[ast.Call, Callee], ir.Expr | None]
"""Lowers a call of an extern function: emits statements, gives the value if there is one."""

MethodRule: TypeAlias = Callable[[ast.Call, Callee, Instance], ir.Expr | None]
"""Lowers a call of a method of an extern instance."""

InstanceRule: TypeAlias = Callable[[ast.Declaration, Callee, str], Instance]
"""Makes an instance: its declaration (annotations, place), constructor and arguments, and its control-plane name."""


class Architecture(ABC):
    """One architecture during the lowering of one program.

    The language and core.p4 (packets, verify, tables, actions, parsers, controls) are the lowering's; everything that
    is declared `extern` elsewhere is looked up here by name. A name that is missing is a located diagnostic.
    """

    name: ClassVar[str]
    """As P4Info's pkg_info.arch has it; its declarations are `include/<name>.p4`."""

    package: ClassVar[str]
    """The package that `main` instantiates."""

    functions: Mapping[str, FunctionRule]
    methods: Mapping[tuple[str, str], MethodRule]
    instances: Mapping[str, InstanceRule]

    def __init__(self, low: ProgramLowering) -> None:
        self.low = low

    @abstractmethod
    def program(self, main: ast.Instantiation) -> Program:
        """Lower the package's blocks in order and gather the program. AbortError after a reported problem."""

    def check_assignment(self, statement: ast.Assignment) -> None:  # noqa: B027 most architectures take all of them
        """Refuse an assignment that would have no effect here; AbortError after a reported problem."""

    def member(self, e: ast.Expr) -> str:
        """Name of the member of an enumeration that an argument has at compile time."""
        value = self.low.known(e)
        if not isinstance(value, EnumValue):
            raise self.low.reporter.fail(e.at, "this must be known at compile time")
        return value.member

    def algorithm(self, e: ast.Expr) -> HashAlgorithm:
        """The hash algorithm that an argument names."""
        member = self.member(e)
        try:
            return HashAlgorithm(member)
        except ValueError as problem:
            raise self.low.unsupported(e.at, f"hash algorithm {member}") from problem
