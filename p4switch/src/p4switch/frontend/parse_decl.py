"""Grammar of the other declarations, and of a program."""

from __future__ import annotations

from collections.abc import Callable

from p4switch.frontend import ast
from p4switch.frontend.parse_block import parse_action, parse_control, parse_parser
from p4switch.frontend.parse_expr import parse_annotations, parse_expression, parse_type_parameters, parse_type_ref
from p4switch.frontend.parse_stmt import (
    parse_constant,
    parse_declarator_brackets,
    parse_function_or_instantiation,
    parse_parameters,
    parse_prototype,
)
from p4switch.frontend.parse_tokens import TokenStream


def parse_program(ts: TokenStream) -> ast.Program:
    declarations: list[ast.Declaration] = []
    while ts.kinds[ts.at] != "end":
        if ts.accept(";"):
            continue
        declarations.append(parse_declaration(ts))
    return ast.Program(tuple(declarations))


def parse_declaration(ts: TokenStream) -> ast.Declaration:
    """A declaration at the top level."""
    annotations = parse_annotations(ts)
    if ts.kinds[ts.at] == "keyword":
        rule = _DECLARATIONS.get(ts.text)
        if rule is not None:
            return rule(ts, annotations)
        if ts.text == "type" and ts.peek() != "<":
            return parse_typedef(ts, annotations)
        if ts.text == "error" and ts.peek() == "{":
            return parse_members(ts, annotations, ast.ErrorDecl, "error")
        if ts.text == "match_kind" and ts.peek() == "{":
            return parse_members(ts, annotations, ast.MatchKindDecl, "match_kind")
    return parse_function_or_instantiation(ts, annotations)


def parse_extern(ts: TokenStream, annotations: tuple[ast.Annotation, ...]) -> ast.Declaration:
    ts.expect("extern")
    at = ts.offset
    if ts.at_name() and ts.peek() in ("{", ";", "<") and not (ts.starts_type() and ts.kinds[ts.at + 1] == "name"):
        name = ts.name()
        ts.declare(name, True)
        type_parameters = parse_type_parameters(ts)
        if ts.accept(";"):
            return ast.ExternDecl(
                at=at,
                name=name,
                annotations=annotations,
                type_parameters=type_parameters,
                constructors=(),
                methods=(),
            )
        if ts.is_symbol("{"):
            return parse_extern_body(ts, annotations, at, name, type_parameters)
    ts.at = ts.offsets.index(at, max(0, ts.at - 64))
    decl = parse_prototype(ts, annotations, parse_type_ref(ts))
    ts.expect(";")
    return decl


def parse_extern_body(
    ts: TokenStream,
    annotations: tuple[ast.Annotation, ...],
    at: int,
    name: str,
    type_parameters: tuple[ast.TypeParameter, ...],
) -> ast.ExternDecl:
    ts.expect("{")
    ts.scopes.append({})
    ts.declare_types(type_parameters)
    constructors: list[ast.ConstructorDecl] = []
    methods: list[ast.FunctionDecl] = []
    while not ts.is_symbol("}"):
        own = parse_annotations(ts)
        abstract = ts.accept("abstract")
        here = ts.offset
        if ts.text == name and ts.peek() == "(":
            ts.at += 1
            constructors.append(
                ast.ConstructorDecl(at=here, name=name, annotations=own, parameters=parse_parameters(ts))
            )
        else:
            methods.append(parse_prototype(ts, own, parse_type_ref(ts), is_abstract=abstract))
        ts.expect(";")
    ts.scopes.pop()
    ts.expect("}")
    return ast.ExternDecl(
        at=at,
        name=name,
        annotations=annotations,
        type_parameters=type_parameters,
        constructors=tuple(constructors),
        methods=tuple(methods),
    )


def parse_struct(ts: TokenStream, annotations: tuple[ast.Annotation, ...]) -> ast.StructDecl:
    kind = ts.text
    ts.at += 1
    at = ts.offset
    name = ts.name()
    ts.declare(name, True)
    type_parameters = parse_type_parameters(ts)
    ts.scopes.append({})
    ts.declare_types(type_parameters)
    ts.expect("{")
    fields = ts.repeated("}", _parse_field)
    ts.scopes.pop()
    return ast.StructDecl(
        at=at, name=name, annotations=annotations, kind=kind, type_parameters=type_parameters, fields=fields
    )


def _parse_field(ts: TokenStream) -> ast.FieldDecl:
    annotations = parse_annotations(ts)
    ref = parse_type_ref(ts)
    at = ts.offset
    name = ts.name()
    ref = parse_declarator_brackets(ts, ref)
    ts.expect(";")
    return ast.FieldDecl(at=at, name=name, annotations=annotations, ref=ref)


def parse_enum(ts: TokenStream, annotations: tuple[ast.Annotation, ...]) -> ast.EnumDecl:
    ts.expect("enum")
    ref: ast.TypeRef | None = None
    if ts.peek() != "{":
        ref = parse_type_ref(ts)
    at = ts.offset
    name = ts.name()
    ts.declare(name, True)
    ts.expect("{")
    members = ts.separated("}", _parse_enum_member)
    return ast.EnumDecl(at=at, name=name, annotations=annotations, ref=ref, members=members)


def _parse_enum_member(ts: TokenStream) -> tuple[str, int, ast.Expr | None]:
    parse_annotations(ts)
    at = ts.offset
    return ts.name(), at, parse_expression(ts) if ts.accept("=") else None


def parse_members(
    ts: TokenStream,
    annotations: tuple[ast.Annotation, ...],
    kind: type[ast.ErrorDecl] | type[ast.MatchKindDecl],
    name: str,
) -> ast.Declaration:
    at = ts.offset
    ts.at += 1
    ts.expect("{")
    return kind(at=at, name=name, annotations=annotations, members=ts.separated("}", _parse_member))


def _parse_member(ts: TokenStream) -> tuple[str, int]:
    at = ts.offset
    return ts.name(), at


def parse_typedef(ts: TokenStream, annotations: tuple[ast.Annotation, ...]) -> ast.TypedefDecl:
    distinct = ts.text == "type"
    ts.at += 1
    own = parse_annotations(ts)
    ref: ast.TypeRef | ast.StructDecl | ast.EnumDecl
    if ts.kinds[ts.at] == "keyword" and ts.text in ("header", "struct", "header_union"):
        ref = parse_struct(ts, own)
    elif ts.is_symbol("enum"):
        ref = parse_enum(ts, own)
    else:
        ref = parse_type_ref(ts)
    at = ts.offset
    name = ts.name()
    if not isinstance(ref, ast.StructDecl | ast.EnumDecl):
        ref = parse_declarator_brackets(ts, ref)
    ts.expect(";")
    ts.declare(name, True)
    return ast.TypedefDecl(at=at, name=name, annotations=annotations, ref=ref, distinct=distinct)


def parse_package(ts: TokenStream, annotations: tuple[ast.Annotation, ...]) -> ast.PackageDecl:
    ts.expect("package")
    at = ts.offset
    name = ts.name()
    ts.declare(name, True)
    type_parameters = parse_type_parameters(ts)
    ts.scopes.append({})
    ts.declare_types(type_parameters)
    parameters = parse_parameters(ts)
    ts.scopes.pop()
    ts.expect(";")
    return ast.PackageDecl(
        at=at, name=name, annotations=annotations, type_parameters=type_parameters, parameters=parameters
    )


_DECLARATIONS: dict[str, Callable[[TokenStream, tuple[ast.Annotation, ...]], ast.Declaration]] = {
    "const": parse_constant,
    "extern": parse_extern,
    "action": parse_action,
    "parser": parse_parser,
    "control": parse_control,
    "package": parse_package,
    "header": parse_struct,
    "struct": parse_struct,
    "header_union": parse_struct,
    "enum": parse_enum,
    "typedef": parse_typedef,
}
"""What each keyword begins."""
