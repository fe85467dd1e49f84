"""IR expressions as C expressions. Invariant: a value never has bits above its width."""

from __future__ import annotations

from typing import assert_never

from p4switch.codegen.c_unit import CUnit
from p4switch.codegen.intrinsic import intrinsic_field
from p4switch.codegen.layout import Place, bytes_of, is_wide, member, member_of
from p4switch.ir import expr as ir
from p4switch.ir import types as irt
from p4switch.ir.expr import BinaryOp, UnaryOp

_NAMES = {
    BinaryOp.ADD: "add",
    BinaryOp.SUB: "sub",
    BinaryOp.MUL: "mul",
    BinaryOp.DIV: "div",
    BinaryOp.MOD: "mod",
    BinaryOp.AND: "and",
    BinaryOp.OR: "or",
    BinaryOp.XOR: "xor",
}


_WRAPPING = frozenset({BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL})


def c_place(unit: CUnit, e: ir.LValue) -> Place:
    """C lvalues of an IR lvalue."""
    if isinstance(e, ir.VarRef):
        return unit.roots[e.name]
    base = c_place(unit, e.base)
    if isinstance(e, ir.Element):
        t = e.base.type
        assert isinstance(t, irt.StackType)
        index = (
            str(e.index.value)
            if isinstance(e.index, ir.Const) and e.index.value < t.size
            else (
                f"PS_INDEX({c_value(unit, e.index) if not is_wide(e.index.type) else low64(unit, e.index)}, {t.size}u)"
            )
        )
        return Place(f"{base.z}.e[{index}]", f"{base.f}.e[{index}]")
    if base.foreign:
        return Place(f"{base.z}.{intrinsic_field(e.field)}", "")
    name = member_of(e.base.type, e.field)
    if isinstance(e.base.type, irt.HeaderType):
        return Place(f"{base.f}.{name}", "")
    return Place(f"{base.z}.{name}", f"{base.f}.{name}")


# ---------------------------------------------------------------- values


def c_value(unit: CUnit, e: ir.Expr) -> str:
    """C value of an expression: uint64_t, u128, a wide type, or int for truth values."""
    if isinstance(e, ir.Const):
        return c_constant(unit, e.value, e.type)
    if isinstance(e, ir.VarRef | ir.Member | ir.Element):
        return _loaded(unit, e)
    if isinstance(e, ir.IsValid):
        return c_validity(unit, e.header)
    if isinstance(e, ir.NextIndex):
        return f"(uint64_t){c_place(unit, e.stack).z}.next"
    if isinstance(e, ir.VarbitLength):
        return f"(uint64_t){c_place(unit, e.operand).z}.bits"
    if isinstance(e, ir.PacketLength):
        return "(uint64_t)ctx->packet_bytes"
    if isinstance(e, ir.Unary):
        return _unary(unit, e)
    if isinstance(e, ir.Binary):
        return _binary(unit, e)
    if isinstance(e, ir.Slice):
        return _slice(unit, e)
    if isinstance(e, ir.Cast):
        return _cast(unit, e)
    if isinstance(e, ir.Mux):
        return f"({c_value(unit, e.condition)} ? {c_value(unit, e.yes)} : {c_value(unit, e.no)})"
    assert_never(e)


def c_constant(unit: CUnit, value: int, t: irt.Type) -> str:
    """A constant of a type."""
    bits = irt.width_of(t)
    if isinstance(t, irt.Bool):
        return str(value)
    if bits <= 64:
        return f"{value:#x}ull" if value > 9 else f"{value}ull"
    if bits <= 128:
        low = value & ((1 << 64) - 1)
        return f"((u128){value >> 64:#x}ull << 64 | {low:#x}ull)"
    return _wide_constant(unit, value, bytes_of(bits))


def _wide_constant(unit: CUnit, value: int, size: int) -> str:
    key = (value, size)
    if key not in unit.constant_names:
        name = f"wide_{len(unit.constant_names)}"
        unit.constant_names[key] = name
        digits = ", ".join(f"{b:#x}" for b in value.to_bytes(size, "big"))
        unit.constants.append(f"static const {unit.layout.wide(size)} {name} = {{{{{digits}}}}};")
    return unit.constant_names[key]


def _loaded(unit: CUnit, e: ir.LValue) -> str:
    place = c_place(unit, e).z
    bits = irt.width_of(e.type)
    if isinstance(e.type, irt.Bool) or bits > 64 or isinstance(e.type, irt.Varbits) or not _is_scalar(e.type):
        return place
    return f"(uint64_t){place}"


def c_validity(unit: CUnit, header: ir.LValue) -> str:
    """Validity of a header or union."""
    place = c_place(unit, header)
    if isinstance(header.type, irt.UnionType):
        parts = [f"{place.z}.{member(i)}" for i in range(len(header.type.fields))]
        return "(" + " | ".join(parts) + ")" if parts else "0"
    return place.z


# ---------------------------------------------------------------- conversions


def low64(unit: CUnit, e: ir.Expr) -> str:
    """The low 64 bits."""
    text = c_value(unit, e)
    if is_wide(e.type):
        return f"W{bytes_of(irt.width_of(e.type))}_low64({text})"
    return f"(uint64_t)({text})"


def saturating64(unit: CUnit, e: ir.Expr) -> str:
    """The value, or the largest uint64_t when it is larger: for shift amounts and indexes."""
    bits = irt.width_of(e.type)
    if bits <= 64:
        return c_value(unit, e)
    text = c_value(unit, e)
    if bits <= 128:
        return f"({text} > ~0ull ? ~0ull : (uint64_t)({text}))"
    size = bytes_of(bits)
    return f"(W{size}_compare({text}, W{size}_from64(~0ull), {bits}, 0) > 0 ? ~0ull : W{size}_low64({text}))"


def resized(unit: CUnit, text: str, source: int, target: int) -> str:
    """A value of `source` bits in the C representation of `target` bits, zero-extended or truncated, not masked."""
    if source <= 64:
        if target <= 64:
            return text
        return f"(u128)({text})" if target <= 128 else f"{unit.layout.wide(bytes_of(target))}_from64({text})"
    if source <= 128:
        if target <= 64:
            return f"(uint64_t)({text})"
        return text if target <= 128 else f"{unit.layout.wide(bytes_of(target))}_from128({text})"
    size = bytes_of(source)
    unit.layout.wide(size)
    if target <= 64:
        return f"W{size}_low64({text})"
    if target <= 128:
        return f"W{size}_low128({text})"
    if bytes_of(target) == size:
        return text
    return f"{unit.layout.resize(size, bytes_of(target))}({text})"


def masked(unit: CUnit, text: str, bits: int) -> str:
    """Clear the bits above the width."""
    if bits in (64, 128):
        return f"({text})" if bits == 128 else f"(uint64_t)({text})"
    if bits < 64:
        return f"(({text}) & {(1 << bits) - 1:#x}ull)"
    if bits < 128:
        return f"(({text}) & PS_ONES128({bits}))"
    return text if bits % 8 == 0 else f"{unit.layout.wide(bytes_of(bits))}_mask({text}, {bits})"


def signed_value(unit: CUnit, e: ir.Expr) -> str:
    """The number as a signed C integer (up to 128 bits)."""
    bits = irt.width_of(e.type)
    return f"ps_sign{64 if bits <= 64 else 128}({c_value(unit, e)}, {bits})"


def _cast(unit: CUnit, e: ir.Cast) -> str:
    source, target = e.operand.type, e.type
    text = c_value(unit, e.operand)
    if isinstance(target, irt.Bool):
        return (
            f"(({text}) != 0)"
            if not is_wide(source)
            else f"(!ps_wide_zero({text}.b, {bytes_of(irt.width_of(source))}))"
        )
    if isinstance(source, irt.Bool):
        return resized(unit, f"(uint64_t)({text})", 1, irt.width_of(target))
    n, m = irt.width_of(source), irt.width_of(target)
    if isinstance(source, irt.Bits) and source.signed and m > n:
        return _extend(unit, e.operand, n, m)
    converted = resized(unit, text, n, m)
    return masked(unit, converted, m) if m < n else converted


def _extend(unit: CUnit, operand: ir.Expr, n: int, m: int) -> str:
    if m <= 64:
        return masked(unit, f"(uint64_t)ps_sign64({c_value(unit, operand)}, {n})", m)
    if m <= 128:
        inner = f"(u128)(i128){signed_value(unit, operand)}" if n <= 64 else f"(u128){signed_value(unit, operand)}"
        return masked(unit, inner, m)
    size = bytes_of(m)
    wide = resized(unit, c_value(unit, operand), n, m)
    return masked(unit, f"W{size}_extend({wide}, {n})", m)


# ---------------------------------------------------------------- operators


def _unary(unit: CUnit, e: ir.Unary) -> str:
    text = c_value(unit, e.operand)
    if e.op is UnaryOp.NOT:
        return f"(!({text}))"
    bits = irt.width_of(e.type)
    if bits > 128:
        size = bytes_of(bits)
        if e.op is UnaryOp.COMPLEMENT:
            return masked(unit, f"W{size}_not({text})", bits)
        return masked(unit, f"W{size}_sub({_wide_constant(unit, 0, size)}, {text})", bits)
    return masked(unit, f"{'~' if e.op is UnaryOp.COMPLEMENT else '0 - '}({text})", bits)


def _binary(unit: CUnit, e: ir.Binary) -> str:
    op = e.op
    if op in (BinaryOp.LAND, BinaryOp.LOR):
        return f"({c_value(unit, e.left)} {op.value} {c_value(unit, e.right)})"
    if op in ir.COMPARISONS:
        return _compare(unit, e)
    if op is BinaryOp.CONCAT:
        return _concat(unit, e)
    if op in (BinaryOp.SHL, BinaryOp.SHR):
        return _shift(unit, e)
    if op in (BinaryOp.SAT_ADD, BinaryOp.SAT_SUB):
        return _saturate(unit, e)
    bits = irt.width_of(e.type)
    left, right = c_value(unit, e.left), c_value(unit, e.right)
    if bits > 128:
        text = f"W{bytes_of(bits)}_{_NAMES[op]}({left}, {right})"
        return masked(unit, text, bits) if op in _WRAPPING else text
    if op in (BinaryOp.DIV, BinaryOp.MOD):
        if isinstance(e.right, ir.Const) and e.right.value:
            return f"({left} {op.value} {right})"
        return f"ps_{_NAMES[op]}{64 if bits <= 64 else 128}({left}, {right})"
    text = f"{left} {op.value} {right}"
    return masked(unit, text, bits) if op in _WRAPPING else f"({text})"


def _compare(unit: CUnit, e: ir.Binary) -> str:
    t = e.left.type
    op = e.op.value
    if isinstance(t, irt.Varbits):
        return _compare_varbits(unit, e)
    bits = irt.width_of(t)
    is_signed = isinstance(t, irt.Bits) and t.signed
    if bits > 128:
        size = bytes_of(bits)
        left, right = c_value(unit, e.left), c_value(unit, e.right)
        if e.op in (BinaryOp.EQ, BinaryOp.NE):
            return f"({'' if e.op is BinaryOp.EQ else '!'}W{size}_equal({left}, {right}))"
        return f"(W{size}_compare({left}, {right}, {bits}, {int(is_signed)}) {op} 0)"
    if bits == 0:
        return "1" if e.op in (BinaryOp.EQ, BinaryOp.LE, BinaryOp.GE) else "0"
    if is_signed and e.op not in (BinaryOp.EQ, BinaryOp.NE):
        return f"({signed_value(unit, e.left)} {op} {signed_value(unit, e.right)})"
    return f"({c_value(unit, e.left)} {op} {c_value(unit, e.right)})"


def _compare_varbits(unit: CUnit, e: ir.Binary) -> str:
    left, right = c_value(unit, e.left), c_value(unit, e.right)
    equal = f"({left}.bits == {right}.bits && memcmp({left}.b, {right}.b, {left}.bits / 8) == 0)"
    return equal if e.op is BinaryOp.EQ else f"(!{equal})"


def _concat(unit: CUnit, e: ir.Binary) -> str:
    bits = irt.width_of(e.type)
    n, m = irt.width_of(e.left.type), irt.width_of(e.right.type)
    if n == 0:
        return resized(unit, c_value(unit, e.right), m, bits)
    if m == 0:
        return resized(unit, c_value(unit, e.left), n, bits)
    left, right = resized(unit, c_value(unit, e.left), n, bits), resized(unit, c_value(unit, e.right), m, bits)
    if bits > 128:
        size = bytes_of(bits)
        return f"W{size}_or(W{size}_shl({left}, {m}), {right})"
    return f"(({left}) << {m} | ({right}))"


def _shift(unit: CUnit, e: ir.Binary) -> str:
    bits = irt.width_of(e.type)
    arithmetic = isinstance(e.type, irt.Bits) and e.type.signed and e.op is BinaryOp.SHR
    amount = saturating64(unit, e.right)
    fixed = e.right.value if isinstance(e.right, ir.Const) else None
    if bits == 0:
        return "0ull"
    if bits > 128:
        size = bytes_of(bits)
        if arithmetic:
            return masked(unit, f"W{size}_sar({c_value(unit, e.left)}, {amount}, {bits})", bits)
        text = f"W{size}_{'shl' if e.op is BinaryOp.SHL else 'shr'}({c_value(unit, e.left)}, {amount})"
        return masked(unit, text, bits) if e.op is BinaryOp.SHL else text
    family = 64 if bits <= 64 else 128
    if arithmetic:
        return masked(unit, f"ps_sar{family}({signed_value(unit, e.left)}, {amount})", bits)
    left = c_value(unit, e.left)
    if fixed is not None:
        if fixed >= bits:
            return "0ull" if family == 64 else "(u128)0"
        text = f"({left}) {e.op.value} {fixed}"
        return masked(unit, text, bits) if e.op is BinaryOp.SHL else f"({text})"
    text = f"ps_{'shl' if e.op is BinaryOp.SHL else 'shr'}{family}({left}, {amount})"
    return masked(unit, text, bits) if e.op is BinaryOp.SHL else text


def _saturate(unit: CUnit, e: ir.Binary) -> str:
    bits = irt.width_of(e.type)
    subtract = e.op is BinaryOp.SAT_SUB
    left, right = c_value(unit, e.left), c_value(unit, e.right)
    is_signed = isinstance(e.type, irt.Bits) and e.type.signed
    if bits > 128:
        return f"W{bytes_of(bits)}_saturate({left}, {right}, {bits}, {int(subtract)}, {int(is_signed)})"
    family = 64 if bits <= 64 else 128
    if not is_signed:
        if subtract:
            return f"ps_sat_subu{family}({left}, {right})"
        return f"ps_sat_addu{family}({left}, {right}, {bits})"
    if family == 128:
        return f"ps_sat_signed128({left}, {right}, {bits}, {int(subtract)})"
    sign = "-" if subtract else "+"
    return f"ps_clamp64((i128){signed_value(unit, e.left)} {sign} {signed_value(unit, e.right)}, {bits})"


def _slice(unit: CUnit, e: ir.Slice) -> str:
    source, target = irt.width_of(e.operand.type), irt.width_of(e.type)
    text = c_value(unit, e.operand)
    if e.low:
        if source > 128:
            text = f"W{bytes_of(source)}_shr({text}, {e.low})"
        else:
            text = f"(({text}) >> {e.low})"
    converted = resized(unit, text, source, target)
    return converted if e.high == source - 1 and source <= 128 else masked(unit, converted, target)


def _is_scalar(t: irt.Type) -> bool:
    return isinstance(t, irt.Bits | irt.Bool | irt.EnumType)
