"""Annotations as the control plane sees them, and the names that they give."""

from __future__ import annotations

from collections.abc import Sequence

from p4switch.frontend import ast, constants
from p4switch.frontend.lexer import parse_number, unescape
from p4switch.frontend.p4_types import INT
from p4switch.ir import types as irt


def ir_annotations(annotations: Sequence[ast.Annotation]) -> tuple[irt.Annotation, ...]:
    """Annotations as the control plane sees them."""
    return tuple(convert_annotation(a) for a in annotations)


def convert_annotation(a: ast.Annotation) -> irt.Annotation:
    """Parse the body of an unstructured annotation as far as it is a list of numbers, strings and truth values."""
    if a.structured:
        expressions = tuple(_plain(e) for e in a.expressions)
        named = tuple((k, _plain(e)) for k, e in a.pairs)
        return irt.Annotation(a.name, expressions, named, a.text, structured=True)
    values: list[int | str | bool] = []
    pairs: list[tuple[str, int | str | bool]] = []
    key: str | None = None
    for index, (kind, text, _) in enumerate(a.tokens):
        following = a.tokens[index + 1][1] if index + 1 < len(a.tokens) else ""
        value: int | str | bool
        if kind == "number":
            parsed = parse_number(text)
            value = parsed[0] if parsed is not None else text
        elif kind == "string":
            value = unescape(text)
        elif text in ("true", "false"):
            value = text == "true"
        elif kind in ("name", "keyword") and following == "=":
            key = text
            continue
        elif kind in ("name", "keyword") and following != "<":
            value = text
        else:
            continue
        if key is not None:
            pairs.append((key, value))
            key = None
        else:
            values.append(value)
    return irt.Annotation(a.name, tuple(values), tuple(pairs), a.text)


def _plain(e: ast.Expr) -> int | str | bool:
    if isinstance(e, ast.IntLiteral):
        return e.number
    if isinstance(e, ast.BoolLiteral):
        return e.truth
    if isinstance(e, ast.StringLiteral):
        return e.text
    if isinstance(e, ast.Unary):
        operand = _plain(e.operand)
        return constants.unary(e.op, operand, INT) if isinstance(operand, int) else ""
    if isinstance(e, ast.Binary):
        left, right = _plain(e.left), _plain(e.right)
        if isinstance(left, bool) and isinstance(right, bool) and e.op in ("&&", "||"):
            return (left and right) if e.op == "&&" else (left or right)
        if isinstance(left, str) and isinstance(right, str):
            return left + right if e.op == "++" else ""
        if isinstance(left, int) and isinstance(right, int):
            return constants.binary(e.op, left, right, INT, INT)
    return ""


def find_annotation(annotations: Sequence[ast.Annotation], name: str) -> ast.Annotation | None:
    """The first annotation of that name, or None."""
    return next((a for a in annotations if a.name == name), None)


def qualified_name(prefix: str, decl: ast.Declaration) -> str:
    """Control-plane name of a declaration inside `prefix`; @name(".x") is absolute."""
    name = decl.name
    annotation = find_annotation(decl.annotations, "name")
    if annotation is not None:
        body = convert_annotation(annotation).body
        if body and isinstance(body[0], str):
            name = body[0]
    if name.startswith("."):
        return name[1:]
    return f"{prefix}.{name}" if prefix else name


def parameter_name(p: ast.Parameter) -> str:
    """Control-plane name of an action parameter."""
    annotation = find_annotation(p.annotations, "name")
    if annotation is not None and annotation.tokens and annotation.tokens[0][0] == "string":
        return annotation.tokens[0][1][1:-1]
    return p.name
