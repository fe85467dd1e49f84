"""Grammar of statements and of the declarations that may stand among them."""

from __future__ import annotations

from dataclasses import replace

from p4switch.frontend import ast
from p4switch.frontend.parse_expr import (
    parse_annotations,
    parse_arguments,
    parse_expression,
    parse_postfix,
    parse_primary,
    parse_type_parameters,
    parse_type_ref,
)
from p4switch.frontend.parse_tokens import TokenStream

_ASSIGNMENTS = frozenset({"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", "|+|=", "|-|="})


def parse_block(ts: TokenStream, annotations: tuple[ast.Annotation, ...] = ()) -> ast.Block:
    at = ts.expect("{")
    ts.scopes.append({})
    body: list[ast.Statement] = []
    while not ts.is_symbol("}"):
        if ts.kinds[ts.at] == "end":
            raise ts.fail("this block does not end", at)
        body.append(parse_statement(ts))
    ts.scopes.pop()
    end = ts.expect("}")
    return ast.Block(at=at, body=tuple(body), annotations=annotations, end=end)


def parse_statement(ts: TokenStream) -> ast.Statement:
    ts.enter()
    annotations = parse_annotations(ts)
    result = parse_plain_statement(ts, annotations)
    ts.depth -= 1
    return result


def parse_plain_statement(ts: TokenStream, annotations: tuple[ast.Annotation, ...]) -> ast.Statement:
    at = ts.offset
    text = ts.text if ts.kinds[ts.at] in ("keyword", "operator") else ""
    if text == "{":
        return parse_block(ts, annotations)
    if text == ";":
        ts.at += 1
        return ast.Empty(at=at)
    if text == "if":
        return parse_conditional(ts)
    if text == "switch":
        return parse_switch(ts)
    if text == "for":
        return parse_loop(ts)
    if text in ("exit", "break", "continue"):
        ts.at += 1
        ts.expect(";")
        return {"exit": ast.Exit, "break": ast.Break, "continue": ast.Continue}[text](at=at)
    if text == "return":
        ts.at += 1
        value = None if ts.is_symbol(";") else parse_expression(ts)
        ts.expect(";")
        return ast.Return(at=at, value=value)
    if text == "const":
        return ast.DeclStatement(at=at, decl=parse_constant(ts, annotations))
    simple = parse_simple_statement(ts, annotations)
    if not (isinstance(simple, ast.DeclStatement) and isinstance(simple.decl, ast.Instantiation)):
        ts.expect(";")
    return simple


def parse_simple_statement(ts: TokenStream, annotations: tuple[ast.Annotation, ...]) -> ast.Statement:
    """Declaration, assignment or call, without the semicolon."""
    at = ts.offset
    if ts.starts_type() and not at_type_call(ts):
        return ast.DeclStatement(at=at, decl=parse_variable(ts, annotations, semicolon=False))
    if ts.at_name() and ts.kinds[ts.at + 1] == "name":
        raise ts.fail(f"'{ts.text}' is not the name of a type")
    target = parse_postfix(ts, parse_primary(ts))
    op_at = ts.offset
    op = ts.text if ts.kinds[ts.at] == "operator" else ""
    if op == ">" and ts.peek() == ">=":
        ts.at += 2
        return ast.Assignment(at=op_at, target=target, op=">>", value=parse_expression(ts))
    if op in _ASSIGNMENTS:
        ts.at += 1
        return ast.Assignment(at=op_at, target=target, op=op[:-1], value=parse_expression(ts))
    if isinstance(target, ast.Call):
        return ast.CallStatement(at=at, call=target)
    raise ts.fail("expected an assignment or a call", op_at)


def at_type_call(ts: TokenStream) -> bool:
    """`Type.apply(...)`, `Type<..>.apply(...)`: a statement that starts with a type's name."""
    if ts.kinds[ts.at] != "name" and ts.text != ".":
        return False
    start = ts.at
    found = ts.speculate(parse_type_ref)
    result = found is not None and ts.is_symbol(".")
    ts.at = start
    return result


def parse_conditional(ts: TokenStream) -> ast.Conditional:
    at = ts.expect("if")
    ts.expect("(")
    condition = parse_expression(ts)
    ts.expect(")")
    then = parse_statement(ts)
    otherwise = parse_statement(ts) if ts.accept("else") else None
    return ast.Conditional(at=at, condition=condition, then=then, otherwise=otherwise)


def parse_switch(ts: TokenStream) -> ast.Switch:
    at = ts.expect("switch")
    ts.expect("(")
    selector = parse_expression(ts)
    ts.expect(")")
    ts.expect("{")
    return ast.Switch(at=at, selector=selector, cases=ts.repeated("}", _parse_switch_case))


def _parse_switch_case(ts: TokenStream) -> ast.SwitchCase:
    at = ts.offset
    label = None if ts.accept("default") else parse_expression(ts)
    ts.expect(":")
    return ast.SwitchCase(at=at, label=label, body=parse_block(ts) if ts.is_symbol("{") else None)


def parse_loop(ts: TokenStream) -> ast.Statement:
    at = ts.expect("for")
    ts.expect("(")
    ts.scopes.append({})
    annotations = parse_annotations(ts)
    each = ts.speculate(parse_for_in_head)
    if each is not None:
        ref, name, name_at = each
        collection = parse_expression(ts)
        range_at = ts.offset
        if ts.accept(".."):
            collection = ast.Range(at=range_at, left=collection, right=parse_expression(ts))
        ts.expect(")")
        decl = ast.VariableDecl(at=name_at, name=name, annotations=annotations, ref=ref, init=None)
        ts.declare(name)
        body = parse_statement(ts)
        ts.scopes.pop()
        return ast.ForIn(at=at, decl=decl, collection=collection, body=body)
    init = parse_statement_list(ts, ";", annotations)
    condition = parse_expression(ts)
    ts.expect(";")
    update = parse_statement_list(ts, ")", ())
    body = parse_statement(ts)
    ts.scopes.pop()
    return ast.For(at=at, init=init, condition=condition, update=update, body=body)


def parse_for_in_head(ts: TokenStream) -> tuple[ast.TypeRef, str, int]:
    ref = parse_type_ref(ts)
    at = ts.offset
    name = ts.name()
    ts.expect("in")
    return ref, name, at


def parse_statement_list(
    ts: TokenStream, end: str, annotations: tuple[ast.Annotation, ...]
) -> tuple[ast.Statement, ...]:
    out: list[ast.Statement] = []
    if not ts.is_symbol(end):
        out.append(parse_simple_statement(ts, annotations))
        while ts.accept(","):
            out.append(parse_simple_statement(ts, ()))
    ts.expect(end)
    return tuple(out)


def parse_function_or_instantiation(ts: TokenStream, annotations: tuple[ast.Annotation, ...]) -> ast.Declaration:
    if not (ts.starts_type() or ts.at_name()):
        found = "the end of the file" if ts.kinds[ts.at] == "end" else f"'{ts.text}'"
        raise ts.fail(f"expected a declaration, found {found}")
    if ts.at_name() and not ts.starts_type() and ts.peek() not in ("(", "<") and not at_generic_function(ts):
        raise ts.fail(f"'{ts.text}' is not a type or keyword that starts a declaration")
    ref = parse_type_ref(ts)
    if ts.is_symbol("("):
        return parse_instantiation(ts, annotations, ref)
    return parse_function(ts, annotations, ref)


def at_generic_function(ts: TokenStream) -> bool:
    """`T name<T>(`: the return type is named before its type parameter is declared."""
    return ts.kinds[ts.at + 1] == "name" and ts.peek(2) == "<"


def parse_instantiation(
    ts: TokenStream, annotations: tuple[ast.Annotation, ...], ref: ast.TypeRef
) -> ast.Instantiation:
    arguments = parse_arguments(ts)
    name_at = ts.offset
    name = ts.name()
    body: tuple[ast.Declaration, ...] | None = None
    if ts.accept("="):
        ts.expect("{")
        ts.scopes.append({})
        body = ts.repeated("}", lambda ts: parse_function_or_instantiation(ts, parse_annotations(ts)))
        ts.scopes.pop()
    ts.expect(";")
    ts.declare(name)
    return ast.Instantiation(at=name_at, name=name, annotations=annotations, ref=ref, arguments=arguments, body=body)


def parse_function(ts: TokenStream, annotations: tuple[ast.Annotation, ...], returns: ast.TypeRef) -> ast.FunctionDecl:
    head = parse_prototype(ts, annotations, returns)
    ts.scopes.append({})
    ts.declare_types(head.type_parameters)
    for p in head.parameters:
        ts.declare(p.name)
    body = parse_block(ts)
    ts.scopes.pop()
    return replace(head, body=body)


def parse_prototype(
    ts: TokenStream, annotations: tuple[ast.Annotation, ...], returns: ast.TypeRef, is_abstract: bool = False
) -> ast.FunctionDecl:
    """A function without its body."""
    at = ts.offset
    name = ts.name()
    ts.declare(name)
    type_parameters = parse_type_parameters(ts)
    ts.scopes.append({})
    ts.declare_types(type_parameters)
    parameters = parse_parameters(ts)
    ts.scopes.pop()
    return ast.FunctionDecl(
        at=at,
        name=name,
        annotations=annotations,
        returns=returns,
        type_parameters=type_parameters,
        parameters=parameters,
        body=None,
        is_abstract=is_abstract,
    )


def parse_parameters(ts: TokenStream) -> tuple[ast.Parameter, ...]:
    ts.expect("(")
    return ts.separated(")", _parse_parameter)


def _parse_parameter(ts: TokenStream) -> ast.Parameter:
    annotations = parse_annotations(ts)
    direction = ts.text if ts.text in ("in", "out", "inout") and ts.kinds[ts.at] == "keyword" else ""
    if direction:
        ts.at += 1
    ref = parse_type_ref(ts)
    at = ts.offset
    name = ts.name()
    ref = parse_declarator_brackets(ts, ref)
    default = parse_expression(ts) if ts.accept("=") else None
    return ast.Parameter(at, name, direction, ref, default, annotations)


def parse_declarator_brackets(ts: TokenStream, ref: ast.TypeRef) -> ast.TypeRef:
    """`name[size]`: an array declared after the name."""
    while ts.is_symbol("["):
        at = ts.offset
        ts.at += 1
        size = parse_expression(ts)
        ts.expect("]")
        ref = ast.StackTypeRef(at, ref, size)
    return ref


def parse_constant(ts: TokenStream, annotations: tuple[ast.Annotation, ...]) -> ast.Constant:
    ts.expect("const")
    ref = parse_type_ref(ts)
    at = ts.offset
    name = ts.name()
    ref = parse_declarator_brackets(ts, ref)
    ts.expect("=")
    init = parse_expression(ts)
    ts.expect(";")
    ts.declare(name)
    return ast.Constant(at=at, name=name, annotations=annotations, ref=ref, init=init)


def parse_variable(ts: TokenStream, annotations: tuple[ast.Annotation, ...], semicolon: bool = True) -> ast.Declaration:
    """A variable, or an instantiation (`Type(args) name;`)."""
    ref = parse_type_ref(ts)
    if ts.is_symbol("("):
        return parse_instantiation(ts, annotations, ref)
    at = ts.offset
    name = ts.name()
    ref = parse_declarator_brackets(ts, ref)
    init = parse_expression(ts) if ts.accept("=") else None
    if semicolon:
        ts.expect(";")
    ts.declare(name)
    return ast.VariableDecl(at=at, name=name, annotations=annotations, ref=ref, init=init)
