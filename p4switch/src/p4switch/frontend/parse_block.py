"""Grammar of parsers, controls, actions and tables."""

from __future__ import annotations

from p4switch.frontend import ast
from p4switch.frontend.parse_expr import (
    parse_annotations,
    parse_expression,
    parse_keyset,
    parse_type_parameters,
    parse_type_ref,
)
from p4switch.frontend.parse_stmt import parse_block, parse_constant, parse_parameters, parse_statement, parse_variable
from p4switch.frontend.parse_table import parse_table
from p4switch.frontend.parse_tokens import TokenStream


def parse_parser(ts: TokenStream, annotations: tuple[ast.Annotation, ...]) -> ast.ParserDecl:
    """A parser, or its type."""
    ts.expect("parser")
    at, name, type_parameters, parameters = parse_block_head(ts)
    constructor_parameters: tuple[ast.Parameter, ...] = ()
    declarations: list[ast.Declaration] = []
    states: list[ast.StateDecl] = []
    is_type = ts.accept(";")
    if not is_type:
        constructor_parameters = parse_constructor_parameters(ts)
        ts.expect("{")
        while not ts.is_symbol("}"):
            own = parse_annotations(ts)
            if ts.is_symbol("state") and ts.kinds[ts.at + 1] in ("name", "keyword") and ts.peek(2) == "{":
                states.append(parse_state(ts, own))
            elif states:
                raise ts.fail("expected a state")
            else:
                declarations.append(parse_parser_local(ts, own))
        end = ts.expect("}")
        if not states:
            ts.reporter.error(end, f"parser {name} has no states")
    ts.scopes.pop()
    return ast.ParserDecl(
        at=at,
        name=name,
        annotations=annotations,
        type_parameters=type_parameters,
        parameters=parameters,
        constructor_parameters=constructor_parameters,
        locals=tuple(declarations),
        states=tuple(states),
        is_type=is_type,
    )


def parse_parser_local(ts: TokenStream, annotations: tuple[ast.Annotation, ...]) -> ast.Declaration:
    """A declaration before a parser's states."""
    if ts.is_symbol("value_set"):
        return parse_value_set(ts, annotations)
    if ts.is_symbol("const"):
        return parse_constant(ts, annotations)
    return parse_variable(ts, annotations)


def parse_block_head(ts: TokenStream) -> tuple[int, str, tuple[ast.TypeParameter, ...], tuple[ast.Parameter, ...]]:
    """Name, type parameters and parameters of a parser or control; opens its scope."""
    at = ts.offset
    name = ts.name()
    ts.declare(name, True)
    type_parameters = parse_type_parameters(ts)
    ts.scopes.append({})
    ts.declare_types(type_parameters)
    parameters = parse_parameters(ts)
    for p in parameters:
        ts.declare(p.name)
    return at, name, type_parameters, parameters


def parse_constructor_parameters(ts: TokenStream) -> tuple[ast.Parameter, ...]:
    if not ts.is_symbol("("):
        return ()
    parameters = parse_parameters(ts)
    for p in parameters:
        ts.declare(p.name)
    return parameters


def parse_value_set(ts: TokenStream, annotations: tuple[ast.Annotation, ...]) -> ast.ValueSetDecl:
    ts.expect("value_set")
    ts.expect("<")
    ref = parse_type_ref(ts)
    ts.close_angle()
    ts.expect("(")
    size = parse_expression(ts)
    ts.expect(")")
    at = ts.offset
    name = ts.name()
    ts.expect(";")
    ts.declare(name)
    return ast.ValueSetDecl(at=at, name=name, annotations=annotations, ref=ref, size=size)


def parse_state(ts: TokenStream, annotations: tuple[ast.Annotation, ...]) -> ast.StateDecl:
    """A state; without a transition it rejects."""
    ts.expect("state")
    at = ts.offset
    name = ts.name()
    body: list[ast.Statement] = []
    next_state: str | None = None
    select: tuple[ast.Expr, ...] | None = None
    cases: tuple[ast.SelectCase, ...] = ()
    ts.expect("{")
    ts.scopes.append({})
    while not ts.is_symbol("}") and not ts.is_symbol("transition"):
        body.append(parse_statement(ts))
    next_at = ts.offset
    if ts.accept("transition"):
        if ts.is_symbol("select") and ts.peek() == "(":
            select, cases = parse_select(ts)
        else:
            next_at = ts.offset
            next_state = ts.name()
            ts.expect(";")
    ts.scopes.pop()
    ts.expect("}")
    return ast.StateDecl(
        at=at,
        name=name,
        annotations=annotations,
        body=tuple(body),
        next_state=next_state,
        next_at=next_at,
        select=select,
        cases=tuple(cases),
    )


def parse_select(ts: TokenStream) -> tuple[tuple[ast.Expr, ...], tuple[ast.SelectCase, ...]]:
    """The expressions that are selected on, and the cases."""
    ts.expect("select")
    ts.expect("(")
    keys = ts.separated(")", parse_expression)
    ts.expect("{")
    return keys, ts.repeated("}", _parse_select_case)


def _parse_select_case(ts: TokenStream) -> ast.SelectCase:
    at = ts.offset
    keyset = parse_keyset(ts)
    ts.expect(":")
    state_at = ts.offset
    state = ts.name()
    ts.expect(";")
    return ast.SelectCase(at=at, keyset=keyset, state=state, state_at=state_at)


# ---------------------------------------------------------------- controls


def parse_control(ts: TokenStream, annotations: tuple[ast.Annotation, ...]) -> ast.ControlDecl:
    """A control, or its type."""
    ts.expect("control")
    at, name, type_parameters, parameters = parse_block_head(ts)
    constructor_parameters: tuple[ast.Parameter, ...] = ()
    declarations: list[ast.Declaration] = []
    body: ast.Block | None = None
    is_type = ts.accept(";")
    if not is_type:
        constructor_parameters = parse_constructor_parameters(ts)
        ts.expect("{")
        own = parse_annotations(ts)
        while not (ts.is_symbol("apply") and ts.peek() in ("{", "@")):
            declarations.append(parse_control_local(ts, own))
            own = parse_annotations(ts)
        ts.at += 1
        body = parse_block(ts, parse_annotations(ts))
        ts.expect("}")
    ts.scopes.pop()
    return ast.ControlDecl(
        at=at,
        name=name,
        annotations=annotations,
        type_parameters=type_parameters,
        parameters=parameters,
        constructor_parameters=constructor_parameters,
        locals=tuple(declarations),
        body=body,
        is_type=is_type,
    )


def parse_control_local(ts: TokenStream, annotations: tuple[ast.Annotation, ...]) -> ast.Declaration:
    if ts.is_symbol("const"):
        return parse_constant(ts, annotations)
    if ts.is_symbol("action"):
        return parse_action(ts, annotations)
    if ts.is_symbol("table"):
        return parse_table(ts, annotations)
    if ts.kinds[ts.at] == "end" or ts.is_symbol("}"):
        raise ts.fail("expected a declaration or 'apply { ... }' in this control")
    return parse_variable(ts, annotations)


def parse_action(ts: TokenStream, annotations: tuple[ast.Annotation, ...]) -> ast.ActionDecl:
    ts.expect("action")
    at = ts.offset
    name = ts.name()
    ts.declare(name)
    parameters = parse_parameters(ts)
    ts.scopes.append({p.name: False for p in parameters})
    body = parse_block(ts)
    ts.scopes.pop()
    return ast.ActionDecl(at=at, name=name, annotations=annotations, parameters=parameters, body=body)
