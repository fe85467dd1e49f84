"""Lowering of v1model's and core.p4's extern functions and methods, each to its own IR statement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from p4switch.frontend import ast
from p4switch.frontend.check_call import Callee
from p4switch.frontend.lower.base import BIT32, Instance
from p4switch.frontend.lower.calls import CallLowering
from p4switch.frontend.types import EnumValue
from p4switch.ir import expr as ir
from p4switch.ir import types as irt
from p4switch.ir.expr import BinaryOp
from p4switch.ir.program import FieldList
from p4switch.ir.stmt import (
    Advance,
    Assertion,
    AssignSlice,
    ChecksumGet,
    Clone,
    CloneType,
    CounterCount,
    DirectCounterCount,
    DirectMeterRead,
    Emit,
    Extract,
    Hash,
    HashAlgorithm,
    LogMessage,
    Lookahead,
    MarkToDrop,
    MeterExecute,
    ParserCheck,
    Random,
    Recirculate,
    RegisterRead,
    RegisterWrite,
    Resubmit,
    SendDigest,
    SetNextIndex,
    Truncate,
    UpdateChecksum,
    VerifyChecksum,
)

PRESERVED_ROOTS = frozenset({"meta", "standard_metadata"})


class ExternLowering(CallLowering):
    """Everything that a target implements rather than the program."""

    def __init__(self, checker: Any, reporter: Any) -> None:
        super().__init__(checker, reporter)
        self.field_lists: list[FieldList] = []
        self.metadata: ir.VarRef | None = None
        self.standard_metadata: ir.VarRef | None = None
        self._functions: dict[str, Callable[[ast.Call, Callee], ir.Expr | None]] = {
            "verify": self._verify,
            "mark_to_drop": self._mark_to_drop,
            "hash": self._hash,
            "random": self._random,
            "digest": self._digest,
            "truncate": self._truncate,
            "clone": self._clone,
            "clone3": self._clone,
            "clone_preserving_field_list": self._clone,
            "resubmit": self._resubmit,
            "resubmit_preserving_field_list": self._resubmit,
            "recirculate": self._recirculate,
            "recirculate_preserving_field_list": self._recirculate,
            "log_msg": self._log,
            "assert": self._assert,
            "assume": self._assert,
            "verify_checksum": self._verify_checksum,
            "update_checksum": self._update_checksum,
            "verify_checksum_with_payload": self._verify_checksum,
            "update_checksum_with_payload": self._update_checksum,
            "static_assert": self._static_assert,
        }
        self._methods: dict[tuple[str, str], Callable[[ast.Call, Callee, Instance], ir.Expr | None]] = {
            ("packet", "extract"): self._extract,
            ("packet", "lookahead"): self._lookahead,
            ("packet", "advance"): self._advance,
            ("packet", "length"): self._length,
            ("packet", "emit"): self._emit,
            ("register", "read"): self._register_read,
            ("register", "write"): self._register_write,
            ("counter", "count"): self._count,
            ("direct_counter", "count"): self._direct_count,
            ("meter", "execute_meter"): self._execute_meter,
            ("direct_meter", "read"): self._direct_meter,
            ("Checksum16", "get"): self._checksum_get,
        }

    def extern_call(self, e: ast.Call, callee: Callee) -> ir.Expr | None:
        if callee.kind == "function":
            rule = self._functions.get(callee.name)
            if rule is None:
                raise self.unsupported(e.at, f"extern function {callee.name}, which v1model does not have")
            return rule(e, callee)
        assert callee.receiver is not None
        instance = self.instance_of(callee.receiver)
        if instance is None:
            raise self.unsupported(e.at, f"a method of {callee.receiver.type} that is not a named instance")
        method = self._methods.get((instance.kind, callee.name))
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

    def algorithm(self, e: ast.Expr) -> HashAlgorithm:
        """The constant member of HashAlgorithm."""
        value = self.known(e)
        if not isinstance(value, EnumValue):
            raise self.reporter.fail(e.at, "the algorithm must be known at compile time")
        try:
            return HashAlgorithm(value.member)
        except ValueError as problem:
            raise self.unsupported(e.at, f"hash algorithm {value.member}") from problem

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

    # ---------------------------------------------------------------- state

    def _register_read(self, e: ast.Call, callee: Callee, instance: Instance) -> None:
        result = callee.arguments[0][1]
        index = self.expr(self.argument(callee, "index"))
        register = self.registers[instance.index]
        self.write_to(result, register.element, lambda place: self.emit(RegisterRead(place, instance.index, index)))

    def _register_write(self, e: ast.Call, callee: Callee, instance: Instance) -> None:
        index = self.expr(self.argument(callee, "index"))
        value = self.expr(self.argument(callee, "value"))
        self.emit(RegisterWrite(instance.index, index, value))

    def _count(self, e: ast.Call, callee: Callee, instance: Instance) -> None:
        self.emit(CounterCount(instance.index, self.expr(self.argument(callee, "index"))))

    def _direct_count(self, e: ast.Call, callee: Callee, instance: Instance) -> None:
        self.emit(DirectCounterCount(instance.index))

    def _execute_meter(self, e: ast.Call, callee: Callee, instance: Instance) -> None:
        index = self.expr(self.argument(callee, "index"))
        result = self._out_argument(callee, "result")
        t = self._result_type(result, callee)
        self.write_to(result, t, lambda place: self.emit(MeterExecute(place, instance.index, index)))

    def _direct_meter(self, e: ast.Call, callee: Callee, instance: Instance) -> None:
        result = self._out_argument(callee, "result")
        t = self._result_type(result, callee)
        self.write_to(result, t, lambda place: self.emit(DirectMeterRead(place, instance.index)))

    def _out_argument(self, callee: Callee, name: str) -> ast.Expr | None:
        return next(a for p, a in callee.arguments if p.name == name)

    def _result_type(self, result: ast.Expr | None, callee: Callee) -> irt.Type:
        return BIT32 if result is None else self.type(self.concrete(result.type), result.at)

    def _random(self, e: ast.Call, callee: Callee) -> None:
        result = self._out_argument(callee, "result")
        low, high = self.expr(self.argument(callee, "lo")), self.expr(self.argument(callee, "hi"))
        self.write_to(result, low.type, lambda place: self.emit(Random(place, low, high)))

    # ---------------------------------------------------------------- hashes and checksums

    def _hash(self, e: ast.Call, callee: Callee) -> None:
        result = self._out_argument(callee, "result")
        algorithm = self.algorithm(self.argument(callee, "algo"))
        base = self.expr_of_width(self.argument(callee, "base"))
        fields = tuple(self.scalars(self.argument(callee, "data")))
        limit = self._limit(self.argument(callee, "max"))
        t = self._result_type(result, callee)
        self.write_to(result, t, lambda place: self.emit(Hash(place, algorithm, base, fields, limit)))

    def _limit(self, e: ast.Expr) -> ir.Expr:
        known = self.known(e)
        if isinstance(known, int):
            return ir.Const(known & ((1 << 64) - 1), irt.Bits(64)) if known < 1 << 64 else ir.Const(0, irt.Bits(64))
        return self.expr(e)

    def _verify_checksum(self, e: ast.Call, callee: Callee) -> None:
        condition = self.expr(self.argument(callee, "condition"))
        fields = tuple(self.scalars(self.argument(callee, "data")))
        expected = self.expr(self.argument(callee, "checksum"))
        algorithm = self.algorithm(self.argument(callee, "algo"))
        self.emit(VerifyChecksum(condition, fields, expected, algorithm, callee.name.endswith("payload")))

    def _update_checksum(self, e: ast.Call, callee: Callee) -> None:
        condition = self.expr(self.argument(callee, "condition"))
        fields = tuple(self.scalars(self.argument(callee, "data")))
        algorithm = self.algorithm(self.argument(callee, "algo"))
        target = self.place(self.argument(callee, "checksum"))
        self.emit(UpdateChecksum(condition, fields, target, algorithm, callee.name.endswith("payload")))

    def _checksum_get(self, e: ast.Call, callee: Callee, instance: Instance) -> ir.Expr:
        fields = tuple(self.scalars(self.argument(callee, "data")))
        result = self.new_variable("checksum", irt.Bits(16))
        self.emit(ChecksumGet(result, fields))
        return result

    # ---------------------------------------------------------------- what happens to the packet

    def _mark_to_drop(self, e: ast.Call, callee: Callee) -> None:
        if callee.arguments:
            self.emit(MarkToDrop(self.place(self.by_position(callee)[0])))
            return
        assert self.standard_metadata is not None
        self.emit(MarkToDrop(self.standard_metadata))

    def _digest(self, e: ast.Call, callee: Callee) -> None:
        argument = self.argument(callee, "data")
        t = self.type(self.concrete(argument.type), argument.at)
        if not isinstance(t, irt.StructType | irt.HeaderType):
            raise self.unsupported(argument.at, f"a digest of {t}")
        if any(isinstance(f.type, irt.Varbits | irt.StackType | irt.UnionType) for f in t.fields):
            raise self.unsupported(argument.at, f"a digest of {t}, which has parts without fixed size")
        self.emit(SendDigest(self.digest_index(t), tuple(self.scalars(argument))))

    def _truncate(self, e: ast.Call, callee: Callee) -> None:
        self.emit(Truncate(self.expr(self.argument(callee, "length"))))

    def _clone(self, e: ast.Call, callee: Callee) -> None:
        kind = self.known(self.argument(callee, "type"))
        if not isinstance(kind, EnumValue):
            raise self.reporter.fail(e.at, "the clone type must be known at compile time")
        session = self.expr(self.argument(callee, "session"))
        self.emit(Clone(CloneType(kind.member), session, self._list_of(callee)))

    def _resubmit(self, e: ast.Call, callee: Callee) -> None:
        self.emit(Resubmit(self._list_of(callee)))

    def _recirculate(self, e: ast.Call, callee: Callee) -> None:
        self.emit(Recirculate(self._list_of(callee)))

    def _list_of(self, callee: Callee) -> int | None:
        """Index of the field list of clone, resubmit or recirculate; None when nothing is preserved."""
        for p, a in callee.arguments:
            if p.name == "index" and a is not None:
                return self._numbered_list(self.known_int(a, "the field list's number"))
            if p.name == "data" and a is not None:
                return self._legacy_list(a)
        return None

    def _numbered_list(self, number: int) -> int | None:
        for known in self.field_lists:
            if known.number == number:
                return known.index
        assert self.metadata is not None
        fields: list[ir.Expr] = []
        self._tagged(self.metadata, number, False, fields)
        if not fields:
            return None
        self.field_lists.append(FieldList(len(self.field_lists), number, tuple(fields)))
        return len(self.field_lists) - 1

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
        scope = self.checker.scopes[0]
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
        fields = [f for f in self.scalars(data) if _root(f) in PRESERVED_ROOTS]
        if not fields:
            return None
        for known in self.field_lists:
            if known.number is None and known.fields == tuple(fields):
                return known.index
        self.field_lists.append(FieldList(len(self.field_lists), None, tuple(fields)))
        return len(self.field_lists) - 1

    # ---------------------------------------------------------------- diagnostics at run time

    def _log(self, e: ast.Call, callee: Callee) -> None:
        text = self.known(self.argument(callee, "msg"))
        values: tuple[ir.Expr, ...] = ()
        for p, a in callee.arguments:
            if p.name == "data" and a is not None:
                values = tuple(self.scalars(a))
        self.emit(LogMessage(str(text), tuple(v for v in values if not isinstance(v.type, irt.Varbits))))

    def _assert(self, e: ast.Call, callee: Callee) -> None:
        condition = self.expr(self.by_position(callee)[0])
        location = self.location(e.at)
        text = self.reporter.source.original_line(location.file, location.line).strip()
        self.emit(Assertion(condition, text, location))

    def _static_assert(self, e: ast.Call, callee: Callee) -> ir.Expr:
        return ir.Const(1, irt.Bool())


def _is_next(e: ast.Expr | None) -> bool:
    return isinstance(e, ast.Member) and isinstance(e.base, ast.Member) and e.base.name == "next"


def _root(e: ir.Expr) -> str:
    while isinstance(e, ir.Member | ir.Element):
        e = e.base
    return e.name if isinstance(e, ir.VarRef) else ""
