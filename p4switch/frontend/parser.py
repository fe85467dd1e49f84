"""Recursive-descent parser of the whole P4_16 grammar.

The grammar needs to know which names are types; the parser keeps its own scopes of names for that alone.
Syntax errors stop at the first one: after it, nothing read is trustworthy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from p4switch.frontend import ast
from p4switch.frontend.lexer import SOFT_KEYWORDS, Tokens, parse_number, tokenize, unescape
from p4switch.frontend.source import AbortError, Reporter

T = TypeVar("T")

MAX_NESTING = 200
"""Depth of expressions and statements; Python's own stack is the reason."""

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
_BASE_TYPES = frozenset({"bit", "int", "varbit", "bool", "error", "match_kind", "string", "void", "tuple", "list", "_"})
_ASSIGNMENTS = frozenset({"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", "|+|=", "|-|="})


class _BacktrackError(Exception):
    """A speculative parse failed; no diagnostic."""


class Parser:
    """Parses one token stream."""

    def __init__(self, reporter: Reporter, tokens: Tokens) -> None:
        self.reporter = reporter
        self.kinds = tokens.kinds
        self.texts = tokens.texts
        self.offsets = tokens.offsets
        self.at = 0
        self.scopes: list[dict[str, bool]] = [{}]  # name -> is a type
        self.speculating = 0
        self.depth = 0

    # ---------------------------------------------------------------- tokens

    @property
    def text(self) -> str:
        return self.texts[self.at]

    @property
    def offset(self) -> int:
        return self.offsets[self.at]

    def fail(self, message: str, offset: int | None = None) -> Exception:
        if self.speculating:
            return _BacktrackError()
        return self.reporter.fail(self.offset if offset is None else offset, message)

    def peek(self, ahead: int = 1) -> str:
        index = self.at + ahead
        return self.texts[index] if index < len(self.texts) else ""

    def is_symbol(self, text: str) -> bool:
        return self.texts[self.at] == text and self.kinds[self.at] not in ("string", "end")

    def accept(self, text: str) -> bool:
        if self.texts[self.at] == text and self.kinds[self.at] != "string":
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> int:
        offset = self.offset
        if not self.accept(text):
            found = f"'{self.text}'" if self.kinds[self.at] != "end" else "the end of the file"
            if self.kinds[self.at] == "keyword" and text != self.text:
                found = f"the keyword '{self.text}'"
            raise self.fail(f"expected '{text}', found {found}")
        return offset

    def close_angle(self) -> None:
        """The `>` of type arguments; splits `>=`."""
        if self.is_symbol(">="):
            self.texts[self.at] = "="
            self.offsets[self.at] += 1
            return
        self.expect(">")

    def name(self) -> str:
        kind = self.kinds[self.at]
        text = self.text
        if kind == "name" or (kind == "keyword" and text in SOFT_KEYWORDS):
            self.at += 1
            return text
        found = "the end of the file" if kind == "end" else f"'{text}'"
        raise self.fail(f"expected a name, found {found}")

    def at_name(self) -> bool:
        kind = self.kinds[self.at]
        return kind == "name" or (kind == "keyword" and self.text in SOFT_KEYWORDS)

    def speculate(self, parse: Callable[[], T]) -> T | None:
        """The result of `parse`, or None with the position restored."""
        start = self.at
        saved = (self.texts[start : start + 64], self.offsets[start : start + 64])
        depth = self.depth
        self.speculating += 1
        try:
            return parse()
        except _BacktrackError:
            self.texts[start : start + 64], self.offsets[start : start + 64] = saved
            self.at = start
            self.depth = depth
            return None
        finally:
            self.speculating -= 1

    def enter(self) -> None:
        self.depth += 1
        if self.depth > MAX_NESTING:
            self.speculating = 0
            raise self.reporter.fail_unsupported(self.offset, f"nesting deeper than {MAX_NESTING} levels")

    # ---------------------------------------------------------------- names of types

    def is_type(self, name: str) -> bool:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return False

    def declare(self, name: str, is_type: bool = False) -> None:
        self.scopes[-1][name] = is_type

    def declare_types(self, parameters: list[ast.TypeParameter]) -> None:
        for p in parameters:
            self.declare(p.name, True)

    def starts_type(self) -> bool:
        """Whether the current token begins a type."""
        kind = self.kinds[self.at]
        text = self.text
        if kind == "keyword":
            if text == "list":
                return self.peek() == "<"
            return text in _BASE_TYPES and not (text == "error" and self.peek() == ".")
        if kind == "name":
            return self.is_type(text)
        if text == "." and kind == "operator":
            return self.at + 1 < len(self.texts) and self.scopes[0].get(self.peek(), False)
        return False

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
        if self.kinds[self.at] == "keyword" and text in _BASE_TYPES and not (text == "list" and self.peek() != "<"):
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
            raise _BacktrackError
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
        while True:
            op = self.operator(in_angles)
            level = _PRECEDENCE.get(op, -1)
            if level < lowest:
                return left
            at = self.offset
            self.at += 2 if op == ">>" else 1
            right = self.binary(level + 1, in_angles)
            left = ast.Binary(at=at, op=op, left=left, right=right)

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
            raise _BacktrackError
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
            raise _BacktrackError
        arguments = self.type_arguments()
        if not self.is_symbol("("):
            raise _BacktrackError
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
            raise _BacktrackError
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

    # ---------------------------------------------------------------- declarations

    def program(self) -> ast.Program:
        declarations: list[ast.Declaration] = []
        while self.kinds[self.at] != "end":
            if self.accept(";"):
                continue
            declarations.append(self.declaration())
        return ast.Program(declarations)

    def declaration(self) -> ast.Declaration:
        """A declaration at the top level."""
        annotations = self.annotations()
        if self.kinds[self.at] == "keyword":
            parse = {
                "const": self.constant,
                "extern": self.extern,
                "action": self.action,
                "parser": self.parser,
                "control": self.control,
                "package": self.package,
                "header": self.struct,
                "struct": self.struct,
                "header_union": self.struct,
                "enum": self.enum,
                "typedef": self.typedef,
            }.get(self.text)
            if parse is not None:
                return parse(annotations)
            if self.text == "type" and self.peek() != "<":
                return self.typedef(annotations)
            if self.text == "error" and self.peek() == "{":
                return self.members(annotations, ast.ErrorDecl, "error")
            if self.text == "match_kind" and self.peek() == "{":
                return self.members(annotations, ast.MatchKindDecl, "match_kind")
        return self.function_or_instantiation(annotations)

    def function_or_instantiation(self, annotations: list[ast.Annotation]) -> ast.Declaration:
        at = self.offset
        if not (self.starts_type() or self.at_name()):
            found = "the end of the file" if self.kinds[self.at] == "end" else f"'{self.text}'"
            raise self.fail(f"expected a declaration, found {found}")
        if (
            self.at_name()
            and not self.starts_type()
            and self.peek() not in ("(", "<")
            and not self.is_generic_function()
        ):
            raise self.fail(f"'{self.text}' is not a type or keyword that starts a declaration")
        ref = self.type_ref()
        if self.is_symbol("("):
            return self.instantiation(annotations, ref, at)
        return self.function(annotations, ref)

    def is_generic_function(self) -> bool:
        """`T name<T>(`: the return type is named before its type parameter is declared."""
        return self.kinds[self.at + 1] == "name" and self.peek(2) == "<"

    def instantiation(self, annotations: list[ast.Annotation], ref: ast.TypeRef, at: int) -> ast.Instantiation:
        arguments = self.arguments()
        name_at = self.offset
        name = self.name()
        body = None
        if self.accept("="):
            self.expect("{")
            body = []
            self.scopes.append({})
            while not self.is_symbol("}"):
                body.append(self.function_or_instantiation(self.annotations()))
            self.scopes.pop()
            self.expect("}")
        self.expect(";")
        self.declare(name)
        del at
        return ast.Instantiation(
            at=name_at, name=name, annotations=annotations, ref=ref, arguments=arguments, body=body
        )

    def function(self, annotations: list[ast.Annotation], returns: ast.TypeRef) -> ast.FunctionDecl:
        decl = self.prototype(annotations, returns)
        self.scopes.append({})
        self.declare_types(decl.type_parameters)
        for p in decl.parameters:
            self.declare(p.name)
        decl.body = self.block()
        self.scopes.pop()
        return decl

    def prototype(self, annotations: list[ast.Annotation], returns: ast.TypeRef) -> ast.FunctionDecl:
        at = self.offset
        name = self.name()
        self.declare(name)
        type_parameters = self.type_parameters()
        self.scopes.append({})
        self.declare_types(type_parameters)
        parameters = self.parameters()
        self.scopes.pop()
        return ast.FunctionDecl(
            at=at,
            name=name,
            annotations=annotations,
            returns=returns,
            type_parameters=type_parameters,
            parameters=parameters,
            body=None,
        )

    def parameters(self) -> list[ast.Parameter]:
        self.expect("(")
        out: list[ast.Parameter] = []
        while not self.is_symbol(")"):
            annotations = self.annotations()
            direction = self.text if self.text in ("in", "out", "inout") and self.kinds[self.at] == "keyword" else ""
            if direction:
                self.at += 1
            ref = self.type_ref()
            at = self.offset
            name = self.name()
            ref = self.declarator_brackets(ref)
            default = self.expression() if self.accept("=") else None
            out.append(ast.Parameter(at, name, direction, ref, default, annotations))
            if not self.accept(","):
                break
        self.expect(")")
        return out

    def declarator_brackets(self, ref: ast.TypeRef) -> ast.TypeRef:
        """`name[size]`: an array declared after the name."""
        while self.is_symbol("["):
            at = self.offset
            self.at += 1
            size = self.expression()
            self.expect("]")
            ref = ast.StackTypeRef(at, ref, size)
        return ref

    def constant(self, annotations: list[ast.Annotation]) -> ast.Constant:
        self.expect("const")
        ref = self.type_ref()
        at = self.offset
        name = self.name()
        ref = self.declarator_brackets(ref)
        self.expect("=")
        init = self.expression()
        self.expect(";")
        self.declare(name)
        return ast.Constant(at=at, name=name, annotations=annotations, ref=ref, init=init)

    def variable(self, annotations: list[ast.Annotation], semicolon: bool = True) -> ast.Declaration:
        """A variable, or an instantiation (`Type(args) name;`)."""
        start = self.offset
        ref = self.type_ref()
        if self.is_symbol("("):
            return self.instantiation(annotations, ref, start)
        at = self.offset
        name = self.name()
        ref = self.declarator_brackets(ref)
        init = self.expression() if self.accept("=") else None
        if semicolon:
            self.expect(";")
        self.declare(name)
        return ast.VariableDecl(at=at, name=name, annotations=annotations, ref=ref, init=init)

    def extern(self, annotations: list[ast.Annotation]) -> ast.Declaration:
        self.expect("extern")
        at = self.offset
        if (
            self.at_name()
            and self.peek() in ("{", ";", "<")
            and not (self.starts_type() and self.kinds[self.at + 1] == "name")
        ):
            name = self.name()
            self.declare(name, True)
            type_parameters = self.type_parameters()
            if self.accept(";"):
                return ast.ExternDecl(
                    at=at,
                    name=name,
                    annotations=annotations,
                    type_parameters=type_parameters,
                    constructors=[],
                    methods=[],
                )
            if self.is_symbol("{"):
                return self.extern_body(annotations, at, name, type_parameters)
        self.at = self.offsets.index(at, max(0, self.at - 64))
        decl = self.prototype(annotations, self.type_ref())
        decl.is_extern = True
        self.expect(";")
        return decl

    def extern_body(
        self, annotations: list[ast.Annotation], at: int, name: str, type_parameters: list[ast.TypeParameter]
    ) -> ast.ExternDecl:
        self.expect("{")
        self.scopes.append({})
        self.declare_types(type_parameters)
        constructors: list[ast.ConstructorDecl] = []
        methods: list[ast.FunctionDecl] = []
        while not self.is_symbol("}"):
            own = self.annotations()
            abstract = self.accept("abstract")
            here = self.offset
            if self.text == name and self.peek() == "(":
                self.at += 1
                constructors.append(
                    ast.ConstructorDecl(at=here, name=name, annotations=own, parameters=self.parameters())
                )
            else:
                method = self.prototype(own, self.type_ref())
                method.is_extern = True
                method.is_abstract = abstract
                methods.append(method)
            self.expect(";")
        self.scopes.pop()
        self.expect("}")
        return ast.ExternDecl(
            at=at,
            name=name,
            annotations=annotations,
            type_parameters=type_parameters,
            constructors=constructors,
            methods=methods,
        )

    def action(self, annotations: list[ast.Annotation]) -> ast.ActionDecl:
        self.expect("action")
        at = self.offset
        name = self.name()
        self.declare(name)
        parameters = self.parameters()
        self.scopes.append({p.name: False for p in parameters})
        body = self.block()
        self.scopes.pop()
        return ast.ActionDecl(at=at, name=name, annotations=annotations, parameters=parameters, body=body)

    def struct(self, annotations: list[ast.Annotation]) -> ast.StructDecl:
        kind = self.text
        self.at += 1
        at = self.offset
        name = self.name()
        self.declare(name, True)
        type_parameters = self.type_parameters()
        self.scopes.append({})
        self.declare_types(type_parameters)
        self.expect("{")
        fields: list[ast.FieldDecl] = []
        while not self.is_symbol("}"):
            own = self.annotations()
            ref = self.type_ref()
            field_at = self.offset
            field_name = self.name()
            ref = self.declarator_brackets(ref)
            self.expect(";")
            fields.append(ast.FieldDecl(at=field_at, name=field_name, annotations=own, ref=ref))
        self.scopes.pop()
        self.expect("}")
        return ast.StructDecl(
            at=at, name=name, annotations=annotations, kind=kind, type_parameters=type_parameters, fields=fields
        )

    def enum(self, annotations: list[ast.Annotation]) -> ast.EnumDecl:
        self.expect("enum")
        ref: ast.TypeRef | None = None
        if self.peek() != "{":
            ref = self.type_ref()
        at = self.offset
        name = self.name()
        self.declare(name, True)
        self.expect("{")
        members: list[tuple[str, int, ast.Expr | None]] = []
        while not self.is_symbol("}"):
            self.annotations()
            member_at = self.offset
            member = self.name()
            value = None
            if self.accept("="):
                value = self.expression()
            members.append((member, member_at, value))
            if not self.accept(","):
                break
        self.expect("}")
        return ast.EnumDecl(at=at, name=name, annotations=annotations, ref=ref, members=members)

    def members(
        self, annotations: list[ast.Annotation], kind: type[ast.ErrorDecl] | type[ast.MatchKindDecl], name: str
    ) -> ast.Declaration:
        at = self.offset
        self.at += 1
        self.expect("{")
        names: list[tuple[str, int]] = []
        while not self.is_symbol("}"):
            member_at = self.offset
            names.append((self.name(), member_at))
            if not self.accept(","):
                break
        self.expect("}")
        return kind(at=at, name=name, annotations=annotations, members=names)

    def typedef(self, annotations: list[ast.Annotation]) -> ast.TypedefDecl:
        distinct = self.text == "type"
        self.at += 1
        own = self.annotations()
        ref: ast.TypeRef | ast.StructDecl | ast.EnumDecl
        if self.kinds[self.at] == "keyword" and self.text in ("header", "struct", "header_union"):
            ref = self.struct(own)
        elif self.is_symbol("enum"):
            ref = self.enum(own)
        else:
            ref = self.type_ref()
        at = self.offset
        name = self.name()
        if not isinstance(ref, ast.StructDecl | ast.EnumDecl):
            ref = self.declarator_brackets(ref)
        self.expect(";")
        self.declare(name, True)
        return ast.TypedefDecl(at=at, name=name, annotations=annotations, ref=ref, distinct=distinct)

    def package(self, annotations: list[ast.Annotation]) -> ast.PackageDecl:
        self.expect("package")
        at = self.offset
        name = self.name()
        self.declare(name, True)
        type_parameters = self.type_parameters()
        self.scopes.append({})
        self.declare_types(type_parameters)
        parameters = self.parameters()
        self.scopes.pop()
        self.expect(";")
        return ast.PackageDecl(
            at=at, name=name, annotations=annotations, type_parameters=type_parameters, parameters=parameters
        )

    # ---------------------------------------------------------------- parsers

    def parser(self, annotations: list[ast.Annotation]) -> ast.ParserDecl:
        self.expect("parser")
        at, name, type_parameters, parameters = self.block_head()
        decl = ast.ParserDecl(
            at=at,
            name=name,
            annotations=annotations,
            type_parameters=type_parameters,
            parameters=parameters,
            constructor_parameters=[],
            locals=[],
            states=[],
            is_type=False,
        )
        if self.accept(";"):
            decl.is_type = True
            self.scopes.pop()
            return decl
        decl.constructor_parameters = self.constructor_parameters()
        self.expect("{")
        while not self.is_symbol("}"):
            own = self.annotations()
            if self.is_symbol("state") and self.kinds[self.at + 1] in ("name", "keyword") and self.peek(2) == "{":
                decl.states.append(self.state(own))
            elif decl.states:
                raise self.fail("expected a state")
            elif self.is_symbol("value_set"):
                decl.locals.append(self.value_set(own))
            elif self.is_symbol("const"):
                decl.locals.append(self.constant(own))
            else:
                decl.locals.append(self.variable(own))
        end = self.expect("}")
        if not decl.states:
            self.reporter.error(end, f"parser {name} has no states")
        self.scopes.pop()
        return decl

    def block_head(self) -> tuple[int, str, list[ast.TypeParameter], list[ast.Parameter]]:
        """Name, type parameters and parameters of a parser or control; opens its scope."""
        at = self.offset
        name = self.name()
        self.declare(name, True)
        type_parameters = self.type_parameters()
        self.scopes.append({})
        self.declare_types(type_parameters)
        parameters = self.parameters()
        for p in parameters:
            self.declare(p.name)
        return at, name, type_parameters, parameters

    def constructor_parameters(self) -> list[ast.Parameter]:
        if not self.is_symbol("("):
            return []
        parameters = self.parameters()
        for p in parameters:
            self.declare(p.name)
        return parameters

    def value_set(self, annotations: list[ast.Annotation]) -> ast.ValueSetDecl:
        self.expect("value_set")
        self.expect("<")
        ref = self.type_ref()
        self.close_angle()
        self.expect("(")
        size = self.expression()
        self.expect(")")
        at = self.offset
        name = self.name()
        self.expect(";")
        self.declare(name)
        return ast.ValueSetDecl(at=at, name=name, annotations=annotations, ref=ref, size=size)

    def state(self, annotations: list[ast.Annotation]) -> ast.StateDecl:
        self.expect("state")
        at = self.offset
        name = self.name()
        decl = ast.StateDecl(
            at=at, name=name, annotations=annotations, body=[], next_state=None, next_at=at, select=None, cases=[]
        )
        self.expect("{")
        self.scopes.append({})
        while not self.is_symbol("}") and not self.is_symbol("transition"):
            decl.body.append(self.statement())
        decl.next_at = self.offset
        if self.accept("transition"):
            if self.is_symbol("select") and self.peek() == "(":
                self.select(decl)
            else:
                decl.next_at = self.offset
                decl.next_state = self.name()
                self.expect(";")
        self.scopes.pop()
        self.expect("}")
        return decl

    def select(self, decl: ast.StateDecl) -> None:
        self.expect("select")
        self.expect("(")
        decl.select = []
        while not self.is_symbol(")"):
            decl.select.append(self.expression())
            if not self.accept(","):
                break
        self.expect(")")
        self.expect("{")
        while not self.is_symbol("}"):
            at = self.offset
            keyset = self.keyset()
            self.expect(":")
            state_at = self.offset
            state = self.name()
            self.expect(";")
            decl.cases.append(ast.SelectCase(at=at, keyset=keyset, state=state, state_at=state_at))
        self.expect("}")

    # ---------------------------------------------------------------- controls

    def control(self, annotations: list[ast.Annotation]) -> ast.ControlDecl:
        self.expect("control")
        at, name, type_parameters, parameters = self.block_head()
        decl = ast.ControlDecl(
            at=at,
            name=name,
            annotations=annotations,
            type_parameters=type_parameters,
            parameters=parameters,
            constructor_parameters=[],
            locals=[],
            body=None,
            is_type=False,
        )
        if self.accept(";"):
            decl.is_type = True
            self.scopes.pop()
            return decl
        decl.constructor_parameters = self.constructor_parameters()
        self.expect("{")
        while True:
            own = self.annotations()
            if self.is_symbol("apply") and self.peek() in ("{", "@"):
                self.at += 1
                body_annotations = self.annotations()
                break
            decl.locals.append(self.control_local(own))
        decl.body = self.block(body_annotations)
        self.expect("}")
        self.scopes.pop()
        return decl

    def control_local(self, annotations: list[ast.Annotation]) -> ast.Declaration:
        if self.is_symbol("const"):
            return self.constant(annotations)
        if self.is_symbol("action"):
            return self.action(annotations)
        if self.is_symbol("table"):
            return self.table(annotations)
        if self.kinds[self.at] == "end" or self.is_symbol("}"):
            raise self.fail("expected a declaration or 'apply { ... }' in this control")
        return self.variable(annotations)

    def table(self, annotations: list[ast.Annotation]) -> ast.TableDecl:
        self.expect("table")
        at = self.offset
        name = self.name()
        decl = ast.TableDecl(
            at=at,
            name=name,
            annotations=annotations,
            keys=[],
            actions=[],
            entries=[],
            entries_const=False,
            properties=[],
        )
        self.expect("{")
        while not self.is_symbol("}"):
            own = self.annotations()
            is_const = self.accept("const")
            if self.is_symbol("key") and self.peek(2) == "{":
                self.at += 2
                self.table_key(decl)
            elif self.is_symbol("actions") and self.peek(2) == "{":
                self.at += 2
                self.table_actions(decl)
            elif self.is_symbol("entries") and self.peek(2) == "{":
                self.at += 2
                decl.entries_const = is_const
                self.table_entries(decl)
            else:
                property_at = self.offset
                property_name = self.name()
                self.expect("=")
                value = self.expression()
                self.expect(";")
                decl.properties.append(
                    ast.Property(at=property_at, name=property_name, is_const=is_const, value=value, annotations=own)
                )
        self.expect("}")
        self.declare(name)
        return decl

    def table_key(self, decl: ast.TableDecl) -> None:
        if decl.has_key:
            raise self.fail(f"table {decl.name} has two keys")
        decl.has_key = True
        self.expect("{")
        while not self.is_symbol("}"):
            at = self.offset
            expr = self.expression()
            text = self.reporter.source.text[at : self.offset].strip()
            self.expect(":")
            match_at = self.offset
            match_kind = self.name()
            annotations = self.annotations()
            self.expect(";")
            decl.keys.append(
                ast.KeyElement(
                    at=at, expr=expr, match_kind=match_kind, match_at=match_at, annotations=annotations, text=text
                )
            )
        self.expect("}")

    def table_actions(self, decl: ast.TableDecl) -> None:
        if decl.has_actions:
            raise self.fail(f"table {decl.name} has two action lists")
        decl.has_actions = True
        self.expect("{")
        while not self.is_symbol("}"):
            annotations = self.annotations()
            decl.actions.append(self.action_ref(annotations))
            self.expect(";")
        self.expect("}")

    def action_ref(self, annotations: list[ast.Annotation]) -> ast.ActionRef:
        at = self.offset
        absolute = self.accept(".")
        name = self.name()
        arguments = self.arguments() if self.is_symbol("(") else None
        return ast.ActionRef(at=at, name=name, absolute=absolute, arguments=arguments, annotations=annotations)

    def table_entries(self, decl: ast.TableDecl) -> None:
        self.expect("{")
        while not self.is_symbol("}"):
            at = self.offset
            is_const = self.accept("const")
            priority = None
            if self.is_symbol("priority") and self.peek() == "=":
                self.at += 2
                priority = self.unary()
                self.expect(":")
            keyset = self.keyset()
            keys = keyset.items if isinstance(keyset, ast.TupleKeyset) else [keyset]
            self.expect(":")
            action = self.action_ref([])
            annotations = self.annotations()
            self.expect(";")
            decl.entries.append(
                ast.Entry(
                    at=at, is_const=is_const, priority=priority, keys=keys, action=action, annotations=annotations
                )
            )
        self.expect("}")

    # ---------------------------------------------------------------- statements

    def block(self, annotations: list[ast.Annotation] | None = None) -> ast.Block:
        at = self.expect("{")
        self.scopes.append({})
        body: list[ast.Statement] = []
        while not self.is_symbol("}"):
            if self.kinds[self.at] == "end":
                raise self.fail("this block does not end", at)
            body.append(self.statement())
        self.scopes.pop()
        end = self.expect("}")
        return ast.Block(at=at, body=body, annotations=annotations or [], end=end)

    def statement(self) -> ast.Statement:
        self.enter()
        annotations = self.annotations()
        result = self.plain_statement(annotations)
        self.depth -= 1
        return result

    def plain_statement(self, annotations: list[ast.Annotation]) -> ast.Statement:
        at = self.offset
        text = self.text if self.kinds[self.at] in ("keyword", "operator") else ""
        if text == "{":
            return self.block(annotations)
        if text == ";":
            self.at += 1
            return ast.Empty(at=at)
        if text == "if":
            return self.conditional()
        if text == "switch":
            return self.switch()
        if text == "for":
            return self.loop()
        if text in ("exit", "break", "continue"):
            self.at += 1
            self.expect(";")
            return {"exit": ast.Exit, "break": ast.Break, "continue": ast.Continue}[text](at=at)
        if text == "return":
            self.at += 1
            value = None if self.is_symbol(";") else self.expression()
            self.expect(";")
            return ast.Return(at=at, value=value)
        if text == "const":
            return ast.DeclStatement(at=at, decl=self.constant(annotations))
        simple = self.simple_statement(annotations)
        if not (isinstance(simple, ast.DeclStatement) and isinstance(simple.decl, ast.Instantiation)):
            self.expect(";")
        return simple

    def simple_statement(self, annotations: list[ast.Annotation]) -> ast.Statement:
        """Declaration, assignment or call, without the semicolon."""
        at = self.offset
        if self.starts_type() and not self.is_type_call():
            return ast.DeclStatement(at=at, decl=self.variable(annotations, semicolon=False))
        if self.at_name() and self.kinds[self.at + 1] == "name":
            raise self.fail(f"'{self.text}' is not the name of a type")
        target = self.postfix(self.primary())
        op_at = self.offset
        op = self.text if self.kinds[self.at] == "operator" else ""
        if op == ">" and self.peek() == ">=":
            self.at += 2
            return ast.Assignment(at=op_at, target=target, op=">>", value=self.expression())
        if op in _ASSIGNMENTS:
            self.at += 1
            return ast.Assignment(at=op_at, target=target, op=op[:-1], value=self.expression())
        if isinstance(target, ast.Call):
            return ast.CallStatement(at=at, call=target)
        raise self.fail("expected an assignment or a call", op_at)

    def is_type_call(self) -> bool:
        """`Type.apply(...)`, `Type<..>.apply(...)`: a statement that starts with a type's name."""
        if self.kinds[self.at] != "name" and self.text != ".":
            return False
        start = self.at
        found = self.speculate(self.type_ref)
        result = found is not None and self.is_symbol(".")
        self.at = start
        return result

    def conditional(self) -> ast.Conditional:
        at = self.expect("if")
        self.expect("(")
        condition = self.expression()
        self.expect(")")
        then = self.statement()
        otherwise = self.statement() if self.accept("else") else None
        return ast.Conditional(at=at, condition=condition, then=then, otherwise=otherwise)

    def switch(self) -> ast.Switch:
        at = self.expect("switch")
        self.expect("(")
        selector = self.expression()
        self.expect(")")
        self.expect("{")
        cases: list[ast.SwitchCase] = []
        while not self.is_symbol("}"):
            case_at = self.offset
            label = None if self.accept("default") else self.expression()
            self.expect(":")
            body = self.block() if self.is_symbol("{") else None
            cases.append(ast.SwitchCase(at=case_at, label=label, body=body))
        self.expect("}")
        return ast.Switch(at=at, selector=selector, cases=cases)

    def loop(self) -> ast.Statement:
        at = self.expect("for")
        self.expect("(")
        self.scopes.append({})
        annotations = self.annotations()
        each = self.speculate(self.for_in_head)
        if each is not None:
            ref, name, name_at = each
            collection = self.expression()
            range_at = self.offset
            if self.accept(".."):
                collection = ast.Range(at=range_at, left=collection, right=self.expression())
            self.expect(")")
            decl = ast.VariableDecl(at=name_at, name=name, annotations=annotations, ref=ref, init=None)
            self.declare(name)
            body = self.statement()
            self.scopes.pop()
            return ast.ForIn(at=at, decl=decl, collection=collection, body=body)
        init = self.statement_list(";", annotations)
        condition = self.expression()
        self.expect(";")
        update = self.statement_list(")", [])
        body = self.statement()
        self.scopes.pop()
        return ast.For(at=at, init=init, condition=condition, update=update, body=body)

    def for_in_head(self) -> tuple[ast.TypeRef, str, int]:
        ref = self.type_ref()
        at = self.offset
        name = self.name()
        self.expect("in")
        return ref, name, at

    def statement_list(self, end: str, annotations: list[ast.Annotation]) -> list[ast.Statement]:
        out: list[ast.Statement] = []
        if not self.is_symbol(end):
            out.append(self.simple_statement(annotations))
            while self.accept(","):
                out.append(self.simple_statement([]))
        self.expect(end)
        return out


def parse(reporter: Reporter) -> ast.Program:
    """Parse the reporter's source; AbortError after a syntax error, which is then recorded."""
    parser = Parser(reporter, tokenize(reporter))
    try:
        return parser.program()
    except _BacktrackError as problem:  # pragma: no cover - a speculation that escaped is a bug of the parser
        raise AbortError("speculative parse escaped") from problem
