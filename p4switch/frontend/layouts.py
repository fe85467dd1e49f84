"""Header layouts, constants and serializable enums of a P4 file, for generators of codecs.

A stable reading API: the file needs no `main`; only declarations at the top level are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from p4switch.frontend import ast
from p4switch.frontend.pipeline import check_source
from p4switch.frontend.types import TEnum, TNew, TStruct, TVarbits, Type, width_of


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
    program = check_source(Path(path), defines or {}, include_dirs).program
    headers: dict[str, tuple[FieldLayout, ...]] = {}
    structs: dict[str, tuple[FieldLayout, ...]] = {}
    constants: dict[str, int] = {}
    enums: dict[str, EnumLayout] = {}
    for decl in program.declarations:
        if isinstance(decl, ast.StructDecl) and not decl.type_parameters:
            fields = _fields(TStruct(decl))
            if fields is not None and decl.kind in ("header", "struct"):
                (headers if decl.kind == "header" else structs)[decl.name] = fields
        elif isinstance(decl, ast.Constant) and isinstance(decl.value, int):
            constants[decl.name] = int(decl.value)
        elif isinstance(decl, ast.EnumDecl) and isinstance(decl.type, TEnum) and decl.type.underlying is not None:
            enums[decl.name] = EnumLayout(decl.name, decl.type.underlying.width, tuple(decl.values.items()))
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
