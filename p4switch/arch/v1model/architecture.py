"""v1model as an architecture: its externs by name, and the six blocks of V1Switch."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from p4switch.arch.v1model.externs import V1Externs
from p4switch.frontend import ast
from p4switch.frontend.check_call import Callee
from p4switch.ir import expr as ir
from p4switch.ir import types as irt
from p4switch.ir.program import Program, Thread, Variable

if TYPE_CHECKING:
    from p4switch.frontend.lower.program import ProgramLowering

VERSIONS = (20180101, 20200408)
_BLOCKS = ("p", "vr", "ig", "eg", "ck", "dep")


class V1Model(V1Externs):
    """One program for V1Switch."""

    name: ClassVar[str] = "v1model"
    package: ClassVar[str] = "V1Switch"

    def __init__(self, low: ProgramLowering) -> None:
        super().__init__(low)
        self.functions = {
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
        }
        self.methods = {
            ("register", "read"): self._register_read,
            ("register", "write"): self._register_write,
            ("counter", "count"): self._count,
            ("direct_counter", "count"): self._direct_count,
            ("meter", "execute_meter"): self._execute_meter,
            ("direct_meter", "read"): self._read_direct_meter,
            ("Checksum16", "get"): self._checksum_get,
        }
        self.instances = {
            "register": self._register,
            "counter": self._counter,
            "direct_counter": self._direct_counter,
            "meter": self._meter,
            "direct_meter": self._direct_meter,
            "action_profile": self._action_profile,
            "action_selector": self._action_selector,
            "Checksum16": self._checksum16,
        }

    def program(self, main: ast.Instantiation) -> Program:
        """The program in IR; AbortError after a reported problem."""
        version = self.low.checker.scopes[0].get("__v1model_version")
        if isinstance(version, ast.Constant) and version.value not in VERSIONS:
            raise self.low.reporter.fail(version.at, f"V1MODEL_VERSION is {version.value}, not one of {VERSIONS}")
        blocks = self._arguments(main)
        headers, metadata, standard = self._packet_variables(blocks["p"])
        parser = self.low.lower_parser(blocks["p"], (headers, metadata, standard))
        checks = self.low.lower_control(blocks["vr"], (headers, metadata))
        ingress = self.low.lower_control(blocks["ig"], (headers, metadata, standard))
        egress = self.low.lower_control(blocks["eg"], (headers, metadata, standard))
        compute = self.low.lower_control(blocks["ck"], (headers, metadata))
        deparser = self.low.lower_control(blocks["dep"], (None, headers))
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
        new_types, enums = self.low.named_types()
        source = self.low.reporter.source.origins[-1][0] if self.low.reporter.source.origins else ""
        return Program(
            source=source,
            architecture=self.name,
            threads=(thread,),
            tables=tuple(self.low.tables),
            actions=tuple(self.low.actions),
            action_profiles=tuple(self.low.profiles),
            registers=tuple(self.low.registers),
            counters=tuple(self.low.counters),
            meters=tuple(self.low.meters),
            digests=tuple(self.low.digests),
            value_sets=tuple(self.low.value_sets),
            controller_headers=self.low.controller_headers(),
            field_lists=tuple(self.low.field_lists),
            errors=self.low.errors,
            serializable_enums=enums,
            new_types=new_types,
            package_annotations=self.low.annotations(main.annotations),
        )

    def _arguments(self, main: ast.Instantiation) -> dict[str, tuple[Callee, ast.Expr]]:
        out: dict[str, tuple[Callee, ast.Expr]] = {}
        if [p.name for p, _ in main.target.arguments] != list(_BLOCKS):
            raise self.low.unsupported(main.at, "a package V1Switch that is not v1model's")
        for (_, argument), key in zip(main.target.arguments, _BLOCKS, strict=True):
            if isinstance(argument, ast.Call) and isinstance(argument.target, Callee):
                out[key] = (argument.target, argument)
                continue
            instance = argument.decl if isinstance(argument, ast.Name) else None
            if not isinstance(instance, ast.Instantiation):
                raise self.low.unsupported(main.at, "this argument of V1Switch")
            out[key] = (instance.target, argument)
        return out

    def _packet_variables(self, parser: tuple[Callee, ast.Expr]) -> tuple[ir.VarRef, ir.VarRef, ir.VarRef]:
        callee, _ = parser
        parameters = callee.decl.parameters
        types = [self.low.type(p.type, p.at) for p in parameters[1:4]]
        self.low.used_names |= {"hdr", "meta", "standard_metadata"}
        headers, metadata, standard = (
            ir.VarRef(n, t) for n, t in zip(("hdr", "meta", "standard_metadata"), types, strict=True)
        )
        self.metadata, self.standard_metadata = metadata, standard
        for p, t in zip(parameters[1:3], types[:2], strict=True):
            if not isinstance(t, irt.StructType | irt.HeaderType):
                raise self.low.unsupported(p.at, f"parameter {p.name} of type {t}, which is not a struct")
        return headers, metadata, standard


def _variable(v: ir.VarRef) -> Variable:
    return Variable(v.name, v.type)
