"""Tables and their entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from p4switch.frontend import ast
from p4switch.frontend.callee import BoundArguments
from p4switch.frontend.check_arguments import bind_arguments, is_elaboration_constant
from p4switch.frontend.check_context import CheckContext
from p4switch.frontend.check_convert import coerce, require_place, value_of
from p4switch.frontend.check_keyset import check_constant_keyset
from p4switch.frontend.p4_types import BOOL, ERROR, INT, UNKNOWN, TBits, TEnum, TNew, TVar, TVarbits
from p4switch.frontend.source import AbortError


def check_table(ctx: CheckContext, decl: ast.TableDecl) -> None:
    for key in decl.keys:
        expr = ctx.settle(key.expr, _key_expression(ctx, key.expr))
        if key.match_kind not in ctx.match_kinds:
            ctx.reporter.error(key.match_at, f"match kind '{key.match_kind}' is not declared")
        t = ctx.types[expr]
        if not (isinstance(t, TBits | TEnum | TNew | TVar | TVarbits) or t in (BOOL, ERROR, UNKNOWN)):
            ctx.reporter.error(expr.at, f"a key cannot have type {t}")
    lpm = [key for key in decl.keys if key.match_kind == "lpm"]
    for key in lpm[1:]:
        ctx.reporter.error(key.match_at, f"table {decl.name} has two lpm keys: make the others ternary")
    if not decl.has_actions:
        ctx.reporter.error(decl.at, f"table {decl.name} has no actions")
    for ref in decl.actions:
        _action_ref(ctx, ref)
        action = ctx.facts.decls.get(ref)
        if action is not None and listed_action(ctx, decl, action) is not ref:
            ctx.reporter.error(ref.at, f"action {ref.name} is listed twice")
    seen: set[str] = set()
    for prop in decl.properties:
        if prop.name in seen:
            ctx.reporter.error(prop.at, f"table {decl.name} has two properties '{prop.name}'")
        seen.add(prop.name)
        _property(ctx, decl, prop)
    for entry in decl.entries:
        _entry(ctx, decl, entry)
    ctx.declare(decl.name, decl, decl.at)


def _key_expression(ctx: CheckContext, e: ast.Expr) -> ast.Expr:
    outer, ctx.where = ctx.where, "key"
    try:
        checked = value_of(ctx, e)
    finally:
        ctx.where = outer
    if ctx.types[checked] is INT:
        ctx.reporter.error(e.at, "a key needs a value with a width")
    return checked


def _action_ref(ctx: CheckContext, ref: ast.ActionRef) -> None:
    """An action in the action list (bind only parameters with direction)."""
    decl = ctx.lookup(ref.name, ref.absolute)
    if not isinstance(decl, ast.ActionDecl):
        what = "is not declared" if decl is None else "is not an action"
        ctx.reporter.error(ref.at, f"'{ref.name}' {what}")
        return
    ctx.facts.decls[ref] = decl
    directional = [p for p in decl.parameters if p.direction]
    arguments = ref.arguments or ()
    if len(arguments) < len(directional):
        ctx.reporter.error(
            ref.at, f"action {decl.name} needs arguments for its {len(directional)} parameters with direction"
        )
        return
    if len(arguments) > len(directional):
        ctx.reporter.error(
            ref.at,
            f"an action list binds only parameters with direction; '{decl.name}' has {len(directional)}",
        )
        return
    for p, a in zip(directional, arguments, strict=False):
        if a.expr is None:
            continue
        if p.direction == "in":
            ctx.settle(a.expr, value_of(ctx, a.expr, ctx.types[p]))
            continue
        given = value_of(ctx, a.expr)
        require_place(ctx, given, f"argument '{p.name}'")
        if ctx.types[given] != ctx.types[p] and UNKNOWN not in (ctx.types[given], ctx.types[p]):
            ctx.reporter.error(given.at, f"argument '{p.name}' must be {ctx.types[p]}, found {ctx.types[given]}")


def listed_action(ctx: CheckContext, decl: ast.TableDecl, action: ast.ActionDecl) -> ast.ActionRef | None:
    """Where a table lists an action, or None."""
    return next((a for a in decl.actions if ctx.facts.decls.get(a) is action), None)


def check_action_call(
    ctx: CheckContext, decl: ast.TableDecl, e: ast.Expr, what: str
) -> tuple[ast.ActionDecl, BoundArguments] | None:
    """default_action or an entry's action: an action of the table with all its data arguments."""
    name, absolute, at = _action_name(e)
    if name is None:
        ctx.reporter.error(e.at, f"{what} must be an action")
        return None
    action = ctx.lookup(name, absolute)
    if not isinstance(action, ast.ActionDecl):
        ctx.reporter.error(at, f"'{name}' is not an action" if action is not None else f"'{name}' is not declared")
        return None
    listed = listed_action(ctx, decl, action)
    if listed is None:
        ctx.reporter.error(at, f"action {name} is not in the action list of table {decl.name}")
        return None
    arguments = e.arguments if isinstance(e, ast.Call) else ()
    rest = _data_arguments(ctx, action, arguments, listed, what)
    plain = [p for p in action.parameters if not p.direction]
    final: list[tuple[ast.Parameter, ast.Expr | None]] = []
    for p, argument in bind_arguments(ctx, plain, rest, at, f"action {name}"):
        checked = None if argument is None else coerce(ctx, argument, ctx.types[p])
        if (
            checked is not None
            and ctx.types[checked] is not UNKNOWN
            and ctx.values.get(checked) is None
            and not is_elaboration_constant(ctx, checked)
        ):
            ctx.reporter.error(checked.at, f"argument '{p.name}' of {what} must be known at compile time")
        final.append((p, checked))
    return action, tuple(final)


def _data_arguments(
    ctx: CheckContext, action: ast.ActionDecl, arguments: Sequence[ast.Argument], listed: ast.ActionRef, what: str
) -> Sequence[ast.Argument]:
    """Those for parameters without direction; the others must repeat the ones in the action list."""
    directional = [p for p in action.parameters if p.direction]
    positional = [a for a in arguments if a.name is None]
    skip = len(directional) if positional and len(arguments) == len(action.parameters) else 0
    for p, a, listed_argument in zip(directional, arguments[:skip], listed.arguments or (), strict=False):
        if a.expr is not None:
            given = ctx.check(a.expr)
            if p.direction == "in":
                given = ctx.settle(a.expr, coerce(ctx, given, ctx.types[p]))
            if listed_argument.expr is not None and not same_expression(
                ctx, given, ctx.facts.checked[listed_argument.expr]
            ):
                ctx.reporter.error(
                    given.at, f"argument '{p.name}' of {what} differs from the one in the table's action list"
                )
    if any(a.name is not None for a in arguments):
        return [a for a in arguments if a.name not in {p.name for p in directional}]
    return arguments[skip:]


def _property(ctx: CheckContext, decl: ast.TableDecl, prop: ast.Property) -> None:
    if prop.name == "default_action":
        try:
            call = check_action_call(ctx, decl, prop.value, "default_action")
        except AbortError:
            return
        if call is not None:
            ctx.facts.action_calls[prop.value] = call
        return
    outer, ctx.where = ctx.where, "control"
    value = ctx.check(prop.value)
    ctx.where = outer
    if prop.name != "size" or ctx.types[value] is UNKNOWN:
        return
    is_number = ctx.types[value] is INT or isinstance(ctx.types[value], TBits)
    if not is_number or not is_elaboration_constant(ctx, value):
        ctx.reporter.error(value.at, "the size of a table must be a number known at compile time")


def _entry(ctx: CheckContext, decl: ast.TableDecl, entry: ast.Entry) -> None:
    written = entry.keys
    if len(written) == 1 and isinstance(written[0], ast.DefaultExpr) and len(decl.keys) > 1:
        written = tuple(ast.DefaultExpr(at=written[0].at) for _ in decl.keys)
    if len(written) == 1 and isinstance(written[0], ast.ListExpr):
        written = written[0].items
    if len(written) != len(decl.keys):
        ctx.reporter.error(entry.at, f"table {decl.name} has {len(decl.keys)} keys, this entry {len(written)}")
        return
    keys: list[ast.Expr] = []
    for e, key in zip(written, decl.keys, strict=True):
        if isinstance(e, ast.Mask) and key.match_kind in ("exact", "optional", "range"):
            ctx.reporter.error(e.at, f"a mask does not fit a key of kind {key.match_kind}")
        if isinstance(e, ast.Range) and key.match_kind != "range":
            ctx.reporter.error(e.at, f"a range does not fit a key of kind {key.match_kind}")
        if isinstance(e, ast.DefaultExpr) and key.match_kind == "exact":
            ctx.reporter.error(e.at, "a key of kind exact needs a value")
        keys.append(check_constant_keyset(ctx, e, ctx.types[ctx.facts.checked[key.expr]]))
    ctx.facts.entry_keys[entry] = tuple(keys)
    if entry.priority is not None:
        priority = value_of(ctx, entry.priority)
        if not isinstance(ctx.values.get(priority), int) and ctx.types[priority] is not UNKNOWN:
            ctx.reporter.error(priority.at, "a priority must be a number known at compile time")
    ref = entry.action
    name = ast.Name(at=ref.at, name=ref.name, absolute=ref.absolute)
    call = ast.Call(at=ref.at, function=name, type_arguments=None, arguments=ref.arguments or ())
    try:
        checked = check_action_call(ctx, decl, call, "an entry")
    except AbortError:
        return
    if checked is not None:
        ctx.facts.action_calls[ref] = checked


def _action_name(e: ast.Expr) -> tuple[str | None, bool, int]:
    target = e.function if isinstance(e, ast.Call) else e
    return (target.name, target.absolute, target.at) if isinstance(target, ast.Name) else (None, False, e.at)


def same_expression(ctx: CheckContext, left: object, right: object) -> bool:
    """Whether two checked expressions are written alike, whatever their places."""
    if isinstance(left, ast.Expr) and isinstance(right, ast.Expr):
        if type(left) is not type(right):
            return ctx.values.get(left) is not None and ctx.values.get(left) == ctx.values.get(right)
        names = (f.name for f in fields(left) if f.name not in ("at", "name_at"))
        return all(same_expression(ctx, getattr(left, n), getattr(right, n)) for n in names)
    if isinstance(left, ast.Argument) and isinstance(right, ast.Argument):
        return left.name == right.name and same_expression(ctx, left.expr, right.expr)
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(same_expression(ctx, a, b) for a, b in zip(left, right, strict=True))
    return isinstance(left, ast.TypeRef) or (isinstance(left, int) and not isinstance(left, bool)) or left == right
