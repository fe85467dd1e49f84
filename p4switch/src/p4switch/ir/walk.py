"""Going through IR."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from p4switch.ir import types as irt

_TYPES = (irt.Bits, irt.Bool, irt.EnumType, irt.StructType, irt.HeaderType, irt.UnionType, irt.StackType, irt.Varbits)


_PARTS: dict[type, tuple[str, ...] | None] = {}
"""What `_parts` has found out."""


def _parts(kind: type) -> tuple[str, ...] | None:
    """Names of a node's fields, the last one first; None for a class that is not a node."""
    if kind not in _PARTS:
        is_node = is_dataclass(kind) and not issubclass(kind, _TYPES)
        _PARTS[kind] = tuple(f.name for f in reversed(fields(kind))) if is_node else None
    return _PARTS[kind]


def nodes(value: Any) -> Iterator[Any]:
    """Every statement and expression inside a value, each before its parts."""
    waiting = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, tuple):
            waiting.extend(reversed(node))
            continue
        parts = _parts(type(node))
        if parts is not None:
            yield node
            waiting.extend([getattr(node, name) for name in parts])
