"""Functions, actions, externs, packages and their parameters."""

from __future__ import annotations

from collections.abc import Sequence

from p4switch.frontend import ast
from p4switch.frontend.check_arguments import is_elaboration_constant
from p4switch.frontend.check_context import CheckContext
from p4switch.frontend.check_convert import value_of
from p4switch.frontend.check_stmt import check_statements
from p4switch.frontend.check_types import resolve_type
from p4switch.frontend.p4_types import DOTS, INT, STRING, UNKNOWN, VOID, TBlock


def always_returns(ctx: CheckContext, s: ast.Statement) -> bool:
    """Whether every path through the statement ends in return (or exit)."""
    if isinstance(s, ast.Return | ast.Exit):
        return True
    if isinstance(s, ast.Block):
        return any(always_returns(ctx, x) for x in s.body)
    if isinstance(s, ast.Conditional):
        condition = ctx.values.get(ctx.facts.checked.get(s.condition, s.condition))
        if isinstance(condition, bool):
            taken = s.then if condition else s.otherwise
            return taken is not None and always_returns(ctx, taken)
        return s.otherwise is not None and always_returns(ctx, s.then) and always_returns(ctx, s.otherwise)
    if isinstance(s, ast.Switch):
        bodies = [c.body for c in s.cases if c.body is not None]
        has_default = any(c.label is None for c in s.cases)
        return has_default and all(always_returns(ctx, b) for b in bodies)
    return False


def check_parameters(ctx: CheckContext, parameters: Sequence[ast.Parameter], owner: str) -> None:
    """Resolve the types of parameters and declare them; `owner` says whose they are."""
    seen: set[str] = set()
    for p in parameters:
        t = ctx.types[p] = resolve_type(ctx, p.ref)
        if p.default is not None:
            default = ctx.settle(p.default, value_of(ctx, p.default, t))
            if p.direction in ("out", "inout"):
                ctx.reporter.error(p.at, f"{p.direction} parameter '{p.name}' cannot have a default value")
            elif ctx.types[default] not in (UNKNOWN, DOTS) and not is_elaboration_constant(ctx, default):
                ctx.reporter.error(default.at, f"the default of '{p.name}' must be known at compile time")
        _parameter_type(ctx, p, owner)
        if t is VOID:
            ctx.reporter.error(p.at, f"parameter '{p.name}' cannot be void")
        if p.direction and (isinstance(t, TBlock) or t in (STRING, INT)):
            ctx.reporter.error(p.at, f"parameter '{p.name}' of type {t} cannot have a direction")
        if p.name in seen:
            ctx.reporter.error(p.at, f"two parameters are named '{p.name}'")
        else:
            ctx.declare(p.name, p, p.at)
        seen.add(p.name)


def _parameter_type(ctx: CheckContext, p: ast.Parameter, owner: str) -> None:
    """Which types parameters of actions, functions, methods, parsers and controls may have."""
    t = ctx.types[p]
    if owner in ("constructor", "package"):
        if isinstance(t, TBlock) and not getattr(t.decl, "is_type", True):
            ctx.reporter.error(p.at, f"parameter '{p.name}' needs the type of a {t.kind}; {t} has a body")
        return
    if p.is_optional and owner in ("action", "function"):
        ctx.reporter.error(p.at, f"parameter '{p.name}' of a {owner} cannot be optional")
    if isinstance(t, TBlock):
        if t.kind in ("parser", "control", "package"):
            ctx.reporter.error(p.at, f"parameter '{p.name}' cannot have type {t.kind} {t}")
        elif owner == "action":
            ctx.reporter.error(p.at, f"parameter '{p.name}' of an action cannot have extern type {t}")
        elif isinstance(t.decl, ast.ExternDecl) and len(t.decl.type_parameters) != len(t.arguments):
            ctx.reporter.error(p.at, f"generic type '{t}' needs type arguments")
    elif owner == "action" and t in (INT, STRING):
        ctx.reporter.error(p.at, f"parameter '{p.name}' of an action cannot have type {t}")


def check_function(ctx: CheckContext, decl: ast.FunctionDecl) -> None:
    function_body(ctx, decl)
    ctx.declare(decl.name, decl, decl.at)


def function_body(ctx: CheckContext, decl: ast.FunctionDecl) -> None:
    ctx.push()
    ctx.declare_type_parameters(decl.type_parameters, decl)
    returned = ctx.facts.returns[decl] = resolve_type(ctx, decl.returns)
    check_parameters(ctx, decl.parameters, "function" if decl.body is not None else "extern")
    if decl.body is not None:
        outer = (ctx.where, ctx.return_type)
        ctx.where, ctx.return_type = "function", returned
        check_statements(ctx, decl.body)
        if returned is not VOID and returned is not UNKNOWN and not always_returns(ctx, decl.body):
            ctx.reporter.error(decl.at, f"function '{decl.name}' does not return a value on every path")
        ctx.where, ctx.return_type = outer
    ctx.pop()


def check_extern(ctx: CheckContext, decl: ast.ExternDecl) -> None:
    ctx.declare(decl.name, decl, decl.at)
    ctx.push()
    ctx.declare_type_parameters(decl.type_parameters, decl)
    for c in decl.constructors:
        ctx.push()
        check_parameters(ctx, c.parameters, "constructor")
        ctx.pop()
    for m in decl.methods:
        ctx.push()
        ctx.declare_type_parameters(m.type_parameters, m)
        ctx.facts.returns[m] = resolve_type(ctx, m.returns)
        check_parameters(ctx, m.parameters, "extern")
        ctx.pop()
    ctx.pop()
    _extern_overloads(ctx, decl)


def _extern_overloads(ctx: CheckContext, decl: ast.ExternDecl) -> None:
    """Overloads differ in the names of their parameters; a constructor returns nothing."""
    seen: set[tuple[str, ...]] = set()
    overloads = [(m.at, m.name, m.parameters) for m in decl.methods]
    for at, name, parameters in [*((c.at, decl.name, c.parameters) for c in decl.constructors), *overloads]:
        signature = (name, *(p.name for p in parameters))
        if signature in seen:
            ctx.reporter.error(at, f"extern {decl.name} declares '{name}' with these parameters twice")
        seen.add(signature)
    for m in decl.methods:
        if m.name == decl.name:
            ctx.reporter.error(m.at, f"the constructor of extern {decl.name} cannot have a return type")


def check_package(ctx: CheckContext, decl: ast.PackageDecl) -> None:
    ctx.push()
    ctx.declare_type_parameters(decl.type_parameters, decl)
    check_parameters(ctx, decl.parameters, "package")
    ctx.pop()
    ctx.declare(decl.name, decl, decl.at)


def check_action(ctx: CheckContext, decl: ast.ActionDecl) -> None:
    ctx.push()
    check_parameters(ctx, decl.parameters, "action")
    seen_data = False
    for p in decl.parameters:
        if p.direction == "":
            seen_data = True
        elif seen_data:
            ctx.reporter.error(p.at, "parameters with a direction must come before those without")
    outer = (ctx.where, ctx.return_type)
    ctx.where, ctx.return_type = "action", VOID
    check_statements(ctx, decl.body)
    ctx.where, ctx.return_type = outer
    ctx.pop()
    ctx.declare(decl.name, decl, decl.at)
