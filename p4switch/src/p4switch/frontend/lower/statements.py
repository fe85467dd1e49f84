"""Statements of controls, actions, functions and parser states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from p4switch.errors import InternalError
from p4switch.frontend import ast
from p4switch.frontend.lower.assignments import assign, assign_operated
from p4switch.frontend.lower.bindings import Instance, LoopFrame
from p4switch.frontend.lower.calls import lower_call
from p4switch.frontend.lower.inlining import initialise, leave_block
from p4switch.frontend.lower.ir_helpers import negate
from p4switch.frontend.lower.known_values import known_value
from p4switch.frontend.lower.lowering import BIT32, Lowering
from p4switch.frontend.lower.named_objects import action_index
from p4switch.frontend.lower.places import expr_of_width, lower_place
from p4switch.frontend.lower.table_calls import apply_table
from p4switch.frontend.lower.types_to_ir import ir_constant, ir_type
from p4switch.frontend.p4_types import TTable
from p4switch.ir import expr as ir
from p4switch.ir import types as irt
from p4switch.ir.expr import BinaryOp
from p4switch.ir.stmt import Assign, If, Labelled, Leave, Loop, Stmt, Switch, SwitchCase

MAX_UNROLLED = 4096


def lower_statement(low: Lowering, s: ast.Statement) -> None:
    """Lower one statement."""
    rule = STATEMENTS.get(type(s))
    if rule is None:
        raise InternalError(f"no rule lowers {type(s).__name__} at {low.reporter.source.place(s.at)}")
    rule(low, s)


def lower_block(low: Lowering, s: ast.Block) -> None:
    """The statements of a block in order."""
    for statement in s.body:
        low.statement(statement)


def lower_assignment(low: Lowering, s: ast.Assignment) -> None:
    """`target = value`, or `target op= value`, whose value is `target op value`."""
    target, value = low.checked_form(s.target), low.checked_form(s.value)
    low.architecture.check_assignment(s.at, target, value)
    if s.op:
        assign_operated(low, target, value)
    else:
        assign(low, target, value)


def _lower_call_statement(low: Lowering, s: ast.CallStatement) -> None:
    call = low.checked_form(s.call)
    assert isinstance(call, ast.Call)
    lower_call(low, call)


def _lower_exit(low: Lowering, s: ast.Exit) -> None:
    leave_block(low)


def _lower_break(low: Lowering, s: ast.Break) -> None:
    low.emit(Leave(low.loops[-1].leave))


def _lower_continue(low: Lowering, s: ast.Continue) -> None:
    low.emit(Leave(low.loops[-1].following))


def _lower_empty(low: Lowering, s: ast.Empty) -> None:
    """Nothing."""


def lower_declaration(low: Lowering, s: ast.DeclStatement) -> None:
    """A variable; constants are known values."""
    decl = s.decl
    if isinstance(decl, ast.VariableDecl):
        low.env.bind(decl, low.new_variable(decl.name, ir_type(low, low.concrete(low.types[decl]), decl.at)))
        initialise(low, decl)


def lower_conditional(low: Lowering, s: ast.Conditional) -> None:
    condition = low.checked_form(s.condition)
    known = known_value(low, condition)
    if isinstance(known, bool):
        taken = s.then if known else s.otherwise
        if taken is not None:
            low.statement(taken)
        return
    test = low.expr(condition)
    with low.body() as then:
        low.statement(s.then)
    with low.body() as otherwise:
        if s.otherwise is not None:
            low.statement(s.otherwise)
    low.emit(If(test, tuple(then), tuple(otherwise)))


def lower_return(low: Lowering, s: ast.Return) -> None:
    if not low.frames:
        low.emit(Leave(low.block_label))
        return
    frame = low.frames[-1]
    if s.value is not None:
        assert frame.result is not None
        low.emit(Assign(frame.result, low.expr(low.checked_form(s.value))))
    low.emit(Leave(frame.label))


# ---------------------------------------------------------------- switch


def lower_switch(low: Lowering, s: ast.Switch) -> None:
    selector: ir.Expr
    written = low.checked_form(s.selector)
    if isinstance(low.types[written], TTable):
        selector, number = _action_selector(low, written)
    else:
        selector, number = _value_selector(low, written)

    cases: list[SwitchCase] = []
    default: list[Stmt] = []
    waiting: list[int] = []
    for case in s.cases:
        if case.label is not None:
            waiting.append(number(case.label))
        if case.body is None:
            continue
        with low.body() as body:
            low.statement(case.body)
        if case.label is None:
            default = body
        else:
            cases.append(SwitchCase(tuple(waiting), tuple(body)))
        waiting = []
    low.emit(Switch(selector, tuple(cases), tuple(default)))


def _value_selector(low: Lowering, selector: ast.Expr) -> tuple[ir.Expr, Callable[[ast.Expr], int]]:
    """A value, and the numbers of its labels."""
    t = low.types[selector]

    def number(label: ast.Expr) -> int:
        return ir_constant(low, known_value(low, low.checked_form(label)), low.concrete(t), label.at).value

    return expr_of_width(low, selector), number


def _action_selector(low: Lowering, selector: ast.Expr) -> tuple[ir.VarRef, Callable[[ast.Expr], int]]:
    """table.apply().action_run as a number, and how its labels count."""
    if not isinstance(selector, ast.Member) or not isinstance(selector.base, ast.Call):
        raise low.unsupported(selector.at, "a table's result kept in a variable")
    variable = low.new_variable("action_run", BIT32)
    apply_table(low, selector.base, None, variable.name)
    receiver = low.facts.callees[selector.base].receiver
    assert isinstance(receiver, ast.Name | ast.Member)
    instance = low.instance_of(receiver)
    assert isinstance(instance, Instance)
    listed = [a.action for a in low.tables[instance.index].actions]

    def number(label: ast.Expr) -> int:
        assert isinstance(label, ast.Name)
        return listed.index(action_index(low, low.facts.decls[label]))

    return variable, number


# ---------------------------------------------------------------- loops


def lower_for(low: Lowering, s: ast.For) -> None:
    for init in s.init:
        low.statement(init)
    frame = LoopFrame(low.fresh_name("loop"), low.fresh_name("next"))
    with low.body() as body:
        condition = low.expr(low.checked_form(s.condition))
        low.emit(If(negate(condition), (Leave(frame.leave),), ()))
        _loop_body(low, frame, s.body)
        for update in s.update:
            low.statement(update)
    low.emit(Loop(frame.leave, tuple(body)))


def _loop_body(low: Lowering, frame: LoopFrame, body: ast.Statement) -> None:
    low.loops.append(frame)
    with low.body() as inner:
        low.statement(body)
    low.loops.pop()
    low.emit(Labelled(frame.following, tuple(inner)))


def lower_for_in(low: Lowering, s: ast.ForIn) -> None:
    variable = low.new_variable(s.decl.name, ir_type(low, low.concrete(low.types[s.decl]), s.decl.at))
    low.env.bind(s.decl, variable)
    collection = low.checked_form(s.collection)
    if isinstance(collection, ast.Range):
        _for_range(low, s, variable, collection)
        return
    frame_label = low.fresh_name("loop")
    with low.body() as body:
        if isinstance(collection, ast.ListExpr):
            if len(collection.items) > MAX_UNROLLED:
                raise low.unsupported(s.at, f"a loop over more than {MAX_UNROLLED} items")
            values: list[ir.Expr] = [low.expr(item) for item in collection.items]
        else:
            stack = lower_place(low, collection)
            t = stack.type
            if not isinstance(t, irt.StackType):
                raise low.unsupported(collection.at, f"a loop over {t}")
            values = [ir.Element(stack, ir.Const(i, BIT32), t.element) for i in range(t.size)]
        for value in values:
            frame = LoopFrame(frame_label, low.fresh_name("next"))
            low.emit(Assign(variable, value))
            _loop_body(low, frame, s.body)
    low.emit(Labelled(frame_label, tuple(body)))


def _for_range(low: Lowering, s: ast.ForIn, variable: ir.VarRef, collection: ast.Range) -> None:
    """From low to high, both inclusive; compares before the step, so the high end may be the type's last."""
    first, last = low.expr(collection.left), low.save(low.expr(collection.right), "last")
    counter = low.new_variable("counter", variable.type)
    low.emit(Assign(counter, first))
    frame = LoopFrame(low.fresh_name("loop"), low.fresh_name("next"))
    with low.body() as body:
        low.emit(Assign(variable, counter))
        _loop_body(low, frame, s.body)
        at_end = ir.Binary(BinaryOp.GE, counter, last, irt.Bool())
        low.emit(If(at_end, (Leave(frame.leave),), ()))
        one = ir.Const(1, variable.type)
        low.emit(Assign(counter, ir.Binary(BinaryOp.ADD, counter, one, variable.type)))
    guard = ir.Binary(BinaryOp.LE, counter, last, irt.Bool())
    low.emit(If(guard, (Loop(frame.leave, tuple(body)),), ()))


STATEMENTS: dict[type[ast.Statement], Callable[[Lowering, Any], None]] = {
    ast.Block: lower_block,
    ast.Assignment: lower_assignment,
    ast.CallStatement: _lower_call_statement,
    ast.DeclStatement: lower_declaration,
    ast.Conditional: lower_conditional,
    ast.Switch: lower_switch,
    ast.Return: lower_return,
    ast.Exit: _lower_exit,
    ast.Break: _lower_break,
    ast.Continue: _lower_continue,
    ast.For: lower_for,
    ast.ForIn: lower_for_in,
    ast.Empty: _lower_empty,
}
"""What lowers each kind of statement."""
