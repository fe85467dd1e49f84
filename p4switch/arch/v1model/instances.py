"""Instances of v1model's externs: registers, counters, meters, action profiles and selectors."""

from __future__ import annotations

from p4switch.arch.base import Architecture
from p4switch.frontend import ast
from p4switch.frontend.check_call import Callee
from p4switch.frontend.lower.base import Instance, declared_name
from p4switch.ir import types as irt
from p4switch.ir.program import ActionProfile, Counter, CounterKind, Meter, Register
from p4switch.ir.stmt import HashAlgorithm

SIZE_MAX = 1 << 31


class V1Instances(Architecture):
    """Makes the objects that the control plane names."""

    def _size(self, e: ast.Expr) -> int:
        size = self.low.known_int(e, "the size")
        if size > SIZE_MAX:
            raise self.low.unsupported(e.at, f"more than {SIZE_MAX} elements")
        return size

    def _register(self, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
        assert callee.block is not None
        declared, *index_type = [self.low.concrete(t) for t in callee.block.arguments]
        element = self.low.type(declared, decl.at)
        if not isinstance(element, irt.Bits | irt.Bool):
            raise self.low.unsupported(decl.at, f"registers of {declared}")
        register = Register(
            index=len(self.low.registers),
            name=name,
            element=element,
            size=self._size(self.low.argument(callee, "size")),
            annotations=self.low.annotations(decl.annotations),
            declared=declared_name(declared),
            index_declared=declared_name(index_type[0]) if index_type else None,
        )
        self.low.registers.append(register)
        return Instance("register", name, register.index)

    def _cells(self, callee: Callee, direct: bool) -> tuple[CounterKind, int, str | None]:
        """Unit, number of cells and declared type of the index of a counter or meter."""
        assert callee.block is not None
        unit = CounterKind(self.member(self.low.argument(callee, "type")))
        if direct:
            return unit, 0, None
        types = [self.low.concrete(t) for t in callee.block.arguments]
        return unit, self._size(self.low.argument(callee, "size")), declared_name(types[0]) if types else None

    def _counter(self, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
        return self._new_counter(decl, callee, name, direct=False)

    def _direct_counter(self, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
        return self._new_counter(decl, callee, name, direct=True)

    def _new_counter(self, decl: ast.Declaration, callee: Callee, name: str, *, direct: bool) -> Instance:
        unit, size, index_declared = self._cells(callee, direct)
        index = len(self.low.counters)
        annotations = self.low.annotations(decl.annotations)
        self.low.counters.append(Counter(index, name, unit, size, annotations, None, direct, index_declared))
        return Instance("direct_counter" if direct else "counter", name, index)

    def _meter(self, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
        return self._new_meter(decl, callee, name, direct=False)

    def _direct_meter(self, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
        return self._new_meter(decl, callee, name, direct=True)

    def _new_meter(self, decl: ast.Declaration, callee: Callee, name: str, *, direct: bool) -> Instance:
        unit, size, index_declared = self._cells(callee, direct)
        index = len(self.low.meters)
        annotations = self.low.annotations(decl.annotations)
        self.low.meters.append(Meter(index, name, unit, size, annotations, None, direct, index_declared))
        return Instance("direct_meter" if direct else "meter", name, index)

    def _action_profile(self, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
        return self._new_profile("action_profile", decl, callee, name, None)

    def _action_selector(self, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
        algorithm = self.algorithm(self.low.argument(callee, "algorithm"))
        return self._new_profile("action_selector", decl, callee, name, algorithm)

    def _new_profile(
        self, kind: str, decl: ast.Declaration, callee: Callee, name: str, algorithm: HashAlgorithm | None
    ) -> Instance:
        index = len(self.low.profiles)
        size = self._size(self.low.argument(callee, "size"))
        self.low.profiles.append(ActionProfile(index, name, size, algorithm, self.low.annotations(decl.annotations)))
        return Instance(kind, name, index)

    def _checksum16(self, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
        return Instance("Checksum16", name)
