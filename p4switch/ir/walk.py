"""Going through IR."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from p4switch.ir import types as irt

_TYPES = (irt.Bits, irt.Bool, irt.EnumType, irt.StructType, irt.HeaderType, irt.UnionType, irt.StackType, irt.Varbits)


def nodes(value: Any) -> Iterator[Any]:
    """Every statement and expression inside a value."""
    if isinstance(value, tuple):
        for item in value:
            yield from nodes(item)
    elif is_dataclass(value) and not isinstance(value, _TYPES):
        yield value
        for f in fields(value):
            inner = getattr(value, f.name)
            if isinstance(inner, tuple) or is_dataclass(inner):
                yield from nodes(inner)
