"""Second layer of the parser: annotations, types and expressions."""

from __future__ import annotations

from p4switch.frontend import ast
from p4switch.frontend.lexer import parse_number, unescape
from p4switch.frontend.parse_tokens import BASE_TYPES, BacktrackError, TokenParser

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


class ExpressionParser(TokenParser):
    """Parses annotations, types and expressions."""

    # ---------------------------------------------------------------- annotations

    def annotations(self) -> list[ast.Annotation]:
        out: list[ast.Annotation] = []
        while self.is_symbol("@"):
            out.append(self.annotation())
        return out

    def annotation(self) -> ast.Annotation:
        start = self.expect("@")
        if self.kinds[self.at] not in ("name", "keyword"):
            raise self.fail("expected the name of an annotation")
        name = self.text
        self.at += 1
        if name == "pragma":
            return self.pragma(start)
        result = ast.Annotation(start, name)
        if self.is_symbol("("):
            begin = self.offset
            self.at += 1
            depth = 1
            while True:
                if self.kinds[self.at] == "end":
                    raise self.fail("this annotation does not end", start)
                if self.is_symbol("("):
                    depth += 1
                elif self.is_symbol(")"):
                    depth -= 1
                    if depth == 0:
                        break
                result.tokens.append((self.kinds[self.at], self.text, self.offset))
                self.at += 1
            result.text = self.reporter.source.text[begin + 1 : self.offset]
            self.at += 1
        elif self.is_symbol("["):
            result.structured = True
            begin = self.offset
            self.at += 1
            while not self.is_symbol("]"):
                if self.at_name() and self.peek() == "=":
                    key = self.name()
                    self.at += 1
                    result.pairs.append((key, self.expression()))
                else:
                    result.expressions.append(self.expression())
                if not self.accept(","):
                    break
            result.text = self.reporter.source.text[begin + 1 : self.offset]
            self.expect("]")
        return result

    def pragma(self, start: int) -> ast.Annotation:
        """`@pragma name tokens to the end of the line`."""
        line_end = self.reporter.source.text.find("\n", start)
        result = ast.Annotation(start, self.text)
        self.at += 1
        begin = self.offset
        while self.kinds[self.at] != "end" and self.offset < line_end:
            result.tokens.append((self.kinds[self.at], self.text, self.offset))
            self.at += 1
        result.text = self.reporter.source.text[begin:line_end].strip()
        return result

    # ---------------------------------------------------------------- types

    def type_ref(self) -> ast.TypeRef:
        self.enter()
        result = self.simple_type()
        while self.is_symbol("["):
            at = self.offset
            self.at += 1
            size = self.expression()
            self.expect("]")
            result = ast.StackTypeRef(at, result, size)
        self.depth -= 1
        return result

    def simple_type(self) -> ast.TypeRef:
        at = self.offset
        text = self.text
        if self.kinds[self.at] == "keyword" and text in BASE_TYPES and not (text == "list" and self.peek() != "<"):
            self.at += 1
            if text in ("bit", "int", "varbit"):
                if self.accept("<"):
                    width = self.additive_in_angles()
                    self.close_angle()
                    return ast.SizedType(at, text, width)
                if text == "varbit":
                    raise self.fail("varbit needs a width, as in varbit<32>")
                return ast.SizedType(at, text, None) if text == "bit" else ast.BaseType(at, "int")
            if text == "tuple":
                self.expect("<")
                elements = self.type_arguments()
                return ast.TupleTypeRef(at, elements)
            if text == "list":
                self.expect("<")
                element = self.type_ref()
                self.close_angle()
                return ast.ListTypeRef(at, element)
            return ast.BaseType(at, text)
        absolute = self.accept(".")
        if not self.at_name():
            raise self.fail(f"expected a type, found '{text}'" if text else "expected a type")
        if self.speculating and not self.is_type(self.text):
            raise BacktrackError
        name = self.name()
        result = ast.NamedType(at, name, absolute)
        if self.is_symbol("<"):
            self.at += 1
            result.arguments = self.type_arguments()
        return result

    def type_arguments(self) -> list[ast.TypeRef]:
        """Types after `<` up to and with `>`."""
        out: list[ast.TypeRef] = []
        if not self.is_symbol(">"):
            out.append(self.type_ref())
            while self.accept(","):
                out.append(self.type_ref())
        self.close_angle()
        return out

    def additive_in_angles(self) -> ast.Expr:
        """A width inside `<...>`: `>` ends it unless in parentheses."""
        return self.binary(_PRECEDENCE["|"], in_angles=True)

    def type_parameters(self) -> list[ast.TypeParameter]:
        out: list[ast.TypeParameter] = []
        if not self.accept("<"):
            return out
        while True:
            at = self.offset
            out.append(ast.TypeParameter(at, self.name()))
            if not self.accept(","):
                break
        self.close_angle()
        return out

    # ---------------------------------------------------------------- expressions

    def expression(self) -> ast.Expr:
        self.enter()
        condition = self.binary(0)
        if not self.is_symbol("?"):
            self.depth -= 1
            return condition
        at = self.offset
        self.at += 1
        yes = self.expression()
        self.expect(":")
        no = self.expression()
        self.depth -= 1
        return ast.Ternary(at=at, condition=condition, yes=yes, no=no)

    def operator(self, in_angles: bool) -> str:
        """The binary operator at the current token, '' if none; `>>` is joined from two tokens."""
        if self.kinds[self.at] != "operator":
            return ""
        text = self.text
        if text == ">":
            if in_angles:
                return ""
            following = self.at + 1
            adjacent = self.offsets[following] == self.offset + 1
            if adjacent and self.texts[following] == ">" and self.kinds[following] == "operator":
                return ">>"
            return "" if adjacent and self.texts[following] == ">=" else text
        return text if text in _PRECEDENCE else ""

    def binary(self, lowest: int, in_angles: bool = False) -> ast.Expr:
        """Precedence climbing; all operators are left-associative."""
        left = self.unary()
        for _ in range(MAX_TERMS):
            op = self.operator(in_angles)
            level = _PRECEDENCE.get(op, -1)
            if level < lowest:
                return left
            at = self.offset
            self.at += 2 if op == ">>" else 1
            right = self.binary(level + 1, in_angles)
            left = ast.Binary(at=at, op=op, left=left, right=right)
        raise self.reporter.fail_unsupported(self.offset, f"more than {MAX_TERMS} operators in a row")

    def unary(self) -> ast.Expr:
        at = self.offset
        if self.kinds[self.at] == "operator":
            if self.text in ("!", "~", "-", "+"):
                op = self.text
                self.at += 1
                self.enter()
                operand = self.unary()
                self.depth -= 1
                return ast.Unary(at=at, op=op, operand=operand)
            if self.text == "(":
                cast = self.speculate(self.cast_head)
                if cast is not None:
                    self.enter()
                    operand = self.unary()
                    self.depth -= 1
                    return ast.Cast(at=at, ref=cast, operand=operand)
        return self.postfix(self.primary())

    def cast_head(self) -> ast.TypeRef:
        """`(type)`, speculatively."""
        self.at += 1
        if not self.starts_type():
            raise BacktrackError
        ref = self.type_ref()
        self.expect(")")
        return ref

    def primary(self) -> ast.Expr:
        at = self.offset
        kind = self.kinds[self.at]
        text = self.text
        if kind == "number":
            return self.number()
        if kind == "string":
            self.at += 1
            return ast.StringLiteral(at=at, text=unescape(text))
        if kind == "keyword" and text in ("true", "false"):
            self.at += 1
            return ast.BoolLiteral(at=at, truth=text == "true")
        if kind == "keyword" and text in ("error", "this"):
            self.at += 1
            return ast.Name(at=at, name=text)
        if kind == "operator":
            if text == "(":
                self.at += 1
                inner = self.expression()
                self.expect(")")
                return inner
            if text == "{":
                return self.braces()
            if text == "{#}":
                self.at += 1
                return ast.InvalidExpr(at=at)
            if text == "...":
                self.at += 1
                return ast.DotsExpr(at=at)
        if self.starts_type():
            return self.type_expression()
        absolute = self.accept(".")
        if not self.at_name():
            found = "the end of the file" if kind == "end" else f"'{text}'"
            raise self.fail(f"expected an expression, found {found}")
        return ast.Name(at=at, name=self.name(), absolute=absolute)

    def type_expression(self) -> ast.Expr:
        """A type name before `.member` or `(`, with type arguments if it has any."""
        at = self.offset
        ref = self.simple_type()
        if isinstance(ref, ast.NamedType) and ref.arguments is None:
            return ast.Name(at=at, name=ref.name, absolute=ref.absolute)
        return ast.TypeExpr(at=at, ref=ref)

    def number(self) -> ast.Expr:
        at = self.offset
        parsed = parse_number(self.text)
        if parsed is None:
            raise self.fail(f"'{self.text}' is not a number")
        value, width, signed = parsed
        self.at += 1
        return ast.IntLiteral(at=at, number=value, width=width, signed=signed)

    def braces(self) -> ast.Expr:
        """{a, b}, {f = a, g = b}, {} or with a last `...`."""
        at = self.expect("{")
        if self.at_name() and self.peek() == "=":
            fields: list[tuple[str, int, ast.Expr]] = []
            dots = False
            while not self.is_symbol("}"):
                if self.accept("..."):
                    dots = True
                    break
                field_at = self.offset
                name = self.name()
                self.expect("=")
                fields.append((name, field_at, self.expression()))
                if not self.accept(","):
                    break
            self.accept(",")
            self.expect("}")
            return ast.StructExpr(at=at, fields=fields, dots=dots)
        items: list[ast.Expr] = []
        dots = False
        while not self.is_symbol("}"):
            if dots:
                raise self.fail("'...' must be the last element")
            if self.is_symbol("...") and self.peek() in ("}", ","):
                self.at += 1
                dots = True
            else:
                items.append(self.expression())
            if not self.accept(","):
                break
        self.expect("}")
        return ast.ListExpr(at=at, items=items, dots=dots)

    def postfix(self, expr: ast.Expr) -> ast.Expr:
        while self.kinds[self.at] == "operator":
            at = expr.at
            text = self.text
            if text == ".":
                self.at += 1
                name_at = self.offset
                expr = ast.Member(at=at, base=expr, name=self.name(), name_at=name_at)
            elif text == "[":
                expr = self.subscript(expr)
            elif text == "(":
                expr = ast.Call(at=at, function=expr, type_arguments=None, arguments=self.arguments())
            elif text == "<" and isinstance(expr, ast.Name | ast.Member):
                arguments = self.speculate(self.call_type_arguments)
                if arguments is None:
                    return expr
                expr = ast.Call(at=at, function=expr, type_arguments=arguments, arguments=self.arguments())
            else:
                return expr
        return expr

    def call_type_arguments(self) -> list[ast.TypeRef]:
        """`<types>` before `(`, speculatively."""
        self.at += 1
        if not (self.starts_type() or self.is_symbol("_")):
            raise BacktrackError
        arguments = self.type_arguments()
        if not self.is_symbol("("):
            raise BacktrackError
        return arguments

    def subscript(self, base: ast.Expr) -> ast.Expr:
        at = base.at
        self.expect("[")
        first = self.expression()
        if self.is_symbol(":") or self.is_symbol("+:"):
            plus = self.text == "+:"
            self.at += 1
            second = self.expression()
            self.expect("]")
            return ast.Slice(at=at, base=base, high=first, low=second, plus=plus)
        self.expect("]")
        return ast.Index(at=at, base=base, index=first)

    def arguments(self) -> list[ast.Argument]:
        self.expect("(")
        out: list[ast.Argument] = []
        while not self.is_symbol(")"):
            at = self.offset
            name = None
            if self.at_name() and self.peek() == "=":
                name = self.name()
                self.at += 1
            if self.is_symbol("_") and self.peek() in (",", ")"):
                self.at += 1
                out.append(ast.Argument(at, name, None))
            else:
                out.append(ast.Argument(at, name, self.expression()))
            if not self.accept(","):
                break
        self.expect(")")
        return out

    def keyset(self) -> ast.Expr:
        """A keyset expression of a select case or table entry."""
        if self.is_symbol("("):
            tuple_keyset = self.speculate(self.tuple_keyset)
            if tuple_keyset is not None:
                return tuple_keyset
        return self.simple_keyset()

    def tuple_keyset(self) -> ast.Expr:
        at = self.expect("(")
        items = [self.simple_keyset()]
        while self.accept(","):
            items.append(self.simple_keyset())
        self.expect(")")
        if not self.is_symbol(":"):
            raise BacktrackError
        return items[0] if len(items) == 1 else ast.TupleKeyset(at=at, items=items)

    def simple_keyset(self) -> ast.Expr:
        at = self.offset
        if self.accept("default") or self.accept("_"):
            return ast.DefaultExpr(at=at)
        left = self.expression()
        at = self.offset
        if self.accept("&&&"):
            return ast.Mask(at=at, left=left, right=self.expression())
        if self.accept(".."):
            return ast.Range(at=at, left=left, right=self.expression())
        return left
