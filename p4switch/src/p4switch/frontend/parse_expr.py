"""Grammar of annotations, types and expressions."""

from __future__ import annotations

from p4switch.frontend import ast
from p4switch.frontend.lexer import parse_number, unescape
from p4switch.frontend.parse_tokens import BASE_TYPES, BacktrackError, TokenStream

_BINARY_LEVELS: tuple[tuple[str, ...], ...] = (
    ("||",),
    ("&&",),
    ("==", "!="),
    ("<", ">", "<=", ">="),
    ("|",),
    ("^",),
    ("&",),
    ("<<", ">>"),
    ("++", "+", "-", "|+|", "|-|"),
    ("*", "/", "%"),
)


_PRECEDENCE = {op: level for level, ops in enumerate(_BINARY_LEVELS) for op in ops}


MAX_TERMS = 2000
"""Operators in a row; each makes the tree one deeper."""


def parse_annotations(ts: TokenStream) -> tuple[ast.Annotation, ...]:
    out: list[ast.Annotation] = []
    while ts.is_symbol("@"):
        out.append(parse_annotation(ts))
    return tuple(out)


def parse_annotation(ts: TokenStream) -> ast.Annotation:
    start = ts.expect("@")
    if ts.kinds[ts.at] not in ("name", "keyword"):
        raise ts.fail("expected the name of an annotation")
    name = ts.text
    ts.at += 1
    if name == "pragma":
        return parse_pragma(ts, start)
    if ts.is_symbol("("):
        return _plain_annotation(ts, start, name)
    if ts.is_symbol("["):
        return _structured_annotation(ts, start, name)
    return ast.Annotation(start, name)


def _plain_annotation(ts: TokenStream, start: int, name: str) -> ast.Annotation:
    """`(tokens)`, parentheses in pairs."""
    begin = ts.offset
    tokens: list[tuple[str, str, int]] = []
    ts.at += 1
    depth = 1
    while True:
        if ts.kinds[ts.at] == "end":
            raise ts.fail("this annotation does not end", start)
        if ts.is_symbol("("):
            depth += 1
        elif ts.is_symbol(")"):
            depth -= 1
            if depth == 0:
                break
        tokens.append((ts.kinds[ts.at], ts.text, ts.offset))
        ts.at += 1
    text = ts.reporter.source.text[begin + 1 : ts.offset]
    ts.at += 1
    return ast.Annotation(start, name, tokens=tuple(tokens), text=text)


def _structured_annotation(ts: TokenStream, start: int, name: str) -> ast.Annotation:
    """`[expressions]` or `[name = expression, ..]`."""
    begin = ts.offset
    expressions: list[ast.Expr] = []
    pairs: list[tuple[str, ast.Expr]] = []
    ts.at += 1
    while not ts.is_symbol("]"):
        if ts.at_name() and ts.peek() == "=":
            key = ts.name()
            ts.at += 1
            pairs.append((key, parse_expression(ts)))
        else:
            expressions.append(parse_expression(ts))
        if not ts.accept(","):
            break
    text = ts.reporter.source.text[begin + 1 : ts.offset]
    ts.expect("]")
    return ast.Annotation(start, name, structured=True, expressions=tuple(expressions), pairs=tuple(pairs), text=text)


def parse_pragma(ts: TokenStream, start: int) -> ast.Annotation:
    """`@pragma name tokens to the end of the line`."""
    line_end = ts.reporter.source.text.find("\n", start)
    name = ts.text
    tokens: list[tuple[str, str, int]] = []
    ts.at += 1
    begin = ts.offset
    while ts.kinds[ts.at] != "end" and ts.offset < line_end:
        tokens.append((ts.kinds[ts.at], ts.text, ts.offset))
        ts.at += 1
    return ast.Annotation(start, name, tokens=tuple(tokens), text=ts.reporter.source.text[begin:line_end].strip())


# ---------------------------------------------------------------- types


def parse_type_ref(ts: TokenStream) -> ast.TypeRef:
    ts.enter()
    result = parse_simple_type(ts)
    while ts.is_symbol("["):
        at = ts.offset
        ts.at += 1
        size = parse_expression(ts)
        ts.expect("]")
        result = ast.StackTypeRef(at, result, size)
    ts.depth -= 1
    return result


def parse_simple_type(ts: TokenStream) -> ast.TypeRef:
    at = ts.offset
    text = ts.text
    if ts.kinds[ts.at] == "keyword" and text in BASE_TYPES and not (text == "list" and ts.peek() != "<"):
        ts.at += 1
        if text in ("bit", "int", "varbit"):
            if ts.accept("<"):
                width = parse_additive_in_angles(ts)
                ts.close_angle()
                return ast.SizedType(at, text, width)
            if text == "varbit":
                raise ts.fail("varbit needs a width, as in varbit<32>")
            return ast.SizedType(at, text, None) if text == "bit" else ast.BaseType(at, "int")
        if text == "tuple":
            ts.expect("<")
            elements = parse_type_arguments(ts)
            return ast.TupleTypeRef(at, elements)
        if text == "list":
            ts.expect("<")
            element = parse_type_ref(ts)
            ts.close_angle()
            return ast.ListTypeRef(at, element)
        return ast.BaseType(at, text)
    absolute = ts.accept(".")
    if not ts.at_name():
        raise ts.fail(f"expected a type, found '{text}'" if text else "expected a type")
    if ts.speculating and not ts.is_type(ts.text):
        raise BacktrackError
    name = ts.name()
    if not ts.is_symbol("<"):
        return ast.NamedType(at, name, absolute)
    ts.at += 1
    return ast.NamedType(at, name, absolute, parse_type_arguments(ts))


def parse_type_arguments(ts: TokenStream) -> tuple[ast.TypeRef, ...]:
    """Types after `<` up to and with `>`."""
    out: list[ast.TypeRef] = []
    if not ts.is_symbol(">"):
        out.append(parse_type_ref(ts))
        while ts.accept(","):
            out.append(parse_type_ref(ts))
    ts.close_angle()
    return tuple(out)


def parse_additive_in_angles(ts: TokenStream) -> ast.Expr:
    """A width inside `<...>`: `>` ends it unless in parentheses."""
    return parse_binary(ts, _PRECEDENCE["|"], in_angles=True)


def parse_type_parameters(ts: TokenStream) -> tuple[ast.TypeParameter, ...]:
    out: list[ast.TypeParameter] = []
    if not ts.accept("<"):
        return tuple(out)
    while True:
        at = ts.offset
        out.append(ast.TypeParameter(at, ts.name()))
        if not ts.accept(","):
            break
    ts.close_angle()
    return tuple(out)


# ---------------------------------------------------------------- expressions


def parse_expression(ts: TokenStream) -> ast.Expr:
    ts.enter()
    condition = parse_binary(ts, 0)
    if not ts.is_symbol("?"):
        ts.depth -= 1
        return condition
    at = ts.offset
    ts.at += 1
    yes = parse_expression(ts)
    ts.expect(":")
    no = parse_expression(ts)
    ts.depth -= 1
    return ast.Ternary(at=at, condition=condition, yes=yes, no=no)


def parse_operator(ts: TokenStream, in_angles: bool) -> str:
    """The binary operator at the current token, '' if none; `>>` is joined from two tokens."""
    if ts.kinds[ts.at] != "operator":
        return ""
    text = ts.text
    if text == ">":
        if in_angles:
            return ""
        following = ts.at + 1
        adjacent = ts.offsets[following] == ts.offset + 1
        if adjacent and ts.texts[following] == ">" and ts.kinds[following] == "operator":
            return ">>"
        return "" if adjacent and ts.texts[following] == ">=" else text
    return text if text in _PRECEDENCE else ""


def parse_binary(ts: TokenStream, lowest: int, in_angles: bool = False) -> ast.Expr:
    """Precedence climbing; all operators are left-associative."""
    left = parse_unary(ts)
    for _ in range(MAX_TERMS):
        op = parse_operator(ts, in_angles)
        level = _PRECEDENCE.get(op, -1)
        if level < lowest:
            return left
        at = ts.offset
        ts.at += 2 if op == ">>" else 1
        right = parse_binary(ts, level + 1, in_angles)
        left = ast.Binary(at=at, op=op, left=left, right=right)
    raise ts.reporter.fail_unsupported(ts.offset, f"more than {MAX_TERMS} operators in a row")


def parse_unary(ts: TokenStream) -> ast.Expr:
    at = ts.offset
    if ts.kinds[ts.at] == "operator":
        if ts.text in ("!", "~", "-", "+"):
            op = ts.text
            ts.at += 1
            ts.enter()
            operand = parse_unary(ts)
            ts.depth -= 1
            return ast.Unary(at=at, op=op, operand=operand)
        if ts.text == "(":
            cast = ts.speculate(parse_cast_head)
            if cast is not None:
                ts.enter()
                operand = parse_unary(ts)
                ts.depth -= 1
                return ast.Cast(at=at, ref=cast, operand=operand)
    return parse_postfix(ts, parse_primary(ts))


def parse_cast_head(ts: TokenStream) -> ast.TypeRef:
    """`(type)`, speculatively."""
    ts.at += 1
    if not ts.starts_type():
        raise BacktrackError
    ref = parse_type_ref(ts)
    ts.expect(")")
    return ref


def parse_primary(ts: TokenStream) -> ast.Expr:
    at = ts.offset
    kind = ts.kinds[ts.at]
    text = ts.text
    if kind == "number":
        return parse_int_literal(ts)
    if kind == "string":
        ts.at += 1
        return ast.StringLiteral(at=at, text=unescape(text))
    if kind == "keyword" and text in ("true", "false"):
        ts.at += 1
        return ast.BoolLiteral(at=at, truth=text == "true")
    if kind == "keyword" and text in ("error", "this"):
        ts.at += 1
        return ast.Name(at=at, name=text)
    if kind == "operator":
        if text == "(":
            ts.at += 1
            inner = parse_expression(ts)
            ts.expect(")")
            return inner
        if text == "{":
            return parse_braces(ts)
        if text == "{#}":
            ts.at += 1
            return ast.InvalidExpr(at=at)
        if text == "...":
            ts.at += 1
            return ast.DotsExpr(at=at)
    if ts.starts_type():
        return parse_type_expression(ts)
    absolute = ts.accept(".")
    if not ts.at_name():
        found = "the end of the file" if kind == "end" else f"'{text}'"
        raise ts.fail(f"expected an expression, found {found}")
    return ast.Name(at=at, name=ts.name(), absolute=absolute)


def parse_type_expression(ts: TokenStream) -> ast.Expr:
    """A type name before `.member` or `(`, with type arguments if it has any."""
    at = ts.offset
    ref = parse_simple_type(ts)
    if isinstance(ref, ast.NamedType) and ref.arguments is None:
        return ast.Name(at=at, name=ref.name, absolute=ref.absolute)
    return ast.TypeExpr(at=at, ref=ref)


def parse_int_literal(ts: TokenStream) -> ast.Expr:
    at = ts.offset
    parsed = parse_number(ts.text)
    if parsed is None:
        raise ts.fail(f"'{ts.text}' is not a number")
    value, width, signed = parsed
    ts.at += 1
    return ast.IntLiteral(at=at, number=value, width=width, signed=signed)


def parse_braces(ts: TokenStream) -> ast.Expr:
    """{a, b}, {f = a, g = b}, {} or with a last `...`."""
    at = ts.expect("{")
    if ts.at_name() and ts.peek() == "=":
        fields: list[tuple[str, int, ast.Expr]] = []
        dots = False
        while not ts.is_symbol("}"):
            if ts.accept("..."):
                dots = True
                break
            field_at = ts.offset
            name = ts.name()
            ts.expect("=")
            fields.append((name, field_at, parse_expression(ts)))
            if not ts.accept(","):
                break
        ts.accept(",")
        ts.expect("}")
        return ast.StructExpr(at=at, fields=tuple(fields), dots=dots)
    items: list[ast.Expr] = []
    dots = False
    while not ts.is_symbol("}"):
        if dots:
            raise ts.fail("'...' must be the last element")
        if ts.is_symbol("...") and ts.peek() in ("}", ","):
            ts.at += 1
            dots = True
        else:
            items.append(parse_expression(ts))
        if not ts.accept(","):
            break
    ts.expect("}")
    return ast.ListExpr(at=at, items=tuple(items), dots=dots)


def parse_postfix(ts: TokenStream, expr: ast.Expr) -> ast.Expr:
    while ts.kinds[ts.at] == "operator":
        at = expr.at
        text = ts.text
        if text == ".":
            ts.at += 1
            name_at = ts.offset
            expr = ast.Member(at=at, base=expr, name=ts.name(), name_at=name_at)
        elif text == "[":
            expr = parse_subscript(ts, expr)
        elif text == "(":
            expr = ast.Call(at=at, function=expr, type_arguments=None, arguments=parse_arguments(ts))
        elif text == "<" and isinstance(expr, ast.Name | ast.Member):
            arguments = ts.speculate(parse_call_type_arguments)
            if arguments is None:
                return expr
            expr = ast.Call(at=at, function=expr, type_arguments=arguments, arguments=parse_arguments(ts))
        else:
            return expr
    return expr


def parse_call_type_arguments(ts: TokenStream) -> tuple[ast.TypeRef, ...]:
    """`<types>` before `(`, speculatively."""
    ts.at += 1
    if not (ts.starts_type() or ts.is_symbol("_")):
        raise BacktrackError
    arguments = parse_type_arguments(ts)
    if not ts.is_symbol("("):
        raise BacktrackError
    return arguments


def parse_subscript(ts: TokenStream, base: ast.Expr) -> ast.Expr:
    at = base.at
    ts.expect("[")
    first = parse_expression(ts)
    if ts.is_symbol(":") or ts.is_symbol("+:"):
        plus = ts.text == "+:"
        ts.at += 1
        second = parse_expression(ts)
        ts.expect("]")
        return ast.Slice(at=at, base=base, high=first, low=second, plus=plus)
    ts.expect("]")
    return ast.Index(at=at, base=base, index=first)


def parse_arguments(ts: TokenStream) -> tuple[ast.Argument, ...]:
    ts.expect("(")
    return ts.separated(")", _parse_argument)


def _parse_argument(ts: TokenStream) -> ast.Argument:
    at = ts.offset
    name = None
    if ts.at_name() and ts.peek() == "=":
        name = ts.name()
        ts.at += 1
    if ts.is_symbol("_") and ts.peek() in (",", ")"):
        ts.at += 1
        return ast.Argument(at, name, None)
    return ast.Argument(at, name, parse_expression(ts))


def parse_keyset(ts: TokenStream) -> ast.Expr:
    """A keyset expression of a select case or table entry."""
    if ts.is_symbol("("):
        tuple_keyset = ts.speculate(parse_tuple_keyset)
        if tuple_keyset is not None:
            return tuple_keyset
    return parse_simple_keyset(ts)


def parse_tuple_keyset(ts: TokenStream) -> ast.Expr:
    at = ts.expect("(")
    items = [parse_simple_keyset(ts)]
    while ts.accept(","):
        items.append(parse_simple_keyset(ts))
    ts.expect(")")
    if not ts.is_symbol(":"):
        raise BacktrackError
    return items[0] if len(items) == 1 else ast.TupleKeyset(at=at, items=tuple(items))


def parse_simple_keyset(ts: TokenStream) -> ast.Expr:
    at = ts.offset
    if ts.accept("default") or ts.accept("_"):
        return ast.DefaultExpr(at=at)
    left = parse_expression(ts)
    at = ts.offset
    if ts.accept("&&&"):
        return ast.Mask(at=at, left=left, right=parse_expression(ts))
    if ts.accept(".."):
        return ast.Range(at=at, left=left, right=parse_expression(ts))
    return left
