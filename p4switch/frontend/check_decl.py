"""Last layer of the checker: declarations, parsers and controls."""

from __future__ import annotations

from p4switch.frontend import ast
from p4switch.frontend.check_stmt import StatementChecker, always_returns
from p4switch.frontend.source import AbortError
from p4switch.frontend.types import (
    ANY,
    BOOL,
    DOTS,
    ERROR,
    INT,
    MATCH_KIND,
    STRING,
    UNKNOWN,
    VOID,
    TBits,
    TBlock,
    TEnum,
    TNew,
    TSet,
    TStruct,
    TTuple,
    TVar,
    TVarbits,
    Type,
    block_bindings,
    substitute,
)


class Checker(StatementChecker):
    """Checks a whole program in order of declaration."""

    # ---------------------------------------------------------------- top level

    def program(self, program: ast.Program) -> None:
        """Check every declaration; diagnostics go to the reporter."""
        for decl in program.declarations:
            try:
                self.top_level(decl)
            except AbortError:
                continue

    def top_level(self, decl: ast.Declaration) -> None:
        """One declaration of the outermost scope."""
        self.where = "top"
        self.in_parser = False
        if isinstance(decl, ast.ParserDecl):
            self._parser(decl)
        elif isinstance(decl, ast.ControlDecl):
            self._control(decl)
        else:
            self.declaration(decl)

    def declaration(self, decl: ast.Declaration) -> None:
        """A declaration that may stand in several places."""
        rules = {
            ast.Constant: self._constant,
            ast.VariableDecl: self._variable,
            ast.Instantiation: self._instantiation,
            ast.StructDecl: self._struct_decl,
            ast.EnumDecl: self._enum,
            ast.ErrorDecl: self._error_decl,
            ast.MatchKindDecl: self._match_kind,
            ast.TypedefDecl: self._typedef,
            ast.FunctionDecl: self._function,
            ast.ExternDecl: self._extern,
            ast.PackageDecl: self._package,
            ast.ActionDecl: self._action,
            ast.TableDecl: self.table,
            ast.ValueSetDecl: self._value_set,
        }
        try:
            rules[type(decl)](decl)  # type: ignore[operator]
        except AbortError:
            if self.scopes[-1].get(decl.name) is None and isinstance(
                decl, ast.Constant | ast.VariableDecl | ast.Instantiation | ast.ValueSetDecl
            ):
                decl.type = UNKNOWN
                self.scopes[-1][decl.name] = decl

    def _constant(self, decl: ast.Constant) -> None:
        decl.type = self.resolve(decl.ref)
        if isinstance(decl.type, TBlock) or decl.type is VOID:
            raise self.reporter.fail(decl.at, f"a constant cannot have type {decl.type}")
        decl.init = self.value_of(decl.init, decl.type)
        if decl.init.value is None and decl.init.type is not UNKNOWN and not self.is_elaboration_constant(decl.init):
            self.reporter.error(decl.init.at, f"the value of constant '{decl.name}' is not known at compile time")
        decl.value = decl.init.value
        self.declare(decl.name, decl, decl.at)

    def _variable(self, decl: ast.VariableDecl) -> None:
        if self.where == "top":
            self.reporter.error(decl.at, "variables cannot be declared at the top level")
        decl.type = self.resolve(decl.ref)
        if isinstance(decl.type, TBlock) or decl.type in (VOID, INT, STRING, MATCH_KIND, ANY):
            self.reporter.error(decl.at, f"a variable cannot have type {decl.type}")
            decl.type = UNKNOWN
        if decl.init is not None:
            decl.init = self.value_of(decl.init, decl.type)
        self.declare(decl.name, decl, decl.at)

    def _instantiation(self, decl: ast.Instantiation) -> None:
        if self.where in ("apply", "action", "function", "state"):
            raise self.reporter.fail(decl.at, "instances cannot be made in statements")
        t = self.resolve(decl.ref)
        if not isinstance(t, TBlock):
            if t is not UNKNOWN:
                self.reporter.error(decl.at, f"{t} cannot be instantiated")
            raise AbortError
        if self.where == "top" and t.kind in ("parser", "control"):
            self.reporter.error(decl.at, f"a {t.kind} cannot be instantiated at the top level")
        if self.where == "control" and t.kind == "parser":
            self.reporter.error(decl.at, "a control cannot instantiate a parser")
        if self.where == "parser" and t.kind == "control":
            self.reporter.error(decl.at, "a parser cannot instantiate a control")
        decl.target = self.construct(t, decl.arguments, decl.at)
        decl.type = decl.target.block
        self._implementations(decl)
        self.declare(decl.name, decl, decl.at)

    # ---------------------------------------------------------------- abstract methods

    def _implementations(self, decl: ast.Instantiation) -> None:
        """The methods in an instance's braces: one for each abstract method of its extern."""
        extern = decl.type.decl if isinstance(decl.type, TBlock) else None
        abstract = {m.name: m for m in extern.methods if m.is_abstract} if isinstance(extern, ast.ExternDecl) else {}
        given: set[str] = set()
        for method in decl.body or []:
            if not isinstance(method, ast.FunctionDecl):
                self.reporter.fail_unsupported(method.at, "declarations other than methods in an instance's braces")
                continue
            if method.name not in abstract:
                self.reporter.error(method.at, f"{decl.type} has no abstract method '{method.name}'")
            elif method.name in given:
                self.reporter.error(method.at, f"method '{method.name}' is implemented twice")
            else:
                self._implementation(decl, abstract[method.name], method)
            given.add(method.name)
        for name, method in abstract.items():
            if name not in given and not any(a.name == "optional" for a in method.annotations):
                self.reporter.error(
                    decl.at, f"'{decl.name}' does not implement abstract method '{name}' of {decl.type}"
                )

    def _implementation(self, decl: ast.Instantiation, abstract: ast.FunctionDecl, method: ast.FunctionDecl) -> None:
        assert isinstance(decl.type, TBlock)
        self.push()
        self.scopes[-1]["this"] = decl
        self._function_body(method)
        self.pop()
        bound = block_bindings(decl.type)
        returned = substitute(abstract.return_type, bound)
        if method.return_type != returned and UNKNOWN not in (method.return_type, returned):
            self.reporter.error(method.at, f"'{method.name}' must return {returned}, not {method.return_type}")
        wanted = [p for p in abstract.parameters if not p.is_optional]
        if not len(wanted) <= len(method.parameters) <= len(abstract.parameters):
            self.reporter.error(method.at, f"'{method.name}' takes {len(abstract.parameters)} parameters")
        for have, want in zip(method.parameters, abstract.parameters, strict=False):
            t = substitute(want.type, bound)
            if have.direction != want.direction or (have.type != t and UNKNOWN not in (have.type, t)):
                self.reporter.error(have.at, f"parameter '{have.name}' must be '{want.direction} {t}'")

    def _struct_decl(self, decl: ast.StructDecl) -> None:
        self.push()
        self.declare_type_parameters(decl.type_parameters, decl)
        seen: set[str] = set()
        varbits = 0
        for f in decl.fields:
            f.type = self.resolve(f.ref)
            self.check_field(decl, f)
            if f.name in seen:
                self.reporter.error(f.at, f"{decl.kind} {decl.name} has two fields '{f.name}'")
            seen.add(f.name)
            varbits += isinstance(f.type, TVarbits)
            if isinstance(f.type, TVarbits) and decl.kind == "header" and varbits > 1:
                self.reporter.error(f.at, f"header {decl.name} has two varbit fields")
        self.pop()
        self.declare(decl.name, decl, decl.at)

    def _enum(self, decl: ast.EnumDecl) -> None:
        underlying: TBits | None = None
        if decl.ref is not None:
            t = self.resolve(decl.ref)
            if not isinstance(t, TBits):
                if t is not UNKNOWN:
                    self.reporter.error(decl.at, f"the underlying type of an enum must be bit<> or int<>, not {t}")
                raise AbortError
            underlying = t
        decl.type = TEnum(decl, underlying)
        for index, (name, at, value) in enumerate(decl.members):
            if name in decl.values:
                self.reporter.error(at, f"enum {decl.name} has two members '{name}'")
            if underlying is None:
                if value is not None:
                    self.reporter.error(at, "only an enum with an underlying type gives its members values")
                decl.values[name] = index
                continue
            if value is None:
                self.reporter.error(at, f"member '{name}' of enum {decl.name} needs a value")
                decl.values[name] = 0
                continue
            checked = self.value_of(value, underlying)
            if checked.type is not UNKNOWN and not isinstance(checked.value, int):
                self.reporter.error(value.at, f"the value of '{name}' must be known at compile time")
            decl.values[name] = checked.value if isinstance(checked.value, int) else 0
        self.declare(decl.name, decl, decl.at)

    def _error_decl(self, decl: ast.ErrorDecl) -> None:
        for name, at in decl.members:
            if name in self.errors:
                self.reporter.error(at, f"error '{name}' is already declared")
            else:
                self.errors[name] = len(self.errors)

    def _match_kind(self, decl: ast.MatchKindDecl) -> None:
        for name, at in decl.members:
            if name in self.match_kinds:
                self.reporter.error(at, f"match_kind '{name}' is already declared")
            self.match_kinds.add(name)

    def _typedef(self, decl: ast.TypedefDecl) -> None:
        if isinstance(decl.ref, ast.StructDecl | ast.EnumDecl):
            self.declaration(decl.ref)
            target: Type = decl.ref.type if isinstance(decl.ref, ast.EnumDecl) else TStruct(decl.ref)
        else:
            target = self.resolve(decl.ref)
        if decl.distinct:
            base = target
            while isinstance(base, TNew):
                base = base.underlying
            if not (isinstance(base, TBits) or base == BOOL or base is UNKNOWN or isinstance(base, TEnum | TVar)):
                self.reporter.error(decl.at, f"'type' cannot be made from {target}")
            decl.type = TNew(decl, target)
        else:
            decl.type = target
        self.declare(decl.name, decl, decl.at)

    # ---------------------------------------------------------------- callables

    def parameters(self, parameters: list[ast.Parameter], owner: str) -> None:
        """Resolve the types of parameters and declare them; `owner` says whose they are."""
        seen: set[str] = set()
        for p in parameters:
            p.type = self.resolve(p.ref)
            if p.default is not None:
                p.default = self.value_of(p.default, p.type)
                if p.direction in ("out", "inout"):
                    self.reporter.error(p.at, f"{p.direction} parameter '{p.name}' cannot have a default value")
                elif p.default.type not in (UNKNOWN, DOTS) and not self.is_elaboration_constant(p.default):
                    self.reporter.error(p.default.at, f"the default of '{p.name}' must be known at compile time")
            self._parameter_type(p, owner)
            if p.type is VOID:
                self.reporter.error(p.at, f"parameter '{p.name}' cannot be void")
            if p.direction and (isinstance(p.type, TBlock) or p.type in (STRING, INT)):
                self.reporter.error(p.at, f"parameter '{p.name}' of type {p.type} cannot have a direction")
            if p.name in seen:
                self.reporter.error(p.at, f"two parameters are named '{p.name}'")
            else:
                self.declare(p.name, p, p.at)
            seen.add(p.name)

    def _parameter_type(self, p: ast.Parameter, owner: str) -> None:
        """Which types parameters of actions, functions, methods, parsers and controls may have."""
        if owner in ("constructor", "package"):
            if isinstance(p.type, TBlock) and not getattr(p.type.decl, "is_type", True):
                self.reporter.error(
                    p.at, f"parameter '{p.name}' needs the type of a {p.type.kind}; {p.type} has a body"
                )
            return
        if p.is_optional and owner in ("action", "function"):
            self.reporter.error(p.at, f"parameter '{p.name}' of a {owner} cannot be optional")
        if isinstance(p.type, TBlock):
            if p.type.kind in ("parser", "control", "package"):
                self.reporter.error(p.at, f"parameter '{p.name}' cannot have type {p.type.kind} {p.type}")
            elif owner == "action":
                self.reporter.error(p.at, f"parameter '{p.name}' of an action cannot have extern type {p.type}")
            elif isinstance(p.type.decl, ast.ExternDecl) and len(p.type.decl.type_parameters) != len(p.type.arguments):
                self.reporter.error(p.at, f"generic type '{p.type}' needs type arguments")
        elif owner == "action" and p.type in (INT, STRING):
            self.reporter.error(p.at, f"parameter '{p.name}' of an action cannot have type {p.type}")

    def _function(self, decl: ast.FunctionDecl) -> None:
        self._function_body(decl)
        self.declare(decl.name, decl, decl.at)

    def _function_body(self, decl: ast.FunctionDecl) -> None:
        self.push()
        decl.type_vars = self.declare_type_parameters(decl.type_parameters, decl)
        decl.return_type = self.resolve(decl.returns)
        self.parameters(decl.parameters, "function" if decl.body is not None else "extern")
        if decl.body is not None:
            outer = (self.where, self.return_type)
            self.where, self.return_type = "function", decl.return_type
            self.block_statements(decl.body)
            if decl.return_type is not VOID and decl.return_type is not UNKNOWN and not always_returns(decl.body):
                self.reporter.error(decl.at, f"function '{decl.name}' does not return a value on every path")
            self.where, self.return_type = outer
        self.pop()

    def _extern(self, decl: ast.ExternDecl) -> None:
        self.declare(decl.name, decl, decl.at)
        self.push()
        decl.type_vars = self.declare_type_parameters(decl.type_parameters, decl)
        for c in decl.constructors:
            self.push()
            self.parameters(c.parameters, "constructor")
            self.pop()
        for m in decl.methods:
            self.push()
            m.type_vars = self.declare_type_parameters(m.type_parameters, m)
            m.return_type = self.resolve(m.returns)
            self.parameters(m.parameters, "extern")
            self.pop()
        self.pop()
        self._extern_overloads(decl)

    def _extern_overloads(self, decl: ast.ExternDecl) -> None:
        """Overloads differ in the names of their parameters; a constructor returns nothing."""
        seen: set[tuple[str, ...]] = set()
        overloads = [(m.at, m.name, m.parameters) for m in decl.methods]
        for at, name, parameters in [*((c.at, decl.name, c.parameters) for c in decl.constructors), *overloads]:
            signature = (name, *(p.name for p in parameters))
            if signature in seen:
                self.reporter.error(at, f"extern {decl.name} declares '{name}' with these parameters twice")
            seen.add(signature)
        for m in decl.methods:
            if m.name == decl.name:
                self.reporter.error(m.at, f"the constructor of extern {decl.name} cannot have a return type")

    def _package(self, decl: ast.PackageDecl) -> None:
        self.push()
        decl.type_vars = self.declare_type_parameters(decl.type_parameters, decl)
        self.parameters(decl.parameters, "package")
        self.pop()
        self.declare(decl.name, decl, decl.at)

    def _action(self, decl: ast.ActionDecl) -> None:
        self.push()
        self.parameters(decl.parameters, "action")
        seen_data = False
        for p in decl.parameters:
            if p.direction == "":
                seen_data = True
            elif seen_data:
                self.reporter.error(p.at, "parameters with a direction must come before those without")
        outer = (self.where, self.return_type)
        self.where, self.return_type = "action", VOID
        self.block_statements(decl.body)
        self.where, self.return_type = outer
        self.pop()
        self.declare(decl.name, decl, decl.at)

    # ---------------------------------------------------------------- parsers and controls

    def _block_head(self, decl: ast.ParserDecl | ast.ControlDecl) -> None:
        """Open the scope of a parser or control."""
        self.push()
        decl.type_vars = self.declare_type_parameters(decl.type_parameters, decl)
        self.parameters(decl.parameters, "control" if isinstance(decl, ast.ControlDecl) else "parser")
        self.parameters(decl.constructor_parameters, "constructor")
        for p in decl.constructor_parameters:
            if p.direction:
                self.reporter.error(p.at, "constructor parameters have no direction")

    def _parser(self, decl: ast.ParserDecl) -> None:
        self._block_head(decl)
        self.where = "parser"
        self.in_parser = True
        if not decl.is_type:
            self._parser_body(decl)
        self.in_parser = False
        self.where = "top"
        self.pop()
        self.declare(decl.name, decl, decl.at)

    def _parser_body(self, decl: ast.ParserDecl) -> None:
        for local in decl.locals:
            self.declaration(local)
        names: dict[str, ast.StateDecl] = {}
        for state in decl.states:
            if state.name in ("accept", "reject"):
                self.reporter.error(state.at, f"state '{state.name}' is built in")
            elif state.name in names:
                self.reporter.error(state.at, f"parser {decl.name} has two states '{state.name}'")
            names[state.name] = state
        if "start" not in names:
            self.reporter.error(decl.at, f"parser {decl.name} has no state 'start'")
        known = set(names) | {"accept", "reject"}
        for state in decl.states:
            self._state(state, known)
        if "start" in names and not _ends(names):
            self.reporter.error(decl.at, f"parser {decl.name} never reaches accept or reject")

    def _state(self, state: ast.StateDecl, known: set[str]) -> None:
        self.push()
        self.where = "state"
        for statement in state.body:
            self.statement(statement)
        if state.next_state is not None and state.next_state not in known:
            self.reporter.error(state.next_at, f"there is no state '{state.next_state}'")
        if state.select is not None:
            self._select(state, known)
        self.where = "parser"
        self.pop()

    def _select(self, state: ast.StateDecl, known: set[str]) -> None:
        assert state.select is not None
        state.select = [self.value_of(e) for e in state.select]
        types = [e.type for e in state.select]
        if len(state.select) == 1 and isinstance(types[0], TTuple) and isinstance(state.select[0], ast.ListExpr):
            state.select = state.select[0].items
            types = [e.type for e in state.select]
        for e in state.select:
            if e.type is INT and e.value is not None:
                self.reporter.error(e.at, "a select needs a value with a width")
            elif not isinstance(e.type, TBits | TEnum | TNew | TVar | TTuple) and e.type not in (BOOL, ERROR, UNKNOWN):
                self.reporter.error(e.at, f"select is not defined for {e.type}")
        for case in state.cases:
            self._select_case(case, types)
            if case.state not in known:
                self.reporter.error(case.state_at, f"there is no state '{case.state}'")

    def _select_case(self, case: ast.SelectCase, types: list[Type]) -> None:
        keyset = case.keyset
        if isinstance(keyset, ast.DefaultExpr):
            self.check(keyset)
            return
        if isinstance(keyset, ast.TupleKeyset):
            if len(keyset.items) != len(types):
                self.reporter.error(keyset.at, f"the select has {len(types)} values, this case {len(keyset.items)}")
                return
            keyset.items = [self.constant_keyset(k, t) for k, t in zip(keyset.items, types, strict=True)]
            keyset.type = TSet(ANY)
            return
        if isinstance(keyset, ast.Name) and isinstance(self.lookup(keyset.name, keyset.absolute), ast.ValueSetDecl):
            case.keyset = self.check(keyset)
            return
        if len(types) != 1:
            checked = self.check(keyset)
            if isinstance(checked.type, TTuple | TStruct):
                case.keyset = checked
                return
            self.reporter.error(keyset.at, f"the select has {len(types)} values, this case one")
            return
        case.keyset = self.constant_keyset(keyset, types[0])

    def constant_keyset(self, e: ast.Expr, t: Type) -> ast.Expr:
        checked = self.keyset(e, t)
        if (
            isinstance(checked, ast.DefaultExpr)
            or checked.type is UNKNOWN
            or (isinstance(checked.type, TSet) and isinstance(checked, ast.Name))
        ):
            return checked
        parts = [checked.left, checked.right] if isinstance(checked, ast.Mask | ast.Range) else [checked]
        for part in parts:
            if part.type is not UNKNOWN and part.value is None and not self.is_elaboration_constant(part):
                self.reporter.error(part.at, "a keyset must be known at compile time")
        if (
            isinstance(checked, ast.Range)
            and isinstance(checked.left.value, int)
            and isinstance(checked.right.value, int)
            and checked.left.value > checked.right.value
        ):
            self.reporter.warning(checked.at, "this range is empty: its low end is above its high end")
        return checked

    def _value_set(self, decl: ast.ValueSetDecl) -> None:
        decl.type = self.resolve(decl.ref)
        if decl.type in (INT, STRING, VOID) or isinstance(decl.type, TBlock):
            self.reporter.error(decl.at, f"there are no value sets of {decl.type}")
        decl.size = self.value_of(decl.size)
        if decl.size.type is not UNKNOWN and not self.is_elaboration_constant(decl.size):
            self.reporter.error(decl.size.at, "the size of a value set must be known at compile time")
        self.declare(decl.name, decl, decl.at)

    def _control(self, decl: ast.ControlDecl) -> None:
        self._block_head(decl)
        if decl.body is not None:
            self.where = "control"
            self.push()
            for local in decl.locals:
                self.declaration(local)
            self.where, self.return_type = "apply", VOID
            self.block_statements(decl.body)
            self.pop()
        self.where = "top"
        self.pop()
        self.declare(decl.name, decl, decl.at)


def _ends(states: dict[str, ast.StateDecl]) -> bool:
    """Whether a path from `start` leaves the parser; a select may reject when nothing matches."""
    seen: set[str] = set()
    waiting = ["start"]
    while waiting:
        name = waiting.pop()
        if name not in states or states[name].next_state is None:
            return True
        if name in seen:
            continue
        seen.add(name)
        following = states[name].next_state
        assert following is not None
        waiting.append(following)
    return False
