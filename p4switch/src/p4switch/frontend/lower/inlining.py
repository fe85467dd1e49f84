"""Calls of functions, actions and controls inlined with explicit copy-in and copy-out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from p4switch.frontend import ast
from p4switch.frontend.callee import Callee
from p4switch.frontend.facts import Facts
from p4switch.frontend.lower.aggregates import clear, fill, invalidate, store
from p4switch.frontend.lower.bindings import CopyOut, Env, Frame, Known
from p4switch.frontend.lower.ir_helpers import is_scalar
from p4switch.frontend.lower.known_values import known_value
from p4switch.frontend.lower.lowering import TRUE, Lowering
from p4switch.frontend.lower.named_objects import action_index
from p4switch.frontend.lower.places import lower_place
from p4switch.frontend.lower.types_to_ir import ir_type
from p4switch.frontend.p4_types import BOOL, TBits, TEnum, TNew, Type
from p4switch.ir import expr as ir
from p4switch.ir import types as irt
from p4switch.ir.stmt import Assign, AssignSlice, If, Labelled, Leave

MAX_INLINE_DEPTH = 64


def inner_env(low: Lowering, parent: Env, callee: Callee) -> Env:
    """An environment for the body of a callee, with its type arguments."""
    types = {v: low.concrete(t) for v, t in callee.bindings.items()}
    return Env(parent, types)


def inline_function(low: Lowering, callee: Callee, e: ast.Call) -> ir.Expr | None:
    decl = callee.decl
    env = inner_env(low, low.globals, callee)
    frame = Frame(low.fresh_name(decl.name))
    with low.within(env):
        returned = low.concrete(low.facts.returns[decl])
        if str(returned) != "void":
            frame.result = low.new_variable(f"{decl.name}_result", ir_type(low, returned, e.at))
    bind_arguments(low, env, callee, frame, isolate=overlapping(low, callee))
    inline_body(low, env, frame, decl.body)
    return frame.result


def inline_action(low: Lowering, callee: Callee) -> None:
    decl = callee.decl
    scalar = all(p.direction or _is_scalar_type(low.concrete(low.types[p])) for p in decl.parameters)
    if scalar and not any(f.is_action for f in low.frames):
        action_index(low, decl)  # p4c lists actions that a control only calls, too
    env = Env(low.env)
    frame = Frame(low.fresh_name(decl.name), is_action=True)
    bind_arguments(low, env, callee, frame, isolate=True)
    inline_body(low, env, frame, decl.body)


def _is_scalar_type(t: Type) -> bool:
    return t == BOOL or isinstance(t, TBits | TEnum | TNew)


def inline_body(low: Lowering, env: Env, frame: Frame, block: ast.Block) -> None:
    """The body of a call in its environment, then copy-out, then any exit that happened inside."""
    loops, low.loops = low.loops, []
    low.frames.append(frame)
    with low.body() as statements, low.within(env):
        low.statements(block.body)
    low.emit(Labelled(frame.label, tuple(statements)))
    low.loops = loops
    low.frames.pop()
    finish(low, frame)


def finish(low: Lowering, frame: Frame) -> None:
    """Copy-outs of a frame that has been left."""
    for c in frame.copy_outs:
        if c.bounds is not None:
            low.emit(AssignSlice(c.target, c.bounds[0], c.bounds[1], c.source))
        else:
            store(low, c.target, c.source)
    if frame.exited:
        with low.body() as statements:
            leave_block(low)
        assert low.exit_flag is not None
        low.emit(If(low.exit_flag, tuple(statements), ()))


def leave_block(low: Lowering) -> None:
    """Lower `exit`: straight out, or from copy-out to copy-out."""
    for frame in reversed(low.frames):
        if frame.copy_outs:
            if low.exit_flag is None:
                low.exit_flag = low.new_variable("exited", irt.Bool())
            low.emit(Assign(low.exit_flag, TRUE))
            frame.exited = True
            low.emit(Leave(frame.label))
            return
    low.emit(Leave(low.block_label))


# ---------------------------------------------------------------- arguments


def overlapping(low: Lowering, callee: Callee) -> bool:
    """Whether an argument that the callee writes may share storage with another argument."""
    written: list[ast.Expr] = []
    others: list[ast.Expr] = []
    for p, a in callee.arguments:
        if a is None:
            continue
        if p.direction in ("out", "inout"):
            written.append(a)
        elif low.values.get(a) is None:  # a constant has no storage
            others.append(a)
    for i, w in enumerate(written):
        for other in written[i + 1 :] + others:
            if may_overlap(low.facts, w, other):
                return True
    return False


def bind_arguments(low: Lowering, env: Env, callee: Callee, frame: Frame, isolate: bool) -> None:
    """Evaluate arguments here and bind the parameters in `env`.

    isolate: writes must not be seen through other names before the call ends, so they go to variables first.
    """
    for p, argument in callee.arguments:
        with low.within(env):
            declared = low.concrete(low.types[p])
        if p.direction in ("out", "inout"):
            _bind_written(low, env, p, argument, frame, isolate)
        elif argument is None:
            raise low.unsupported(p.at, f"an argument left out for '{p.name}'")
        else:
            _bind_read(low, env, p, argument, declared, isolate)


def _bind_read(low: Lowering, env: Env, p: ast.Parameter, argument: ast.Expr, declared: Any, isolate: bool) -> None:
    instance = low.instance_of(argument)
    if instance is not None:
        env.bind(p, instance)
        return
    known = known_value(low, argument)
    if known is not None and not isinstance(known, tuple):
        env.bind(p, Known(known, declared))
        return
    value = low.expr(argument)
    if is_scalar(value.type) or isolate or not isinstance(value, ir.VarRef | ir.Member | ir.Element):
        variable = low.new_variable(p.name, value.type)
        low.emit(Assign(variable, value))
        env.bind(p, variable)
    else:
        env.bind(p, value)


def _bind_written(
    low: Lowering, env: Env, p: ast.Parameter, argument: ast.Expr | None, frame: Frame, isolate: bool
) -> None:
    with low.within(env):
        t = ir_type(low, low.concrete(low.types[p]), p.at)
    if argument is None:
        variable = low.new_variable(p.name, t)
        clear(low, variable)
        env.bind(p, variable)
        return
    bounds = None
    if isinstance(argument, ast.Slice):
        bounds = low.facts.bounds.get(argument)
        if bounds is None or isinstance(argument.base, ast.Slice):
            raise low.unsupported(argument.at, "this slice as an argument that is written")
        target = lower_place(low, argument.base)
        value: ir.Expr = ir.Slice(target, bounds[0], bounds[1], t)
    else:
        target = lower_place(low, argument)
        value = target
    if bounds is None and not isolate:
        env.bind(p, target)
        if p.direction == "out":
            invalidate(low, target)
        return
    variable = low.new_variable(p.name, t)
    if p.direction == "inout":
        low.emit(Assign(variable, value))
    else:
        invalidate(low, variable)
    env.bind(p, variable)
    frame.copy_outs.append(CopyOut(target, variable, bounds))


def initialise_locals(low: Lowering, decl: ast.ControlDecl | ast.ParserDecl) -> None:
    """Run the initialisers of local variables."""
    for local in decl.locals:
        if isinstance(local, ast.VariableDecl):
            initialise(low, local)


def initialise(low: Lowering, decl: ast.VariableDecl) -> None:
    """Initialiser of one variable; headers without one start invalid."""
    place = low.env.find(decl)
    assert isinstance(place, ir.VarRef)
    if decl.init is None:
        invalidate(low, place)
        return
    init = low.checked_form(decl.init)
    if isinstance(init, ast.InvalidExpr):
        invalidate(low, place)
    elif isinstance(init, ast.ListExpr | ast.StructExpr | ast.DotsExpr):
        fill(low, place, init)
    else:
        store(low, place, low.expr(init))


def actual_callee(callee: Callee, decl: ast.ParserDecl | ast.ControlDecl) -> Callee:
    """The call with the parameters of the instance's own declaration (it may have been passed as its type)."""
    if callee.decl is decl:
        return callee
    arguments = [(p, a) for p, (_, a) in zip(decl.parameters, callee.arguments, strict=True)]
    return replace(callee, decl=decl, arguments=arguments)


def root_and_path(facts: Facts, e: ast.Expr) -> tuple[object, tuple[str, ...]] | None:
    """The declaration and field path of a place; '*' for an index not known. None: not a place."""
    path: list[str] = []
    while True:
        if isinstance(e, ast.Name):
            return facts.decls.get(e), tuple(reversed(path))
        if isinstance(e, ast.Member):
            path.append("*" if e.name in ("next", "last") else e.name)
            e = e.base
        elif isinstance(e, ast.Index):
            path.append(str(facts.values.get(e.index, "*")))
            e = e.base
        elif isinstance(e, ast.Slice):
            e = e.base
        else:
            return None


def may_overlap(facts: Facts, a: ast.Expr, b: ast.Expr) -> bool:
    """Whether two arguments may share storage; expressions that are no places are saved before the call anyway."""
    left, right = root_and_path(facts, a), root_and_path(facts, b)
    if left is None or right is None:
        return False
    if left[0] is not right[0]:
        return False
    return all(x == y or "*" in (x, y) for x, y in zip(left[1], right[1], strict=False))
