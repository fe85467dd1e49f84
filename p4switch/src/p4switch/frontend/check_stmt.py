"""The checker's rules for statements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from p4switch.errors import InternalError
from p4switch.frontend import ast
from p4switch.frontend.check_context import CheckContext, rebuilt
from p4switch.frontend.check_convert import coerce, require_place, value_of
from p4switch.frontend.check_table import listed_action
from p4switch.frontend.p4_types import (
    BOOL,
    ERROR,
    INT,
    UNKNOWN,
    VOID,
    TBits,
    TBlock,
    TEnum,
    TList,
    TName,
    TNew,
    TSet,
    TStack,
    TTable,
)
from p4switch.frontend.source import AbortError


def check_statements(ctx: CheckContext, block: ast.Block) -> None:
    for s in block.body:
        check_statement(ctx, s)


def check_statement(ctx: CheckContext, s: ast.Statement) -> None:
    """One statement; errors are reported and do not stop the next."""
    try:
        _check_statement(ctx, s)
    except AbortError:
        return


def _check_statement(ctx: CheckContext, s: ast.Statement) -> None:
    rule = STATEMENTS.get(type(s))
    if rule is None:
        raise InternalError(f"no rule checks {type(s).__name__} at {ctx.reporter.source.place(s.at)}")
    rule(ctx, s)


def check_block(ctx: CheckContext, s: ast.Block) -> None:
    """A block has a scope of its own."""
    ctx.push()
    check_statements(ctx, s)
    ctx.pop()


def check_decl_statement(ctx: CheckContext, s: ast.DeclStatement) -> None:
    """A declaration among statements."""
    ctx.declaration(s.decl)


def check_call_statement(ctx: CheckContext, s: ast.CallStatement) -> None:
    """A call for its effects."""
    if isinstance(ctx.types[ctx.check(s.call)], TName | TBlock):
        ctx.reporter.error(s.at, "instances cannot be made in statements")


def check_conditional(ctx: CheckContext, s: ast.Conditional) -> None:
    """`if`; each branch has a scope of its own."""
    ctx.settle(s.condition, value_of(ctx, s.condition, BOOL))
    _scoped(ctx, s.then)
    if s.otherwise is not None:
        _scoped(ctx, s.otherwise)


def check_exit(ctx: CheckContext, s: ast.Exit) -> None:
    """`exit` belongs in controls and actions."""
    if ctx.where in ("function", "state"):
        ctx.reporter.error(s.at, f"exit cannot be used in a {'function' if ctx.where == 'function' else 'parser'}")


def check_jump(ctx: CheckContext, s: ast.Break | ast.Continue) -> None:
    """`break` and `continue`."""
    if ctx.loop_depth == 0:
        ctx.reporter.error(s.at, "break and continue belong in a loop")


def check_empty(ctx: CheckContext, s: ast.Empty) -> None:
    """Nothing to check."""


def _scoped(ctx: CheckContext, s: ast.Statement) -> None:
    ctx.push()
    check_statement(ctx, s)
    ctx.pop()


def check_assignment(ctx: CheckContext, s: ast.Assignment) -> None:
    target = ctx.settle(s.target, value_of(ctx, s.target))
    require_place(ctx, target, "the left side of '='")
    t = ctx.types[target]
    if t is UNKNOWN:
        ctx.check(s.value)
        return
    if s.op:
        operation = ast.Binary(at=s.at, op=s.op, left=target, right=s.value)
        ctx.settle(s.value, value_of(ctx, operation, t))
        return
    ctx.settle(s.value, value_of(ctx, s.value, t))


def check_return(ctx: CheckContext, s: ast.Return) -> None:
    if ctx.where == "state":
        ctx.reporter.error(s.at, "return cannot be used in a parser")
    if s.value is None:
        if ctx.return_type is not VOID and ctx.return_type is not UNKNOWN:
            ctx.reporter.error(s.at, f"return needs a value of type {ctx.return_type}")
        return
    if ctx.return_type is VOID:
        ctx.check(s.value)
        ctx.reporter.error(s.value.at, "nothing can be returned here")
        return
    ctx.settle(s.value, value_of(ctx, s.value, ctx.return_type))


def check_switch(ctx: CheckContext, s: ast.Switch) -> None:
    t = ctx.types[ctx.check(s.selector)]
    if isinstance(t, TTable) and t.what == "action":
        _action_switch(ctx, s, t.decl)
    elif t is not UNKNOWN:
        if not isinstance(t, TBits | TEnum | TNew) and t not in (ERROR, BOOL, INT):
            ctx.reporter.error(s.selector.at, f"switch is not defined for {t}")
        seen: set[object] = set()
        for case in s.cases:
            if case.label is not None:
                label = ctx.settle(case.label, value_of(ctx, case.label, t))
                if ctx.values.get(label) is None and ctx.types[label] is not UNKNOWN:
                    ctx.reporter.error(label.at, "a label must be known at compile time")
                elif ctx.types[label] is not UNKNOWN and ctx.values.get(label) in seen:
                    ctx.reporter.error(label.at, "this label is a duplicate")
                seen.add(ctx.values.get(label))
    for index, case in enumerate(s.cases):
        if case.label is None and index != len(s.cases) - 1:
            ctx.reporter.error(case.at, "default must be the last label")
        if case.body is not None:
            _scoped(ctx, case.body)


def _action_switch(ctx: CheckContext, s: ast.Switch, table: ast.TableDecl) -> None:
    names: set[str] = set()
    for case in s.cases:
        if case.label is None:
            continue
        if not isinstance(case.label, ast.Name):
            ctx.reporter.error(case.label.at, "a label must be the name of an action of the table")
            continue
        decl = ctx.lookup(case.label.name, case.label.absolute)
        ctx.facts.decls[case.label] = decl
        if not isinstance(decl, ast.ActionDecl) or listed_action(ctx, table, decl) is None:
            ctx.reporter.error(case.label.at, f"'{case.label.name}' is not an action of table {table.name}")
        if case.label.name in names:
            ctx.reporter.error(case.label.at, "this label is a duplicate")
        names.add(case.label.name)


def check_loop(ctx: CheckContext, s: ast.For | ast.ForIn) -> None:
    ctx.push()
    if isinstance(s, ast.ForIn):
        _collection(ctx, s)
    else:
        for init in s.init:
            check_statement(ctx, init)
        ctx.settle(s.condition, value_of(ctx, s.condition, BOOL))
        for update in s.update:
            check_statement(ctx, update)
    ctx.loop_depth += 1
    _scoped(ctx, s.body)
    ctx.loop_depth -= 1
    ctx.pop()


def _collection(ctx: CheckContext, s: ast.ForIn) -> None:
    ctx.declaration(s.decl)
    t = ctx.types[s.decl]
    if isinstance(s.collection, ast.Range):
        low, high = value_of(ctx, s.collection.left, t), value_of(ctx, s.collection.right, t)
        ctx.settle(s.collection, ctx.typed(rebuilt(s.collection, left=low, right=high), TSet(t)))
        return
    collection = value_of(ctx, s.collection)
    element = ctx.types[collection]
    if isinstance(element, TStack | TList):
        if element.element != t:
            ctx.reporter.error(collection.at, f"the elements are {element.element}, the variable is {t}")
    elif isinstance(collection, ast.ListExpr):
        items = tuple(coerce(ctx, item, t) for item in collection.items)
        ctx.settle(s.collection, ctx.typed(rebuilt(collection, items=items), element))
    elif element is not UNKNOWN:
        ctx.reporter.error(collection.at, f"cannot loop over {element}")


STATEMENTS: dict[type[ast.Statement], Callable[[CheckContext, Any], None]] = {
    ast.Block: check_block,
    ast.DeclStatement: check_decl_statement,
    ast.Assignment: check_assignment,
    ast.CallStatement: check_call_statement,
    ast.Conditional: check_conditional,
    ast.Switch: check_switch,
    ast.Return: check_return,
    ast.Exit: check_exit,
    ast.Break: check_jump,
    ast.Continue: check_jump,
    ast.For: check_loop,
    ast.ForIn: check_loop,
    ast.Empty: check_empty,
}
"""What checks each kind of statement."""
