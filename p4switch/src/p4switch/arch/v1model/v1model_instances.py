"""Instances of v1model's externs: registers, counters, meters, action profiles and selectors."""

from __future__ import annotations

from p4switch.arch.v1model.v1model_context import V1Lowering
from p4switch.frontend import ast
from p4switch.frontend.callee import Callee
from p4switch.frontend.lower.annotations import ir_annotations
from p4switch.frontend.lower.bindings import Instance
from p4switch.frontend.lower.extern_arguments import argument_of, enum_member, hash_algorithm
from p4switch.frontend.lower.known_values import known_int
from p4switch.frontend.lower.types_to_ir import declared_name, ir_type
from p4switch.ir import types as irt
from p4switch.ir.program import ActionProfile, Counter, CounterKind, Meter, Register
from p4switch.ir.stmt import HashAlgorithm

SIZE_MAX = 1 << 31


def _size(v1: V1Lowering, e: ast.Expr) -> int:
    size = known_int(v1.low, e, "the size")
    if size > SIZE_MAX:
        raise v1.low.unsupported(e.at, f"more than {SIZE_MAX} elements")
    return size


def make_register(v1: V1Lowering, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
    assert callee.block is not None
    declared, *index_type = [v1.low.concrete(t) for t in callee.block.arguments]
    element = ir_type(v1.low, declared, decl.at)
    if not isinstance(element, irt.Bits | irt.Bool):
        raise v1.low.unsupported(decl.at, f"registers of {declared}")
    register = Register(
        index=len(v1.low.registers),
        name=name,
        element=element,
        size=_size(v1, argument_of(callee, "size")),
        annotations=ir_annotations(decl.annotations),
        declared=declared_name(declared),
        index_declared=declared_name(index_type[0]) if index_type else None,
    )
    v1.low.registers.append(register)
    return Instance("register", name, register.index)


def _cells(v1: V1Lowering, callee: Callee, direct: bool) -> tuple[CounterKind, int, str | None]:
    """Unit, number of cells and declared type of the index of a counter or meter."""
    assert callee.block is not None
    unit = CounterKind(enum_member(v1.low, argument_of(callee, "type")))
    if direct:
        return unit, 0, None
    types = [v1.low.concrete(t) for t in callee.block.arguments]
    return unit, _size(v1, argument_of(callee, "size")), declared_name(types[0]) if types else None


def make_counter(v1: V1Lowering, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
    return _new_counter(v1, decl, callee, name, direct=False)


def make_direct_counter(v1: V1Lowering, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
    return _new_counter(v1, decl, callee, name, direct=True)


def _new_counter(v1: V1Lowering, decl: ast.Declaration, callee: Callee, name: str, *, direct: bool) -> Instance:
    unit, size, index_declared = _cells(v1, callee, direct)
    index = len(v1.low.counters)
    annotations = ir_annotations(decl.annotations)
    v1.low.counters.append(Counter(index, name, unit, size, annotations, None, direct, index_declared))
    return Instance("direct_counter" if direct else "counter", name, index)


def make_meter(v1: V1Lowering, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
    return _new_meter(v1, decl, callee, name, direct=False)


def make_direct_meter(v1: V1Lowering, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
    return _new_meter(v1, decl, callee, name, direct=True)


def _new_meter(v1: V1Lowering, decl: ast.Declaration, callee: Callee, name: str, *, direct: bool) -> Instance:
    unit, size, index_declared = _cells(v1, callee, direct)
    index = len(v1.low.meters)
    annotations = ir_annotations(decl.annotations)
    v1.low.meters.append(Meter(index, name, unit, size, annotations, None, direct, index_declared))
    return Instance("direct_meter" if direct else "meter", name, index)


def make_action_profile(v1: V1Lowering, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
    return _new_profile(v1, "action_profile", decl, callee, name, None)


def make_action_selector(v1: V1Lowering, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
    algorithm = hash_algorithm(v1.low, argument_of(callee, "algorithm"))
    return _new_profile(v1, "action_selector", decl, callee, name, algorithm)


def _new_profile(
    v1: V1Lowering, kind: str, decl: ast.Declaration, callee: Callee, name: str, algorithm: HashAlgorithm | None
) -> Instance:
    index = len(v1.low.profiles)
    size = _size(v1, argument_of(callee, "size"))
    v1.low.profiles.append(ActionProfile(index, name, size, algorithm, ir_annotations(decl.annotations)))
    return Instance(kind, name, index)


def make_checksum16(v1: V1Lowering, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
    return Instance("Checksum16", name)
