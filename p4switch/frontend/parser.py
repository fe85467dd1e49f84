"""Recursive-descent parser of the whole P4_16 grammar.

The grammar needs to know which names are types; the parser keeps its own scopes of names for that alone.
Syntax errors stop at the first one: after it, nothing read is trustworthy.
"""

from __future__ import annotations

from p4switch.frontend import ast
from p4switch.frontend.lexer import tokenize
from p4switch.frontend.parse_decl import DeclarationParser
from p4switch.frontend.parse_tokens import BacktrackError
from p4switch.frontend.source import AbortError, Reporter


class Parser(DeclarationParser):
    """Parses one token stream."""

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


def parse(reporter: Reporter) -> ast.Program:
    """Parse the reporter's source; AbortError after a syntax error, which is then recorded."""
    parser = Parser(reporter, tokenize(reporter))
    try:
        return parser.program()
    except BacktrackError as problem:  # pragma: no cover - a speculation that escaped is a bug of the parser
        raise AbortError("speculative parse escaped") from problem
