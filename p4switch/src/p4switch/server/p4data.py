"""P4Data: values of P4 types in register and digest messages, to and from flat lists of bit patterns.

A Shape is a type as P4Info describes it, with names resolved. The pipeline deals in *leaves*: the scalars of a
value in declaration order, each a bit pattern (bool 0 or 1, an enumeration the index of its member).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from p4switch.proto import p4data_pb2 as p4d
from p4switch.proto import p4types_pb2 as p4t
from p4switch.server.bytestring import decode_signed, decode_unsigned, encode_signed, encode_unsigned
from p4switch.server.status import invalid

DEPTH_MAX = 32
"""Nesting of structs in a P4Info that is still taken for honest."""


@dataclass(frozen=True, slots=True)
class BitShape:
    """bit<width> or int<width>; `enumerated`: a serializable enum of that width."""

    width: int
    signed: bool = False
    enumerated: bool = False


@dataclass(frozen=True, slots=True)
class BoolShape:
    """bool."""


@dataclass(frozen=True, slots=True)
class NameShape:
    """An enumeration without representation, or (is_error) `error`: the leaf is an index into `members`."""

    members: tuple[str, ...]
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class GroupShape:
    """A struct, or (is_tuple) a tuple."""

    members: tuple[Shape, ...]
    is_tuple: bool = False


@dataclass(frozen=True, slots=True)
class HeaderShape:
    """A header of fixed-width fields; taken to be valid."""

    fields: tuple[BitShape, ...]


Shape: TypeAlias = BitShape | BoolShape | NameShape | GroupShape | HeaderShape


def shape_of(spec: p4t.P4DataTypeSpec, types: p4t.P4TypeInfo, what: str, depth: int = 0) -> Shape:
    """The Shape of a type specification. Raises StatusError INVALID_ARGUMENT naming `what`."""
    kind = spec.WhichOneof("type_spec")
    if depth > DEPTH_MAX:
        raise invalid(f"P4Info: the type of {what} is nested too deeply")
    if kind == "bitstring":
        return _bits(spec.bitstring, what)
    if kind == "bool":
        return BoolShape()
    if kind == "tuple":
        return GroupShape(tuple(shape_of(m, types, what, depth + 1) for m in spec.tuple.members), is_tuple=True)
    if kind == "struct" and spec.struct.name in types.structs:
        return GroupShape(
            tuple(shape_of(m.type_spec, types, what, depth + 1) for m in types.structs[spec.struct.name].members)
        )
    if kind == "header" and spec.header.name in types.headers:
        return HeaderShape(tuple(_bits(m.type_spec, what) for m in types.headers[spec.header.name].members))
    if kind == "enum" and spec.enum.name in types.enums:
        return NameShape(tuple(m.name for m in types.enums[spec.enum.name].members))
    if kind == "error":
        return NameShape(tuple(types.error.members), is_error=True)
    if kind == "serializable_enum" and spec.serializable_enum.name in types.serializable_enums:
        return BitShape(types.serializable_enums[spec.serializable_enum.name].underlying_type.bitwidth, enumerated=True)
    if kind == "new_type" and spec.new_type.name in types.new_types:
        new_type = types.new_types[spec.new_type.name]
        if new_type.WhichOneof("representation") == "original_type":
            return shape_of(new_type.original_type, types, what, depth + 1)
        if new_type.translated_type.WhichOneof("sdn_type") == "sdn_bitwidth":
            return BitShape(new_type.translated_type.sdn_bitwidth)
    raise invalid(f"P4Info: {what} has a type that is not supported here ({kind or 'none given'})")


def encode(shape: Shape, leaves: Iterator[int]) -> p4d.P4Data:
    """The P4Data of a value; takes as many leaves as the shape has."""
    value = p4d.P4Data()
    match shape:
        case BitShape(width, signed, enumerated):
            leaf = next(leaves)
            if enumerated:
                value.enum_value = encode_unsigned(leaf)
            else:
                value.bitstring = encode_signed(leaf, width) if signed else encode_unsigned(leaf)
        case BoolShape():
            value.bool = bool(next(leaves))
        case NameShape(members, is_error):
            index = next(leaves)
            name = members[index] if index < len(members) else ""
            if is_error:
                value.error = name
            else:
                value.enum = name
        case GroupShape(members, is_tuple):
            (value.tuple if is_tuple else value.struct).members.extend(encode(m, leaves) for m in members)
        case HeaderShape(fields):
            value.header.is_valid = True
            value.header.bitstrings.extend(
                encode_signed(next(leaves), f.width) if f.signed else encode_unsigned(next(leaves)) for f in fields
            )
    return value


def decode(shape: Shape, value: p4d.P4Data, what: str) -> list[int]:
    """The leaves of a P4Data. Raises StatusError INVALID_ARGUMENT where it does not have the shape, OUT_OF_RANGE
    where a number does not fit its type."""
    kind = value.WhichOneof("data")
    match shape:
        case BitShape(width, signed, enumerated) if kind == ("enum_value" if enumerated else "bitstring"):
            raw = value.enum_value if enumerated else value.bitstring
            return [decode_signed(raw, width, what) if signed else decode_unsigned(raw, width, what)]
        case BoolShape() if kind == "bool":
            return [int(value.bool)]
        case NameShape(members, is_error) if kind == ("error" if is_error else "enum"):
            name = value.error if is_error else value.enum
            if name not in members:
                raise invalid(f"{what}: no member {name!r}")
            return [members.index(name)]
        case GroupShape(members, is_tuple) if kind == ("tuple" if is_tuple else "struct"):
            return _decode_all(members, (value.tuple if is_tuple else value.struct).members, what)
        case HeaderShape(fields) if kind == "header":
            return _decode_header(fields, value.header, what)
    raise invalid(f"{what}: expected {_kind_name(shape)}, got {kind or 'no value'}")


def leaf_widths(shape: Shape) -> tuple[int, ...]:
    """Widths in bits of the leaves; enumerations without representation count 32."""
    match shape:
        case BitShape(width):
            return (width,)
        case BoolShape():
            return (1,)
        case NameShape():
            return (32,)
        case GroupShape(members):
            return tuple(w for m in members for w in leaf_widths(m))
        case HeaderShape(fields):
            return tuple(f.width for f in fields)


def _bits(spec: p4t.P4BitstringLikeTypeSpec, what: str) -> BitShape:
    match spec.WhichOneof("type_spec"):
        case "bit":
            return BitShape(spec.bit.bitwidth)
        case "int":
            return BitShape(spec.int.bitwidth, signed=True)
    raise invalid(f"P4Info: {what} holds a varbit, which is not supported here")


def _decode_all(shapes: Sequence[Shape], values: Sequence[p4d.P4Data], what: str) -> list[int]:
    if len(shapes) != len(values):
        raise invalid(f"{what}: expected {len(shapes)} members, got {len(values)}")
    return [leaf for shape, value in zip(shapes, values, strict=True) for leaf in decode(shape, value, what)]


def _decode_header(fields: Sequence[BitShape], header: p4d.P4Header, what: str) -> list[int]:
    if not header.is_valid:
        raise invalid(f"{what}: an invalid header cannot be written")
    if len(fields) != len(header.bitstrings):
        raise invalid(f"{what}: expected {len(fields)} fields, got {len(header.bitstrings)}")
    return [
        decode_signed(raw, f.width, what) if f.signed else decode_unsigned(raw, f.width, what)
        for f, raw in zip(fields, header.bitstrings, strict=True)
    ]


def _kind_name(shape: Shape) -> str:
    match shape:
        case BitShape(width, signed, enumerated):
            return "enum_value" if enumerated else f"{'int' if signed else 'bit'}<{width}>"
        case BoolShape():
            return "bool"
        case NameShape(_, is_error):
            return "error" if is_error else "enum"
        case GroupShape(_, is_tuple):
            return "tuple" if is_tuple else "struct"
        case HeaderShape():
            return "header"


__all__ = [
    "BitShape",
    "BoolShape",
    "GroupShape",
    "HeaderShape",
    "NameShape",
    "Shape",
    "decode",
    "encode",
    "leaf_widths",
    "shape_of",
]
