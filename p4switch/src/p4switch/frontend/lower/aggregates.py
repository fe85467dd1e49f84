"""Values of many parts: built in place, cleared, compared, taken apart."""

from __future__ import annotations

from p4switch.frontend import ast
from p4switch.frontend.lower.ir_helpers import conjunction, negate
from p4switch.frontend.lower.lowering import BIT32, Lowering
from p4switch.frontend.lower.types_to_ir import ir_type
from p4switch.frontend.p4_types import INT
from p4switch.ir import expr as ir
from p4switch.ir import types as irt
from p4switch.ir.expr import BinaryOp
from p4switch.ir.stmt import Assign, If, SetNextIndex, SetValidity


def parts(place: ir.LValue) -> list[ir.LValue]:
    """The elements of a stack, the fields of a struct, header or union; nothing of a scalar."""
    t = place.type
    if isinstance(t, irt.StackType):
        return [ir.Element(place, ir.Const(i, BIT32), t.element) for i in range(t.size)]
    if isinstance(t, irt.StructType | irt.HeaderType | irt.UnionType):
        return [ir.Member(place, f.name, f.type) for f in t.fields]
    return []


def equality(left: ir.Expr, right: ir.Expr) -> ir.Expr:
    """left == right for any type, as an expression on scalars."""
    t = left.type
    if isinstance(t, irt.Bits | irt.Bool | irt.EnumType | irt.Varbits):
        return ir.Binary(BinaryOp.EQ, left, right, irt.Bool())
    assert isinstance(left, ir.VarRef | ir.Member | ir.Element)
    assert isinstance(right, ir.VarRef | ir.Member | ir.Element)
    same = [equality(*pair) for pair in zip(parts(left), parts(right), strict=True)]
    if not isinstance(t, irt.HeaderType):
        return conjunction(same)
    both = ir.Binary(BinaryOp.LAND, ir.IsValid(left), conjunction([ir.IsValid(right), *same]), irt.Bool())
    neither = ir.Binary(BinaryOp.LAND, negate(ir.IsValid(left)), negate(ir.IsValid(right)), irt.Bool())
    return ir.Binary(BinaryOp.LOR, both, neither, irt.Bool())


# ---------------------------------------------------------------- aggregates built in place


def build(low: Lowering, e: ast.Expr) -> ir.LValue:
    """A list, struct, invalid-header or default expression in a fresh variable."""
    t = ir_type(low, low.concrete(low.types[e]), e.at)
    result = low.new_variable("built", t)
    clear(low, result)
    fill(low, result, e)
    return result


def clear(low: Lowering, target: ir.LValue) -> None:
    """Bring a place to its default: zero, headers invalid."""
    _reset(low, target, zero=True)


def invalidate(low: Lowering, target: ir.LValue) -> None:
    """Make every header inside a place invalid, leave the rest."""
    _reset(low, target, zero=False)


def _reset(low: Lowering, target: ir.LValue, *, zero: bool) -> None:
    t = target.type
    if isinstance(t, irt.HeaderType):
        low.emit(SetValidity(target, False))
        return
    for part in parts(target):
        _reset(low, part, zero=zero)
    if isinstance(t, irt.StackType):
        low.emit(SetNextIndex(target, ir.Const(0, BIT32)))
    elif zero and isinstance(t, irt.Bits | irt.Bool | irt.EnumType):
        low.emit(Assign(target, ir.Const(0, t)))


def fill(low: Lowering, target: ir.LValue, e: ast.Expr) -> None:
    """Assign an aggregate expression part by part."""
    t = target.type
    if isinstance(e, ast.InvalidExpr | ast.DotsExpr):
        clear(low, target)
        return
    if isinstance(t, irt.StackType):
        assert isinstance(e, ast.ListExpr)
        for part, item in zip(parts(target), e.items, strict=False):
            fill_part(low, part, item)
        return
    assert isinstance(t, irt.StructType | irt.HeaderType)
    if isinstance(t, irt.HeaderType):
        low.emit(SetValidity(target, True))
    items = e.items if isinstance(e, ast.ListExpr) else []
    named = dict(zip((f.name for f in t.fields), items, strict=False))
    if isinstance(e, ast.StructExpr):
        named = {name: item for name, _, item in e.fields}
    for f in t.fields:
        part = ir.Member(target, f.name, f.type)
        if f.name in named:
            fill_part(low, part, named[f.name])
        else:
            clear(low, part)


def fill_part(low: Lowering, target: ir.LValue, e: ast.Expr) -> None:
    """Assign one part, in place where it is itself an aggregate expression."""
    if isinstance(e, ast.ListExpr | ast.StructExpr | ast.InvalidExpr | ast.DotsExpr):
        fill(low, target, e)
    else:
        store(low, target, low.expr(e))


# ---------------------------------------------------------------- assignment


def store(low: Lowering, target: ir.LValue, value: ir.Expr) -> None:
    """target = value; the header of a union takes the place of its siblings."""
    low.emit(Assign(target, value))
    if (
        isinstance(target.type, irt.HeaderType)
        and isinstance(target, ir.Member)
        and isinstance(target.base.type, irt.UnionType)
    ):
        with low.body() as statements:
            invalidate_siblings(low, target)
        low.emit(If(ir.IsValid(target), tuple(statements), ()))


def invalidate_siblings(low: Lowering, header: ir.LValue) -> None:
    """The other headers of the union that a header is in."""
    if isinstance(header, ir.Member) and isinstance(header.base.type, irt.UnionType):
        for f in header.base.type.fields:
            if f.name != header.field:
                low.emit(SetValidity(ir.Member(header.base, f.name, f.type), False))


# ---------------------------------------------------------------- flattening


def scalars(low: Lowering, e: ast.Expr) -> list[ir.Expr]:
    """The scalar (and varbit) parts of a value in order, as hashes and digests take them."""
    if isinstance(e, ast.ListExpr):
        return [part for item in e.items for part in scalars(low, item)]
    if isinstance(e, ast.StructExpr):
        return [part for _, _, item in e.fields for part in scalars(low, item)]
    if isinstance(e, ast.Cast) and isinstance(e.operand, ast.ListExpr):
        return scalars(low, e.operand)
    if low.concrete(low.types[e]) is INT:
        raise low.reporter.fail(e.at, "the width of this number is not known here")
    return leaves_of(low.expr(e))


def leaves_of(value: ir.Expr) -> list[ir.Expr]:
    """The scalars and varbits inside a value."""
    t = value.type
    if isinstance(t, irt.Bits | irt.Bool | irt.EnumType | irt.Varbits):
        return [value]
    assert isinstance(value, ir.VarRef | ir.Member | ir.Element)
    return [leaf for part in parts(value) for leaf in leaves_of(part)]
