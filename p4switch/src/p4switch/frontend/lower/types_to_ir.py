"""Types and constants of the checker as those of the IR."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from p4switch.frontend.lower.annotations import ir_annotations
from p4switch.frontend.lower.lowering import Lowering
from p4switch.frontend.p4_types import (
    BOOL,
    ERROR,
    EnumValue,
    TBits,
    TEnum,
    TNew,
    TStack,
    TStruct,
    TTuple,
    TVar,
    TVarbits,
    Type,
)
from p4switch.ir import expr as ir
from p4switch.ir import types as irt


def ir_type(low: Lowering, t: Type, at: int) -> irt.Type:
    """The IR type of a checked type."""
    if isinstance(t, TVar):
        bound = low.env.types.get(t)
        if bound is None or bound == t:
            raise low.unsupported(at, f"type parameter {t} without a value")
        return ir_type(low, bound, at)
    if isinstance(t, TBits):
        return irt.Bits(t.width, t.signed)
    if t == BOOL:
        return irt.Bool()
    if isinstance(t, TNew):
        return ir_type(low, t.underlying, at)
    if isinstance(t, TEnum):
        if t.underlying is not None:
            return irt.Bits(t.underlying.width, t.underlying.signed)
        return irt.EnumType(t.decl.name, tuple(name for name, _, _ in t.decl.members))
    if t == ERROR:
        return low.errors
    if isinstance(t, TVarbits):
        return irt.Varbits(t.width)
    if isinstance(t, TStruct):
        return struct_type(low, t)
    if isinstance(t, TStack):
        element = ir_type(low, t.element, at)
        if not isinstance(element, irt.HeaderType | irt.UnionType):
            raise low.unsupported(at, f"arrays of {t.element}")
        return irt.StackType(element, t.size)
    if isinstance(t, TTuple):
        return tuple_type(low, t, at)
    raise low.unsupported(at, f"a value of type {t}")


def tuple_type(low: Lowering, t: TTuple, at: int) -> irt.StructType:
    """A tuple as a struct with fields f0, f1...; one IR type for one shape."""
    parts = tuple(irt.Field(f"f{i}", ir_type(low, e, at)) for i, e in enumerate(t.elements))
    name = "tuple<" + ",".join(str(p.type) for p in parts) + ">"
    if name not in low.structs:
        low.structs[name] = irt.StructType(name, parts, is_tuple=True)
    return low.structs[name]


def struct_type(low: Lowering, t: TStruct) -> irt.Type:
    """A struct, header or union; specialisations of a generic one get names of their own."""
    t = replace(t, arguments=tuple(low.concrete(a) for a in t.arguments)) if t.arguments else t
    name = str(t)
    known = low.headers.get(name) or low.unions.get(name) or low.structs.get(name)
    if known is not None:
        return known
    fields: list[irt.Field] = []
    for decl, (field_name, field_type) in zip(t.decl.fields, t.fields(), strict=True):
        annotations = ir_annotations(decl.annotations)
        concrete = low.concrete(field_type)
        fields.append(irt.Field(field_name, ir_type(low, concrete, decl.at), annotations, declared_name(concrete)))
    annotations = ir_annotations(t.decl.annotations)
    if t.kind == "header":
        return _header_type(low, t, name, tuple(fields), annotations)
    if t.kind == "header_union":
        union = irt.UnionType(name, tuple(fields), annotations)
        low.unions[name] = union
        return union
    struct = irt.StructType(name, tuple(fields), annotations)
    low.structs[name] = struct
    return struct


def _header_type(
    low: Lowering, t: TStruct, name: str, fields: tuple[irt.Field, ...], annotations: tuple[irt.Annotation, ...]
) -> irt.HeaderType:
    header = irt.HeaderType(name, fields, annotations)
    before = 0
    for f in fields:
        if isinstance(f.type, irt.Varbits) and before % 8:
            raise low.unsupported(t.decl.at, f"header {name}: a varbit field that does not start at a byte")
        before += irt.width_of(f.type)
    low.headers[name] = header
    return header


def require_whole_bytes(low: Lowering, t: irt.Type, at: int) -> None:
    """Refuse headers of other sizes, also within a type, where packets carry them. Others may have any size."""
    if isinstance(t, irt.HeaderType) and t.width_bits() % 8:
        raise low.unsupported(at, f"header {t} has {t.width_bits()} bits, which is not a whole number of bytes")
    if isinstance(t, irt.StackType):
        require_whole_bytes(low, t.element, at)
    elif isinstance(t, irt.StructType | irt.UnionType):
        for f in t.fields:
            require_whole_bytes(low, f.type, at)


def ir_constant(low: Lowering, value: Any, t: Type, at: int) -> ir.Const:
    """A compile-time value as an IR constant."""
    lowered = ir_type(low, t, at)
    if isinstance(value, EnumValue):
        assert isinstance(lowered, irt.EnumType)
        return ir.Const(lowered.members.index(value.member), lowered)
    if isinstance(lowered, irt.Bool):
        return ir.Const(int(bool(value)), lowered)
    if isinstance(lowered, irt.Bits) and isinstance(value, int):
        return ir.Const(value & ((1 << lowered.width) - 1), lowered)
    raise low.unsupported(at, f"a constant of type {t} here")


def declared_name(t: Type) -> str | None:
    """Name of a `type` or serializable enum, which P4Info keeps."""
    if isinstance(t, TNew):
        return t.decl.name
    return t.decl.name if isinstance(t, TEnum) and t.underlying is not None else None
