"""Values known at elaboration: constants, and what constructor parameters make known."""

from __future__ import annotations

from typing import Any

from p4switch.frontend import ast, constants
from p4switch.frontend.constants import ConstantError
from p4switch.frontend.lower.bindings import Known
from p4switch.frontend.lower.lowering import Lowering
from p4switch.frontend.p4_types import TStack, TStruct


def known_value(low: Lowering, e: ast.Expr) -> Any:
    """Value of an expression at elaboration (constructor parameters put in), or None."""
    constant = low.values.get(e)
    if constant is not None:
        return constant
    if isinstance(e, ast.Name):
        decl = low.facts.decls.get(e)
        binding = low.env.find(decl)
        if isinstance(binding, Known):
            return binding.value
        return known_value(low, low.checked_form(decl.init)) if isinstance(decl, ast.Constant) else None
    if isinstance(e, ast.Cast):
        value = known_value(low, e.operand)
        return constants.cast(value, low.concrete(low.types[e])) if isinstance(value, int) else value
    if isinstance(e, ast.Unary):
        value = known_value(low, e.operand)
        return constants.unary(e.op, value, low.concrete(low.types[e])) if isinstance(value, int) else None
    if isinstance(e, ast.Binary):
        return _known_binary(low, e)
    if isinstance(e, ast.Ternary):
        condition = known_value(low, e.condition)
        return None if condition is None else known_value(low, e.yes if condition else e.no)
    if isinstance(e, ast.Slice) and e in low.facts.bounds:
        value = known_value(low, e.base)
        high, last = low.facts.bounds[e]
        return (value >> last) & ((1 << (high - last + 1)) - 1) if isinstance(value, int) else None
    return _known_aggregate(low, e)


def _known_aggregate(low: Lowering, e: ast.Expr) -> Any:
    if isinstance(e, ast.Member):
        value = known_value(low, e.base)
        base = low.types[e.base]
        if isinstance(value, tuple) and isinstance(base, TStruct):
            return value[[n for n, _ in base.fields()].index(e.name)]
    elif isinstance(e, ast.ListExpr) and not e.dots:
        parts = [known_value(low, item) for item in e.items]
        return None if any(p is None for p in parts) else tuple(parts)
    elif isinstance(e, ast.StructExpr) and not e.dots:
        parts = [known_value(low, item) for _, _, item in e.fields]
        return None if any(p is None for p in parts) else tuple(parts)
    elif isinstance(e, ast.Index) and not isinstance(low.types[e.base], TStack):
        value = known_value(low, e.base)
        at = known_value(low, e.index)
        return value[at] if isinstance(value, tuple) and isinstance(at, int) and at < len(value) else None
    return None


def _known_binary(low: Lowering, e: ast.Binary) -> Any:
    left = known_value(low, e.left)
    if left is None:
        return None
    right = known_value(low, e.right)
    if right is None:
        return None
    if e.op == "&&":
        return left and right
    if e.op == "||":
        return left or right
    if not isinstance(left, int) or not isinstance(right, int):
        return (left == right) == (e.op == "==") if e.op in ("==", "!=") else None
    try:
        return constants.binary(e.op, left, right, low.concrete(low.types[e.left]), low.concrete(low.types[e.right]))
    except ConstantError as problem:
        raise low.reporter.fail(e.at, str(problem)) from problem


def known_int(low: Lowering, e: ast.Expr, what: str) -> int:
    """An integer known at elaboration; reports otherwise."""
    value = known_value(low, e)
    if not isinstance(value, int):
        raise low.reporter.fail(e.at, f"{what} must be known at compile time")
    return int(value)
