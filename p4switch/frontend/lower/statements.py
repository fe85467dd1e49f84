"""Lowering of statements."""

from __future__ import annotations

from collections.abc import Callable

from p4switch.frontend import ast
from p4switch.frontend.lower.base import BIT32, Instance
from p4switch.frontend.lower.calls import LoopFrame
from p4switch.frontend.lower.expressions import negate
from p4switch.frontend.lower.externs import ExternLowering
from p4switch.frontend.types import TTable
from p4switch.ir import expr as ir
from p4switch.ir import types as irt
from p4switch.ir.expr import BinaryOp
from p4switch.ir.stmt import Assign, If, Labelled, Leave, Loop, Stmt, Switch, SwitchCase

MAX_UNROLLED = 4096


class StatementLowering(ExternLowering):
    """Statements of controls, actions, functions and parser states."""

    def statements(self, body: list[ast.Statement]) -> None:
        for s in body:
            self.statement(s)

    def statement(self, s: ast.Statement) -> None:
        """Lower one statement."""
        if isinstance(s, ast.Block):
            self.statements(s.body)
        elif isinstance(s, ast.Assignment):
            self.architecture.check_assignment(s)
            if s.op:
                self.assign_operated(s.target, s.value)
            else:
                self.assign(s.target, s.value)
        elif isinstance(s, ast.CallStatement):
            self.call(s.call)
        elif isinstance(s, ast.DeclStatement):
            self._declaration(s.decl)
        elif isinstance(s, ast.Conditional):
            self._conditional(s)
        elif isinstance(s, ast.Switch):
            self._switch(s)
        elif isinstance(s, ast.Return):
            self._return(s)
        elif isinstance(s, ast.Exit):
            self.leave_block()
        elif isinstance(s, ast.Break):
            self.emit(Leave(self.loops[-1].leave))
        elif isinstance(s, ast.Continue):
            self.emit(Leave(self.loops[-1].following))
        elif isinstance(s, ast.For):
            self._for(s)
        elif isinstance(s, ast.ForIn):
            self._for_in(s)

    def _declaration(self, decl: ast.Declaration) -> None:
        if isinstance(decl, ast.VariableDecl):
            self.env.bind(decl, self.new_variable(decl.name, self.type(self.concrete(decl.type), decl.at)))
            self.initialise(decl)

    def _conditional(self, s: ast.Conditional) -> None:
        known = self.known(s.condition)
        if isinstance(known, bool):
            taken = s.then if known else s.otherwise
            if taken is not None:
                self.statement(taken)
            return
        condition = self.expr(s.condition)
        with self.body() as then:
            self.statement(s.then)
        with self.body() as otherwise:
            if s.otherwise is not None:
                self.statement(s.otherwise)
        self.emit(If(condition, tuple(then), tuple(otherwise)))

    def _return(self, s: ast.Return) -> None:
        if not self.frames:
            self.emit(Leave(self.block_label))
            return
        frame = self.frames[-1]
        if s.value is not None:
            assert frame.result is not None
            self.emit(Assign(frame.result, self.expr(s.value)))
        self.emit(Leave(frame.label))

    # ---------------------------------------------------------------- switch

    def _switch(self, s: ast.Switch) -> None:
        selector: ir.Expr
        if isinstance(s.selector.type, TTable):
            selector, number = self._action_selector(s)
        else:
            selector, number = self._value_selector(s)

        cases: list[SwitchCase] = []
        default: list[Stmt] = []
        waiting: list[int] = []
        for case in s.cases:
            if case.label is not None:
                waiting.append(number(case.label))
            if case.body is None:
                continue
            with self.body() as body:
                self.statement(case.body)
            if case.label is None:
                default = body
            else:
                cases.append(SwitchCase(tuple(waiting), tuple(body)))
            waiting = []
        self.emit(Switch(selector, tuple(cases), tuple(default)))

    def _value_selector(self, s: ast.Switch) -> tuple[ir.Expr, Callable[[ast.Expr], int]]:
        """A value, and the numbers of its labels."""
        t = s.selector.type

        def number(label: ast.Expr) -> int:
            return self.constant(self.known(label), self.concrete(t), label.at).value

        return self.expr_of_width(s.selector), number

    def _action_selector(self, s: ast.Switch) -> tuple[ir.VarRef, Callable[[ast.Expr], int]]:
        """table.apply().action_run as a number, and how its labels count."""
        selector = s.selector
        if not isinstance(selector, ast.Member) or not isinstance(selector.base, ast.Call):
            raise self.unsupported(s.selector.at, "a table's result kept in a variable")
        variable = self.new_variable("action_run", BIT32)
        self.apply_table(selector.base, None, variable.name)
        assert isinstance(selector.base.target.receiver, ast.Name | ast.Member)
        instance = self.instance_of(selector.base.target.receiver)
        assert isinstance(instance, Instance)
        listed = [a.action for a in self.tables[instance.index].actions]

        def number(label: ast.Expr) -> int:
            assert isinstance(label, ast.Name)
            return listed.index(self.action_index(label.decl))

        return variable, number

    # ---------------------------------------------------------------- loops

    def _for(self, s: ast.For) -> None:
        for init in s.init:
            self.statement(init)
        frame = LoopFrame(self.fresh_name("loop"), self.fresh_name("next"))
        with self.body() as body:
            condition = self.expr(s.condition)
            self.emit(If(negate(condition), (Leave(frame.leave),), ()))
            self._loop_body(frame, s.body)
            for update in s.update:
                self.statement(update)
        self.emit(Loop(frame.leave, tuple(body)))

    def _loop_body(self, frame: LoopFrame, body: ast.Statement) -> None:
        self.loops.append(frame)
        with self.body() as inner:
            self.statement(body)
        self.loops.pop()
        self.emit(Labelled(frame.following, tuple(inner)))

    def _for_in(self, s: ast.ForIn) -> None:
        variable = self.new_variable(s.decl.name, self.type(self.concrete(s.decl.type), s.decl.at))
        self.env.bind(s.decl, variable)
        if isinstance(s.collection, ast.Range):
            self._for_range(s, variable, s.collection)
            return
        frame_label = self.fresh_name("loop")
        with self.body() as body:
            if isinstance(s.collection, ast.ListExpr):
                if len(s.collection.items) > MAX_UNROLLED:
                    raise self.unsupported(s.at, f"a loop over more than {MAX_UNROLLED} items")
                values: list[ir.Expr] = [self.expr(item) for item in s.collection.items]
            else:
                stack = self.place(s.collection)
                t = stack.type
                if not isinstance(t, irt.StackType):
                    raise self.unsupported(s.collection.at, f"a loop over {t}")
                values = [ir.Element(stack, ir.Const(i, BIT32), t.element) for i in range(t.size)]
            for value in values:
                frame = LoopFrame(frame_label, self.fresh_name("next"))
                self.emit(Assign(variable, value))
                self._loop_body(frame, s.body)
        self.emit(Labelled(frame_label, tuple(body)))

    def _for_range(self, s: ast.ForIn, variable: ir.VarRef, collection: ast.Range) -> None:
        """From low to high, both inclusive; compares before the step, so the high end may be the type's last."""
        low, high = self.expr(collection.left), self.save(self.expr(collection.right), "last")
        counter = self.new_variable("counter", variable.type)
        self.emit(Assign(counter, low))
        frame = LoopFrame(self.fresh_name("loop"), self.fresh_name("next"))
        with self.body() as body:
            self.emit(Assign(variable, counter))
            self._loop_body(frame, s.body)
            at_end = ir.Binary(BinaryOp.GE, counter, high, irt.Bool())
            self.emit(If(at_end, (Leave(frame.leave),), ()))
            one = ir.Const(1, variable.type)
            self.emit(Assign(counter, ir.Binary(BinaryOp.ADD, counter, one, variable.type)))
        guard = ir.Binary(BinaryOp.LE, counter, high, irt.Bool())
        self.emit(If(guard, (Loop(frame.leave, tuple(body)),), ()))
