"""Instances of tna's externs: registers with their actions and parameters, counters, digests."""

from __future__ import annotations

from p4switch.arch.base import Architecture
from p4switch.arch.tna.limits import ACTIONS_MAX, cell_problem
from p4switch.frontend import ast
from p4switch.frontend.check_call import Callee
from p4switch.frontend.lower.base import Instance, declared_name
from p4switch.ir import types as irt
from p4switch.ir.program import Counter, CounterKind, Register
from p4switch.ir.stmt import HashAlgorithm

SIZE_MAX = 1 << 24
_UNITS = {"PACKETS": CounterKind.PACKETS, "BYTES": CounterKind.BYTES, "PACKETS_AND_BYTES": CounterKind.BOTH}
_HASHES = {
    "CRC16": (HashAlgorithm.CRC16, 16),
    "CRC32": (HashAlgorithm.CRC32, 32),
    "IDENTITY": (HashAlgorithm.IDENTITY, 64),
    "RANDOM": (HashAlgorithm.RANDOM, 64),
}


class TnaInstances(Architecture):
    """Makes the objects that the control plane names, and those that only the program does."""

    _actions_of: dict[int, int]
    """How many actions each register has."""
    _hashes: list[HashAlgorithm]

    def _size(self, callee: Callee) -> int:
        e = self.low.argument(callee, "size")
        size = self.low.known_int(e, "the size")
        if not 0 < size <= SIZE_MAX:
            raise self.low.unsupported(e.at, f"{size} cells, not 1 to {SIZE_MAX}")
        return size

    # ---------------------------------------------------------------- registers

    def _register(self, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
        assert callee.block is not None
        declared, index_type = (self.low.concrete(t) for t in callee.block.arguments)
        element = self.low.type(declared, decl.at)
        problem = cell_problem(element)
        if problem:
            raise self.low.reporter.fail(decl.at, f"register {decl.name}: {problem}")
        initial = next((a for p, a in callee.arguments if p.name == "initial_value"), None)
        register = Register(
            index=len(self.low.registers),
            name=name,
            element=irt.Bits(irt.width_of(element)) if isinstance(element, irt.StructType) else element,  # type: ignore[arg-type]
            size=self._size(callee),
            annotations=self.low.annotations(decl.annotations),
            declared=declared_name(declared),
            index_declared=declared_name(index_type),
            initial=0 if initial is None else self._initial(initial, element),
            struct=element if isinstance(element, irt.StructType) else None,
        )
        self.low.registers.append(register)
        return Instance("Register", name, register.index)

    def _initial(self, e: ast.Expr, element: irt.Type) -> int:
        """An initial value as a cell's bits."""
        value = self.low.known(e)
        parts = value if isinstance(value, tuple) else (value,)
        types = [f.type for f in element.fields] if isinstance(element, irt.StructType) else [element]
        if len(parts) != len(types) or not all(isinstance(v, int) for v in parts):
            raise self.low.reporter.fail(e.at, "the initial value must be known at compile time")
        bits = 0
        for v, t in zip(parts, types, strict=True):
            width = irt.width_of(t)
            bits = bits << width | (int(v) & ((1 << width) - 1))
        return bits

    def _register_param(self, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
        """A register of one cell, which the control plane writes and register actions read."""
        assert callee.block is not None
        declared = self.low.concrete(callee.block.arguments[0])
        element = self.low.type(declared, decl.at)
        problem = cell_problem(element)
        if problem or not isinstance(element, irt.Bits):
            raise self.low.reporter.fail(decl.at, f"register parameter {decl.name}: {problem or 'one number only'}")
        index = len(self.low.registers)
        initial = self._initial(self.low.argument(callee, "initial_value"), element)
        annotations = self.low.annotations(decl.annotations)
        self.low.registers.append(
            Register(index, name, element, 1, annotations, declared_name(declared), None, initial)
        )
        return Instance("RegisterParam", name, index)

    def _register_action(self, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
        argument = self.low.argument(callee, "reg")
        register = self.low.instance_of(argument)
        if register is None or register.kind != "Register":
            raise self.low.unsupported(argument.at, "a register that is not declared beside its actions")
        count = self._actions_of.get(register.index, 0) + 1
        if count > ACTIONS_MAX:
            raise self.low.reporter.fail(
                decl.at, f"register {register.name} has more than {ACTIONS_MAX} actions, which a stateful ALU holds"
            )
        self._actions_of[register.index] = count
        return Instance("RegisterAction", name, register.index, decl)

    # ---------------------------------------------------------------- the others

    def _counter(self, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
        assert callee.block is not None
        unit = _UNITS[self.member(self.low.argument(callee, "type"))]
        index = len(self.low.counters)
        annotations = self.low.annotations(decl.annotations)
        index_type = declared_name(self.low.concrete(callee.block.arguments[1]))
        self.low.counters.append(Counter(index, name, unit, self._size(callee), annotations, index_declared=index_type))
        return Instance("Counter", name, index)

    def _hash_instance(self, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
        assert callee.block is not None
        argument = self.low.argument(callee, "algo")
        member = self.member(argument)
        if member not in _HASHES:
            raise self.low.unsupported(argument.at, f"hash algorithm {member}")
        algorithm, bits = _HASHES[member]
        width = irt.width_of(self.low.type(self.low.concrete(callee.block.arguments[0]), decl.at))
        if width > bits:
            raise self.low.unsupported(decl.at, f"{width} bits of {member}, which gives {bits}")
        self._hashes.append(algorithm)
        return Instance("Hash", name, len(self._hashes) - 1)

    def _digest_instance(self, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
        assert callee.block is not None
        carried = self.low.type(self.low.concrete(callee.block.arguments[0]), decl.at)
        if not isinstance(carried, irt.StructType | irt.HeaderType):
            raise self.low.unsupported(decl.at, f"a digest of {carried}, which is not a struct")
        index = self.low.new_digest(name, carried, self.low.annotations(decl.annotations))
        return Instance("Digest", name, index)

    def _plain_instance(self, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
        """An extern without state of its own."""
        assert callee.block is not None
        return Instance(callee.block.decl.name, name)
