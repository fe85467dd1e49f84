"""Third layer of the parser: statements."""

from __future__ import annotations

from p4switch.frontend import ast
from p4switch.frontend.parse_expr import ExpressionParser

_ASSIGNMENTS = frozenset({"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", "|+|=", "|-|="})


class StatementParser(ExpressionParser):
    """Parses statements."""

    def variable(self, annotations: list[ast.Annotation], semicolon: bool = True) -> ast.Declaration:
        """A variable or an instantiation (layer above)."""
        raise AssertionError("provided by DeclarationParser")

    def constant(self, annotations: list[ast.Annotation]) -> ast.Constant:
        """A constant (layer above)."""
        raise AssertionError("provided by DeclarationParser")

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
