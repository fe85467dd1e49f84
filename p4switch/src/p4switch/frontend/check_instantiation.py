"""Instantiations, with the abstract methods that they implement."""

from __future__ import annotations

from p4switch.frontend import ast
from p4switch.frontend.check_construct import check_construction
from p4switch.frontend.check_context import CheckContext
from p4switch.frontend.check_function import function_body
from p4switch.frontend.check_types import resolve_type
from p4switch.frontend.p4_types import UNKNOWN, TBlock, bindings_of, substitute
from p4switch.frontend.source import AbortError


def check_instantiation(ctx: CheckContext, decl: ast.Instantiation) -> None:
    if ctx.where in ("apply", "action", "function", "state"):
        raise ctx.reporter.fail(decl.at, "instances cannot be made in statements")
    t = resolve_type(ctx, decl.ref)
    if not isinstance(t, TBlock):
        if t is not UNKNOWN:
            ctx.reporter.error(decl.at, f"{t} cannot be instantiated")
        raise AbortError
    if ctx.where == "top" and t.kind in ("parser", "control"):
        ctx.reporter.error(decl.at, f"a {t.kind} cannot be instantiated at the top level")
    if ctx.where == "control" and t.kind == "parser":
        ctx.reporter.error(decl.at, "a control cannot instantiate a parser")
    if ctx.where == "parser" and t.kind == "control":
        ctx.reporter.error(decl.at, "a parser cannot instantiate a control")
    callee = ctx.facts.callees[decl] = check_construction(ctx, t, decl.arguments, decl.at)
    assert callee.block is not None
    ctx.types[decl] = callee.block
    _implementations(ctx, decl)
    ctx.declare(decl.name, decl, decl.at)


def _implementations(ctx: CheckContext, decl: ast.Instantiation) -> None:
    """The methods in an instance's braces: one for each abstract method of its extern."""
    t = ctx.types[decl]
    extern = t.decl if isinstance(t, TBlock) else None
    abstract = {m.name: m for m in extern.methods if m.is_abstract} if isinstance(extern, ast.ExternDecl) else {}
    given: set[str] = set()
    for method in decl.body or []:
        if not isinstance(method, ast.FunctionDecl):
            ctx.reporter.fail_unsupported(method.at, "declarations other than methods in an instance's braces")
            continue
        if method.name not in abstract:
            ctx.reporter.error(method.at, f"{t} has no abstract method '{method.name}'")
        elif method.name in given:
            ctx.reporter.error(method.at, f"method '{method.name}' is implemented twice")
        else:
            _implementation(ctx, decl, abstract[method.name], method)
        given.add(method.name)
    for name, method in abstract.items():
        if name not in given and not any(a.name == "optional" for a in method.annotations):
            ctx.reporter.error(decl.at, f"'{decl.name}' does not implement abstract method '{name}' of {t}")


def _implementation(
    ctx: CheckContext, decl: ast.Instantiation, abstract: ast.FunctionDecl, method: ast.FunctionDecl
) -> None:
    t = ctx.types[decl]
    assert isinstance(t, TBlock)
    ctx.push()
    ctx.scopes[-1]["this"] = decl
    function_body(ctx, method)
    ctx.pop()
    bound = bindings_of(t)
    returned = substitute(ctx.facts.returns[abstract], bound)
    found = ctx.facts.returns[method]
    if found != returned and UNKNOWN not in (found, returned):
        ctx.reporter.error(method.at, f"'{method.name}' must return {returned}, not {found}")
    wanted = [p for p in abstract.parameters if not p.is_optional]
    if not len(wanted) <= len(method.parameters) <= len(abstract.parameters):
        ctx.reporter.error(method.at, f"'{method.name}' takes {len(abstract.parameters)} parameters")
    for have, want in zip(method.parameters, abstract.parameters, strict=False):
        expected = substitute(ctx.types[want], bound)
        given = ctx.types[have]
        if have.direction != want.direction or (given != expected and UNKNOWN not in (given, expected)):
            ctx.reporter.error(have.at, f"parameter '{have.name}' must be '{want.direction} {expected}'")
