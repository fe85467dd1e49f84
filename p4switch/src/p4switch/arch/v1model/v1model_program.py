"""v1model as an architecture: its externs by name, and the six blocks of V1Switch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from p4switch.arch.v1model.v1model_context import V1Lowering
from p4switch.arch.v1model.v1model_externs import (
    lower_assert,
    lower_checksum_get,
    lower_clone,
    lower_count,
    lower_digest,
    lower_direct_count,
    lower_execute_meter,
    lower_hash,
    lower_log,
    lower_mark_to_drop,
    lower_random,
    lower_read_direct_meter,
    lower_recirculate,
    lower_register_read,
    lower_register_write,
    lower_resubmit,
    lower_truncate,
    lower_update_checksum,
    lower_verify_checksum,
)
from p4switch.arch.v1model.v1model_instances import (
    make_action_profile,
    make_action_selector,
    make_checksum16,
    make_counter,
    make_direct_counter,
    make_direct_meter,
    make_meter,
    make_register,
)
from p4switch.frontend import ast
from p4switch.frontend.callee import Callee
from p4switch.frontend.lower.architecture import Architecture
from p4switch.frontend.lower.architecture_rules import ArchitectureRules
from p4switch.frontend.lower.bindings import Instance
from p4switch.frontend.lower.blocks import lower_control, lower_parser
from p4switch.frontend.lower.gathering import gather_program
from p4switch.frontend.lower.lowering import Lowering
from p4switch.frontend.lower.types_to_ir import ir_type, require_whole_bytes
from p4switch.ir import expr as ir
from p4switch.ir import types as irt
from p4switch.ir.program import Program, Thread, Variable

VERSIONS = (20180101, 20200408)


_BLOCKS = ("p", "vr", "ig", "eg", "ck", "dep")


def v1_program(v1: V1Lowering, main: ast.Instantiation) -> Program:
    """The program in IR; AbortError after a reported problem."""
    decl = v1.low.checked.names.get("__v1model_version")
    version = v1.low.values.get(decl) if isinstance(decl, ast.Constant) else None
    if isinstance(decl, ast.Constant) and version not in VERSIONS:
        raise v1.low.reporter.fail(decl.at, f"V1MODEL_VERSION is {version}, not one of {VERSIONS}")
    blocks = _arguments(v1, main)
    headers, metadata, standard = _packet_variables(v1, blocks["p"])
    parser = lower_parser(v1.low, blocks["p"], (headers, metadata, standard))
    checks = lower_control(v1.low, blocks["vr"], (headers, metadata))
    ingress = lower_control(v1.low, blocks["ig"], (headers, metadata, standard))
    egress = lower_control(v1.low, blocks["eg"], (headers, metadata, standard))
    compute = lower_control(v1.low, blocks["ck"], (headers, metadata))
    deparser = lower_control(v1.low, blocks["dep"], (None, headers))
    thread = Thread(
        name="",
        headers=_variable(headers),
        metadata=_variable(metadata),
        intrinsic=(_variable(standard),),
        parser=parser,
        controls=(
            ("verify_checksum", checks),
            ("ingress", ingress),
            ("egress", egress),
            ("compute_checksum", compute),
        ),
        deparser=deparser,
    )
    return gather_program(v1.low, V1MODEL.name, (thread,), main)


def _arguments(v1: V1Lowering, main: ast.Instantiation) -> dict[str, tuple[Callee, ast.Expr]]:
    facts = v1.low.facts
    out: dict[str, tuple[Callee, ast.Expr]] = {}
    if [p.name for p, _ in facts.callees[main].arguments] != list(_BLOCKS):
        raise v1.low.unsupported(main.at, "a package V1Switch that is not v1model's")
    for (_, argument), key in zip(facts.callees[main].arguments, _BLOCKS, strict=True):
        if isinstance(argument, ast.Call):
            out[key] = (facts.callees[argument], argument)
            continue
        instance = facts.decls.get(argument) if isinstance(argument, ast.Name) else None
        if argument is None or not isinstance(instance, ast.Instantiation):
            raise v1.low.unsupported(main.at, "this argument of V1Switch")
        out[key] = (facts.callees[instance], argument)
    return out


def _packet_variables(v1: V1Lowering, parser: tuple[Callee, ast.Expr]) -> tuple[ir.VarRef, ir.VarRef, ir.VarRef]:
    callee, _ = parser
    parameters = callee.decl.parameters
    types = [ir_type(v1.low, v1.low.types[p], p.at) for p in parameters[1:4]]
    v1.low.used_names |= {"hdr", "meta", "standard_metadata"}
    headers, metadata, standard = (
        ir.VarRef(n, t) for n, t in zip(("hdr", "meta", "standard_metadata"), types, strict=True)
    )
    v1.metadata, v1.standard_metadata = metadata, standard
    for p, t in zip(parameters[1:3], types[:2], strict=True):
        if not isinstance(t, irt.StructType | irt.HeaderType):
            raise v1.low.unsupported(p.at, f"parameter {p.name} of type {t}, which is not a struct")
    require_whole_bytes(v1.low, headers.type, parameters[1].at)
    return headers, metadata, standard


def _variable(v: ir.VarRef) -> Variable:
    return Variable(v.name, v.type)


def _take_any_assignment(at: int, target: ast.Expr, value: ast.Expr) -> None:
    """All of them have an effect in v1model."""


FUNCTIONS: dict[str, Callable[[V1Lowering, ast.Call, Callee], ir.Expr | None]] = {
    "mark_to_drop": lower_mark_to_drop,
    "hash": lower_hash,
    "random": lower_random,
    "digest": lower_digest,
    "truncate": lower_truncate,
    "clone": lower_clone,
    "clone3": lower_clone,
    "clone_preserving_field_list": lower_clone,
    "resubmit": lower_resubmit,
    "resubmit_preserving_field_list": lower_resubmit,
    "recirculate": lower_recirculate,
    "recirculate_preserving_field_list": lower_recirculate,
    "log_msg": lower_log,
    "assert": lower_assert,
    "assume": lower_assert,
    "verify_checksum": lower_verify_checksum,
    "update_checksum": lower_update_checksum,
    "verify_checksum_with_payload": lower_verify_checksum,
    "update_checksum_with_payload": lower_update_checksum,
}
METHODS: dict[tuple[str, str], Callable[[V1Lowering, ast.Call, Callee, Instance], ir.Expr | None]] = {
    ("register", "read"): lower_register_read,
    ("register", "write"): lower_register_write,
    ("counter", "count"): lower_count,
    ("direct_counter", "count"): lower_direct_count,
    ("meter", "execute_meter"): lower_execute_meter,
    ("direct_meter", "read"): lower_read_direct_meter,
    ("Checksum16", "get"): lower_checksum_get,
}
INSTANCES: dict[str, Callable[[V1Lowering, ast.Declaration, Callee, str], Instance]] = {
    "register": make_register,
    "counter": make_counter,
    "direct_counter": make_direct_counter,
    "meter": make_meter,
    "direct_meter": make_direct_meter,
    "action_profile": make_action_profile,
    "action_selector": make_action_selector,
    "Checksum16": make_checksum16,
}


def _begin(low: Lowering) -> ArchitectureRules:
    """The rules for one program, bound to what they share."""
    v1 = V1Lowering(low)
    return ArchitectureRules(
        name=V1MODEL.name,
        functions={name: partial(rule, v1) for name, rule in FUNCTIONS.items()},
        methods={name: partial(rule, v1) for name, rule in METHODS.items()},
        instances={name: partial(rule, v1) for name, rule in INSTANCES.items()},
        program=partial(v1_program, v1),
        check_assignment=_take_any_assignment,
    )


V1MODEL = Architecture(name="v1model", package="V1Switch", begin=_begin)
