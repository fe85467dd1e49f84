"""Header layouts, constants and serializable enums of a P4 file, for generators of codecs.

A stable reading API: the file needs no `main`; only declarations at the top level are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from p4switch.frontend import ast
from p4switch.frontend.checker import check_program
from p4switch.frontend.p4_types import TEnum, TNew, TStruct, TVarbits, Type, width_of
from p4switch.frontend.parser import parse
from p4switch.frontend.preprocess import preprocess
from p4switch.frontend.source import Reporter


@dataclass(frozen=True, slots=True)
class FieldLayout:
    """A field: bits on the wire (of a varbit the most it can take) and the type it was declared with, as text."""

    name: str
    bits: int
    declared: str
    is_varbit: bool = False


@dataclass(frozen=True, slots=True)
class EnumLayout:
    """A serializable enum: width in bits and members in order."""

    name: str
    bits: int
    members: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Layouts:
    """What a file declares, by name, each in order of declaration."""

    headers: Mapping[str, tuple[FieldLayout, ...]]
    structs: Mapping[str, tuple[FieldLayout, ...]]
    constants: Mapping[str, int]
    enums: Mapping[str, EnumLayout]


def layouts(path: Path | str, defines: Mapping[str, str] | None = None, include_dirs: Sequence[Path] = ()) -> Layouts:
    """Read a P4 file. CompileError, with located diagnostics, when it is wrong.

    `structs` holds those structs all of whose fields have a fixed size (digests, for instance).
    """
    reporter = Reporter(preprocess(Path(path), defines or {}, include_dirs))
    checked = check_program(parse(reporter), reporter)
    facts = checked.facts
    headers: dict[str, tuple[FieldLayout, ...]] = {}
    structs: dict[str, tuple[FieldLayout, ...]] = {}
    constants: dict[str, int] = {}
    enums: dict[str, EnumLayout] = {}
    for decl in checked.program.declarations:
        if isinstance(decl, ast.StructDecl) and not decl.type_parameters:
            fields = _fields(facts.struct(decl))
            if fields is not None and decl.kind in ("header", "struct"):
                (headers if decl.kind == "header" else structs)[decl.name] = fields
        elif isinstance(decl, ast.Constant) and isinstance(facts.values.get(decl), int):
            constants[decl.name] = int(facts.values[decl])
        elif isinstance(decl, ast.EnumDecl):
            t = facts.types[decl]
            if isinstance(t, TEnum) and t.underlying is not None:
                enums[decl.name] = EnumLayout(decl.name, t.underlying.width, tuple(facts.members[decl].items()))
    return Layouts(headers, structs, constants, enums)


def _fields(t: TStruct) -> tuple[FieldLayout, ...] | None:
    out: list[FieldLayout] = []
    for name, field in t.fields():
        if isinstance(field, TVarbits):
            out.append(FieldLayout(name, field.width, str(field), is_varbit=True))
            continue
        bits = width_of(field)
        if bits is None:
            return None
        out.append(FieldLayout(name, bits, _declared(field)))
    return tuple(out)


def _declared(t: Type) -> str:
    return t.decl.name if isinstance(t, TNew | TEnum) else str(t)
