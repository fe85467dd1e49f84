"""Lowering of core.p4's extern functions and methods; all others are the architecture's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from p4switch.frontend import ast
from p4switch.frontend.check_call import Callee
from p4switch.frontend.lower.base import BIT32, Instance
from p4switch.frontend.lower.calls import CallLowering
from p4switch.ir import expr as ir
from p4switch.ir import types as irt
from p4switch.ir.expr import BinaryOp
from p4switch.ir.stmt import (
    Advance,
    AssignSlice,
    Emit,
    Extract,
    Lookahead,
    ParserCheck,
    SetNextIndex,
)

if TYPE_CHECKING:
    from p4switch.arch.base import FunctionRule, MethodRule


class ExternLowering(CallLowering):
    """Everything that a target implements rather than the program."""

    def __init__(self, checker: Any, reporter: Any) -> None:
        super().__init__(checker, reporter)
        self._functions: dict[str, FunctionRule] = {"verify": self._verify, "static_assert": self._static_assert}
        self._methods: dict[tuple[str, str], MethodRule] = {
            ("packet", "extract"): self._extract,
            ("packet", "lookahead"): self._lookahead,
            ("packet", "advance"): self._advance,
            ("packet", "length"): self._length,
            ("packet", "emit"): self._emit,
        }

    def extern_call(self, e: ast.Call, callee: Callee) -> ir.Expr | None:
        if callee.kind == "function":
            rule = self._functions.get(callee.name) or self.architecture.functions.get(callee.name)
            if rule is None:
                raise self.unsupported(
                    e.at, f"extern function {callee.name}, which {self.architecture.name} does not have"
                )
            return rule(e, callee)
        assert callee.receiver is not None
        instance = self.instance_of(callee.receiver)
        if instance is None:
            raise self.unsupported(e.at, f"a method of {callee.receiver.type} that is not a named instance")
        wanted = (instance.kind, callee.name)
        method = self._methods.get(wanted) or self.architecture.methods.get(wanted)
        if method is None:
            raise self.unsupported(e.at, f"method {callee.name} of {instance.kind}")
        return method(e, callee, instance)

    # ---------------------------------------------------------------- arguments

    def argument(self, callee: Callee, name: str) -> ast.Expr:
        """The expression given for a parameter."""
        for p, a in callee.arguments:
            if p.name == name and a is not None:
                return a
        raise AssertionError(f"{callee.name} has no argument {name}")

    def by_position(self, callee: Callee) -> list[ast.Expr]:
        """All given expressions in order of the parameters."""
        return [a for _, a in callee.arguments if a is not None]

    def write_to(self, e: ast.Expr | None, t: irt.Type, store: Callable[[ir.LValue], None]) -> None:
        """Give `store` a place for an out argument; a slice or `_` gets a variable and copy-out."""
        if e is None or isinstance(e, ast.Slice):
            variable = self.new_variable("out", t)
            store(variable)
            if isinstance(e, ast.Slice):
                if e.bounds is None or isinstance(e.base, ast.Slice):
                    raise self.unsupported(e.at, "this slice as an argument that is written")
                self.emit(AssignSlice(self.place(e.base), e.bounds[0], e.bounds[1], variable))
            return
        store(self.place(e))

    # ---------------------------------------------------------------- packets

    def _extract(self, e: ast.Call, callee: Callee, instance: Instance) -> None:
        header_argument = callee.arguments[0][1]
        bits: ir.Expr | None = None
        if len(callee.arguments) > 1:
            size = callee.arguments[1][1]
            assert size is not None
            bits = self.save(self.expr(size), "varbit_bits")
        if header_argument is None:
            types = [t for v, t in callee.bindings.items() if v.name == "T"]
            if not types:
                raise self.reporter.fail(e.at, "extract needs to know what it extracts: extract<type>(_)")
            header: ir.LValue = self.new_variable("skipped", self.type(self.concrete(types[-1]), e.at))
        else:
            header = self.place(header_argument)
        t = header.type
        if isinstance(t, irt.UnionType | irt.StackType) or not isinstance(t, irt.HeaderType):
            raise self.reporter.fail(e.at, f"only a header can be extracted, found {t}")
        varbit = t.varbit_field()
        if bits is None and varbit is not None:
            raise self.reporter.fail(e.at, f"header {t} has a varbit field; extract needs its length")
        if bits is not None and varbit is None:
            raise self.reporter.fail(e.at, f"header {t} has no varbit field")
        self.invalidate_siblings(header)
        self.emit(Extract(header, bits))
        if isinstance(header_argument, ast.Member) and header_argument.name == "next":
            self._advance_next(header)
        elif isinstance(header, ir.Member) and isinstance(header.base, ir.Element) and _is_next(header_argument):
            self._advance_next(header.base)

    def _advance_next(self, element: ir.LValue) -> None:
        if isinstance(element, ir.Element):
            following = ir.Binary(BinaryOp.ADD, ir.NextIndex(element.base), ir.Const(1, BIT32), BIT32)
            self.emit(SetNextIndex(element.base, following))

    def _lookahead(self, e: ast.Call, callee: Callee, instance: Instance) -> ir.Expr:
        t = self.type(self.concrete(e.type), e.at)
        variable = self.new_variable("ahead", t)
        self.emit(Lookahead(variable))
        return variable

    def _advance(self, e: ast.Call, callee: Callee, instance: Instance) -> None:
        self.emit(Advance(self.expr(self.argument(callee, "sizeInBits"))))

    def _length(self, e: ast.Call, callee: Callee, instance: Instance) -> ir.Expr:
        return ir.PacketLength()

    def _emit(self, e: ast.Call, callee: Callee, instance: Instance) -> None:
        argument = self.by_position(callee)[0]
        if isinstance(argument, ast.ListExpr):
            for item in argument.items:
                self.emit_headers(self.place(item), item.at)
            return
        self.emit_headers(self.place(argument), argument.at)

    def emit_headers(self, value: ir.LValue, at: int) -> None:
        """Emit every header inside a value, in order."""
        t = value.type
        if isinstance(t, irt.HeaderType):
            self.emit(Emit(value))
        elif isinstance(t, irt.StackType):
            for i in range(t.size):
                self.emit_headers(ir.Element(value, ir.Const(i, BIT32), t.element), at)
        elif isinstance(t, irt.StructType | irt.UnionType):
            for f in t.fields:
                self.emit_headers(ir.Member(value, f.name, f.type), at)
        else:
            raise self.reporter.fail(at, f"only headers can be emitted, found {t}")

    def _verify(self, e: ast.Call, callee: Callee) -> None:
        condition, error = self.by_position(callee)
        self.emit(ParserCheck(self.expr(condition), self.expr(error)))

    def _static_assert(self, e: ast.Call, callee: Callee) -> ir.Expr:
        return ir.Const(1, irt.Bool())


def _is_next(e: ast.Expr | None) -> bool:
    return isinstance(e, ast.Member) and isinstance(e.base, ast.Member) and e.base.name == "next"
