"""Calls, by kind of callee."""

from __future__ import annotations

from p4switch.frontend import ast
from p4switch.frontend.callee import Callee
from p4switch.frontend.lower.aggregates import invalidate, invalidate_siblings
from p4switch.frontend.lower.bindings import Env, Frame, Instance
from p4switch.frontend.lower.extern_calls import extern_call
from p4switch.frontend.lower.inlining import (
    MAX_INLINE_DEPTH,
    actual_callee,
    bind_arguments,
    finish,
    initialise_locals,
    inline_action,
    inline_function,
    overlapping,
)
from p4switch.frontend.lower.instances import make_block
from p4switch.frontend.lower.known_values import known_int
from p4switch.frontend.lower.lowering import Lowering
from p4switch.frontend.lower.places import lower_place
from p4switch.frontend.lower.table_calls import apply_table
from p4switch.ir import expr as ir
from p4switch.ir import types as irt
from p4switch.ir.stmt import Labelled, SetValidity, ShiftStack


def call_value(low: Lowering, e: ast.Call) -> ir.Expr:
    result = lower_call(low, e)
    if result is None:
        raise low.reporter.fail(e.at, "this call gives no value")
    return result


def lower_call(low: Lowering, e: ast.Call) -> ir.Expr | None:
    """Lower a call; gives its value, if any."""
    callee = low.facts.callees[e]
    if len(low.frames) > MAX_INLINE_DEPTH:
        raise low.unsupported(e.at, f"calls nested deeper than {MAX_INLINE_DEPTH}")
    if callee.kind == "builtin":
        return _builtin(low, e, callee)
    if callee.kind == "table":
        apply_table(low, e, None, None)
        return None
    if callee.kind == "action":
        inline_action(low, callee)
        return None
    if callee.kind == "function" and callee.decl.body is not None:
        return inline_function(low, callee, e)
    if callee.kind in ("apply", "direct"):
        apply_block(low, e, callee)
        return None
    return extern_call(low, e, callee)


def _builtin(low: Lowering, e: ast.Call, callee: Callee) -> ir.Expr | None:
    assert callee.receiver is not None
    if callee.name in ("isValid", "setValid", "setInvalid", "push_front", "pop_front"):
        place = lower_place(low, callee.receiver)
        if callee.name == "isValid":
            return ir.IsValid(place)
        if callee.name in ("push_front", "pop_front"):
            argument = e.arguments[0].expr
            assert argument is not None
            count = known_int(low, low.checked_form(argument), "the count")
            _shift(low, place, count if callee.name == "push_front" else -count)
            return None
        if callee.name == "setInvalid":
            invalidate(low, place)
        else:
            invalidate_siblings(low, place)
            low.emit(SetValidity(place, True))
        return None
    raise low.unsupported(e.at, f"{callee.name} of a type that is not known yet")


def _shift(low: Lowering, stack: ir.LValue, count: int) -> None:
    t = stack.type
    assert isinstance(t, irt.StackType)
    count = max(-t.size, min(t.size, count))
    if count:
        low.emit(ShiftStack(stack, count))


# ---------------------------------------------------------------- controls


def apply_block(low: Lowering, e: ast.Call, callee: Callee) -> None:
    """Inline the body of a control."""
    instance = block_instance(low, e, callee)
    decl = instance.decl
    if not isinstance(decl, ast.ControlDecl):
        raise low.unsupported(e.at, "a parser applied inside a branch")
    assert instance.env is not None
    assert decl.body is not None
    callee = actual_callee(callee, decl)
    env = Env(instance.env, {v: low.concrete(t) for v, t in callee.bindings.items()})
    frame = Frame(low.fresh_name(f"{instance.name}_end"))
    bind_arguments(low, env, callee, frame, isolate=overlapping(low, callee))
    with low.body() as statements, low.within(env):
        low.frames.append(frame)
        initialise_locals(low, decl)
        low.statements(decl.body.body)
        low.frames.pop()
    low.emit(Labelled(frame.label, tuple(statements)))
    finish(low, frame)


def block_instance(low: Lowering, e: ast.Call, callee: Callee) -> Instance:
    """The instance that apply is called on; `Type.apply` makes one."""
    if callee.kind == "direct":
        key = e
        found = low.env.find(key)
        if isinstance(found, Instance):
            return found
        name = f"{low.env.prefix}.{callee.decl.name}" if low.env.prefix else callee.decl.name
        fresh = Callee("constructor", callee.decl.name, callee.decl, block=callee.block, bindings=callee.bindings)
        instance = make_block(low, callee.decl, fresh, name)
        low.env.bind(key, instance)
        return instance
    assert callee.receiver is not None
    found_receiver = low.instance_of(callee.receiver)
    if found_receiver is None:
        raise low.unsupported(e.at, "apply of something that is not a named instance")
    return found_receiver
