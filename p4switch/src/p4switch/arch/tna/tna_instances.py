"""Instances of tna's externs: registers with their actions and parameters, counters, meters, digests."""

from __future__ import annotations

from dataclasses import replace

from p4switch.arch.tna.stateful_alu import ACTIONS_MAX, cell_problem
from p4switch.arch.tna.tna_context import TnaLowering
from p4switch.frontend import ast
from p4switch.frontend.callee import Callee
from p4switch.frontend.lower.annotations import ir_annotations
from p4switch.frontend.lower.bindings import Instance
from p4switch.frontend.lower.extern_arguments import argument_of, enum_member
from p4switch.frontend.lower.known_values import known_int, known_value
from p4switch.frontend.lower.named_objects import new_digest
from p4switch.frontend.lower.types_to_ir import declared_name, ir_type
from p4switch.ir import types as irt
from p4switch.ir.program import ActionProfile, Counter, CounterKind, Meter, Register
from p4switch.ir.stmt import HashAlgorithm

SIZE_MAX = 1 << 24


_UNITS = {"PACKETS": CounterKind.PACKETS, "BYTES": CounterKind.BYTES, "PACKETS_AND_BYTES": CounterKind.BOTH}


_HASHES = {
    "CRC16": (HashAlgorithm.CRC16, 16),
    "CRC32": (HashAlgorithm.CRC32, 32),
    "IDENTITY": (HashAlgorithm.IDENTITY, 64),
    "RANDOM": (HashAlgorithm.RANDOM, 64),
}


def _size(tna: TnaLowering, callee: Callee) -> int:
    e = argument_of(callee, "size")
    size = known_int(tna.low, e, "the size")
    if not 0 < size <= SIZE_MAX:
        raise tna.low.unsupported(e.at, f"{size} cells, not 1 to {SIZE_MAX}")
    return size


# ---------------------------------------------------------------- registers


def make_register(tna: TnaLowering, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
    assert callee.block is not None
    declared, index_type = (tna.low.concrete(t) for t in callee.block.arguments)
    element = ir_type(tna.low, declared, decl.at)
    problem = cell_problem(element)
    if problem:
        raise tna.low.reporter.fail(decl.at, f"register {decl.name}: {problem}")
    initial = next((a for p, a in callee.arguments if p.name == "initial_value"), None)
    register = Register(
        index=len(tna.low.registers),
        name=name,
        element=irt.Bits(irt.width_of(element)) if isinstance(element, irt.StructType) else element,  # type: ignore[arg-type]
        size=_size(tna, callee),
        annotations=ir_annotations(decl.annotations),
        declared=declared_name(declared),
        index_declared=declared_name(index_type),
        initial=0 if initial is None else _initial(tna, initial, element),
        struct=element if isinstance(element, irt.StructType) else None,
    )
    tna.low.registers.append(register)
    return Instance("Register", name, register.index)


def _initial(tna: TnaLowering, e: ast.Expr, element: irt.Type) -> int:
    """An initial value as a cell's bits."""
    value = known_value(tna.low, e)
    parts = value if isinstance(value, tuple) else (value,)
    types = [f.type for f in element.fields] if isinstance(element, irt.StructType) else [element]
    if len(parts) != len(types) or not all(isinstance(v, int) for v in parts):
        raise tna.low.reporter.fail(e.at, "the initial value must be known at compile time")
    bits = 0
    for v, t in zip(parts, types, strict=True):
        width = irt.width_of(t)
        bits = bits << width | (int(v) & ((1 << width) - 1))
    return bits


def make_register_param(tna: TnaLowering, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
    """A register of one cell, which the control plane writes and register actions read."""
    assert callee.block is not None
    declared = tna.low.concrete(callee.block.arguments[0])
    element = ir_type(tna.low, declared, decl.at)
    problem = cell_problem(element)
    if problem or not isinstance(element, irt.Bits):
        raise tna.low.reporter.fail(decl.at, f"register parameter {decl.name}: {problem or 'one number only'}")
    index = len(tna.low.registers)
    initial = _initial(tna, argument_of(callee, "initial_value"), element)
    annotations = ir_annotations(decl.annotations)
    tna.low.registers.append(Register(index, name, element, 1, annotations, declared_name(declared), None, initial))
    return Instance("RegisterParam", name, index)


def make_register_action(tna: TnaLowering, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
    argument = argument_of(callee, "reg")
    register = tna.low.instance_of(argument)
    if register is None or register.kind != "Register":
        raise tna.low.unsupported(argument.at, "a register that is not declared beside its actions")
    count = tna.actions_of.get(register.index, 0) + 1
    if count > ACTIONS_MAX:
        raise tna.low.reporter.fail(
            decl.at, f"register {register.name} has more than {ACTIONS_MAX} actions, which a stateful ALU holds"
        )
    tna.actions_of[register.index] = count
    return Instance("RegisterAction", name, register.index, decl)


# ---------------------------------------------------------------- the others


def make_counter(tna: TnaLowering, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
    assert callee.block is not None
    unit = _UNITS[enum_member(tna.low, argument_of(callee, "type"))]
    index = len(tna.low.counters)
    annotations = ir_annotations(decl.annotations)
    index_type = declared_name(tna.low.concrete(callee.block.arguments[1]))
    tna.low.counters.append(Counter(index, name, unit, _size(tna, callee), annotations, index_declared=index_type))
    return Instance("Counter", name, index)


def make_direct_counter(tna: TnaLowering, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
    index = len(tna.low.counters)
    unit = _UNITS[enum_member(tna.low, argument_of(callee, "type"))]
    counter = Counter(index, name, unit, 0, ir_annotations(decl.annotations), direct=True, called=True)
    tna.low.counters.append(counter)
    return Instance("DirectCounter", name, index)


def make_action_profile(tna: TnaLowering, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
    index = len(tna.low.profiles)
    tna.low.profiles.append(ActionProfile(index, name, _size(tna, callee), None, ir_annotations(decl.annotations)))
    return Instance("action_profile", name, index)


def make_action_selector(tna: TnaLowering, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
    """A selector of a profile takes its place: to the control plane they are one object."""
    given = argument_of(callee, "hash")
    hashed = tna.low.instance_of(given)
    if hashed is None or hashed.kind != "Hash":
        raise tna.low.unsupported(given.at, "a hash that is not declared beside the selector")
    algorithm, annotations = tna.hashes[hashed.index], ir_annotations(decl.annotations)
    profile = next((a for p, a in callee.arguments if p.name == "action_profile" and a is not None), None)
    if profile is None:
        index = len(tna.low.profiles)
        tna.low.profiles.append(ActionProfile(index, name, _size(tna, callee), algorithm, annotations))
        return Instance("action_selector", name, index)
    found = tna.low.instance_of(profile)
    if found is None or found.kind != "action_profile":
        raise tna.low.unsupported(profile.at, "a profile that is not declared beside its selector")
    size = tna.low.profiles[found.index].size
    tna.low.profiles[found.index] = ActionProfile(found.index, name, size, algorithm, annotations)
    return Instance("action_selector", name, found.index)


def make_meter(tna: TnaLowering, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
    assert callee.block is not None
    index_type = declared_name(tna.low.concrete(callee.block.arguments[0]))
    meter = Meter(0, name, CounterKind.BYTES, _size(tna, callee), (), index_declared=index_type)
    return _new_meter(tna, decl, callee, meter)


def make_direct_meter(tna: TnaLowering, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
    return _new_meter(tna, decl, callee, Meter(0, name, CounterKind.BYTES, 0, (), direct=True, called=True))


def _new_meter(tna: TnaLowering, decl: ast.Declaration, callee: Callee, meter: Meter) -> Instance:
    """Enter `meter` with what both kinds have in common."""
    index = len(tna.low.meters)
    unit = _UNITS[enum_member(tna.low, argument_of(callee, "type"))]
    tna.low.meters.append(replace(meter, index=index, kind=unit, annotations=ir_annotations(decl.annotations)))
    return Instance("DirectMeter" if meter.direct else "Meter", meter.name, index)


def make_hash(tna: TnaLowering, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
    assert callee.block is not None
    argument = argument_of(callee, "algo")
    member = enum_member(tna.low, argument)
    if member not in _HASHES:
        raise tna.low.unsupported(argument.at, f"hash algorithm {member}")
    algorithm, bits = _HASHES[member]
    width = irt.width_of(ir_type(tna.low, tna.low.concrete(callee.block.arguments[0]), decl.at))
    if width > bits:
        raise tna.low.unsupported(decl.at, f"{width} bits of {member}, which gives {bits}")
    tna.hashes.append(algorithm)
    return Instance("Hash", name, len(tna.hashes) - 1)


def make_digest(tna: TnaLowering, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
    assert callee.block is not None
    carried = ir_type(tna.low, tna.low.concrete(callee.block.arguments[0]), decl.at)
    if not isinstance(carried, irt.StructType | irt.HeaderType):
        raise tna.low.unsupported(decl.at, f"a digest of {carried}, which is not a struct")
    index = new_digest(tna.low, name, carried, ir_annotations(decl.annotations))
    return Instance("Digest", name, index)


def make_plain(tna: TnaLowering, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
    """An extern without state of its own."""
    assert callee.block is not None
    return Instance(callee.block.decl.name, name)
