"""Arguments of externs."""

from __future__ import annotations

from collections.abc import Callable

from p4switch.frontend import ast
from p4switch.frontend.callee import Callee
from p4switch.frontend.lower.known_values import known_value
from p4switch.frontend.lower.lowering import Lowering
from p4switch.frontend.lower.places import lower_place
from p4switch.frontend.p4_types import EnumValue
from p4switch.ir import expr as ir
from p4switch.ir import types as irt
from p4switch.ir.stmt import AssignSlice, HashAlgorithm


def argument_of(callee: Callee, name: str) -> ast.Expr:
    """The expression given for a parameter."""
    for p, a in callee.arguments:
        if p.name == name and a is not None:
            return a
    raise AssertionError(f"{callee.name} has no argument {name}")


def given_arguments(callee: Callee) -> list[ast.Expr]:
    """All given expressions in order of the parameters."""
    return [a for _, a in callee.arguments if a is not None]


def write_to(low: Lowering, e: ast.Expr | None, t: irt.Type, write: Callable[[ir.LValue], None]) -> None:
    """Give `write` a place for an out argument; a slice or `_` gets a variable and copy-out."""
    if e is None or isinstance(e, ast.Slice):
        variable = low.new_variable("out", t)
        write(variable)
        if isinstance(e, ast.Slice):
            bounds = low.facts.bounds.get(e)
            if bounds is None or isinstance(e.base, ast.Slice):
                raise low.unsupported(e.at, "this slice as an argument that is written")
            low.emit(AssignSlice(lower_place(low, e.base), *bounds, variable))
        return
    write(lower_place(low, e))


def enum_member(low: Lowering, e: ast.Expr) -> str:
    """Name of the member of an enumeration that an argument has at compile time."""
    value = known_value(low, e)
    if not isinstance(value, EnumValue):
        raise low.reporter.fail(e.at, "this must be known at compile time")
    return value.member


def hash_algorithm(low: Lowering, e: ast.Expr) -> HashAlgorithm:
    """The hash algorithm that an argument names."""
    member = enum_member(low, e)
    try:
        return HashAlgorithm(member)
    except ValueError as problem:
        raise low.unsupported(e.at, f"hash algorithm {member}") from problem
