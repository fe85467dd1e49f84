"""Tables applied: keys evaluated, the body of each action inlined."""

from __future__ import annotations

from p4switch.frontend import ast
from p4switch.frontend.callee import Callee
from p4switch.frontend.lower.bindings import Env, Frame
from p4switch.frontend.lower.inlining import bind_arguments, finish
from p4switch.frontend.lower.lowering import BIT32, Lowering
from p4switch.frontend.lower.named_objects import action_index
from p4switch.frontend.lower.operators import saved_before
from p4switch.frontend.lower.places import lower_place
from p4switch.frontend.lower.types_to_ir import ir_type
from p4switch.frontend.p4_types import TStack, TTable
from p4switch.ir import expr as ir
from p4switch.ir import types as irt
from p4switch.ir.expr import BinaryOp, UnaryOp
from p4switch.ir.stmt import ActionArm, ApplyTable, Labelled


def lower_member(low: Lowering, e: ast.Member) -> ir.Expr:
    if isinstance(low.types[e.base], TTable):
        return _table_result(low, e)
    if isinstance(low.types[e.base], TStack) and e.name == "lastIndex":
        stack = lower_place(low, e.base)
        return ir.Binary(BinaryOp.SUB, ir.NextIndex(stack), ir.Const(1, BIT32), BIT32)
    return lower_place(low, e)


def _table_result(low: Lowering, e: ast.Member) -> ir.Expr:
    if not isinstance(e.base, ast.Call):
        raise low.unsupported(e.at, "a table's result kept in a variable")
    hit = low.new_variable("hit", irt.Bool())
    apply_table(low, e.base, hit.name, None)
    return hit if e.name == "hit" else ir.Unary(UnaryOp.NOT, hit, irt.Bool())


def apply_table(low: Lowering, e: ast.Call, hit: str | None, action_run: str | None) -> None:
    callee = low.facts.callees[e]
    assert callee.receiver is not None
    instance = low.instance_of(callee.receiver)
    if instance is None or instance.kind != "table":
        raise low.unsupported(e.at, "a table that is not declared in this control")
    table = low.tables[instance.index]
    decl: ast.TableDecl = callee.decl
    ordinary = [k for k in decl.keys if k.match_kind != "selector"]
    selectors = [k for k in decl.keys if k.match_kind == "selector"]
    keys: list[ir.Expr] = []
    for key in ordinary + selectors:
        mark = len(low.out)
        value = low.expr(low.checked_form(key.expr))
        if len(low.out) > mark:
            keys = [saved_before(low, k, mark) for k in keys]
        keys.append(value)
    by_action = {low.facts.decls.get(ref): ref for ref in decl.actions}
    arms: list[ActionArm] = []
    no_action = low.checked.names.get("NoAction")
    for listed in table.actions:
        ref = next((r for d, r in by_action.items() if d is not None and action_index(low, d) == listed.action), None)
        action = low.facts.decls.get(ref) if ref is not None else no_action
        assert isinstance(action, ast.ActionDecl)
        arms.append(_arm(low, listed.action, action, ref))
    low.emit(ApplyTable(instance.index, tuple(keys), tuple(arms), hit, action_run))


def _arm(low: Lowering, index: int, decl: ast.ActionDecl, ref: ast.ActionRef | None) -> ActionArm:
    """An action's body with parameters from the entry and, for those with direction, from the action list."""
    env = Env(low.env)
    frame = Frame(low.fresh_name(decl.name), is_action=True)
    parameters: list[str] = []
    loops, low.loops = low.loops, []
    with low.body() as statements:
        directional = [p for p in decl.parameters if p.direction]
        bound = ref.arguments if ref is not None and ref.arguments is not None else ()
        callee = Callee("action", decl.name, decl)
        callee.arguments = [
            (p, None if a.expr is None else low.checked_form(a.expr)) for p, a in zip(directional, bound, strict=False)
        ]
        bind_arguments(low, env, callee, frame, isolate=True)
        for p in decl.parameters:
            if not p.direction:
                variable = low.new_variable(f"{decl.name}_{p.name}", ir_type(low, low.concrete(low.types[p]), p.at))
                env.bind(p, variable)
                parameters.append(variable.name)
        low.frames.append(frame)
        with low.body() as inner, low.within(env):
            low.statements(decl.body.body)
        low.frames.pop()
        low.emit(Labelled(frame.label, tuple(inner)))
        finish(low, frame)
    low.loops = loops
    return ActionArm(index, tuple(parameters), tuple(statements))
