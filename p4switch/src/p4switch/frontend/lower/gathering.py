"""The lowered program put together: its threads, and everything that was made on the way."""

from __future__ import annotations

from p4switch.frontend import ast
from p4switch.frontend.lower.annotations import ir_annotations
from p4switch.frontend.lower.lowering import Lowering
from p4switch.frontend.lower.types_to_ir import ir_type
from p4switch.frontend.p4_types import TEnum, TNew
from p4switch.ir import types as irt
from p4switch.ir.program import ControllerHeader, NewType, Program, SerializableEnum, Thread


def gather_program(low: Lowering, architecture: str, threads: tuple[Thread, ...], main: ast.Instantiation) -> Program:
    """The program of an architecture's threads, which `main` instantiates."""
    new_types, enums = _named_types(low)
    origins = low.reporter.source.origins
    return Program(
        source=origins[-1][0] if origins else "",
        architecture=architecture,
        threads=threads,
        tables=tuple(low.tables),
        actions=tuple(low.actions),
        action_profiles=tuple(low.profiles),
        registers=tuple(low.registers),
        counters=tuple(low.counters),
        meters=tuple(low.meters),
        digests=tuple(low.digests),
        value_sets=tuple(low.value_sets),
        controller_headers=_controller_headers(low),
        field_lists=tuple(low.field_lists),
        errors=low.errors,
        serializable_enums=enums,
        new_types=new_types,
        package_annotations=ir_annotations(main.annotations),
    )


def _controller_headers(low: Lowering) -> tuple[ControllerHeader, ...]:
    out: list[ControllerHeader] = []
    for decl in low.checked.program.declarations:
        if not isinstance(decl, ast.StructDecl) or decl.kind != "header" or decl.type_parameters:
            continue
        for a in ir_annotations(decl.annotations):
            if a.name == "controller_header" and a.body:
                header = ir_type(low, low.facts.struct(decl), decl.at)
                assert isinstance(header, irt.HeaderType)
                out.append(ControllerHeader(str(a.body[0]), header, header.annotations))
    return tuple(out)


def _named_types(low: Lowering) -> tuple[tuple[NewType, ...], tuple[SerializableEnum, ...]]:
    new_types: list[NewType] = []
    enums: list[SerializableEnum] = []
    for decl in low.checked.program.declarations:
        t = low.types.get(decl)
        annotations = ir_annotations(decl.annotations)
        if isinstance(decl, ast.TypedefDecl) and isinstance(t, TNew):
            representation = ir_type(low, t, decl.at)
            assert isinstance(representation, irt.Bits | irt.Bool | irt.EnumType)
            underlying = t.underlying.decl.name if isinstance(t.underlying, TNew | TEnum) else ""
            new_types.append(NewType(decl.name, underlying, representation, annotations))
        elif isinstance(decl, ast.EnumDecl) and isinstance(t, TEnum) and t.underlying is not None:
            bits = irt.Bits(t.underlying.width, t.underlying.signed)
            enums.append(SerializableEnum(decl.name, bits, tuple(low.facts.members[decl].items()), annotations))
    return tuple(new_types), tuple(enums)
