"""Lowering of tna's extern functions and methods."""

from __future__ import annotations

from typing import TYPE_CHECKING

from p4switch.arch.tna.instances import TnaInstances
from p4switch.arch.tna.limits import MIRROR_HEADER_BYTES_MAX, check_action
from p4switch.frontend import ast
from p4switch.frontend.check_call import Callee
from p4switch.frontend.lower.base import Env, Instance
from p4switch.frontend.lower.calls import Frame
from p4switch.ir import expr as ir
from p4switch.ir import types as irt
from p4switch.ir.program import Register
from p4switch.ir.stmt import (
    Assign,
    ChecksumGet,
    CounterCount,
    Hash,
    MirrorPacket,
    Random,
    RegisterAccess,
    RegisterRead,
    RegisterWrite,
    SendDigest,
)

if TYPE_CHECKING:
    from p4switch.frontend.lower.program import ProgramLowering


class TnaExterns(TnaInstances):
    """Lowers calls."""

    def __init__(self, low: ProgramLowering) -> None:
        super().__init__(low)
        self.gress = "ingress"
        self._actions_of = {}
        self._hashes = []
        self.access_offsets: dict[int, int] = {}
        """Where register accesses are in the source, by the identity of the statement."""
        self._parameters: list[tuple[int, ir.VarRef]] | None = None
        """Reads of register parameters in the action at hand; None outside of register actions."""

    # ---------------------------------------------------------------- registers

    def _execute(self, e: ast.Call, callee: Callee, instance: Instance) -> ir.Expr | None:
        """Read the cell, run the action's `apply` on it, write it back."""
        register = self.low.registers[instance.index]
        index = self.low.save(self.low.expr(self.low.argument(callee, "index")), "index")
        decl = instance.decl
        assert isinstance(decl, ast.Instantiation)
        assert decl.body is not None
        (method,) = decl.body
        assert isinstance(method, ast.FunctionDecl)
        assert method.body is not None
        outer, self._parameters = self._parameters, []
        if outer is not None:
            raise self.low.reporter.fail(e.at, "a register action cannot execute another")
        before = len(self.low.variables)
        cell = self.low.new_variable("cell", register.element)
        value = cell if register.struct is None else self.low.new_variable("value", register.struct)
        result: ir.VarRef | None = None
        with self.low.body() as statements:
            self.low.emit(RegisterRead(cell, register.index, index))
            _unpack(self.low, register, cell, value)
            env = Env(self.low.env)
            env.bind(method.parameters[0], value)
            if len(method.parameters) > 1:
                given = method.parameters[1]
                result = self.low.new_variable(given.name, self.low.type(self.low.concrete(given.type), given.at))
                self.low.clear(result)
                env.bind(given, result)
            with self.low.body() as inner:
                self.low.inline(env, Frame(self.low.fresh_name(decl.name)), method.body)
            reads = [RegisterRead(v, i, ir.Const(0, irt.Bits(32))) for i, v in self._parameters]
            for statement in (*reads, *inner):
                self.low.emit(statement)
            _pack(self.low, register, cell, value)
            self.low.emit(RegisterWrite(register.index, index, cell))
        own = {v.name for v in self.low.variables[before:]}
        check_action(self.low, decl, tuple(inner), own, len({i for i, _ in self._parameters}))
        self._parameters = None
        access = RegisterAccess(register.index, instance.name, tuple(statements), self.low.location(e.at))
        self.access_offsets[id(access)] = e.at
        self.low.emit(access)
        return result

    def _predicate(self, e: ast.Call, callee: Callee, instance: Instance) -> ir.Expr:
        """1, 2, 4 or 8: which of the two conditions hold."""
        t = self.low.type(self.low.concrete(e.type), e.at)
        conditions = [self.low.expr(a) for a in self.low.by_position(callee)]
        if not conditions:
            raise self.low.unsupported(e.at, "predicate without a condition")
        if not isinstance(t, irt.Bits) or t.width < 4:
            raise self.low.reporter.fail(e.at, f"predicate gives four bits, which {t} does not hold")

        def choose(condition: ir.Expr, yes: ir.Expr, no: ir.Expr) -> ir.Expr:
            return ir.Mux(condition, yes, no, t)

        neither, first, second, both = (ir.Const(1 << i, t) for i in range(4))
        alone = choose(conditions[0], first, neither)
        return alone if len(conditions) == 1 else choose(conditions[1], choose(conditions[0], both, second), alone)

    def _read_parameter(self, e: ast.Call, callee: Callee, instance: Instance) -> ir.Expr:
        if self._parameters is None:
            raise self.low.reporter.fail(e.at, "a register parameter can be read in a register action only")
        # A variable for each read: a comparison with another read is another comparison to p4c, too.
        read = self.low.new_variable("parameter", self.low.registers[instance.index].element)
        self._parameters.append((instance.index, read))
        return read

    # ---------------------------------------------------------------- numbers

    def _min(self, e: ast.Call, callee: Callee) -> ir.Expr:
        return self._chosen(callee, ir.BinaryOp.LT)

    def _max(self, e: ast.Call, callee: Callee) -> ir.Expr:
        return self._chosen(callee, ir.BinaryOp.GT)

    def _chosen(self, callee: Callee, op: ir.BinaryOp) -> ir.Expr:
        left, right = (self.low.save(self.low.expr(a)) for a in self.low.by_position(callee))
        return ir.Mux(ir.Binary(op, left, right, irt.Bool()), left, right, left.type)

    def _hash(self, e: ast.Call, callee: Callee, instance: Instance) -> ir.Expr:
        t = self.low.type(self.low.concrete(e.type), e.at)
        target = self.low.new_variable("hash", t)
        fields = tuple(self.low.scalars(self.low.argument(callee, "data")))
        width = irt.width_of(t)
        limit = ir.Const(0 if width >= 64 else 1 << width, irt.Bits(64))
        if width >= 64:
            raise self.low.unsupported(e.at, "a hash of 64 bits or more")
        zero = ir.Const(0, t)
        self.low.emit(Hash(target, self._hashes[instance.index], zero, fields, limit))
        return target

    def _random(self, e: ast.Call, callee: Callee, instance: Instance) -> ir.Expr:
        t = self.low.type(self.low.concrete(e.type), e.at)
        if not isinstance(t, irt.Bits) or t.width > 64:
            raise self.low.unsupported(e.at, f"a random number of type {t}")
        target = self.low.new_variable("random", t)
        self.low.emit(Random(target, ir.Const(0, t), ir.Const((1 << t.width) - 1, t)))
        return target

    def _count(self, e: ast.Call, callee: Callee, instance: Instance) -> None:
        self.low.emit(CounterCount(instance.index, self.low.expr(self.low.argument(callee, "index"))))

    def _checksum(self, e: ast.Call, callee: Callee, instance: Instance) -> ir.Expr:
        if any(p.name == "zeros_as_ones" and a is not None for p, a in callee.arguments):
            raise self.low.unsupported(e.at, "zeros_as_ones")
        target = self.low.new_variable("checksum", irt.Bits(16))
        self.low.emit(ChecksumGet(target, tuple(self.low.scalars(self.low.argument(callee, "data")))))
        return target

    # ---------------------------------------------------------------- requests to the runtime

    def _pack(self, e: ast.Call, callee: Callee, instance: Instance) -> None:
        values = tuple(self.low.scalars(self.low.argument(callee, "data")))
        self.low.emit(SendDigest(instance.index, values))

    def _mirror(self, e: ast.Call, callee: Callee, instance: Instance) -> None:
        if self.gress != "ingress":
            raise self.low.unsupported(e.at, "mirroring at egress")
        session = self.low.save(self.low.expr(self.low.argument(callee, "session_id")))
        given = next((a for p, a in callee.arguments if p.name == "hdr"), None)
        fields = () if given is None else tuple(self.low.scalars(given))
        bits = sum(irt.width_of(f.type) for f in fields)
        if bits % 8 or bits > MIRROR_HEADER_BYTES_MAX * 8:
            raise self.low.reporter.fail(
                e.at, f"a mirror header of {bits} bits: whole bytes, at most {MIRROR_HEADER_BYTES_MAX}"
            )
        self.low.emit(MirrorPacket(session, fields))


def _unpack(low: ProgramLowering, register: Register, cell: ir.VarRef, value: ir.VarRef) -> None:
    """The fields of a cell that is a struct, the first one from the highest bits."""
    if register.struct is None:
        return
    high = irt.width_of(register.element)
    for f in register.struct.fields:
        width = irt.width_of(f.type)
        part: ir.Expr = ir.Slice(cell, high - 1, high - width, irt.Bits(width))
        if part.type != f.type:
            part = ir.Cast(part, f.type)
        low.emit(Assign(ir.Member(value, f.name, f.type), part))
        high -= width


def _pack(low: ProgramLowering, register: Register, cell: ir.VarRef, value: ir.VarRef) -> None:
    if register.struct is None:
        return
    joined: ir.Expr | None = None
    for f in register.struct.fields:
        part: ir.Expr = ir.Member(value, f.name, f.type)
        plain = irt.Bits(irt.width_of(f.type))
        if f.type != plain:
            part = ir.Cast(part, plain)
        if joined is None:
            joined = part
        else:
            width = irt.width_of(joined.type) + plain.width
            joined = ir.Binary(ir.BinaryOp.CONCAT, joined, part, irt.Bits(width))
    assert joined is not None
    low.emit(Assign(cell, joined))
