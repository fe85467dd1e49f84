"""The IR's rules, checked after the lowering: a broken rule is a bug of the compiler, found here, not in C."""

from __future__ import annotations

from collections.abc import Iterable

from p4switch.ir import expr as ir
from p4switch.ir import stmt as s
from p4switch.ir import types as irt
from p4switch.ir.expr import BinaryOp, UnaryOp
from p4switch.ir.program import ACCEPT, REJECT, Block, MatchOp, Parser, Program, Table, Variable
from p4switch.recursion import deep_recursion

_SAME_TYPE = frozenset(BinaryOp) - {BinaryOp.CONCAT, BinaryOp.SHL, BinaryOp.SHR, BinaryOp.LAND, BinaryOp.LOR}
_VALUES = (
    "value",
    "index",
    "pre_color",
    "base",
    "max",
    "low",
    "high",
    "session",
    "length",
    "bits",
    "expected",
    "error",
)
"""Fields of statements that hold a scalar."""

_PARSER_ONLY = (s.Extract, s.Lookahead, s.Advance, s.ParserCheck)


class VerifyError(AssertionError):
    """The IR breaks one of its rules."""


class Verifier:
    """Checks one program; `where` names the block at hand in messages."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.thread = program.threads[0]
        self.where = ""
        self.variables: dict[str, irt.Type] = {}
        self.labels: list[str] = []
        self.in_parser = False

    def fail(self, message: str) -> VerifyError:
        """The exception to raise."""
        return VerifyError(f"{self.program.source}: in {self.where}: {message}")

    def require(self, condition: bool, message: str) -> None:
        """Raise unless the rule holds."""
        if not condition:
            raise self.fail(message)

    # ---------------------------------------------------------------- program

    def check(self) -> None:
        """Every rule of the program."""
        self.where = "tables"
        for t in self.program.tables:
            self._table(t)
        for thread in self.program.threads:
            self.thread = thread
            self._parser(thread.parser)
            for block in thread.blocks():
                self._block(block)
        self.where = "field lists"
        self.thread = self.program.threads[0]
        self._scope(())
        for fields in self.program.field_lists:
            for e in fields.fields:
                self.expr(e)

    def _table(self, t: Table) -> None:
        self.require(self.program.tables[t.index] is t, f"table {t.name} has the wrong index")
        listed = [a.action for a in t.actions]
        self.require(len(set(listed)) == len(listed), f"table {t.name} lists an action twice")
        self.require(t.default_action.action in listed, f"the default action of table {t.name} is not in its list")
        for entry in t.entries:
            self.require(entry.call.action in listed, f"an entry of table {t.name} has an action not in its list")
            self.require(len(entry.keys) == len(t.keys), f"an entry of table {t.name} has {len(entry.keys)} keys")
        for call in (t.default_action, *(e.call for e in t.entries)):
            action = self.program.actions[call.action]
            self.require(len(call.arguments) <= len(action.parameters), f"too many arguments for action {action.name}")
            for value, p in zip(call.arguments, action.parameters, strict=False):
                self.require(0 <= value < 1 << irt.width_of(p.type), f"argument {p.name} of {action.name} out of range")
        if t.direct_counter is not None:
            counter = self.program.counters[t.direct_counter]
            self.require(counter.direct and counter.table == t.index, f"counter {counter.name} is not table {t.name}'s")

    def _scope(self, variables: Iterable[Variable]) -> None:
        self.variables = {v.name: v.type for v in self.thread.variables()}
        for v in variables:
            self.require(v.name not in self.variables, f"variable {v.name} is declared twice")
            self.variables[v.name] = v.type
        self.labels = []

    def _block(self, block: Block) -> None:
        self.where = block.name
        self.in_parser = False
        self._scope(block.variables)
        self.body(block.body)

    def _parser(self, parser: Parser) -> None:
        self.where = parser.name
        self.in_parser = True
        self._scope(parser.variables)
        names = [state.name for state in parser.states]
        self.require(len(names) > 0 and len(set(names)) == len(names), "states are missing or have one name twice")
        known = {*names, ACCEPT, REJECT}
        for state in parser.states:
            self.body(state.body)
            for key in state.transition.keys:
                self.expr(key)
            for case in state.transition.cases:
                self.require(case.state in known, f"transition to unknown state {case.state}")
                single = len(case.matches) == 1 and case.matches[0].op is MatchOp.VALUE_SET
                self.require(
                    single or len(case.matches) == len(state.transition.keys),
                    f"a case of state {state.name} has {len(case.matches)} matches",
                )

    # ---------------------------------------------------------------- statements

    def body(self, body: s.Body) -> None:
        """Statements in order."""
        for statement in body:
            self.statement(statement)

    def statement(self, st: s.Stmt) -> None:
        """One statement."""
        if isinstance(st, _PARSER_ONLY):
            self.require(self.in_parser, f"{type(st).__name__} outside of the parser")
        if isinstance(st, s.Assign):
            self.lvalue(st.target)
            self.expr(st.value)
            self.require(st.target.type == st.value.type, f"assignment of {st.value.type} to {st.target.type}")
        elif isinstance(st, s.AssignSlice):
            self._assign_slice(st)
        elif isinstance(st, s.If):
            self.boolean(st.condition)
            self.body(st.then)
            self.body(st.otherwise)
        elif isinstance(st, s.Switch):
            self._switch(st)
        elif isinstance(st, s.RegisterAccess):
            self.body(st.body)
        elif isinstance(st, s.Labelled | s.Loop):
            self.labels.append(st.label)
            self.body(st.body)
            self.labels.pop()
        elif isinstance(st, s.Leave):
            self.require(st.label in self.labels, f"leaves {st.label}, which is not around it")
        elif isinstance(st, s.ApplyTable):
            self._apply(st)
        else:
            self._leaf(st)

    def _assign_slice(self, st: s.AssignSlice) -> None:
        self.lvalue(st.target)
        self.expr(st.value)
        width = irt.width_of(st.target.type)
        self.require(0 <= st.low <= st.high < width, f"slice [{st.high}:{st.low}] of {st.target.type}")
        self.require(irt.width_of(st.value.type) == st.high - st.low + 1, f"slice assigned from {st.value.type}")

    def _switch(self, st: s.Switch) -> None:
        self.scalar(st.selector)
        seen: set[int] = set()
        for case in st.cases:
            self.require(bool(case.values) and not seen & set(case.values), "a switch with an empty or repeated label")
            seen |= set(case.values)
            self.body(case.body)
        self.body(st.default)

    def _apply(self, st: s.ApplyTable) -> None:
        table = self.program.tables[st.table]
        types = [*(k.type for k in table.keys), *table.selector_inputs]
        self.require(len(types) == len(st.keys), f"table {table.name} applied with {len(st.keys)} keys")
        for key, t in zip(st.keys, types, strict=True):
            self.scalar(key)
            self.require(key.type == t, f"key of table {table.name} is {key.type}, not {t}")
        self.require([a.action for a in st.arms] == [a.action for a in table.actions], f"arms of table {table.name}")
        for arm in st.arms:
            parameters = self.program.actions[arm.action].parameters
            self.require(len(arm.parameters) == len(parameters), "an arm's parameters do not fit its action")
            for name, p in zip(arm.parameters, parameters, strict=True):
                self.require(self.variables.get(name) == p.type, f"parameter variable {name} is not {p.type}")
            self.body(arm.body)
        if st.hit is not None:
            self.require(self.variables.get(st.hit) == irt.Bool(), f"hit variable {st.hit} is no bool")

    def _leaf(self, st: s.Stmt) -> None:
        """Statements without inner bodies: their places and values."""
        for name in ("target", "header", "stack", "metadata"):
            place = getattr(st, name, None)
            if place is not None:
                self.lvalue(place)
        for name in _VALUES:
            value = getattr(st, name, None)
            if value is not None and not isinstance(value, int):
                self.scalar(value)
        condition = getattr(st, "condition", None)
        if condition is not None:
            self.boolean(condition)
        for name in ("fields", "values"):
            for e in getattr(st, name, ()):
                self.expr(e)
        if isinstance(st, s.Extract | s.Emit | s.SetValidity):
            self.require(isinstance(st.header.type, irt.HeaderType), f"{type(st).__name__} of {st.header.type}")
        if isinstance(st, s.SetNextIndex | s.ShiftStack):
            self.require(isinstance(st.stack.type, irt.StackType), f"{type(st).__name__} of {st.stack.type}")
        if isinstance(st, s.RegisterRead):
            element = self.program.registers[st.register].element
            self.require(st.target.type == element, f"register of {element} read into {st.target.type}")
        if isinstance(st, s.RegisterWrite):
            element = self.program.registers[st.register].element
            self.require(st.value.type == element, f"register of {element} written with {st.value.type}")
        if isinstance(st, s.SendDigest):
            digest = self.program.digests[st.digest]
            self.require(
                [f.type for f in digest.fields] == [v.type for v in st.values], f"values of digest {digest.name}"
            )

    # ---------------------------------------------------------------- expressions

    def lvalue(self, e: ir.LValue) -> None:
        """A place: variables known, fields and elements of the right types."""
        if isinstance(e, ir.VarRef):
            self.require(e.name in self.variables, f"variable {e.name} is not declared")
            self.require(self.variables[e.name] == e.type, f"variable {e.name} used as {e.type}")
            return
        self.require(isinstance(e, ir.Member | ir.Element), f"{type(e).__name__} is no place")
        self.lvalue(e.base)
        t = e.base.type
        if isinstance(e, ir.Element):
            self.scalar(e.index)
            self.require(isinstance(t, irt.StackType) and t.element == e.type, f"element of {t} used as {e.type}")
            return
        good = isinstance(t, irt.StructType | irt.HeaderType | irt.UnionType) and t.field(e.field).type == e.type
        self.require(good, f"field {e.field} of {t} used as {e.type}")

    def scalar(self, e: ir.Expr) -> None:
        """An expression with a scalar type."""
        self.expr(e)
        self.require(isinstance(e.type, irt.Bits | irt.Bool | irt.EnumType), f"scalar expected, found {e.type}")

    def boolean(self, e: ir.Expr) -> None:
        """A truth value."""
        self.expr(e)
        self.require(e.type == irt.Bool(), f"truth value expected, found {e.type}")

    def expr(self, e: ir.Expr) -> None:
        """Any expression."""
        if isinstance(e, ir.Const):
            self.require(0 <= e.value < 1 << max(1, irt.width_of(e.type)), f"constant {e.value} does not fit {e.type}")
        elif isinstance(e, ir.VarRef | ir.Member | ir.Element):
            self.lvalue(e)
        elif isinstance(e, ir.IsValid):
            self.lvalue(e.header)
        elif isinstance(e, ir.NextIndex):
            self.lvalue(e.stack)
        elif isinstance(e, ir.VarbitLength):
            self.lvalue(e.operand)
        elif isinstance(e, ir.Unary):
            self.scalar(e.operand)
            self.require(e.operand.type == e.type, f"'{e.op.value}' of {e.operand.type} gives {e.type}")
            self.require((e.op is UnaryOp.NOT) == (e.type == irt.Bool()), f"'{e.op.value}' of {e.type}")
        elif isinstance(e, ir.Binary):
            self._binary(e)
        elif isinstance(e, ir.Slice):
            self.scalar(e.operand)
            inside = 0 <= e.low <= e.high < irt.width_of(e.operand.type)
            self.require(inside and irt.width_of(e.type) == e.high - e.low + 1, f"slice [{e.high}:{e.low}] as {e.type}")
        elif isinstance(e, ir.Cast):
            self.scalar(e.operand)
        elif isinstance(e, ir.Mux):
            self.boolean(e.condition)
            self.scalar(e.yes)
            self.scalar(e.no)
            self.require(e.yes.type == e.type == e.no.type, f"choice of {e.yes.type} and {e.no.type} as {e.type}")

    def _binary(self, e: ir.Binary) -> None:
        self.expr(e.left)
        self.expr(e.right)
        left, right = e.left.type, e.right.type
        if e.op in _SAME_TYPE:
            self.require(left == right, f"'{e.op.value}' of {left} and {right}")
        if e.op in ir.COMPARISONS or e.op in (BinaryOp.LAND, BinaryOp.LOR):
            self.require(e.type == irt.Bool(), f"'{e.op.value}' gives {e.type}")
        elif e.op is BinaryOp.CONCAT:
            self.require(irt.width_of(e.type) == irt.width_of(left) + irt.width_of(right), f"'++' gives {e.type}")
        else:
            self.require(e.type == left, f"'{e.op.value}' of {left} gives {e.type}")


@deep_recursion()
def verify(program: Program) -> None:
    """Check every rule. VerifyError names the block and what is wrong."""
    Verifier(program).check()
