"""Calls of functions, actions, methods, tables and blocks."""

from __future__ import annotations

from typing import Any

from p4switch.frontend import ast
from p4switch.frontend.callee import Callee
from p4switch.frontend.check_arguments import bind_arguments, convert_arguments, learn_types
from p4switch.frontend.check_construct import constructor_call
from p4switch.frontend.check_context import CheckContext, rebuilt
from p4switch.frontend.check_convert import require_place, value_of
from p4switch.frontend.check_member import HEADER_METHODS, SIZE_METHODS, STACK_METHODS
from p4switch.frontend.check_types import resolve_type
from p4switch.frontend.p4_types import (
    ANY,
    BOOL,
    INT,
    STRING,
    UNKNOWN,
    VOID,
    TBlock,
    TCallable,
    TName,
    TRecord,
    TStruct,
    TTable,
    TVar,
    TVarbits,
    Type,
    bindings_of,
    has_variables,
    resolve_deep,
    size_range,
    substitute,
    type_variables,
    width_of,
)
from p4switch.frontend.source import AbortError


def check_call(ctx: CheckContext, e: ast.Call) -> ast.Expr:
    function = ctx.check(e.function)
    e = rebuilt(e, function=function)
    if ctx.types[function] is UNKNOWN:
        for a in e.arguments:
            if a.expr is not None:
                ctx.check(a.expr)
        raise AbortError
    explicit = None if e.type_arguments is None else [resolve_type(ctx, a) for a in e.type_arguments]
    t = ctx.types[function]
    if isinstance(t, TName):
        return constructor_call(ctx, e, t.named, explicit)
    if not isinstance(t, TCallable):
        raise ctx.reporter.fail(e.at, f"{t} cannot be called")
    if isinstance(function, ast.Name):
        return _plain_call(ctx, e, function, explicit)
    assert isinstance(function, ast.Member)
    return _method_call(ctx, e, function, explicit)


def _plain_call(ctx: CheckContext, e: ast.Call, function: ast.Name, explicit: list[Type] | None) -> ast.Expr:
    decl = ctx.facts.decls[function]
    if isinstance(decl, ast.ActionDecl):
        return _action_call(ctx, e, decl)
    chosen = _overload(ctx, decl, e, function.name)
    if chosen.body is None and function.name == "verify" and ctx.where not in ("state", "parser", "function"):
        raise ctx.reporter.fail(e.at, "verify can only be called in a parser")
    callee = Callee("function", function.name, chosen)
    returned = _bind_call(ctx, e, callee, chosen, {}, explicit)
    value = _static_assert(ctx, e, callee) if chosen.name == "static_assert" and chosen.body is None else None
    return ctx.typed(e, returned, value)


def _static_assert(ctx: CheckContext, e: ast.Call, callee: Callee) -> bool:
    check = callee.arguments[0][1]
    if check is None or ctx.values.get(check) is None:
        raise ctx.reporter.fail(e.at, "static_assert needs a condition known at compile time")
    if ctx.values[check] is False:
        text = callee.arguments[1][1] if len(callee.arguments) > 1 else None
        message = None if text is None else ctx.values.get(text)
        raise ctx.reporter.fail(e.at, str(message) if message else "static_assert failed")
    return True


def _overload(ctx: CheckContext, candidates: list[Any], e: ast.Call, name: str) -> Any:
    """The declaration whose parameters take these arguments by number and name."""
    if len(candidates) == 1:
        return candidates[0]
    given = len(e.arguments)
    names = {a.name for a in e.arguments if a.name is not None}
    fitting = []
    for c in candidates:
        required = sum(1 for p in c.parameters if p.default is None and not p.is_optional)
        if required <= given <= len(c.parameters) and names <= {p.name for p in c.parameters}:
            fitting.append(c)
    if not fitting:
        raise ctx.reporter.fail(
            e.at, f"no '{name}' takes {given} arguments" + (f" named {', '.join(sorted(names))}" if names else "")
        )
    exact = [c for c in fitting if len(c.parameters) == given]
    return (exact or fitting)[0]


def _action_call(ctx: CheckContext, e: ast.Call, decl: ast.ActionDecl) -> ast.Expr:
    if ctx.where not in ("apply", "action"):
        raise ctx.reporter.fail(e.at, f"action {decl.name} cannot be called here")
    if e.type_arguments is not None:
        raise ctx.reporter.fail(e.at, f"action {decl.name} takes no type arguments")
    callee = Callee("action", decl.name, decl)
    callee.arguments = bind_arguments(ctx, decl.parameters, e.arguments, e.at, f"action {decl.name}")
    convert_arguments(ctx, callee, {})
    ctx.facts.callees[e] = callee
    return ctx.typed(e, VOID)


def _bind_call(
    ctx: CheckContext,
    e: ast.Call,
    callee: Callee,
    decl: ast.FunctionDecl,
    outer: dict[TVar, Type],
    explicit: list[Type] | None,
) -> Type:
    """Bind arguments, infer type arguments; gives the return type."""
    callee.arguments = bind_arguments(ctx, decl.parameters, e.arguments, e.at, f"'{decl.name}'")
    variables = type_variables(decl)
    bindings = _explicit(ctx, variables, explicit, e, decl.name)
    free = set(variables)
    for parameter, argument in callee.arguments:
        if argument is not None:
            learn_types(ctx, substitute(ctx.types[parameter], outer), argument, bindings, free)
    missing = [v.name for v in variables if v not in bindings]
    if missing:
        if any(argument is not None and ctx.types[argument] is UNKNOWN for _, argument in callee.arguments):
            raise AbortError
        optional_only = [
            v
            for v in variables
            if v not in bindings and not any(a is None and ctx.types[p] == v for p, a in callee.arguments)
        ]
        if optional_only:
            raise ctx.reporter.fail(e.at, f"cannot infer type argument {', '.join(missing)} of '{decl.name}'")
    bound = {**outer, **{v: resolve_deep(t, bindings) for v, t in bindings.items()}}
    _require_widths(ctx, callee, bound)
    callee.bindings = bound
    ctx.facts.callees[e] = callee
    convert_arguments(ctx, callee, bound)
    return substitute(ctx.facts.returns[decl], bound)


def _require_widths(ctx: CheckContext, callee: Callee, bound: dict[TVar, Type]) -> None:
    """A value that reaches run time has a width, is not a string, and belongs to a declared type."""
    for p, argument in callee.arguments:
        variable = ctx.types[p]
        if argument is None or not isinstance(variable, TVar):
            continue
        t = bound.get(variable, UNKNOWN)
        if isinstance(t, TBlock) and t.kind in ("parser", "control", "package"):
            raise ctx.reporter.fail(argument.at, f"argument '{p.name}' cannot be a {t.kind}")
        if isinstance(t, TRecord):
            raise ctx.reporter.fail(argument.at, f"the struct of argument '{p.name}' cannot be inferred; cast it")
        if t is INT and p.direction:
            raise ctx.reporter.fail(
                argument.at, f"the width of argument '{p.name}' cannot be inferred; write it, as in 16w5"
            )
        if t is STRING and p.direction:
            raise ctx.reporter.fail(argument.at, f"argument '{p.name}' cannot be a string")


def _explicit(
    ctx: CheckContext, variables: list[TVar], explicit: list[Type] | None, e: ast.Call, name: str
) -> dict[TVar, Type]:
    if explicit is None:
        return {}
    if len(explicit) != len(variables):
        raise ctx.reporter.fail(e.at, f"'{name}' takes {len(variables)} type arguments, not {len(explicit)}")
    return {v: t for v, t in zip(variables, explicit, strict=True) if t is not ANY}


# ---------------------------------------------------------------- methods


def _method_call(ctx: CheckContext, e: ast.Call, function: ast.Member, explicit: list[Type] | None) -> ast.Expr:
    base = ctx.types[function.base]
    if isinstance(base, TTable):
        return _table_apply(ctx, e, function)
    if isinstance(base, TBlock):
        if isinstance(base.decl, ast.ExternDecl):
            return _extern_method(ctx, e, function, base, explicit)
        return _block_apply(ctx, e, function, base, "apply")
    if isinstance(base, TName) and isinstance(base.named, TBlock):
        return _block_apply(ctx, e, function, base.named, "direct")
    return _builtin(ctx, e, function, base)


def _table_apply(ctx: CheckContext, e: ast.Call, function: ast.Member) -> ast.Expr:
    table = ctx.types[function.base]
    assert isinstance(table, TTable)
    if ctx.where not in ("apply", "key"):
        raise ctx.reporter.fail(e.at, "a table can only be applied in a control's apply block")
    if e.arguments:
        raise ctx.reporter.fail(e.at, "apply of a table takes no arguments")
    ctx.facts.callees[e] = Callee("table", "apply", table.decl, function.base)
    return ctx.typed(e, TTable(table.decl, "result"))


def _extern_method(
    ctx: CheckContext, e: ast.Call, function: ast.Member, base: TBlock, explicit: list[Type] | None
) -> ast.Expr:
    assert isinstance(base.decl, ast.ExternDecl)
    if ctx.where == "top":
        raise ctx.reporter.fail(e.at, "a method cannot be called at the top level")
    candidates = [m for m in base.decl.methods if m.name == function.name]
    chosen = _overload(ctx, candidates, e, function.name)
    callee = Callee("method", function.name, chosen, function.base, block=base)
    returned = _bind_call(ctx, e, callee, chosen, bindings_of(base), explicit)
    if base.decl.name == "packet_in":
        _packet_rules(ctx, e, callee)
    return ctx.typed(e, returned)


def _packet_rules(ctx: CheckContext, e: ast.Call, callee: Callee) -> None:
    """What core.p4 says of the types that packet_in takes beyond its declaration."""
    variables = type_variables(callee.decl)
    t = next((t for v, t in callee.bindings.items() if v in variables), UNKNOWN)
    if t is UNKNOWN or isinstance(t, TVar):
        return
    if callee.name == "lookahead" and width_of(t) is None:
        raise ctx.reporter.fail(e.at, f"lookahead needs a type of fixed size, found {t}")
    if callee.name == "extract":
        if not isinstance(t, TStruct) or t.kind != "header":
            raise ctx.reporter.fail(e.at, f"only a header can be extracted, found {t}")
        has_varbit = any(isinstance(f, TVarbits) for _, f in t.fields())
        if has_varbit and len(callee.decl.parameters) == 1:
            raise ctx.reporter.fail(e.at, f"header {t} has a varbit field; extract needs its length")
        if not has_varbit and len(callee.decl.parameters) == 2:
            raise ctx.reporter.fail(e.at, f"header {t} has no varbit field")


def _block_apply(ctx: CheckContext, e: ast.Call, function: ast.Member, base: TBlock, kind: str) -> ast.Expr:
    decl = base.decl
    assert isinstance(decl, ast.ParserDecl | ast.ControlDecl)
    if isinstance(decl, ast.ControlDecl) and ctx.where != "apply":
        raise ctx.reporter.fail(e.at, "a control can only be applied in a control's apply block")
    if isinstance(decl, ast.ParserDecl) and ctx.where != "state":
        raise ctx.reporter.fail(e.at, "a parser can only be applied in a parser's state")
    if kind == "direct" and decl.is_type:
        raise ctx.reporter.fail(e.at, f"'{decl.name}' has no body to apply")
    callee = Callee(kind, "apply", decl, function.base, block=base)
    callee.arguments = bind_arguments(ctx, decl.parameters, e.arguments, e.at, f"{base.kind} {decl.name}")
    bindings: dict[TVar, Type] = dict(bindings_of(base))
    free = {TVar(p.name, id(decl)) for p in decl.type_parameters} - set(bindings)
    for parameter, argument in callee.arguments:
        if argument is not None:
            learn_types(ctx, ctx.types[parameter], argument, bindings, free)
    callee.bindings = bindings
    ctx.facts.callees[e] = callee
    convert_arguments(ctx, callee, bindings)
    return ctx.typed(e, VOID)


def _builtin(ctx: CheckContext, e: ast.Call, function: ast.Member, base: Type) -> ast.Expr:
    name = function.name
    callee = Callee("builtin", name, None, function.base)
    ctx.facts.callees[e] = callee
    arguments = [a.expr for a in e.arguments if a.expr is not None]
    if name in ("push_front", "pop_front"):
        return _stack_shift(ctx, e, function, arguments)
    if arguments or e.arguments:
        raise ctx.reporter.fail(e.at, f"'{name}' takes no arguments")
    if name in SIZE_METHODS:
        return _size_method(ctx, e, name, base.named if isinstance(base, TName) else base)
    assert name in HEADER_METHODS
    if name == "isValid":
        return ctx.typed(e, BOOL)
    if isinstance(base, TStruct) and base.kind == "header_union" and name == "setValid":
        raise ctx.reporter.fail(e.at, "a header union has no setValid; set one of its headers")
    require_place(ctx, function.base, f"the header of '{name}'")
    return ctx.typed(e, VOID)


def _stack_shift(ctx: CheckContext, e: ast.Call, function: ast.Member, arguments: list[ast.Expr]) -> ast.Expr:
    if len(arguments) != 1 or function.name not in STACK_METHODS:
        raise ctx.reporter.fail(e.at, f"'{function.name}' takes one argument")
    count = value_of(ctx, arguments[0])
    value = ctx.values.get(count)
    if ctx.types[count] is UNKNOWN:
        raise AbortError
    if not isinstance(value, int):
        raise ctx.reporter.fail(count.at, f"the argument of '{function.name}' must be known at compile time")
    if value < 0:
        raise ctx.reporter.fail(count.at, f"the argument of '{function.name}' must not be negative")
    require_place(ctx, function.base, f"the stack of '{function.name}'")
    return ctx.typed(e, VOID)


def _size_method(ctx: CheckContext, e: ast.Call, name: str, t: Type) -> ast.Expr:
    widths = size_range(t)
    if widths is None:
        if has_variables(t):
            return ctx.typed(e, INT)
        raise ctx.reporter.fail(e.at, f"{t} has no size")
    bits = widths[0] if name.startswith("min") else widths[1]
    return ctx.typed(e, INT, bits if name.endswith("Bits") else (bits + 7) // 8)
