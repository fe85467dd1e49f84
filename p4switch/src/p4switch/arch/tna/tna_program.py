"""tna as an architecture: its externs by name, and the six blocks of a Pipeline as two threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from p4switch.arch.tna.stateful_alu import check_access
from p4switch.arch.tna.tna_context import TnaLowering
from p4switch.arch.tna.tna_externs import (
    check_entry_calls,
    lower_checksum,
    lower_checksum_add,
    lower_checksum_verify,
    lower_count,
    lower_direct_count,
    lower_execute,
    lower_execute_direct_meter,
    lower_execute_meter,
    lower_hash,
    lower_max,
    lower_min,
    lower_mirror,
    lower_pack,
    lower_parser_counter_is_negative,
    lower_parser_counter_is_zero,
    lower_parser_counter_set,
    lower_parser_counter_step,
    lower_port_metadata,
    lower_predicate,
    lower_random,
    lower_read_parameter,
    lower_register_read,
    lower_register_write,
)
from p4switch.arch.tna.tna_instances import (
    make_action_profile,
    make_action_selector,
    make_counter,
    make_digest,
    make_direct_counter,
    make_direct_meter,
    make_hash,
    make_meter,
    make_plain,
    make_register,
    make_register_action,
    make_register_param,
)
from p4switch.frontend import ast
from p4switch.frontend.callee import Callee
from p4switch.frontend.lower.architecture import Architecture
from p4switch.frontend.lower.architecture_rules import ArchitectureRules
from p4switch.frontend.lower.bindings import Instance
from p4switch.frontend.lower.blocks import lower_control, lower_parser
from p4switch.frontend.lower.gathering import gather_program
from p4switch.frontend.lower.known_values import known_value
from p4switch.frontend.lower.lowering import Lowering
from p4switch.frontend.lower.types_to_ir import ir_type, require_whole_bytes
from p4switch.frontend.p4_types import TStruct
from p4switch.ir import expr as ir
from p4switch.ir import types as irt
from p4switch.ir.program import Program, Thread, Variable

_BLOCKS = ("ingress_parser", "ingress", "ingress_deparser", "egress_parser", "egress", "egress_deparser")


_UNKNOWN_REQUESTS = {
    "ingress_intrinsic_metadata_for_tm_t": {"deflect_on_drop", "copy_to_cpu", "level1_exclusion_id"},
    "ingress_intrinsic_metadata_for_deparser_t": {"resubmit_type"},
    "egress_intrinsic_metadata_for_deparser_t": {"mirror_type", "coalesce_flush", "coalesce_length"},
    "egress_intrinsic_metadata_for_output_port_t": {"capture_tstamp_on_tx", "update_delay_on_tx"},
}
"""Fields of intrinsic metadata that ask for features this switch does not have, by struct."""


def tna_program(tna: TnaLowering, main: ast.Instantiation) -> Program:
    """The program in IR; AbortError after a reported problem."""
    blocks = _pipe(tna, main)
    ingress = _ingress(tna, blocks)
    egress = _egress(tna, blocks)
    check_access(tna.low, (ingress, egress), tna.access_offsets)
    check_entry_calls(tna, (ingress, egress))
    return gather_program(tna.low, TNA.name, (ingress, egress), main)


def check_request(tna: TnaLowering, at: int, target: ast.Expr, value: ast.Expr) -> None:
    """Refuse requests that this traffic manager does not support; zero asks for nothing."""
    base = tna.low.types[target.base] if isinstance(target, ast.Member) else None
    if not isinstance(target, ast.Member) or not isinstance(base, TStruct):
        return
    if target.name in _UNKNOWN_REQUESTS.get(base.decl.name, ()) and known_value(tna.low, value) != 0:
        raise tna.low.unsupported(at, f"{target.name} of {base}")


# ---------------------------------------------------------------- the package


def _pipe(tna: TnaLowering, main: ast.Instantiation) -> dict[str, tuple[Callee, ast.Expr]]:
    """The blocks of the one pipe. Its name is in no name of the control plane, as in p4c's standard P4Info."""
    facts = tna.low.facts
    arguments = facts.callees[main].arguments
    if not arguments or arguments[0][0].name != "pipe0":
        raise tna.low.unsupported(main.at, "a package Switch that is not tna's")
    first, *others = [a for _, a in arguments]
    if any(a is not None for a in others):
        raise tna.low.unsupported(main.at, "more than one pipe")
    declared = facts.decls.get(first) if isinstance(first, ast.Name) else None
    if isinstance(declared, ast.Instantiation):
        callee = facts.callees[declared]
    elif isinstance(first, ast.Call):
        callee = facts.callees[first]
    else:
        raise tna.low.unsupported(main.at, "this argument of Switch")
    if [p.name for p, _ in callee.arguments] != list(_BLOCKS):
        raise tna.low.unsupported(main.at, "a package Pipeline that is not tna's")
    blocks: dict[str, tuple[Callee, ast.Expr]] = {}
    for (_, argument), key in zip(callee.arguments, _BLOCKS, strict=True):
        assert argument is not None
        if not isinstance(argument, ast.Call):
            raise tna.low.unsupported(argument.at, "this argument of Pipeline")
        blocks[key] = (facts.callees[argument], argument)
    return blocks


def _variable(tna: TnaLowering, name: str, t: irt.Type) -> ir.VarRef:
    tna.low.used_names.add(name)
    return ir.VarRef(name, t)


def _intrinsic(tna: TnaLowering, name: str, declared: str) -> ir.VarRef:
    """A variable of one of the architecture's own types."""
    decl = tna.low.checked.names[declared]
    assert isinstance(decl, ast.StructDecl)
    return _variable(tna, name, ir_type(tna.low, tna.low.facts.struct(decl), decl.at))


def _packet_variables(tna: TnaLowering, thread: str, parser: tuple[Callee, ast.Expr]) -> tuple[ir.VarRef, ir.VarRef]:
    out = []
    for name, p in zip(("headers", "metadata"), parser[0].decl.parameters[1:3], strict=True):
        t = ir_type(tna.low, tna.low.types[p], p.at)
        if not isinstance(t, irt.StructType | irt.HeaderType):
            raise tna.low.unsupported(p.at, f"parameter {p.name} of type {t}, which is not a struct")
        if name == "headers":
            require_whole_bytes(tna.low, t, p.at)
        out.append(_variable(tna, f"{thread}_{name}", t))
    return out[0], out[1]


# ---------------------------------------------------------------- threads


def _ingress(tna: TnaLowering, blocks: dict[str, tuple[Callee, ast.Expr]]) -> Thread:
    headers, metadata = _packet_variables(tna, "ingress", blocks["ingress_parser"])
    own = _intrinsic(tna, "ingress_intrinsic", "ingress_intrinsic_metadata_t")
    parsed = _intrinsic(tna, "ingress_from_parser", "ingress_intrinsic_metadata_from_parser_t")
    deparser = _intrinsic(tna, "ingress_for_deparser", "ingress_intrinsic_metadata_for_deparser_t")
    manager = _intrinsic(tna, "ingress_for_tm", "ingress_intrinsic_metadata_for_tm_t")
    tna.gress = "ingress"
    return Thread(
        name="ingress",
        headers=_declared(headers),
        metadata=_declared(metadata),
        intrinsic=tuple(_declared(v) for v in (parsed, deparser, manager)),
        parser=lower_parser(tna.low, blocks["ingress_parser"], (headers, metadata, own, manager, parsed)),
        controls=(
            ("ingress", lower_control(tna.low, blocks["ingress"], (headers, metadata, own, parsed, deparser, manager))),
        ),
        deparser=lower_control(tna.low, blocks["ingress_deparser"], (None, headers, metadata, deparser, own)),
        extracted=(_declared(own),),
    )


def _egress(tna: TnaLowering, blocks: dict[str, tuple[Callee, ast.Expr]]) -> Thread:
    tna.low.used_names.clear()  # egress shares no variable with ingress
    headers, metadata = _packet_variables(tna, "egress", blocks["egress_parser"])
    own = _intrinsic(tna, "egress_intrinsic", "egress_intrinsic_metadata_t")
    parsed = _intrinsic(tna, "egress_from_parser", "egress_intrinsic_metadata_from_parser_t")
    deparser = _intrinsic(tna, "egress_for_deparser", "egress_intrinsic_metadata_for_deparser_t")
    port = _intrinsic(tna, "egress_for_output_port", "egress_intrinsic_metadata_for_output_port_t")
    tna.gress = "egress"
    return Thread(
        name="egress",
        headers=_declared(headers),
        metadata=_declared(metadata),
        intrinsic=tuple(_declared(v) for v in (parsed, deparser, port)),
        parser=lower_parser(tna.low, blocks["egress_parser"], (headers, metadata, own, parsed, deparser)),
        controls=(
            ("egress", lower_control(tna.low, blocks["egress"], (headers, metadata, own, parsed, deparser, port))),
        ),
        deparser=lower_control(tna.low, blocks["egress_deparser"], (None, headers, metadata, deparser, own, parsed)),
        extracted=(_declared(own),),
    )


def _declared(v: ir.VarRef) -> Variable:
    return Variable(v.name, v.type)


FUNCTIONS: dict[str, Callable[[TnaLowering, ast.Call, Callee], ir.Expr | None]] = {
    "min": lower_min,
    "max": lower_max,
    "port_metadata_unpack": lower_port_metadata,
}
METHODS: dict[tuple[str, str], Callable[[TnaLowering, ast.Call, Callee, Instance], ir.Expr | None]] = {
    ("Register", "read"): lower_register_read,
    ("Register", "write"): lower_register_write,
    ("RegisterAction", "execute"): lower_execute,
    ("RegisterAction", "predicate"): lower_predicate,
    ("RegisterParam", "read"): lower_read_parameter,
    ("Hash", "get"): lower_hash,
    ("Random", "get"): lower_random,
    ("Counter", "count"): lower_count,
    ("Meter", "execute"): lower_execute_meter,
    ("DirectMeter", "execute"): lower_execute_direct_meter,
    ("Checksum", "update"): lower_checksum,
    ("Checksum", "add"): lower_checksum_add,
    ("Checksum", "verify"): lower_checksum_verify,
    ("DirectCounter", "count"): lower_direct_count,
    ("ParserCounter", "set"): lower_parser_counter_set,
    ("ParserCounter", "increment"): lower_parser_counter_step,
    ("ParserCounter", "decrement"): lower_parser_counter_step,
    ("ParserCounter", "is_zero"): lower_parser_counter_is_zero,
    ("ParserCounter", "is_negative"): lower_parser_counter_is_negative,
    ("Digest", "pack"): lower_pack,
    ("Mirror", "emit"): lower_mirror,
}
INSTANCES: dict[str, Callable[[TnaLowering, ast.Declaration, Callee, str], Instance]] = {
    "Register": make_register,
    "RegisterParam": make_register_param,
    "RegisterAction": make_register_action,
    "Hash": make_hash,
    "Random": make_plain,
    "Counter": make_counter,
    "DirectCounter": make_direct_counter,
    "ActionProfile": make_action_profile,
    "ActionSelector": make_action_selector,
    "ParserCounter": make_plain,
    "Meter": make_meter,
    "DirectMeter": make_direct_meter,
    "Checksum": make_plain,
    "Digest": make_digest,
    "Mirror": make_plain,
}


def _begin(low: Lowering) -> ArchitectureRules:
    """The rules for one program, bound to what they share."""
    tna = TnaLowering(low)
    return ArchitectureRules(
        name=TNA.name,
        functions={name: partial(rule, tna) for name, rule in FUNCTIONS.items()},
        methods={name: partial(rule, tna) for name, rule in METHODS.items()},
        instances={name: partial(rule, tna) for name, rule in INSTANCES.items()},
        program=partial(tna_program, tna),
        check_assignment=partial(check_request, tna),
    )


TNA = Architecture(name="tna", package="Switch", begin=_begin)
