"""v1model's extern functions and methods, each lowered to its own IR statement."""

from __future__ import annotations

from p4switch.arch.v1model.v1model_context import V1Lowering
from p4switch.frontend import ast
from p4switch.frontend.callee import Callee
from p4switch.frontend.lower.aggregates import scalars
from p4switch.frontend.lower.bindings import Instance
from p4switch.frontend.lower.extern_arguments import argument_of, enum_member, given_arguments, hash_algorithm, write_to
from p4switch.frontend.lower.known_values import known_int, known_value
from p4switch.frontend.lower.lowering import BIT32
from p4switch.frontend.lower.named_objects import digest_index
from p4switch.frontend.lower.places import expr_of_width, lower_place
from p4switch.frontend.lower.types_to_ir import ir_type
from p4switch.ir import expr as ir
from p4switch.ir import types as irt
from p4switch.ir.program import FieldList
from p4switch.ir.stmt import (
    Assertion,
    ChecksumGet,
    Clone,
    CloneType,
    CounterCount,
    DirectCounterCount,
    DirectMeterRead,
    Hash,
    LogMessage,
    MarkToDrop,
    MeterExecute,
    Random,
    Recirculate,
    RegisterRead,
    RegisterWrite,
    Resubmit,
    SendDigest,
    Truncate,
    UpdateChecksum,
    VerifyChecksum,
)


def lower_register_read(v1: V1Lowering, e: ast.Call, callee: Callee, instance: Instance) -> None:
    result = callee.arguments[0][1]
    index = v1.low.expr(argument_of(callee, "index"))
    register = v1.low.registers[instance.index]
    write_to(v1.low, result, register.element, lambda place: v1.low.emit(RegisterRead(place, instance.index, index)))


def lower_register_write(v1: V1Lowering, e: ast.Call, callee: Callee, instance: Instance) -> None:
    index = v1.low.expr(argument_of(callee, "index"))
    value = v1.low.expr(argument_of(callee, "value"))
    v1.low.emit(RegisterWrite(instance.index, index, value))


def lower_count(v1: V1Lowering, e: ast.Call, callee: Callee, instance: Instance) -> None:
    v1.low.emit(CounterCount(instance.index, v1.low.expr(argument_of(callee, "index"))))


def lower_direct_count(v1: V1Lowering, e: ast.Call, callee: Callee, instance: Instance) -> None:
    v1.low.emit(DirectCounterCount(instance.index))


def lower_execute_meter(v1: V1Lowering, e: ast.Call, callee: Callee, instance: Instance) -> None:
    index = v1.low.expr(argument_of(callee, "index"))
    result = _out_argument(v1, callee, "result")
    t = _result_type(v1, result, callee)
    write_to(v1.low, result, t, lambda place: v1.low.emit(MeterExecute(place, instance.index, index)))


def lower_read_direct_meter(v1: V1Lowering, e: ast.Call, callee: Callee, instance: Instance) -> None:
    result = _out_argument(v1, callee, "result")
    t = _result_type(v1, result, callee)
    write_to(v1.low, result, t, lambda place: v1.low.emit(DirectMeterRead(place, instance.index)))


def _out_argument(v1: V1Lowering, callee: Callee, name: str) -> ast.Expr | None:
    return next(a for p, a in callee.arguments if p.name == name)


def _result_type(v1: V1Lowering, result: ast.Expr | None, callee: Callee) -> irt.Type:
    return BIT32 if result is None else ir_type(v1.low, v1.low.concrete(v1.low.types[result]), result.at)


def lower_random(v1: V1Lowering, e: ast.Call, callee: Callee) -> None:
    result = _out_argument(v1, callee, "result")
    first, last = v1.low.expr(argument_of(callee, "lo")), v1.low.expr(argument_of(callee, "hi"))
    write_to(v1.low, result, first.type, lambda place: v1.low.emit(Random(place, first, last)))


# ---------------------------------------------------------------- hashes and checksums


def lower_hash(v1: V1Lowering, e: ast.Call, callee: Callee) -> None:
    result = _out_argument(v1, callee, "result")
    algorithm = hash_algorithm(v1.low, argument_of(callee, "algo"))
    base = expr_of_width(v1.low, argument_of(callee, "base"))
    fields = tuple(scalars(v1.low, argument_of(callee, "data")))
    limit = _limit(v1, argument_of(callee, "max"))
    t = _result_type(v1, result, callee)
    write_to(v1.low, result, t, lambda place: v1.low.emit(Hash(place, algorithm, base, fields, limit)))


def _limit(v1: V1Lowering, e: ast.Expr) -> ir.Expr:
    known = known_value(v1.low, e)
    if isinstance(known, int):
        return ir.Const(known & ((1 << 64) - 1), irt.Bits(64)) if known < 1 << 64 else ir.Const(0, irt.Bits(64))
    return v1.low.expr(e)


def lower_verify_checksum(v1: V1Lowering, e: ast.Call, callee: Callee) -> None:
    condition = v1.low.expr(argument_of(callee, "condition"))
    fields = tuple(scalars(v1.low, argument_of(callee, "data")))
    expected = v1.low.expr(argument_of(callee, "checksum"))
    algorithm = hash_algorithm(v1.low, argument_of(callee, "algo"))
    v1.low.emit(VerifyChecksum(condition, fields, expected, algorithm, callee.name.endswith("payload")))


def lower_update_checksum(v1: V1Lowering, e: ast.Call, callee: Callee) -> None:
    condition = v1.low.expr(argument_of(callee, "condition"))
    fields = tuple(scalars(v1.low, argument_of(callee, "data")))
    algorithm = hash_algorithm(v1.low, argument_of(callee, "algo"))
    target = lower_place(v1.low, argument_of(callee, "checksum"))
    v1.low.emit(UpdateChecksum(condition, fields, target, algorithm, callee.name.endswith("payload")))


def lower_checksum_get(v1: V1Lowering, e: ast.Call, callee: Callee, instance: Instance) -> ir.Expr:
    fields = tuple(scalars(v1.low, argument_of(callee, "data")))
    result = v1.low.new_variable("checksum", irt.Bits(16))
    v1.low.emit(ChecksumGet(result, fields))
    return result


# ---------------------------------------------------------------- what happens to the packet


def lower_mark_to_drop(v1: V1Lowering, e: ast.Call, callee: Callee) -> None:
    if callee.arguments:
        v1.low.emit(MarkToDrop(lower_place(v1.low, given_arguments(callee)[0])))
        return
    v1.low.emit(MarkToDrop(v1.standard_metadata))


def lower_digest(v1: V1Lowering, e: ast.Call, callee: Callee) -> None:
    argument = argument_of(callee, "data")
    t = ir_type(v1.low, v1.low.concrete(v1.low.types[argument]), argument.at)
    if not isinstance(t, irt.StructType | irt.HeaderType | irt.Bits | irt.Bool | irt.EnumType):
        raise v1.low.unsupported(argument.at, f"a digest of {t}")
    fields = t.fields if isinstance(t, irt.StructType | irt.HeaderType) else ()
    if any(isinstance(f.type, irt.Varbits | irt.StackType | irt.UnionType) for f in fields):
        raise v1.low.unsupported(argument.at, f"a digest of {t}, which has parts without fixed size")
    v1.low.emit(SendDigest(digest_index(v1.low, t), tuple(scalars(v1.low, argument))))


def lower_truncate(v1: V1Lowering, e: ast.Call, callee: Callee) -> None:
    v1.low.emit(Truncate(v1.low.expr(argument_of(callee, "length"))))


def lower_clone(v1: V1Lowering, e: ast.Call, callee: Callee) -> None:
    kind = CloneType(enum_member(v1.low, argument_of(callee, "type")))
    session = v1.low.expr(argument_of(callee, "session"))
    v1.low.emit(Clone(kind, session, _list_of(v1, callee)))


def lower_resubmit(v1: V1Lowering, e: ast.Call, callee: Callee) -> None:
    v1.low.emit(Resubmit(_list_of(v1, callee)))


def lower_recirculate(v1: V1Lowering, e: ast.Call, callee: Callee) -> None:
    v1.low.emit(Recirculate(_list_of(v1, callee)))


def _list_of(v1: V1Lowering, callee: Callee) -> int | None:
    """Index of the field list of clone, resubmit or recirculate; None when nothing is preserved."""
    for p, a in callee.arguments:
        if p.name == "index" and a is not None:
            return _numbered_list(v1, known_int(v1.low, a, "the field list's number"))
        if p.name == "data" and a is not None:
            return _legacy_list(v1, a)
    return None


def _numbered_list(v1: V1Lowering, number: int) -> int | None:
    for known in v1.low.field_lists:
        if known.number == number:
            return known.index
    fields: list[ir.Expr] = []
    _tagged(v1, v1.metadata, number, False, fields)
    if not fields:
        return None
    v1.low.field_lists.append(FieldList(len(v1.low.field_lists), number, tuple(fields)))
    return len(v1.low.field_lists) - 1


def _tagged(v1: V1Lowering, place: ir.LValue, number: int, inherited: bool, out: list[ir.Expr]) -> None:
    """Fields of the metadata with @field_list(number), whole structs included."""
    t = place.type
    if not isinstance(t, irt.StructType):
        if inherited:
            out.append(place)
        return
    for f in t.fields:
        tagged = inherited or any(a.name == "field_list" and number in _numbers(v1, a) for a in f.annotations)
        _tagged(v1, ir.Member(place, f.name, f.type), number, tagged, out)


def _numbers(v1: V1Lowering, annotation: irt.Annotation) -> list[int]:
    """The numbers of a @field_list, which may be written as constants or enum members."""
    out = [v for v in annotation.body if isinstance(v, int) and not isinstance(v, bool)]
    scope = v1.low.checked.names
    words = [w.strip() for w in annotation.text.split(",")]
    for word in words:
        owner, _, member = word.partition(".")
        decl = scope.get(owner.strip())
        value = v1.low.values.get(decl) if isinstance(decl, ast.Constant) else None
        if isinstance(value, int):
            out.append(value)
        elif isinstance(decl, ast.EnumDecl) and member.strip() in v1.low.facts.members[decl]:
            out.append(v1.low.facts.members[decl][member.strip()])
    return out


def _legacy_list(v1: V1Lowering, data: ast.Expr) -> int | None:
    """The lvalues of recirculate(data) and relatives: their values are taken at the end of the block."""
    preserved = (v1.metadata.name, v1.standard_metadata.name)
    fields = [f for f in scalars(v1.low, data) if _root(f) in preserved]
    if not fields:
        return None
    for known in v1.low.field_lists:
        if known.number is None and known.fields == tuple(fields):
            return known.index
    v1.low.field_lists.append(FieldList(len(v1.low.field_lists), None, tuple(fields)))
    return len(v1.low.field_lists) - 1


# ---------------------------------------------------------------- diagnostics at run time


def lower_log(v1: V1Lowering, e: ast.Call, callee: Callee) -> None:
    text = known_value(v1.low, argument_of(callee, "msg"))
    values: tuple[ir.Expr, ...] = ()
    for p, a in callee.arguments:
        if p.name == "data" and a is not None:
            values = tuple(scalars(v1.low, a))
    v1.low.emit(LogMessage(str(text), tuple(v for v in values if not isinstance(v.type, irt.Varbits))))


def lower_assert(v1: V1Lowering, e: ast.Call, callee: Callee) -> None:
    condition = v1.low.expr(given_arguments(callee)[0])
    location = v1.low.location(e.at)
    text = v1.low.reporter.source.original_line(location.file, location.line).strip()
    v1.low.emit(Assertion(condition, text, location))


def _root(e: ir.Expr) -> str:
    while isinstance(e, ir.Member | ir.Element):
        e = e.base
    return e.name if isinstance(e, ir.VarRef) else ""
