"""Type information and annotations of P4Info: what its objects have in common."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from p4switch.errors import SwitchError
from p4switch.ir import program as ir
from p4switch.ir.types import (
    Annotation,
    Bits,
    Bool,
    EnumType,
    Field,
    HeaderType,
    StructType,
    Type,
    Varbits,
    width_of,
)
from p4switch.proto import p4types_pb2 as p4t

_NOT_SHOWN = frozenset({"name", "id", "brief", "description"})
"""Annotations that have a field of their own in P4Info."""


class _Message(Protocol):
    """A P4Info message with annotations."""

    @property
    def annotations(self) -> _Appendable: ...


class _Appendable(Protocol):
    def append(self, value: str, /) -> None: ...


class TypeInfo:
    """Fills P4TypeInfo with the named types that objects refer to."""

    def __init__(self, program: ir.Program, info: p4t.P4TypeInfo) -> None:
        self._info = info
        self._errors = program.errors
        self._new_types = {t.name: t for t in program.new_types}
        self._serializable = {e.name: e for e in program.serializable_enums}

    def is_new_type(self, name: str) -> bool:
        """Whether `type T name` introduced the name."""
        return name in self._new_types

    def width(self, t: Type, declared: str | None) -> int:
        """Bits that clients see: those of a translated type where there is one (0 for strings)."""
        translation = self._translation(declared)
        if translation is None:
            return 0 if isinstance(t, EnumType) else width_of(t)
        return translation[1] if isinstance(translation[1], int) else 0

    def spec(self, t: Type, declared: str | None) -> p4t.P4DataTypeSpec:
        """The specification of a type, its named parts entered into the type info."""
        spec = p4t.P4DataTypeSpec()
        if declared in self._new_types:
            self._enter_new_type(self._new_types[declared])
            spec.new_type.name = declared
        elif declared in self._serializable:
            self._enter_serializable(self._serializable[declared])
            spec.serializable_enum.name = declared
        else:
            self._plain(spec, t)
        return spec

    def _plain(self, spec: p4t.P4DataTypeSpec, t: Type) -> None:
        match t:
            case Bits(width, signed):
                (spec.bitstring.int if signed else spec.bitstring.bit).bitwidth = width
            case Bool():
                spec.bool.SetInParent()
            case Varbits(max_width):
                spec.bitstring.varbit.max_bitwidth = max_width
            case EnumType() if t.name == self._errors.name:
                spec.error.SetInParent()
                if not self._info.HasField("error"):
                    self._info.error.members.extend(t.members)
            case EnumType(name, members):
                spec.enum.name = name
                if name not in self._info.enums:
                    for member in members:
                        self._info.enums[name].members.add(name=member)
            case StructType() if t.is_tuple:
                spec.tuple.members.extend(self.spec(f.type, f.declared) for f in t.fields)
            case StructType():
                spec.struct.name = t.name
                self._enter_struct(t)
            case HeaderType():
                spec.header.name = t.name
                self._enter_header(t)
            case _:
                raise SwitchError(f"P4Info has no description of type {t}")

    def _enter_struct(self, t: StructType) -> None:
        if t.name in self._info.structs:
            return
        entry = p4t.P4StructTypeSpec()
        for f in t.fields:
            entry.members.add(name=field_name(f), type_spec=self.spec(f.type, f.declared))
        self._info.structs[t.name].CopyFrom(entry)

    def _enter_header(self, t: HeaderType) -> None:
        if t.name in self._info.headers:
            return
        entry = p4t.P4HeaderTypeSpec()
        for f in flat_fields(t.fields):
            entry.members.add(name=field_name(f), type_spec=self.spec(f.type, None).bitstring)
        self._info.headers[t.name].CopyFrom(entry)

    def _enter_serializable(self, enum: ir.SerializableEnum) -> None:
        if enum.name in self._info.serializable_enums:
            return
        entry = self._info.serializable_enums[enum.name]
        entry.underlying_type.bitwidth = enum.underlying.width
        for name, value in enum.members:
            entry.members.add(name=name, value=value.to_bytes(max(1, (enum.underlying.width + 7) // 8), "big"))

    def _enter_new_type(self, new_type: ir.NewType) -> None:
        if new_type.name in self._info.new_types:
            return
        innermost = new_type
        while innermost.underlying in self._new_types:
            innermost = self._new_types[innermost.underlying]
        entry = p4t.P4NewTypeSpec()
        translation = self._translation(new_type.name)
        if translation is None:
            entry.original_type.CopyFrom(self.spec(innermost.representation, innermost.underlying or None))
        else:
            entry.translated_type.uri = translation[0]
            if isinstance(translation[1], int):
                entry.translated_type.sdn_bitwidth = translation[1]
            else:
                entry.translated_type.sdn_string.SetInParent()
        annotate(entry, [a for a in new_type.annotations if a.name != "p4runtime_translation"])
        self._info.new_types[new_type.name].CopyFrom(entry)

    def _translation(self, declared: str | None) -> tuple[str, int | str] | None:
        """URI and SDN type (a bit width, or "string") of a translated type."""
        new_type = self._new_types.get(declared or "")
        if new_type is None:
            return None
        for annotation in new_type.annotations:
            if annotation.name == "p4runtime_translation" and len(annotation.body) == 2:
                uri, sdn = annotation.body
                return str(uri), sdn if isinstance(sdn, int) else "string"
        return None


def shown_fields(header: HeaderType) -> list[Field]:
    """Fields of a controller header that P4Info shows, in order."""
    return [f for f in flat_fields(header.fields) if not any(a.name == "hidden" for a in f.annotations)]


def flat_fields(fields: Iterable[Field], prefix: str = "") -> list[Field]:
    """Fields of a header, those of structs inside it under dotted names."""
    flat = []
    for f in fields:
        if isinstance(f.type, StructType):
            flat += flat_fields(f.type.fields, f"{prefix}{field_name(f)}.")
        else:
            flat.append(replace(f, name=f"{prefix}{field_name(f)}") if prefix else f)
    return flat


def field_name(field: Field) -> str:
    """A field's control-plane name."""
    for annotation in field.annotations:
        if annotation.name == "name" and annotation.body:
            return str(annotation.body[0])
    return field.name


def annotate(message: _Message, annotations: Iterable[Annotation]) -> None:
    """Enter annotations that have no field of their own."""
    for annotation in annotations:
        if annotation.structured:
            _annotate_structured(message, annotation)
        elif annotation.name not in _NOT_SHOWN:
            message.annotations.append(_source_of(annotation))


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[A-Za-z_]\w*|\d\w*|[<>=!&|+]{2}|\S')
"""A token of an annotation's body, near enough to P4's own."""


def _source_of(annotation: Annotation) -> str:
    """`@name(body)`, the tokens of the body separated by spaces, as p4c prints it."""
    if not annotation.text:
        return f"@{annotation.name}"
    return f"@{annotation.name}({' '.join(_TOKEN.findall(annotation.text))})"


def _annotate_structured(message: _Message, annotation: Annotation) -> None:
    structured = message.structured_annotations.add(name=annotation.name)  # type: ignore[attr-defined]
    if annotation.pairs:
        for key, value in annotation.pairs:
            _set_expression(structured.kv_pair_list.kv_pairs.add(key=key).value, value)
    elif annotation.body:
        for value in annotation.body:
            _set_expression(structured.expression_list.expressions.add(), value)


def _set_expression(expression: p4t.Expression, value: int | str | bool) -> None:
    if isinstance(value, bool):
        expression.bool_value = value
    elif isinstance(value, int):
        expression.int64_value = value
    else:
        expression.string_value = value
