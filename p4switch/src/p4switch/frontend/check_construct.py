"""Constructor calls."""

from __future__ import annotations

from collections.abc import Sequence

from p4switch.frontend import ast
from p4switch.frontend.callee import Callee
from p4switch.frontend.check_arguments import bind_arguments, convert_arguments, is_elaboration_constant, learn_types
from p4switch.frontend.check_context import CheckContext
from p4switch.frontend.p4_types import (
    ANY,
    UNKNOWN,
    TBits,
    TBlock,
    TVar,
    Type,
    bindings_of,
    resolve_deep,
    type_variables,
)


def constructor_call(ctx: CheckContext, e: ast.Call, named: Type, explicit: list[Type] | None) -> ast.Expr:
    if not isinstance(named, TBlock):
        raise ctx.reporter.fail(e.at, f"{named} cannot be constructed")
    if explicit is not None:
        if named.arguments:
            raise ctx.reporter.fail(e.at, "type arguments are given twice")
        named = TBlock(named.decl, tuple(explicit))
    if ctx.where in ("apply", "action", "function", "state"):
        raise ctx.reporter.fail(e.at, "instances cannot be made in statements")
    callee = check_construction(ctx, named, e.arguments, e.at)
    ctx.facts.callees[e] = callee
    assert callee.block is not None
    return ctx.typed(e, callee.block)


DONT_CARE = TBits(32)
"""What a type argument `_` stands for where nothing says more."""


def check_construction(ctx: CheckContext, t: TBlock, arguments: Sequence[ast.Argument], at: int) -> Callee:
    """Check a constructor's arguments; the callee's `block` is the type with inferred arguments."""
    decl = t.decl
    if isinstance(decl, ast.ParserDecl | ast.ControlDecl):
        if decl.is_type:
            raise ctx.reporter.fail(at, f"'{decl.name}' is only the type of a {t.kind}; it cannot be instantiated")
        parameters: Sequence[ast.Parameter] = decl.constructor_parameters
    elif isinstance(decl, ast.PackageDecl):
        parameters = decl.parameters
    else:
        parameters = _extern_constructor(ctx, decl, arguments, at)
    callee = Callee("constructor", decl.name, decl, block=t)
    callee.arguments = bind_arguments(ctx, parameters, arguments, at, f"the constructor of '{decl.name}'")
    variables = type_variables(decl)
    if t.arguments and len(t.arguments) != len(variables):
        raise ctx.reporter.fail(at, f"'{decl.name}' takes {len(variables)} type arguments, not {len(t.arguments)}")
    bindings: dict[TVar, Type] = {v: a for v, a in bindings_of(t).items() if a is not ANY}
    for parameter, argument in callee.arguments:
        if argument is not None:
            learn_types(ctx, ctx.types[parameter], argument, bindings, set(variables))
    for v, given in bindings_of(t).items():
        if given is ANY and isinstance(decl, ast.ExternDecl):
            bindings.setdefault(v, DONT_CARE)  # `_` that no argument fills in: the index of a register
    missing = [v.name for v in variables if v not in bindings]
    if missing and not isinstance(decl, ast.ParserDecl | ast.ControlDecl | ast.PackageDecl):
        raise ctx.reporter.fail(at, f"cannot infer type argument {', '.join(missing)} of '{decl.name}'")
    bound = {v: resolve_deep(a, bindings) for v, a in bindings.items()}
    callee.bindings = bound
    if variables and not missing:
        callee.block = TBlock(decl, tuple(bound[v] for v in variables))
    convert_arguments(ctx, callee, bound)
    for parameter, argument in callee.arguments:
        _require_constant(ctx, parameter, argument)
    return callee


def _extern_constructor(
    ctx: CheckContext, decl: ast.ExternDecl, arguments: Sequence[ast.Argument], at: int
) -> Sequence[ast.Parameter]:
    given = len(arguments)
    for c in decl.constructors:
        required = sum(1 for p in c.parameters if p.default is None and not p.is_optional)
        if required <= given <= len(c.parameters):
            return c.parameters
    if not decl.constructors and not given:
        return ()
    raise ctx.reporter.fail(at, f"no constructor of '{decl.name}' takes {given} arguments")


def _require_constant(ctx: CheckContext, parameter: ast.Parameter, argument: ast.Expr | None) -> None:
    if argument is None or ctx.values.get(argument) is not None:
        return
    t = ctx.types[argument]
    if not isinstance(t, TBlock) and t is not UNKNOWN and not is_elaboration_constant(ctx, argument):
        ctx.reporter.error(argument.at, f"argument '{parameter.name}' of a constructor must be known at compile time")
