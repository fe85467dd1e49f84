"""core.p4's extern functions and methods; all others are the architecture's."""

from __future__ import annotations

from collections.abc import Callable

from p4switch.frontend import ast
from p4switch.frontend.callee import Callee
from p4switch.frontend.lower.aggregates import invalidate_siblings
from p4switch.frontend.lower.bindings import Instance
from p4switch.frontend.lower.extern_arguments import argument_of, given_arguments
from p4switch.frontend.lower.lowering import BIT32, Lowering
from p4switch.frontend.lower.places import lower_place
from p4switch.frontend.lower.types_to_ir import ir_type, require_whole_bytes
from p4switch.ir import expr as ir
from p4switch.ir import types as irt
from p4switch.ir.expr import BinaryOp
from p4switch.ir.stmt import Advance, Emit, Extract, Lookahead, ParserCheck, SetNextIndex


def lower_extract(low: Lowering, e: ast.Call, callee: Callee, instance: Instance) -> None:
    header_argument = callee.arguments[0][1]
    bits: ir.Expr | None = None
    if len(callee.arguments) > 1:
        size = callee.arguments[1][1]
        assert size is not None
        bits = low.save(low.expr(size), "varbit_bits")
    if header_argument is None:
        types = [t for v, t in callee.bindings.items() if v.name == "T"]
        if not types:
            raise low.reporter.fail(e.at, "extract needs to know what it extracts: extract<type>(_)")
        header: ir.LValue = low.new_variable("skipped", ir_type(low, low.concrete(types[-1]), e.at))
    else:
        header = lower_place(low, header_argument)
    t = header.type
    if isinstance(t, irt.UnionType | irt.StackType) or not isinstance(t, irt.HeaderType):
        raise low.reporter.fail(e.at, f"only a header can be extracted, found {t}")
    require_whole_bytes(low, t, e.at)
    varbit = t.varbit_field()
    if bits is None and varbit is not None:
        raise low.reporter.fail(e.at, f"header {t} has a varbit field; extract needs its length")
    if bits is not None and varbit is None:
        raise low.reporter.fail(e.at, f"header {t} has no varbit field")
    invalidate_siblings(low, header)
    low.emit(Extract(header, bits))
    if isinstance(header_argument, ast.Member) and header_argument.name == "next":
        _advance_next(low, header)
    elif isinstance(header, ir.Member) and isinstance(header.base, ir.Element) and _is_next(header_argument):
        _advance_next(low, header.base)


def _advance_next(low: Lowering, element: ir.LValue) -> None:
    if isinstance(element, ir.Element):
        following = ir.Binary(BinaryOp.ADD, ir.NextIndex(element.base), ir.Const(1, BIT32), BIT32)
        low.emit(SetNextIndex(element.base, following))


def lower_lookahead(low: Lowering, e: ast.Call, callee: Callee, instance: Instance) -> ir.Expr:
    t = ir_type(low, low.concrete(low.types[e]), e.at)
    variable = low.new_variable("ahead", t)
    low.emit(Lookahead(variable))
    return variable


def lower_advance(low: Lowering, e: ast.Call, callee: Callee, instance: Instance) -> None:
    low.emit(Advance(low.expr(argument_of(callee, "sizeInBits"))))


def lower_length(low: Lowering, e: ast.Call, callee: Callee, instance: Instance) -> ir.Expr:
    return ir.PacketLength()


def lower_emit(low: Lowering, e: ast.Call, callee: Callee, instance: Instance) -> None:
    argument = given_arguments(callee)[0]
    if isinstance(argument, ast.ListExpr):
        for item in argument.items:
            emit_headers(low, lower_place(low, item), item.at)
        return
    emit_headers(low, lower_place(low, argument), argument.at)


def emit_headers(low: Lowering, value: ir.LValue, at: int) -> None:
    """Emit every header inside a value, in order."""
    t = value.type
    if isinstance(t, irt.HeaderType):
        require_whole_bytes(low, t, at)
        low.emit(Emit(value))
    elif isinstance(t, irt.StackType):
        for i in range(t.size):
            emit_headers(low, ir.Element(value, ir.Const(i, BIT32), t.element), at)
    elif isinstance(t, irt.StructType | irt.UnionType):
        for f in t.fields:
            emit_headers(low, ir.Member(value, f.name, f.type), at)
    else:
        raise low.reporter.fail(at, f"only headers can be emitted, found {t}")


def lower_verify(low: Lowering, e: ast.Call, callee: Callee) -> None:
    condition, error = given_arguments(callee)
    low.emit(ParserCheck(low.expr(condition), low.expr(error)))


def lower_static_assert(low: Lowering, e: ast.Call, callee: Callee) -> ir.Expr:
    return ir.Const(1, irt.Bool())


def _is_next(e: ast.Expr | None) -> bool:
    return isinstance(e, ast.Member) and isinstance(e.base, ast.Member) and e.base.name == "next"


FUNCTIONS: dict[str, Callable[[Lowering, ast.Call, Callee], ir.Expr | None]] = {
    "verify": lower_verify,
    "static_assert": lower_static_assert,
}
METHODS: dict[tuple[str, str], Callable[[Lowering, ast.Call, Callee, Instance], ir.Expr | None]] = {
    ("packet", "extract"): lower_extract,
    ("packet", "lookahead"): lower_lookahead,
    ("packet", "advance"): lower_advance,
    ("packet", "length"): lower_length,
    ("packet", "emit"): lower_emit,
}
