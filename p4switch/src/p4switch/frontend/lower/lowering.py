"""The state of the lowering of one program: bindings, objects made so far, and the block under construction.

Expressions and statements contain each other, so their rules call each other through this: `Lowering.expr` and
`Lowering.statement` are the two ways back in, given by the code that assembles the lowering.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from p4switch.frontend import ast
from p4switch.frontend.checked_program import CheckedProgram
from p4switch.frontend.lower.architecture_rules import ArchitectureRules
from p4switch.frontend.lower.bindings import Env, Frame, Instance, LoopFrame
from p4switch.frontend.p4_types import Type, substitute
from p4switch.frontend.source import AbortError
from p4switch.ir import expr as ir
from p4switch.ir import types as irt
from p4switch.ir.program import (
    Action,
    ActionProfile,
    Counter,
    Digest,
    FieldList,
    Meter,
    ParserState,
    Register,
    Table,
    ValueSet,
    Variable,
)
from p4switch.ir.stmt import Assign, Location, Stmt

TRUE = ir.Const(1, irt.Bool())
BIT32 = irt.Bits(32)


@dataclass(frozen=True, slots=True)
class LanguageRules:
    """What lowers an expression, and what lowers a statement, whatever its kind."""

    expression: Callable[[Lowering, ast.Expr], ir.Expr]
    statement: Callable[[Lowering, ast.Statement], None]


class Lowering:
    """One program on its way to the IR."""

    architecture: ArchitectureRules
    """Chosen by the package of `main` before anything is made."""

    def __init__(self, checked: CheckedProgram, rules: LanguageRules) -> None:
        self.checked = checked
        self.reporter = checked.reporter
        self.facts = checked.facts
        self.types = checked.facts.types
        self.values = checked.facts.values
        self.rules = rules
        self.globals = Env(None)
        self.env = self.globals
        # of the program
        self.errors = irt.EnumType("error", checked.errors or ("NoError",))
        self.headers: dict[str, irt.HeaderType] = {}
        self.structs: dict[str, irt.StructType] = {}
        self.unions: dict[str, irt.UnionType] = {}
        self.tables: list[Table] = []
        self.actions: list[Action] = []
        self.profiles: list[ActionProfile] = []
        self.registers: list[Register] = []
        self.counters: list[Counter] = []
        self.meters: list[Meter] = []
        self.digests: list[Digest] = []
        self.value_sets: list[ValueSet] = []
        self.field_lists: list[FieldList] = []
        self._claimed: set[tuple[str, str]] = set()
        # of the block
        self.out: list[Stmt] = []
        self.variables: list[Variable] = []
        self.states: list[ParserState] = []
        self.used_names: set[str] = set()
        self.placed: dict[ast.Expr, ir.LValue] = {}
        """Expressions whose place is already worked out."""
        self.frames: list[Frame] = []
        self.loops: list[LoopFrame] = []
        self.block_label = "done"
        self.exit_flag: ir.VarRef | None = None

    # ---------------------------------------------------------------- the ways back in

    def expr(self, e: ast.Expr) -> ir.Expr:
        """Lower a value. Aggregates come back as places."""
        return self.rules.expression(self, e)

    def statement(self, s: ast.Statement) -> None:
        """Lower one statement."""
        self.rules.statement(self, s)

    def statements(self, body: Iterable[ast.Statement]) -> None:
        """Lower statements in order."""
        for s in body:
            self.statement(s)

    # ---------------------------------------------------------------- diagnostics

    def checked_form(self, e: ast.Expr) -> ast.Expr:
        """What an expression that stands in a statement or declaration means."""
        return self.facts.checked[e]

    def unsupported(self, at: int, what: str) -> AbortError:
        """Report a legal construct that is not supported, as an exception to raise."""
        return self.reporter.fail_unsupported(at, f"not supported: {what}")

    def location(self, at: int) -> Location:
        """An offset as a location for the IR."""
        return Location(*self.reporter.source.locate(at))

    def claim(self, kind: str, name: str, at: int) -> None:
        """Objects of one kind have different control-plane names; @name can make two alike."""
        if (kind, name) in self._claimed:
            raise self.reporter.fail(at, f"another {kind} has the control-plane name '{name}' already")
        self._claimed.add((kind, name))

    # ---------------------------------------------------------------- bindings

    def concrete(self, t: Type) -> Type:
        """The type with this environment's type arguments put in."""
        return substitute(t, self.env.types) if self.env.types else t

    def instance_of(self, e: ast.Expr) -> Instance | None:
        """The instance an argument names, or None."""
        if isinstance(e, ast.Name):
            found = self.env.find(self.facts.decls.get(e))
            return found if isinstance(found, Instance) else None
        return None

    @contextmanager
    def within(self, env: Env) -> Iterator[Env]:
        """Lower inside another environment."""
        outer = self.env
        self.env = env
        try:
            yield env
        finally:
            self.env = outer

    # ---------------------------------------------------------------- variables and statements

    def fresh_name(self, hint: str) -> str:
        """A name no other variable or label has."""
        name = hint
        count = 1
        while name in self.used_names:
            count += 1
            name = f"{hint}_{count}"
        self.used_names.add(name)
        return name

    def new_variable(self, hint: str, t: irt.Type) -> ir.VarRef:
        """A fresh variable of the current block."""
        name = self.fresh_name(hint)
        self.variables.append(Variable(name, t))
        return ir.VarRef(name, t)

    def emit(self, statement: Stmt) -> None:
        """Append a statement to the current body."""
        self.out.append(statement)

    @contextmanager
    def body(self) -> Iterator[list[Stmt]]:
        """Collect the statements emitted inside into a list of their own."""
        outer = self.out
        self.out = []
        try:
            yield self.out
        finally:
            self.out = outer

    def save(self, value: ir.Expr, hint: str = "tmp") -> ir.Expr:
        """The value in a variable of its own, unless it is constant."""
        if isinstance(value, ir.Const):
            return value
        variable = self.new_variable(hint, value.type)
        self.emit(Assign(variable, value))
        return variable
