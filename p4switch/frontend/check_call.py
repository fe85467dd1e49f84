"""Fifth layer of the checker: calls, constructor calls and the inference of type arguments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from p4switch.frontend import ast
from p4switch.frontend.check_expr import HEADER_METHODS, SIZE_METHODS, STACK_METHODS, ExpressionChecker
from p4switch.frontend.source import AbortError, Reporter
from p4switch.frontend.types import (
    ANY,
    BOOL,
    INT,
    STRING,
    UNKNOWN,
    VOID,
    TBlock,
    TCallable,
    TName,
    TRecord,
    TSet,
    TStruct,
    TTable,
    TVar,
    TVarbits,
    Type,
    block_bindings,
    has_variables,
    resolve_deep,
    size_range,
    substitute,
    width_of,
)
from p4switch.frontend.unify import unify_blocks, unify_types


@dataclass(slots=True)
class Callee:
    """What a call means.

    kind: 'function' (decl.body None for an extern), 'action', 'method' of an extern instance, 'apply' of a parser or
    control instance, 'direct' (`Type.apply`), 'table', 'constructor', 'builtin' (a method of headers or stacks).
    """

    kind: str
    name: str
    decl: Any = None
    receiver: ast.Expr | None = None
    arguments: list[tuple[ast.Parameter, ast.Expr | None]] = field(default_factory=list)
    bindings: dict[TVar, Type] = field(default_factory=dict)
    block: TBlock | None = None


class CallChecker(ExpressionChecker):
    """Checks calls."""

    def __init__(self, reporter: Reporter) -> None:
        super().__init__(reporter)
        self.where = "top"  # 'top', 'parser', 'state', 'control', 'apply', 'action', 'function'

    # ---------------------------------------------------------------- dispatch

    def call(self, e: ast.Call) -> ast.Expr:
        function = self.check(e.function)
        e.function = function
        if function.type is UNKNOWN:
            for a in e.arguments:
                if a.expr is not None:
                    self.check(a.expr)
            raise AbortError
        explicit = None if e.type_arguments is None else [self.resolve(a) for a in e.type_arguments]
        if isinstance(function.type, TName):
            return self._constructor_call(e, function.type.named, explicit)
        if not isinstance(function.type, TCallable):
            raise self.reporter.fail(e.at, f"{function.type} cannot be called")
        if isinstance(function, ast.Name):
            return self._plain_call(e, function, explicit)
        assert isinstance(function, ast.Member)
        return self._method_call(e, function, explicit)

    def _plain_call(self, e: ast.Call, function: ast.Name, explicit: list[Type] | None) -> ast.Expr:
        decl = function.decl
        if isinstance(decl, ast.ActionDecl):
            return self._action_call(e, decl)
        chosen = self._overload(decl, e, function.name)
        if chosen.body is None and function.name == "verify" and self.where not in ("state", "parser", "function"):
            raise self.reporter.fail(e.at, "verify can only be called in a parser")
        callee = Callee("function", function.name, chosen)
        e.type = self._bind_call(e, callee, chosen, {}, explicit)
        if chosen.name == "static_assert" and chosen.body is None:
            self._static_assert(e, callee)
        return e

    def _static_assert(self, e: ast.Call, callee: Callee) -> None:
        check = callee.arguments[0][1]
        if check is None or check.value is None:
            raise self.reporter.fail(e.at, "static_assert needs a condition known at compile time")
        if check.value is False:
            text = callee.arguments[1][1] if len(callee.arguments) > 1 else None
            raise self.reporter.fail(
                e.at, str(text.value) if text is not None and text.value else "static_assert failed"
            )
        e.value = True

    def _overload(self, candidates: list[Any], e: ast.Call, name: str) -> Any:
        """The declaration whose parameters take these arguments by number and name."""
        if len(candidates) == 1:
            return candidates[0]
        given = len(e.arguments)
        names = {a.name for a in e.arguments if a.name is not None}
        fitting = []
        for c in candidates:
            required = sum(1 for p in c.parameters if p.default is None and not p.is_optional)
            if required <= given <= len(c.parameters) and names <= {p.name for p in c.parameters}:
                fitting.append(c)
        if not fitting:
            raise self.reporter.fail(
                e.at, f"no '{name}' takes {given} arguments" + (f" named {', '.join(sorted(names))}" if names else "")
            )
        exact = [c for c in fitting if len(c.parameters) == given]
        return (exact or fitting)[0]

    def _action_call(self, e: ast.Call, decl: ast.ActionDecl) -> ast.Expr:
        if self.where not in ("apply", "action"):
            raise self.reporter.fail(e.at, f"action {decl.name} cannot be called here")
        if e.type_arguments is not None:
            raise self.reporter.fail(e.at, f"action {decl.name} takes no type arguments")
        callee = Callee("action", decl.name, decl)
        callee.arguments = self.bind(decl.parameters, e.arguments, e.at, f"action {decl.name}")
        self._convert_arguments(callee, {})
        e.target = callee
        e.type = VOID
        return e

    def _bind_call(
        self, e: ast.Call, callee: Callee, decl: ast.FunctionDecl, outer: dict[TVar, Type], explicit: list[Type] | None
    ) -> Type:
        """Bind arguments, infer type arguments; gives the return type."""
        callee.arguments = self.bind(decl.parameters, e.arguments, e.at, f"'{decl.name}'")
        variables = list(decl.type_vars)
        bindings = self._explicit(variables, explicit, e, decl.name)
        free = set(variables)
        for parameter, argument in callee.arguments:
            if argument is not None:
                self.unify(substitute(parameter.type, outer), argument, bindings, free)
        missing = [v.name for v in variables if v not in bindings]
        if missing:
            if any(argument is not None and argument.type is UNKNOWN for _, argument in callee.arguments):
                raise AbortError
            optional_only = [
                v
                for v in variables
                if v not in bindings and not any(a is None and p.type == v for p, a in callee.arguments)
            ]
            if optional_only:
                raise self.reporter.fail(e.at, f"cannot infer type argument {', '.join(missing)} of '{decl.name}'")
        bound = {**outer, **{v: resolve_deep(t, bindings) for v, t in bindings.items()}}
        self._require_widths(callee, bound)
        callee.bindings = bound
        e.target = callee
        self._convert_arguments(callee, bound)
        return substitute(decl.return_type, bound)

    def _require_widths(self, callee: Callee, bound: dict[TVar, Type]) -> None:
        """A value that reaches run time has a width, is no string, and belongs to a declared type."""
        for p, argument in callee.arguments:
            if argument is None or not isinstance(p.type, TVar):
                continue
            t = bound.get(p.type, UNKNOWN)
            if isinstance(t, TBlock) and t.kind in ("parser", "control", "package"):
                raise self.reporter.fail(argument.at, f"argument '{p.name}' cannot be a {t.kind}")
            if isinstance(t, TRecord):
                raise self.reporter.fail(argument.at, f"the struct of argument '{p.name}' cannot be inferred; cast it")
            if t is INT and p.direction:
                raise self.reporter.fail(
                    argument.at, f"the width of argument '{p.name}' cannot be inferred; write it, as in 16w5"
                )
            if t is STRING and p.direction:
                raise self.reporter.fail(argument.at, f"argument '{p.name}' cannot be a string")

    def _explicit(self, variables: list[TVar], explicit: list[Type] | None, e: ast.Call, name: str) -> dict[TVar, Type]:
        if explicit is None:
            return {}
        if len(explicit) != len(variables):
            raise self.reporter.fail(e.at, f"'{name}' takes {len(variables)} type arguments, not {len(explicit)}")
        return {v: t for v, t in zip(variables, explicit, strict=True) if t is not ANY}

    # ---------------------------------------------------------------- methods

    def _method_call(self, e: ast.Call, function: ast.Member, explicit: list[Type] | None) -> ast.Expr:
        base = function.base.type
        if isinstance(base, TTable):
            return self._table_apply(e, function)
        if isinstance(base, TBlock):
            if isinstance(base.decl, ast.ExternDecl):
                return self._extern_method(e, function, base, explicit)
            return self._block_apply(e, function, base, "apply")
        if isinstance(base, TName) and isinstance(base.named, TBlock):
            return self._block_apply(e, function, base.named, "direct")
        return self._builtin(e, function, base)

    def _table_apply(self, e: ast.Call, function: ast.Member) -> ast.Expr:
        table = function.base.type
        assert isinstance(table, TTable)
        if self.where not in ("apply", "key"):
            raise self.reporter.fail(e.at, "a table can only be applied in a control's apply block")
        if e.arguments:
            raise self.reporter.fail(e.at, "apply of a table takes no arguments")
        e.target = Callee("table", "apply", table.decl, function.base)
        e.type = TTable(table.decl, "result")
        return e

    def _extern_method(self, e: ast.Call, function: ast.Member, base: TBlock, explicit: list[Type] | None) -> ast.Expr:
        assert isinstance(base.decl, ast.ExternDecl)
        if self.where == "top":
            raise self.reporter.fail(e.at, "a method cannot be called at the top level")
        candidates = [m for m in base.decl.methods if m.name == function.name]
        chosen = self._overload(candidates, e, function.name)
        callee = Callee("method", function.name, chosen, function.base, block=base)
        e.type = self._bind_call(e, callee, chosen, block_bindings(base), explicit)
        if base.decl.name == "packet_in":
            self._packet_rules(e, callee)
        return e

    def _packet_rules(self, e: ast.Call, callee: Callee) -> None:
        """What core.p4 says of the types that packet_in takes beyond its declaration."""
        t = next((t for v, t in callee.bindings.items() if v in callee.decl.type_vars), UNKNOWN)
        if t is UNKNOWN or isinstance(t, TVar):
            return
        if callee.name == "lookahead" and width_of(t) is None:
            raise self.reporter.fail(e.at, f"lookahead needs a type of fixed size, found {t}")
        if callee.name == "extract":
            if not isinstance(t, TStruct) or t.kind != "header":
                raise self.reporter.fail(e.at, f"only a header can be extracted, found {t}")
            has_varbit = any(isinstance(f, TVarbits) for _, f in t.fields())
            if has_varbit and len(callee.decl.parameters) == 1:
                raise self.reporter.fail(e.at, f"header {t} has a varbit field; extract needs its length")
            if not has_varbit and len(callee.decl.parameters) == 2:
                raise self.reporter.fail(e.at, f"header {t} has no varbit field")

    def _block_apply(self, e: ast.Call, function: ast.Member, base: TBlock, kind: str) -> ast.Expr:
        decl = base.decl
        assert isinstance(decl, ast.ParserDecl | ast.ControlDecl)
        if isinstance(decl, ast.ControlDecl) and self.where != "apply":
            raise self.reporter.fail(e.at, "a control can only be applied in a control's apply block")
        if isinstance(decl, ast.ParserDecl) and self.where != "state":
            raise self.reporter.fail(e.at, "a parser can only be applied in a parser's state")
        if kind == "direct" and decl.is_type:
            raise self.reporter.fail(e.at, f"'{decl.name}' has no body to apply")
        callee = Callee(kind, "apply", decl, function.base, block=base)
        callee.arguments = self.bind(decl.parameters, e.arguments, e.at, f"{base.kind} {decl.name}")
        bindings: dict[TVar, Type] = dict(block_bindings(base))
        free = {TVar(p.name, id(decl)) for p in decl.type_parameters} - set(bindings)
        for parameter, argument in callee.arguments:
            if argument is not None:
                self.unify(parameter.type, argument, bindings, free)
        callee.bindings = bindings
        e.target = callee
        self._convert_arguments(callee, bindings)
        e.type = VOID
        return e

    def _builtin(self, e: ast.Call, function: ast.Member, base: Type) -> ast.Expr:
        name = function.name
        callee = Callee("builtin", name, None, function.base)
        e.target = callee
        arguments = [a.expr for a in e.arguments if a.expr is not None]
        if name in ("push_front", "pop_front"):
            self._check_stack_shift(e, function, arguments)
            return e
        if arguments or e.arguments:
            raise self.reporter.fail(e.at, f"'{name}' takes no arguments")
        if name in SIZE_METHODS:
            return self._size_method(e, name, base.named if isinstance(base, TName) else base)
        assert name in HEADER_METHODS
        if name == "isValid":
            e.type = BOOL
            return e
        if isinstance(base, TStruct) and base.kind == "header_union" and name == "setValid":
            raise self.reporter.fail(e.at, "a header union has no setValid; set one of its headers")
        self.require_place(function.base, f"the header of '{name}'")
        e.type = VOID
        return e

    def _check_stack_shift(self, e: ast.Call, function: ast.Member, arguments: list[ast.Expr]) -> None:
        if len(arguments) != 1 or function.name not in STACK_METHODS:
            raise self.reporter.fail(e.at, f"'{function.name}' takes one argument")
        count = self.value_of(arguments[0])
        if count.type is UNKNOWN:
            raise AbortError
        if not isinstance(count.value, int):
            raise self.reporter.fail(count.at, f"the argument of '{function.name}' must be known at compile time")
        if count.value < 0:
            raise self.reporter.fail(count.at, f"the argument of '{function.name}' must not be negative")
        self.require_place(function.base, f"the stack of '{function.name}'")
        e.value = None
        e.arguments[0].expr = count
        e.type = VOID

    def _size_method(self, e: ast.Call, name: str, t: Type) -> ast.Expr:
        widths = size_range(t)
        if widths is None:
            if has_variables(t):
                e.type = INT
                return e
            raise self.reporter.fail(e.at, f"{t} has no size")
        bits = widths[0] if name.startswith("min") else widths[1]
        e.type = INT
        e.value = bits if name.endswith("Bits") else (bits + 7) // 8
        return e

    # ---------------------------------------------------------------- constructors

    def _constructor_call(self, e: ast.Call, named: Type, explicit: list[Type] | None) -> ast.Expr:
        if not isinstance(named, TBlock):
            raise self.reporter.fail(e.at, f"{named} cannot be constructed")
        if explicit is not None:
            if named.arguments:
                raise self.reporter.fail(e.at, "type arguments are given twice")
            named = TBlock(named.decl, tuple(explicit))
        if self.where in ("apply", "action", "function", "state"):
            raise self.reporter.fail(e.at, "instances cannot be made in statements")
        callee = self.construct(named, e.arguments, e.at)
        e.target = callee
        assert callee.block is not None
        e.type = callee.block
        return e

    def construct(self, t: TBlock, arguments: list[ast.Argument], at: int) -> Callee:
        """Check a constructor's arguments; the callee's `block` is the type with inferred arguments."""
        decl = t.decl
        if isinstance(decl, ast.ParserDecl | ast.ControlDecl):
            if decl.is_type:
                raise self.reporter.fail(at, f"'{decl.name}' is only the type of a {t.kind}; it cannot be instantiated")
            parameters = decl.constructor_parameters
        elif isinstance(decl, ast.PackageDecl):
            parameters = decl.parameters
        else:
            parameters = self._extern_constructor(decl, arguments, at)
        callee = Callee("constructor", decl.name, decl, block=t)
        callee.arguments = self.bind(parameters, arguments, at, f"the constructor of '{decl.name}'")
        variables = [TVar(p.name, id(decl)) for p in decl.type_parameters]
        if t.arguments and len(t.arguments) != len(variables):
            raise self.reporter.fail(at, f"'{decl.name}' takes {len(variables)} type arguments, not {len(t.arguments)}")
        bindings: dict[TVar, Type] = {v: a for v, a in block_bindings(t).items() if a is not ANY}
        for parameter, argument in callee.arguments:
            if argument is not None:
                self.unify(parameter.type, argument, bindings, set(variables))
        missing = [v.name for v in variables if v not in bindings]
        if missing and not isinstance(decl, ast.ParserDecl | ast.ControlDecl | ast.PackageDecl):
            raise self.reporter.fail(at, f"cannot infer type argument {', '.join(missing)} of '{decl.name}'")
        bound = {v: resolve_deep(a, bindings) for v, a in bindings.items()}
        callee.bindings = bound
        if variables and not missing:
            callee.block = TBlock(decl, tuple(bound[v] for v in variables))
        self._convert_arguments(callee, bound)
        for parameter, argument in callee.arguments:
            self._require_constant(parameter, argument)
        return callee

    def _extern_constructor(self, decl: ast.ExternDecl, arguments: list[ast.Argument], at: int) -> list[ast.Parameter]:
        given = len(arguments)
        for c in decl.constructors:
            required = sum(1 for p in c.parameters if p.default is None and not p.is_optional)
            if required <= given <= len(c.parameters):
                return c.parameters
        if not decl.constructors and not given:
            return []
        raise self.reporter.fail(at, f"no constructor of '{decl.name}' takes {given} arguments")

    def _require_constant(self, parameter: ast.Parameter, argument: ast.Expr | None) -> None:
        if (
            argument is None
            or argument.value is not None
            or isinstance(argument.type, TBlock)
            or argument.type is UNKNOWN
        ):
            return
        if not self.is_elaboration_constant(argument):
            self.reporter.error(
                argument.at, f"argument '{parameter.name}' of a constructor must be known at compile time"
            )

    def is_elaboration_constant(self, e: ast.Expr) -> bool:
        """Whether the value is known once constructor parameters are."""
        known = self.is_elaboration_constant
        if e.value is not None:
            return True
        if isinstance(e, ast.Name):
            return isinstance(e.decl, ast.Constant) or (isinstance(e.decl, ast.Parameter) and e.decl.direction == "")
        if isinstance(e, ast.Member | ast.Index | ast.Slice):
            return known(e.base)
        if isinstance(e, ast.Unary | ast.Cast):
            return known(e.operand)
        if isinstance(e, ast.Binary):
            return known(e.left) and known(e.right)
        if isinstance(e, ast.Ternary):
            return all(known(x) for x in (e.condition, e.yes, e.no))
        if isinstance(e, ast.ListExpr):
            return all(known(x) for x in e.items)
        if isinstance(e, ast.StructExpr):
            return all(known(x) for _, _, x in e.fields)
        if isinstance(e, ast.Call) and isinstance(e.type, TBlock):
            return all(a.expr is None or isinstance(a.expr.type, TBlock) or known(a.expr) for a in e.arguments)
        return isinstance(e, ast.Call) and e.type is INT

    # ---------------------------------------------------------------- arguments

    def bind(
        self, parameters: list[ast.Parameter], arguments: list[ast.Argument], at: int, what: str
    ) -> list[tuple[ast.Parameter, ast.Expr | None]]:
        """Pair parameters with checked arguments, by position or by name. None: not given (optional) or `_`."""
        named = [a for a in arguments if a.name is not None]
        if named and len(named) != len(arguments):
            raise self.reporter.fail(at, "arguments are either all named or all positional")
        checked: list[ast.Expr | None] = []
        for a in arguments:
            if a.expr is not None:
                a.expr = self.check(a.expr)
            checked.append(a.expr)
        if len(arguments) > len(parameters):
            raise self.reporter.fail(at, f"{what} takes {len(parameters)} arguments, not {len(arguments)}")
        by_name: dict[str, tuple[ast.Argument, ast.Expr | None]] = {}
        for index, a in enumerate(arguments):
            name = a.name if a.name is not None else parameters[index].name
            if name in by_name:
                raise self.reporter.fail(a.at, f"argument '{name}' is given twice")
            by_name[name] = (a, checked[index])
        out: list[tuple[ast.Parameter, ast.Expr | None]] = []
        for p in parameters:
            if p.name in by_name:
                a, expr = by_name.pop(p.name)
                if expr is None and p.direction not in ("out",) and p.default is None and not p.is_optional:
                    raise self.reporter.fail(a.at, f"'_' can only stand for an out argument; '{p.name}' is not")
                out.append((p, expr if expr is not None or p.default is None else p.default))
            elif p.default is not None:
                out.append((p, p.default))
            elif p.is_optional:
                out.append((p, None))
            else:
                raise self.reporter.fail(at, f"{what} needs an argument for '{p.name}'")
        if by_name:
            name, (a, _) = next(iter(by_name.items()))
            raise self.reporter.fail(a.at, f"{what} has no parameter '{name}'")
        return out

    def _convert_arguments(self, callee: Callee, bindings: dict[TVar, Type]) -> None:
        """Convert in-arguments to the parameters' types; out and inout ones must be places of that very type."""
        converted: list[tuple[ast.Parameter, ast.Expr | None]] = []
        for p, argument in callee.arguments:
            want = substitute(p.type, bindings)
            if argument is None:
                converted.append((p, None))
                continue
            if p.direction in ("out", "inout"):
                if argument.type is not UNKNOWN and isinstance(argument.type, TName | TCallable | TTable):
                    self.reporter.error(argument.at, f"{argument.type} is not a value")
                    continue
                self.require_place(argument, f"argument '{p.name}'")
                if (
                    argument.type != want
                    and UNKNOWN not in (argument.type, want)
                    and want is not ANY
                    and not has_variables(want)
                ):
                    self.reporter.error(argument.at, f"argument '{p.name}' must be {want}, found {argument.type}")
            elif not isinstance(want, TBlock):
                argument = self._in_argument(argument, want)
            converted.append((p, argument))
        callee.arguments = converted

    def _in_argument(self, argument: ast.Expr, want: Type) -> ast.Expr:
        if isinstance(argument.type, TName | TCallable | TSet) or (
            isinstance(argument.type, TTable) and argument.type.what != "result"
        ):
            self.reporter.error(argument.at, f"{argument.type} is not a value")
            argument.type = UNKNOWN
            return argument
        if isinstance(want, TVar) or (has_variables(want) and want != argument.type):
            return argument
        return self.coerce(argument, want)

    # ---------------------------------------------------------------- unification

    def unify(self, formal: Type, argument: ast.Expr, bindings: dict[TVar, Type], free: set[TVar]) -> None:
        """Learn type variables from an argument; mismatches are reported by the conversion that follows."""
        actual = argument.type
        if isinstance(formal, TBlock) and isinstance(actual, TBlock):
            problem = unify_blocks(formal, actual, bindings, free)
            if problem:
                self.reporter.error(argument.at, problem)
                raise AbortError
            return
        if isinstance(formal, TBlock) and actual is not UNKNOWN:
            raise self.reporter.fail(argument.at, f"expected {formal}, found {actual}")
        unify_types(formal, actual, bindings, free)
