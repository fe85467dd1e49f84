"""tna as an architecture: its externs by name, and the six blocks of a Pipeline as two threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from p4switch.arch.tna.externs import TnaExterns
from p4switch.arch.tna.limits import check_access
from p4switch.frontend import ast
from p4switch.frontend.check_call import Callee
from p4switch.frontend.types import TStruct
from p4switch.ir import expr as ir
from p4switch.ir import types as irt
from p4switch.ir.program import Program, Thread, Variable

if TYPE_CHECKING:
    from p4switch.frontend.lower.program import ProgramLowering

_BLOCKS = ("ingress_parser", "ingress", "ingress_deparser", "egress_parser", "egress", "egress_deparser")

_UNKNOWN_REQUESTS = {
    "ingress_intrinsic_metadata_for_tm_t": {"deflect_on_drop", "copy_to_cpu", "level1_exclusion_id"},
    "ingress_intrinsic_metadata_for_deparser_t": {"resubmit_type"},
    "egress_intrinsic_metadata_for_deparser_t": {"mirror_type", "coalesce_flush", "coalesce_length"},
    "egress_intrinsic_metadata_for_output_port_t": {"capture_tstamp_on_tx", "update_delay_on_tx"},
}
"""Fields of intrinsic metadata that ask for what is not there, by struct."""


class Tna(TnaExterns):
    """One program for Switch, with one pipe."""

    name: ClassVar[str] = "tna"
    package: ClassVar[str] = "Switch"

    def __init__(self, low: ProgramLowering) -> None:
        super().__init__(low)
        self.functions = {"min": self._min, "max": self._max}
        self.methods = {
            ("RegisterAction", "execute"): self._execute,
            ("RegisterAction", "predicate"): self._predicate,
            ("RegisterParam", "read"): self._read_parameter,
            ("Hash", "get"): self._hash,
            ("Random", "get"): self._random,
            ("Counter", "count"): self._count,
            ("Checksum", "update"): self._checksum,
            ("Digest", "pack"): self._pack,
            ("Mirror", "emit"): self._mirror,
        }
        self.instances = {
            "Register": self._register,
            "RegisterParam": self._register_param,
            "RegisterAction": self._register_action,
            "Hash": self._hash_instance,
            "Random": self._plain_instance,
            "Counter": self._counter,
            "Checksum": self._plain_instance,
            "Digest": self._digest_instance,
            "Mirror": self._plain_instance,
        }

    def program(self, main: ast.Instantiation) -> Program:
        """The program in IR; AbortError after a reported problem."""
        blocks = self._pipe(main)
        ingress = self._ingress(blocks)
        egress = self._egress(blocks)
        check_access(self.low, (ingress, egress), self.access_offsets)
        new_types, enums = self.low.named_types()
        source = self.low.reporter.source.origins[-1][0] if self.low.reporter.source.origins else ""
        return Program(
            source=source,
            architecture=self.name,
            threads=(ingress, egress),
            tables=tuple(self.low.tables),
            actions=tuple(self.low.actions),
            registers=tuple(self.low.registers),
            counters=tuple(self.low.counters),
            digests=tuple(self.low.digests),
            value_sets=tuple(self.low.value_sets),
            controller_headers=self.low.controller_headers(),
            errors=self.low.errors,
            serializable_enums=enums,
            new_types=new_types,
            package_annotations=self.low.annotations(main.annotations),
        )

    def check_assignment(self, statement: ast.Assignment) -> None:
        """Requests to the traffic manager that this one does not know; zero asks for nothing."""
        target = statement.target
        if not isinstance(target, ast.Member) or not isinstance(target.base.type, TStruct):
            return
        if (
            target.name in _UNKNOWN_REQUESTS.get(target.base.type.decl.name, ())
            and self.low.known(statement.value) != 0
        ):
            raise self.low.unsupported(statement.at, f"{target.name} of {target.base.type}")

    # ---------------------------------------------------------------- the package

    def _pipe(self, main: ast.Instantiation) -> dict[str, tuple[Callee, ast.Expr]]:
        """The blocks of the one pipe. Its name is in no name of the control plane, as in p4c's standard P4Info."""
        if not main.target.arguments or main.target.arguments[0][0].name != "pipe0":
            raise self.low.unsupported(main.at, "a package Switch that is not tna's")
        first, *others = [a for _, a in main.target.arguments]
        if any(a is not None for a in others):
            raise self.low.unsupported(main.at, "more than one pipe")
        if isinstance(first, ast.Name) and isinstance(first.decl, ast.Instantiation):
            callee = first.decl.target
        elif isinstance(first, ast.Call) and isinstance(first.target, Callee):
            callee = first.target
        else:
            raise self.low.unsupported(main.at, "this argument of Switch")
        if [p.name for p, _ in callee.arguments] != list(_BLOCKS):
            raise self.low.unsupported(main.at, "a package Pipeline that is not tna's")
        blocks: dict[str, tuple[Callee, ast.Expr]] = {}
        for (_, argument), key in zip(callee.arguments, _BLOCKS, strict=True):
            assert argument is not None
            if not isinstance(argument, ast.Call) or not isinstance(argument.target, Callee):
                raise self.low.unsupported(argument.at, "this argument of Pipeline")
            blocks[key] = (argument.target, argument)
        return blocks

    def _variable(self, name: str, t: irt.Type) -> ir.VarRef:
        self.low.used_names.add(name)
        return ir.VarRef(name, t)

    def _intrinsic(self, name: str, declared: str) -> ir.VarRef:
        """A variable of one of the architecture's own types."""
        decl = self.low.checker.scopes[0][declared]
        assert isinstance(decl, ast.StructDecl)
        return self._variable(name, self.low.type(TStruct(decl), decl.at))

    def _packet_variables(self, thread: str, parser: tuple[Callee, ast.Expr]) -> tuple[ir.VarRef, ir.VarRef]:
        out = []
        for name, p in zip(("headers", "metadata"), parser[0].decl.parameters[1:3], strict=True):
            t = self.low.type(p.type, p.at)
            if not isinstance(t, irt.StructType | irt.HeaderType):
                raise self.low.unsupported(p.at, f"parameter {p.name} of type {t}, which is not a struct")
            out.append(self._variable(f"{thread}_{name}", t))
        return out[0], out[1]

    # ---------------------------------------------------------------- threads

    def _ingress(self, blocks: dict[str, tuple[Callee, ast.Expr]]) -> Thread:
        headers, metadata = self._packet_variables("ingress", blocks["ingress_parser"])
        own = self._intrinsic("ingress_intrinsic", "ingress_intrinsic_metadata_t")
        parsed = self._intrinsic("ingress_from_parser", "ingress_intrinsic_metadata_from_parser_t")
        deparser = self._intrinsic("ingress_for_deparser", "ingress_intrinsic_metadata_for_deparser_t")
        manager = self._intrinsic("ingress_for_tm", "ingress_intrinsic_metadata_for_tm_t")
        self.gress = "ingress"
        return Thread(
            name="ingress",
            headers=_declared(headers),
            metadata=_declared(metadata),
            intrinsic=tuple(_declared(v) for v in (parsed, deparser, manager)),
            parser=self.low.lower_parser(blocks["ingress_parser"], (headers, metadata, own, manager, parsed)),
            controls=(
                (
                    "ingress",
                    self.low.lower_control(blocks["ingress"], (headers, metadata, own, parsed, deparser, manager)),
                ),
            ),
            deparser=self.low.lower_control(blocks["ingress_deparser"], (None, headers, metadata, deparser, own)),
            extracted=(_declared(own),),
        )

    def _egress(self, blocks: dict[str, tuple[Callee, ast.Expr]]) -> Thread:
        self.low.used_names.clear()  # egress shares no variable with ingress
        headers, metadata = self._packet_variables("egress", blocks["egress_parser"])
        own = self._intrinsic("egress_intrinsic", "egress_intrinsic_metadata_t")
        parsed = self._intrinsic("egress_from_parser", "egress_intrinsic_metadata_from_parser_t")
        deparser = self._intrinsic("egress_for_deparser", "egress_intrinsic_metadata_for_deparser_t")
        port = self._intrinsic("egress_for_output_port", "egress_intrinsic_metadata_for_output_port_t")
        self.gress = "egress"
        return Thread(
            name="egress",
            headers=_declared(headers),
            metadata=_declared(metadata),
            intrinsic=tuple(_declared(v) for v in (parsed, deparser, port)),
            parser=self.low.lower_parser(blocks["egress_parser"], (headers, metadata, own, parsed, deparser)),
            controls=(
                (
                    "egress",
                    self.low.lower_control(blocks["egress"], (headers, metadata, own, parsed, deparser, port)),
                ),
            ),
            deparser=self.low.lower_control(
                blocks["egress_deparser"], (None, headers, metadata, deparser, own, parsed)
            ),
            extracted=(_declared(own),),
        )


def _declared(v: ir.VarRef) -> Variable:
    return Variable(v.name, v.type)
