"""Sixth layer of the checker: statements, and tables with their entries."""

from __future__ import annotations

from dataclasses import fields

from p4switch.frontend import ast
from p4switch.frontend.check_call import CallChecker
from p4switch.frontend.source import AbortError, Reporter
from p4switch.frontend.types import (
    BOOL,
    ERROR,
    INT,
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
    TTable,
    TVar,
    TVarbits,
    Type,
)


class StatementChecker(CallChecker):
    """Checks statements and tables."""

    def __init__(self, reporter: Reporter) -> None:
        super().__init__(reporter)
        self.return_type: Type = VOID
        self.loop_depth = 0

    def declaration(self, decl: ast.Declaration) -> None:
        """A declaration among statements (layer above)."""
        raise AssertionError("provided by Checker")

    def constant_keyset(self, e: ast.Expr, t: Type) -> ast.Expr:
        """A keyset known at compile time (layer above)."""
        raise AssertionError("provided by Checker")

    # ---------------------------------------------------------------- tables

    def table(self, decl: ast.TableDecl) -> None:
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
        for p, a, listed_argument in zip(directional, arguments[:skip], listed.arguments or [], strict=False):
            if a.expr is not None:
                a.expr = self.check(a.expr, p.type if p.direction == "in" else None)
                if listed_argument.expr is not None and not same_expression(a.expr, listed_argument.expr):
                    self.reporter.error(
                        a.expr.at, f"argument '{p.name}' of {what} differs from the one in the table's action list"
                    )
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
        if len(entry.keys) == 1 and isinstance(entry.keys[0], ast.ListExpr):
            entry.keys = entry.keys[0].items
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
            entry.keys[index] = self.constant_keyset(e, key.expr.type)
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

    def block_statements(self, block: ast.Block) -> None:
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
            self.block_statements(s)
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


def same_expression(left: object, right: object) -> bool:
    """Whether two checked expressions are written alike, whatever their places."""
    if isinstance(left, ast.Expr) and isinstance(right, ast.Expr):
        if type(left) is not type(right):
            return left.value is not None and left.value == right.value
        names = (f.name for f in fields(left) if f.name not in ("at", "name_at", "type", "decl", "target", "value"))
        return all(same_expression(getattr(left, n), getattr(right, n)) for n in names)
    if isinstance(left, ast.Argument) and isinstance(right, ast.Argument):
        return left.name == right.name and same_expression(left.expr, right.expr)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same_expression, left, right))
    return isinstance(left, ast.TypeRef) or (isinstance(left, int) and not isinstance(left, bool)) or left == right


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
