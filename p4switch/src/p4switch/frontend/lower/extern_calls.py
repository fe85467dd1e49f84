"""Calls of externs: core.p4's own, then the architecture's."""

from __future__ import annotations

from p4switch.frontend import ast
from p4switch.frontend.callee import Callee
from p4switch.frontend.lower.lowering import Lowering
from p4switch.frontend.lower.packet_externs import FUNCTIONS, METHODS
from p4switch.ir import expr as ir


def extern_call(low: Lowering, e: ast.Call, callee: Callee) -> ir.Expr | None:
    """Lower a call of an extern function or method; gives its value, if any."""
    if callee.kind == "function":
        return _function_call(low, e, callee)
    assert callee.receiver is not None
    instance = low.instance_of(callee.receiver)
    if instance is None:
        raise low.unsupported(e.at, f"a method of {low.types[callee.receiver]} that is not a named instance")
    wanted = (instance.kind, callee.name)
    own = METHODS.get(wanted)
    if own is not None:
        return own(low, e, callee, instance)
    method = low.architecture.methods.get(wanted)
    if method is None:
        raise low.unsupported(e.at, f"method {callee.name} of {instance.kind}")
    return method(e, callee, instance)


def _function_call(low: Lowering, e: ast.Call, callee: Callee) -> ir.Expr | None:
    own = FUNCTIONS.get(callee.name)
    if own is not None:
        return own(low, e, callee)
    rule = low.architecture.functions.get(callee.name)
    if rule is None:
        raise low.unsupported(e.at, f"extern function {callee.name}, which {low.architecture.name} does not have")
    return rule(e, callee)
