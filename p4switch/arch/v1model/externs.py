"""Lowering of v1model's extern functions and methods, each to its own IR statement."""

from __future__ import annotations

from p4switch.arch.v1model.instances import V1Instances
from p4switch.frontend import ast
from p4switch.frontend.check_call import Callee
from p4switch.frontend.lower.base import BIT32, Instance
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


class V1Externs(V1Instances):
    """Lowers calls."""

    metadata: ir.VarRef
    standard_metadata: ir.VarRef

    # ---------------------------------------------------------------- state

    def _register_read(self, e: ast.Call, callee: Callee, instance: Instance) -> None:
        result = callee.arguments[0][1]
        index = self.low.expr(self.low.argument(callee, "index"))
        register = self.low.registers[instance.index]
        self.low.write_to(
            result, register.element, lambda place: self.low.emit(RegisterRead(place, instance.index, index))
        )

    def _register_write(self, e: ast.Call, callee: Callee, instance: Instance) -> None:
        index = self.low.expr(self.low.argument(callee, "index"))
        value = self.low.expr(self.low.argument(callee, "value"))
        self.low.emit(RegisterWrite(instance.index, index, value))

    def _count(self, e: ast.Call, callee: Callee, instance: Instance) -> None:
        self.low.emit(CounterCount(instance.index, self.low.expr(self.low.argument(callee, "index"))))

    def _direct_count(self, e: ast.Call, callee: Callee, instance: Instance) -> None:
        self.low.emit(DirectCounterCount(instance.index))

    def _execute_meter(self, e: ast.Call, callee: Callee, instance: Instance) -> None:
        index = self.low.expr(self.low.argument(callee, "index"))
        result = self._out_argument(callee, "result")
        t = self._result_type(result, callee)
        self.low.write_to(result, t, lambda place: self.low.emit(MeterExecute(place, instance.index, index)))

    def _read_direct_meter(self, e: ast.Call, callee: Callee, instance: Instance) -> None:
        result = self._out_argument(callee, "result")
        t = self._result_type(result, callee)
        self.low.write_to(result, t, lambda place: self.low.emit(DirectMeterRead(place, instance.index)))

    def _out_argument(self, callee: Callee, name: str) -> ast.Expr | None:
        return next(a for p, a in callee.arguments if p.name == name)

    def _result_type(self, result: ast.Expr | None, callee: Callee) -> irt.Type:
        return BIT32 if result is None else self.low.type(self.low.concrete(result.type), result.at)

    def _random(self, e: ast.Call, callee: Callee) -> None:
        result = self._out_argument(callee, "result")
        low, high = self.low.expr(self.low.argument(callee, "lo")), self.low.expr(self.low.argument(callee, "hi"))
        self.low.write_to(result, low.type, lambda place: self.low.emit(Random(place, low, high)))

    # ---------------------------------------------------------------- hashes and checksums

    def _hash(self, e: ast.Call, callee: Callee) -> None:
        result = self._out_argument(callee, "result")
        algorithm = self.algorithm(self.low.argument(callee, "algo"))
        base = self.low.expr_of_width(self.low.argument(callee, "base"))
        fields = tuple(self.low.scalars(self.low.argument(callee, "data")))
        limit = self._limit(self.low.argument(callee, "max"))
        t = self._result_type(result, callee)
        self.low.write_to(result, t, lambda place: self.low.emit(Hash(place, algorithm, base, fields, limit)))

    def _limit(self, e: ast.Expr) -> ir.Expr:
        known = self.low.known(e)
        if isinstance(known, int):
            return ir.Const(known & ((1 << 64) - 1), irt.Bits(64)) if known < 1 << 64 else ir.Const(0, irt.Bits(64))
        return self.low.expr(e)

    def _verify_checksum(self, e: ast.Call, callee: Callee) -> None:
        condition = self.low.expr(self.low.argument(callee, "condition"))
        fields = tuple(self.low.scalars(self.low.argument(callee, "data")))
        expected = self.low.expr(self.low.argument(callee, "checksum"))
        algorithm = self.algorithm(self.low.argument(callee, "algo"))
        self.low.emit(VerifyChecksum(condition, fields, expected, algorithm, callee.name.endswith("payload")))

    def _update_checksum(self, e: ast.Call, callee: Callee) -> None:
        condition = self.low.expr(self.low.argument(callee, "condition"))
        fields = tuple(self.low.scalars(self.low.argument(callee, "data")))
        algorithm = self.algorithm(self.low.argument(callee, "algo"))
        target = self.low.place(self.low.argument(callee, "checksum"))
        self.low.emit(UpdateChecksum(condition, fields, target, algorithm, callee.name.endswith("payload")))

    def _checksum_get(self, e: ast.Call, callee: Callee, instance: Instance) -> ir.Expr:
        fields = tuple(self.low.scalars(self.low.argument(callee, "data")))
        result = self.low.new_variable("checksum", irt.Bits(16))
        self.low.emit(ChecksumGet(result, fields))
        return result

    # ---------------------------------------------------------------- what happens to the packet

    def _mark_to_drop(self, e: ast.Call, callee: Callee) -> None:
        if callee.arguments:
            self.low.emit(MarkToDrop(self.low.place(self.low.by_position(callee)[0])))
            return
        self.low.emit(MarkToDrop(self.standard_metadata))

    def _digest(self, e: ast.Call, callee: Callee) -> None:
        argument = self.low.argument(callee, "data")
        t = self.low.type(self.low.concrete(argument.type), argument.at)
        if not isinstance(t, irt.StructType | irt.HeaderType):
            raise self.low.unsupported(argument.at, f"a digest of {t}")
        if any(isinstance(f.type, irt.Varbits | irt.StackType | irt.UnionType) for f in t.fields):
            raise self.low.unsupported(argument.at, f"a digest of {t}, which has parts without fixed size")
        self.low.emit(SendDigest(self.low.digest_index(t), tuple(self.low.scalars(argument))))

    def _truncate(self, e: ast.Call, callee: Callee) -> None:
        self.low.emit(Truncate(self.low.expr(self.low.argument(callee, "length"))))

    def _clone(self, e: ast.Call, callee: Callee) -> None:
        kind = CloneType(self.member(self.low.argument(callee, "type")))
        session = self.low.expr(self.low.argument(callee, "session"))
        self.low.emit(Clone(kind, session, self._list_of(callee)))

    def _resubmit(self, e: ast.Call, callee: Callee) -> None:
        self.low.emit(Resubmit(self._list_of(callee)))

    def _recirculate(self, e: ast.Call, callee: Callee) -> None:
        self.low.emit(Recirculate(self._list_of(callee)))

    def _list_of(self, callee: Callee) -> int | None:
        """Index of the field list of clone, resubmit or recirculate; None when nothing is preserved."""
        for p, a in callee.arguments:
            if p.name == "index" and a is not None:
                return self._numbered_list(self.low.known_int(a, "the field list's number"))
            if p.name == "data" and a is not None:
                return self._legacy_list(a)
        return None

    def _numbered_list(self, number: int) -> int | None:
        for known in self.low.field_lists:
            if known.number == number:
                return known.index
        fields: list[ir.Expr] = []
        self._tagged(self.metadata, number, False, fields)
        if not fields:
            return None
        self.low.field_lists.append(FieldList(len(self.low.field_lists), number, tuple(fields)))
        return len(self.low.field_lists) - 1

    def _tagged(self, place: ir.LValue, number: int, inherited: bool, out: list[ir.Expr]) -> None:
        """Fields of the metadata with @field_list(number), whole structs included."""
        t = place.type
        if not isinstance(t, irt.StructType):
            if inherited:
                out.append(place)
            return
        for f in t.fields:
            tagged = inherited or any(a.name == "field_list" and number in self._numbers(a) for a in f.annotations)
            self._tagged(ir.Member(place, f.name, f.type), number, tagged, out)

    def _numbers(self, annotation: irt.Annotation) -> list[int]:
        """The numbers of a @field_list, which may be written as constants or enum members."""
        out = [v for v in annotation.body if isinstance(v, int) and not isinstance(v, bool)]
        scope = self.low.checker.scopes[0]
        words = [w.strip() for w in annotation.text.split(",")]
        for word in words:
            owner, _, member = word.partition(".")
            decl = scope.get(owner.strip())
            if isinstance(decl, ast.Constant) and isinstance(decl.value, int):
                out.append(decl.value)
            elif isinstance(decl, ast.EnumDecl) and member.strip() in decl.values:
                out.append(decl.values[member.strip()])
        return out

    def _legacy_list(self, data: ast.Expr) -> int | None:
        """The lvalues of recirculate(data) and relatives: their values are taken at the end of the block."""
        preserved = (self.metadata.name, self.standard_metadata.name)
        fields = [f for f in self.low.scalars(data) if _root(f) in preserved]
        if not fields:
            return None
        for known in self.low.field_lists:
            if known.number is None and known.fields == tuple(fields):
                return known.index
        self.low.field_lists.append(FieldList(len(self.low.field_lists), None, tuple(fields)))
        return len(self.low.field_lists) - 1

    # ---------------------------------------------------------------- diagnostics at run time

    def _log(self, e: ast.Call, callee: Callee) -> None:
        text = self.low.known(self.low.argument(callee, "msg"))
        values: tuple[ir.Expr, ...] = ()
        for p, a in callee.arguments:
            if p.name == "data" and a is not None:
                values = tuple(self.low.scalars(a))
        self.low.emit(LogMessage(str(text), tuple(v for v in values if not isinstance(v.type, irt.Varbits))))

    def _assert(self, e: ast.Call, callee: Callee) -> None:
        condition = self.low.expr(self.low.by_position(callee)[0])
        location = self.low.location(e.at)
        text = self.low.reporter.source.original_line(location.file, location.line).strip()
        self.low.emit(Assertion(condition, text, location))


def _root(e: ir.Expr) -> str:
    while isinstance(e, ir.Member | ir.Element):
        e = e.base
    return e.name if isinstance(e, ir.VarRef) else ""
