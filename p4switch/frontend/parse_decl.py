"""Fourth layer of the parser: declarations other than parsers, controls and tables."""

from __future__ import annotations

from p4switch.frontend import ast
from p4switch.frontend.parse_stmt import StatementParser


class DeclarationParser(StatementParser):
    """Parses declarations."""

    def parser(self, annotations: list[ast.Annotation]) -> ast.ParserDecl:
        """A parser (layer above)."""
        raise AssertionError("provided by Parser")

    def control(self, annotations: list[ast.Annotation]) -> ast.ControlDecl:
        """A control (layer above)."""
        raise AssertionError("provided by Parser")

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
