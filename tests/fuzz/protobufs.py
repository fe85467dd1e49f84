"""Random messages of a protobuf type: mostly such as make sense, sometimes anything that the type can hold. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

M = TypeVar("M", bound=Message)

DEPTH_MAX = 7
_INTEGERS = (0, 0, 1, 1, 2, 3, 4, 8, 9, 31, 32, 33, 255, 256, 4096, 65535, 65536)
_FLOATS = (0.0, 1.0, 0.5, -1.0, 1e-300, 1e300, math.inf, -math.inf, math.nan)
_SIGNED = (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64)
_NARROW = (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32)
_REAL = (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT)


class Maker:
    """Fills messages. `pools`: values that make sense, by the name of a field."""

    def __init__(self, random: Random, pools: Mapping[str, Sequence[Any]], *, fill: float = 0.7) -> None:
        self._random = random
        self._pools = pools
        self._fill = fill

    def filled(self, message: M, depth: int = 0) -> M:
        """The message with random fields, one of each oneof."""
        random = self._random
        for oneof in message.DESCRIPTOR.oneofs:
            self._set(message, random.choice(list(oneof.fields)), depth)
        for field in message.DESCRIPTOR.fields:
            if field.containing_oneof is None and random.random() < self._fill:
                self._set(message, field, depth)
        return message

    def _set(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        random, name = self._random, field.name
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            kind = field.message_type.fields_by_name
            for _ in range(random.choice((0, 1, 3))):
                key = self._scalar(kind["key"])
                if kind["value"].message_type is None:
                    getattr(message, name)[key] = self._scalar(kind["value"])
        elif field.message_type is not None:
            if depth >= DEPTH_MAX:
                return
            if field.is_repeated:
                for _ in range(random.choice((0, 1, 1, 2, 4))):
                    self.filled(getattr(message, name).add(), depth + 1)
            else:
                one = getattr(message, name)
                one.SetInParent()
                self.filled(one, depth + 1)
        elif field.is_repeated:
            getattr(message, name).extend(self._scalar(field) for _ in range(random.choice((0, 1, 1, 2, 5))))
        else:
            setattr(message, name, self._scalar(field))

    def _scalar(self, field: FieldDescriptor) -> Any:
        random, cpp = self._random, field.cpp_type
        pool = [value for value in self._pools.get(field.name, ()) if _takes(field, value)]
        if pool and random.random() < 0.9:
            return random.choice(pool)
        if cpp == FieldDescriptor.CPPTYPE_ENUM:
            return random.choice([value.number for value in field.enum_type.values])
        if cpp == FieldDescriptor.CPPTYPE_BOOL:
            return random.random() < 0.5
        if field.type == FieldDescriptor.TYPE_BYTES:
            return random.randbytes(random.choice((0, 1, 4, 6, 16, 17)))
        if field.type == FieldDescriptor.TYPE_STRING:
            return random.choice(("", "x", "n1", "é\0\n", "0" * 300))
        if cpp in _REAL:
            return random.choice(_FLOATS)
        low, high = _range(field)
        if random.random() < 0.7:
            return min(high, random.choice(_INTEGERS))
        return random.choice((low, high, high - 1, random.randint(low, high)))


def _range(field: FieldDescriptor) -> tuple[int, int]:
    """The numbers that a field of integers can hold."""
    bits = 32 if field.cpp_type in _NARROW else 64
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if field.cpp_type in _SIGNED else (0, (1 << bits) - 1)


def _takes(field: FieldDescriptor, value: object) -> bool:
    """Fields of one name differ in type from message to message."""
    if field.type == FieldDescriptor.TYPE_BYTES:
        return isinstance(value, bytes)
    if field.type == FieldDescriptor.TYPE_STRING:
        return isinstance(value, str)
    if field.cpp_type in _REAL:
        return isinstance(value, float)
    low, high = _range(field)
    return isinstance(value, int) and low <= value <= high
