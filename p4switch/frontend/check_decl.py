"""Last layer of the checker: statements and declarations, tables and parsers."""

from __future__ import annotations

from p4switch.frontend import ast
from p4switch.frontend.check_call import CallChecker
from p4switch.frontend.source import AbortError, Reporter
from p4switch.frontend.types import (
    ANY,
    BOOL,
    ERROR,
    INT,
    MATCH_KIND,
    STRING,
    UNKNOWN,
    VOID,
    TBits,
    TBlock,
    TEnum,
    TList,
    TName,
    TNew,
    TSet,
    TStack,
    TStruct,
    TTable,
    TTuple,
    TVar,
    TVarbits,
    Type,
)

KEY_PROPERTIES = frozenset({"key", "actions", "entries"})


class Checker(CallChecker):
    """Checks a whole program in order of declaration."""

    def __init__(self, reporter: Reporter) -> None:
        super().__init__(reporter)
        self.return_type: Type = VOID
        self.loop_depth = 0

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
            ast.TableDecl: self._table,
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
        if decl.body is not None or (isinstance(t.decl, ast.ExternDecl) and any(m.is_abstract for m in t.decl.methods)):
            raise self.reporter.fail_unsupported(decl.at, "instances that implement abstract methods")
        decl.target = self.construct(t, decl.arguments, decl.at)
        decl.type = decl.target.block
        self.declare(decl.name, decl, decl.at)

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
            while isinstance(t, TNew):
                t = t.underlying
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

    def parameters(self, parameters: list[ast.Parameter], declare: bool = True) -> None:
        """Resolve the types of parameters and maybe declare them."""
        seen: set[str] = set()
        for p in parameters:
            p.type = self.resolve(p.ref)
            if p.default is not None:
                p.default = self.value_of(p.default, p.type)
            if p.type is VOID:
                self.reporter.error(p.at, f"parameter '{p.name}' cannot be void")
            if p.direction and (isinstance(p.type, TBlock) or p.type in (STRING, INT)):
                self.reporter.error(p.at, f"parameter '{p.name}' of type {p.type} cannot have a direction")
            if p.name in seen:
                self.reporter.error(p.at, f"two parameters are named '{p.name}'")
            elif declare:
                self.declare(p.name, p, p.at)
            seen.add(p.name)

    def _function(self, decl: ast.FunctionDecl) -> None:
        self.push()
        decl.type_vars = self.declare_type_parameters(decl.type_parameters, decl)
        decl.return_type = self.resolve(decl.returns)
        self.parameters(decl.parameters)
        if decl.body is not None:
            outer = (self.where, self.return_type)
            self.where, self.return_type = "function", decl.return_type
            self._block_statements(decl.body)
            if decl.return_type is not VOID and decl.return_type is not UNKNOWN and not always_returns(decl.body):
                self.reporter.error(decl.at, f"function '{decl.name}' does not return a value on every path")
            self.where, self.return_type = outer
        self.pop()
        self.declare(decl.name, decl, decl.at)

    def _extern(self, decl: ast.ExternDecl) -> None:
        self.declare(decl.name, decl, decl.at)
        self.push()
        decl.type_vars = self.declare_type_parameters(decl.type_parameters, decl)
        for c in decl.constructors:
            self.push()
            self.parameters(c.parameters)
            self.pop()
        for m in decl.methods:
            self.push()
            m.type_vars = self.declare_type_parameters(m.type_parameters, m)
            m.return_type = self.resolve(m.returns)
            self.parameters(m.parameters)
            self.pop()
        self.pop()

    def _package(self, decl: ast.PackageDecl) -> None:
        self.push()
        decl.type_vars = self.declare_type_parameters(decl.type_parameters, decl)
        self.parameters(decl.parameters)
        self.pop()
        self.declare(decl.name, decl, decl.at)

    def _action(self, decl: ast.ActionDecl) -> None:
        self.push()
        self.parameters(decl.parameters)
        seen_data = False
        for p in decl.parameters:
            if p.direction == "":
                seen_data = True
            elif seen_data:
                self.reporter.error(p.at, "parameters with a direction must come before those without")
        outer = (self.where, self.return_type)
        self.where, self.return_type = "action", VOID
        self._block_statements(decl.body)
        self.where, self.return_type = outer
        self.pop()
        self.declare(decl.name, decl, decl.at)

    # ---------------------------------------------------------------- parsers and controls

    def _block_head(self, decl: ast.ParserDecl | ast.ControlDecl) -> None:
        """Open the scope of a parser or control."""
        self.push()
        decl.type_vars = self.declare_type_parameters(decl.type_parameters, decl)
        self.parameters(decl.parameters)
        self.parameters(decl.constructor_parameters)
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
            elif not isinstance(e.type, TBits | TEnum | TNew | TVar | TVarbits | TStruct | TTuple) and e.type not in (
                BOOL,
                ERROR,
                UNKNOWN,
            ):
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
            keyset.items = [self._constant_keyset(k, t) for k, t in zip(keyset.items, types, strict=True)]
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
        case.keyset = self._constant_keyset(keyset, types[0])

    def _constant_keyset(self, e: ast.Expr, t: Type) -> ast.Expr:
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
            self.reporter.error(checked.at, "this range is empty: its low end is above its high end")
        return checked

    def _value_set(self, decl: ast.ValueSetDecl) -> None:
        decl.type = self.resolve(decl.ref)
        decl.size = self.value_of(decl.size)
        self.declare(decl.name, decl, decl.at)

    def _control(self, decl: ast.ControlDecl) -> None:
        self._block_head(decl)
        if decl.body is not None:
            self.where = "control"
            self.push()
            for local in decl.locals:
                self.declaration(local)
            self.where, self.return_type = "apply", VOID
            self._block_statements(decl.body)
            self.pop()
        self.where = "top"
        self.pop()
        self.declare(decl.name, decl, decl.at)

    # ---------------------------------------------------------------- tables

    def _table(self, decl: ast.TableDecl) -> None:
        for key in decl.keys:
            key.expr = self._key_expression(key.expr)
            if key.match_kind not in self.match_kinds:
                self.reporter.error(key.match_at, f"match kind '{key.match_kind}' is not declared")
            t = key.expr.type
            if not (isinstance(t, TBits | TEnum | TNew | TVar | TVarbits) or t in (BOOL, ERROR, UNKNOWN)):
                self.reporter.error(key.expr.at, f"a key cannot have type {t}")
        if not decl.has_actions:
            self.reporter.error(decl.at, f"table {decl.name} has no actions")
        for ref in decl.actions:
            self._action_ref(ref)
            if ref.decl is not None and self._listed(decl, ref.decl) is not ref:
                self.reporter.error(ref.at, f"action {ref.name} is listed twice")
        seen: set[str] = set()
        for prop in decl.properties:
            if prop.name in seen:
                self.reporter.error(prop.at, f"table {decl.name} has two properties '{prop.name}'")
            seen.add(prop.name)
            self._property(decl, prop)
        for entry in decl.entries:
            self._entry(decl, entry)
        self.declare(decl.name, decl, decl.at)

    def _key_expression(self, e: ast.Expr) -> ast.Expr:
        outer, self.where = self.where, "key"
        try:
            checked = self.value_of(e)
        finally:
            self.where = outer
        if checked.type is INT:
            self.reporter.error(e.at, "a key needs a value with a width")
        return checked

    def _action_ref(self, ref: ast.ActionRef) -> None:
        """An action in the action list (bind only parameters with direction)."""
        decl = self.lookup(ref.name, ref.absolute)
        if not isinstance(decl, ast.ActionDecl):
            what = "is not declared" if decl is None else "is not an action"
            self.reporter.error(ref.at, f"'{ref.name}' {what}")
            return
        ref.decl = decl
        directional = [p for p in decl.parameters if p.direction]
        arguments = ref.arguments or []
        if len(arguments) < len(directional):
            self.reporter.error(
                ref.at, f"action {decl.name} needs arguments for its {len(directional)} parameters with direction"
            )
            return
        if len(arguments) > len(directional):
            self.reporter.error(
                ref.at,
                f"an action list binds only parameters with direction; '{decl.name}' has {len(directional)}",
            )
            return
        for p, a in zip(directional, arguments, strict=False):
            if a.expr is None:
                continue
            if p.direction == "in":
                a.expr = self.value_of(a.expr, p.type)
                continue
            a.expr = self.value_of(a.expr)
            self.require_place(a.expr, f"argument '{p.name}'")
            if a.expr.type != p.type and UNKNOWN not in (a.expr.type, p.type):
                self.reporter.error(a.expr.at, f"argument '{p.name}' must be {p.type}, found {a.expr.type}")

    def _listed(self, decl: ast.TableDecl, action: ast.ActionDecl) -> ast.ActionRef | None:
        return next((a for a in decl.actions if a.decl is action), None)

    def check_action_call(self, decl: ast.TableDecl, e: ast.Expr, what: str) -> None:
        """default_action or an entry's action: an action of the table with all its data arguments."""
        name, absolute, at = _action_name(e)
        if name is None:
            self.reporter.error(e.at, f"{what} must be an action")
            return
        action = self.lookup(name, absolute)
        if not isinstance(action, ast.ActionDecl):
            self.reporter.error(at, f"'{name}' is not an action" if action is not None else f"'{name}' is not declared")
            return
        listed = self._listed(decl, action)
        if listed is None:
            self.reporter.error(at, f"action {name} is not in the action list of table {decl.name}")
            return
        arguments = e.arguments if isinstance(e, ast.Call) else []
        directional = [p for p in action.parameters if p.direction]
        plain = [p for p in action.parameters if not p.direction]
        positional = [a for a in arguments if a.name is None]
        skip = len(directional) if positional and len(arguments) == len(action.parameters) else 0
        for p, a in zip(directional, arguments[:skip], strict=False):
            if a.expr is not None:
                a.expr = self.check(a.expr, p.type if p.direction == "in" else None)
        if arguments and any(a.name is not None for a in arguments):
            rest = [a for a in arguments if a.name not in {p.name for p in directional}]
        else:
            rest = arguments[skip:]
        bound = self.bind(plain, rest, at, f"action {name}")
        final: list[tuple[ast.Parameter, ast.Expr | None]] = []
        for p, a_expr in bound:
            checked = None if a_expr is None else self.coerce(a_expr, p.type)
            if (
                checked is not None
                and checked.type is not UNKNOWN
                and checked.value is None
                and not self.is_elaboration_constant(checked)
            ):
                self.reporter.error(checked.at, f"argument '{p.name}' of {what} must be known at compile time")
            final.append((p, checked))
        if isinstance(e, ast.Call):
            e.target = (action, final)
        elif isinstance(e, ast.Name):
            e.decl = action

    def _property(self, decl: ast.TableDecl, prop: ast.Property) -> None:
        if prop.name == "default_action":
            try:
                self.check_action_call(decl, prop.value, "default_action")
            except AbortError:
                return
            return
        outer, self.where = self.where, "control"
        prop.value = self.check(prop.value)
        self.where = outer
        if prop.name != "size" or prop.value.type is UNKNOWN:
            return
        is_number = prop.value.type is INT or isinstance(prop.value.type, TBits)
        if not is_number or not self.is_elaboration_constant(prop.value):
            self.reporter.error(prop.value.at, "the size of a table must be a number known at compile time")

    def _entry(self, decl: ast.TableDecl, entry: ast.Entry) -> None:
        if len(entry.keys) == 1 and isinstance(entry.keys[0], ast.DefaultExpr) and len(decl.keys) > 1:
            entry.keys = [ast.DefaultExpr(at=entry.keys[0].at) for _ in decl.keys]
        if len(entry.keys) != len(decl.keys):
            self.reporter.error(entry.at, f"table {decl.name} has {len(decl.keys)} keys, this entry {len(entry.keys)}")
            return
        for index, key in enumerate(decl.keys):
            e = entry.keys[index]
            if isinstance(e, ast.Mask) and key.match_kind in ("exact", "optional", "range"):
                self.reporter.error(e.at, f"a mask does not fit a key of kind {key.match_kind}")
            if isinstance(e, ast.Range) and key.match_kind != "range":
                self.reporter.error(e.at, f"a range does not fit a key of kind {key.match_kind}")
            if isinstance(e, ast.DefaultExpr) and key.match_kind == "exact":
                self.reporter.error(e.at, "a key of kind exact needs a value")
            entry.keys[index] = self._constant_keyset(e, key.expr.type)
        if entry.priority is not None:
            entry.priority = self.value_of(entry.priority)
            if not isinstance(entry.priority.value, int) and entry.priority.type is not UNKNOWN:
                self.reporter.error(entry.priority.at, "a priority must be a number known at compile time")
        ref = entry.action
        name = ast.Name(at=ref.at, name=ref.name, absolute=ref.absolute)
        call = ast.Call(at=ref.at, function=name, type_arguments=None, arguments=ref.arguments or [])
        try:
            self.check_action_call(decl, call, "an entry")
        except AbortError:
            return
        if isinstance(call.target, tuple):
            ref.decl = call.target[0]
            ref.arguments = [ast.Argument(ref.at, p.name, e) for p, e in call.target[1]]

    # ---------------------------------------------------------------- statements

    def _block_statements(self, block: ast.Block) -> None:
        for s in block.body:
            self.statement(s)

    def statement(self, s: ast.Statement) -> None:
        """One statement; errors are reported and do not stop the next."""
        try:
            self._statement(s)
        except AbortError:
            return

    def _statement(self, s: ast.Statement) -> None:
        if isinstance(s, ast.Block):
            self.push()
            self._block_statements(s)
            self.pop()
        elif isinstance(s, ast.DeclStatement):
            self.declaration(s.decl)
        elif isinstance(s, ast.Assignment):
            self._assignment(s)
        elif isinstance(s, ast.CallStatement):
            self.check(s.call)
            if isinstance(s.call.type, TName | TBlock):
                self.reporter.error(s.at, "instances cannot be made in statements")
        elif isinstance(s, ast.Conditional):
            s.condition = self.value_of(s.condition, BOOL)
            self._scoped(s.then)
            if s.otherwise is not None:
                self._scoped(s.otherwise)
        elif isinstance(s, ast.Switch):
            self._switch(s)
        elif isinstance(s, ast.Return):
            self._return(s)
        elif isinstance(s, ast.Exit):
            if self.where in ("function", "state"):
                self.reporter.error(
                    s.at, f"exit cannot be used in a {'function' if self.where == 'function' else 'parser'}"
                )
        elif isinstance(s, ast.Break | ast.Continue):
            if self.loop_depth == 0:
                self.reporter.error(s.at, "break and continue belong in a loop")
        elif isinstance(s, ast.For | ast.ForIn):
            self._loop(s)

    def _scoped(self, s: ast.Statement) -> None:
        self.push()
        self.statement(s)
        self.pop()

    def _assignment(self, s: ast.Assignment) -> None:
        s.target = self.value_of(s.target)
        self.require_place(s.target, "the left side of '='")
        t = s.target.type
        if t is UNKNOWN:
            self.check(s.value)
            return
        if s.op:
            value = ast.Binary(at=s.at, op=s.op, left=s.target, right=s.value)
            checked = self.value_of(value, t)
            s.value = checked
            return
        s.value = self.value_of(s.value, t)

    def _return(self, s: ast.Return) -> None:
        if self.where == "state":
            self.reporter.error(s.at, "return cannot be used in a parser")
        if s.value is None:
            if self.return_type is not VOID and self.return_type is not UNKNOWN:
                self.reporter.error(s.at, f"return needs a value of type {self.return_type}")
            return
        if self.return_type is VOID:
            self.check(s.value)
            self.reporter.error(s.value.at, "nothing can be returned here")
            return
        s.value = self.value_of(s.value, self.return_type)

    def _switch(self, s: ast.Switch) -> None:
        s.selector = self.check(s.selector)
        t = s.selector.type
        if isinstance(t, TTable) and t.what == "action":
            self._action_switch(s, t.decl)
        elif t is not UNKNOWN:
            if not isinstance(t, TBits | TEnum | TNew) and t not in (ERROR, BOOL, INT):
                self.reporter.error(s.selector.at, f"switch is not defined for {t}")
            seen: set[object] = set()
            for case in s.cases:
                if case.label is not None:
                    case.label = self.value_of(case.label, t)
                    if case.label.value is None and case.label.type is not UNKNOWN:
                        self.reporter.error(case.label.at, "a label must be known at compile time")
                    elif case.label.type is not UNKNOWN and case.label.value in seen:
                        self.reporter.error(case.label.at, "this label is a duplicate")
                    seen.add(case.label.value)
        for index, case in enumerate(s.cases):
            if case.label is None and index != len(s.cases) - 1:
                self.reporter.error(case.at, "default must be the last label")
            if case.body is not None:
                self._scoped(case.body)

    def _action_switch(self, s: ast.Switch, table: ast.TableDecl) -> None:
        names: set[str] = set()
        for case in s.cases:
            if case.label is None:
                continue
            if not isinstance(case.label, ast.Name):
                self.reporter.error(case.label.at, "a label must be the name of an action of the table")
                continue
            decl = self.lookup(case.label.name, case.label.absolute)
            case.label.decl = decl
            if not isinstance(decl, ast.ActionDecl) or self._listed(table, decl) is None:
                self.reporter.error(case.label.at, f"'{case.label.name}' is not an action of table {table.name}")
            if case.label.name in names:
                self.reporter.error(case.label.at, "this label is a duplicate")
            names.add(case.label.name)

    def _loop(self, s: ast.For | ast.ForIn) -> None:
        self.push()
        if isinstance(s, ast.ForIn):
            self._collection(s)
        else:
            for init in s.init:
                self.statement(init)
            s.condition = self.value_of(s.condition, BOOL)
            for update in s.update:
                self.statement(update)
        self.loop_depth += 1
        self._scoped(s.body)
        self.loop_depth -= 1
        self.pop()

    def _collection(self, s: ast.ForIn) -> None:
        self.declaration(s.decl)
        t = s.decl.type
        if isinstance(s.collection, ast.Range):
            s.collection.left = self.value_of(s.collection.left, t)
            s.collection.right = self.value_of(s.collection.right, t)
            s.collection.type = TSet(t)
            return
        s.collection = self.value_of(s.collection)
        element = s.collection.type
        if isinstance(element, TStack | TList):
            if element.element != t:
                self.reporter.error(s.collection.at, f"the elements are {element.element}, the variable is {t}")
        elif isinstance(s.collection, ast.ListExpr):
            s.collection.items = [self.coerce(item, t) for item in s.collection.items]
        elif element is not UNKNOWN:
            self.reporter.error(s.collection.at, f"cannot loop over {element}")


def _action_name(e: ast.Expr) -> tuple[str | None, bool, int]:
    target = e.function if isinstance(e, ast.Call) else e
    return (target.name, target.absolute, target.at) if isinstance(target, ast.Name) else (None, False, e.at)


def always_returns(s: ast.Statement) -> bool:
    """Whether every path through the statement ends in return (or exit)."""
    if isinstance(s, ast.Return | ast.Exit):
        return True
    if isinstance(s, ast.Block):
        return any(always_returns(x) for x in s.body)
    if isinstance(s, ast.Conditional):
        if isinstance(s.condition.value, bool):
            taken = s.then if s.condition.value else s.otherwise
            return taken is not None and always_returns(taken)
        return s.otherwise is not None and always_returns(s.then) and always_returns(s.otherwise)
    if isinstance(s, ast.Switch):
        bodies = [c.body for c in s.cases if c.body is not None]
        has_default = any(c.label is None for c in s.cases)
        return has_default and all(always_returns(b) for b in bodies)
    return False
