"""Arguments bound to parameters, the inference of type arguments."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from p4switch.frontend import ast
from p4switch.frontend.callee import Callee
from p4switch.frontend.check_context import CheckContext
from p4switch.frontend.check_convert import coerce, require_place
from p4switch.frontend.p4_types import (
    ANY,
    INT,
    UNKNOWN,
    TBlock,
    TCallable,
    TName,
    TSet,
    TTable,
    TVar,
    Type,
    has_variables,
    substitute,
)
from p4switch.frontend.source import AbortError
from p4switch.frontend.unify import Inference, unify_blocks, unify_types


def is_elaboration_constant(ctx: CheckContext, e: ast.Expr) -> bool:
    """Whether the value is known once constructor parameters are."""
    known = partial(is_elaboration_constant, ctx)
    if ctx.values.get(e) is not None:
        return True
    if isinstance(e, ast.Name):
        decl = ctx.facts.decls.get(e)
        return isinstance(decl, ast.Constant) or (isinstance(decl, ast.Parameter) and decl.direction == "")
    if isinstance(e, ast.Member | ast.Index | ast.Slice):
        return known(e.base)
    if isinstance(e, ast.Unary | ast.Cast):
        return known(e.operand)
    if isinstance(e, ast.Binary):
        return known(e.left) and known(e.right)
    if isinstance(e, ast.Ternary):
        return all(known(x) for x in (e.condition, e.yes, e.no))
    if isinstance(e, ast.ListExpr):
        return all(known(x) for x in e.items)
    if isinstance(e, ast.StructExpr):
        return all(known(x) for _, _, x in e.fields)
    if isinstance(e, ast.Call) and isinstance(ctx.types[e], TBlock):
        given = [ctx.facts.checked[a.expr] for a in e.arguments if a.expr is not None]
        return all(isinstance(ctx.types[g], TBlock) or known(g) for g in given)
    return isinstance(e, ast.Call) and ctx.types[e] is INT


# ---------------------------------------------------------------- arguments


def bind_arguments(
    ctx: CheckContext, parameters: Sequence[ast.Parameter], arguments: Sequence[ast.Argument], at: int, what: str
) -> list[tuple[ast.Parameter, ast.Expr | None]]:
    """Pair parameters with checked arguments, by position or by name. None: not given (optional) or `_`."""
    named = [a for a in arguments if a.name is not None]
    if named and len(named) != len(arguments):
        raise ctx.reporter.fail(at, "arguments are either all named or all positional")
    checked = [None if a.expr is None else ctx.check(a.expr) for a in arguments]
    if len(arguments) > len(parameters):
        raise ctx.reporter.fail(at, f"{what} takes {len(parameters)} arguments, not {len(arguments)}")
    by_name: dict[str, tuple[ast.Argument, ast.Expr | None]] = {}
    for index, a in enumerate(arguments):
        name = a.name if a.name is not None else parameters[index].name
        if name in by_name:
            raise ctx.reporter.fail(a.at, f"argument '{name}' is given twice")
        by_name[name] = (a, checked[index])
    out: list[tuple[ast.Parameter, ast.Expr | None]] = []
    for p in parameters:
        if p.name in by_name:
            a, expr = by_name.pop(p.name)
            if expr is None and p.direction not in ("out",) and p.default is None and not p.is_optional:
                raise ctx.reporter.fail(a.at, f"'_' can only stand for an out argument; '{p.name}' is not")
            out.append((p, expr if expr is not None or p.default is None else ctx.facts.checked[p.default]))
        elif p.default is not None:
            out.append((p, ctx.facts.checked[p.default]))
        elif p.is_optional:
            out.append((p, None))
        else:
            raise ctx.reporter.fail(at, f"{what} needs an argument for '{p.name}'")
    if by_name:
        name, (a, _) = next(iter(by_name.items()))
        raise ctx.reporter.fail(a.at, f"{what} has no parameter '{name}'")
    return out


def convert_arguments(ctx: CheckContext, callee: Callee, bindings: dict[TVar, Type]) -> None:
    """Convert in-arguments to the parameters' types; out and inout ones must be places of that very type."""
    converted: list[tuple[ast.Parameter, ast.Expr | None]] = []
    for p, argument in callee.arguments:
        want = substitute(ctx.types[p], bindings)
        if argument is None:
            converted.append((p, None))
            continue
        if p.direction in ("out", "inout"):
            if ctx.types[argument] is not UNKNOWN and isinstance(ctx.types[argument], TName | TCallable | TTable):
                ctx.reporter.error(argument.at, f"{ctx.types[argument]} is not a value")
                continue
            require_place(ctx, argument, f"argument '{p.name}'")
            if (
                ctx.types[argument] != want
                and UNKNOWN not in (ctx.types[argument], want)
                and want is not ANY
                and not has_variables(want)
            ):
                ctx.reporter.error(argument.at, f"argument '{p.name}' must be {want}, found {ctx.types[argument]}")
        elif not isinstance(want, TBlock):
            argument = _in_argument(ctx, argument, want)
        converted.append((p, argument))
    callee.arguments = converted


def _in_argument(ctx: CheckContext, argument: ast.Expr, want: Type) -> ast.Expr:
    t = ctx.types[argument]
    if isinstance(t, TName | TCallable | TSet) or (isinstance(t, TTable) and t.what != "result"):
        ctx.reporter.error(argument.at, f"{t} is not a value")
        ctx.types[argument] = UNKNOWN
        return argument
    if isinstance(want, TVar) or (has_variables(want) and want != t):
        return argument
    return coerce(ctx, argument, want)


# ---------------------------------------------------------------- unification


def learn_types(
    ctx: CheckContext, formal: Type, argument: ast.Expr, bindings: dict[TVar, Type], free: set[TVar]
) -> None:
    """Learn type variables from an argument; mismatches are reported by the conversion that follows."""
    actual = ctx.types[argument]
    known = Inference(ctx.types, bindings, free)
    if isinstance(formal, TBlock) and isinstance(actual, TBlock):
        problem = unify_blocks(known, formal, actual)
        if problem:
            ctx.reporter.error(argument.at, problem)
            raise AbortError
        return
    if isinstance(formal, TBlock) and actual is not UNKNOWN:
        raise ctx.reporter.fail(argument.at, f"expected {formal}, found {actual}")
    unify_types(known, formal, actual)
