"""Where values lie in keys, action parameters, register cells and digests."""

from __future__ import annotations

from typing import Any

from p4switch.codegen.layout import bytes_of, storage_bytes
from p4switch.ir import types as irt


def table_key_bytes(types: list[Any]) -> int:
    """Bytes of a packed key: each field in whole bytes, the whole a multiple of 8."""
    total = sum(bytes_of(irt.width_of(t)) for t in types)
    return (total + 7) // 8 * 8


def packed_offsets(types: list[Any]) -> list[tuple[int, int]]:
    """Offset and size of natively packed values, naturally aligned up to 8."""
    out: list[tuple[int, int]] = []
    offset = 0
    for t in types:
        size = storage_bytes(t)
        align = min(size, 8) if irt.width_of(t) <= 128 else 1
        offset = (offset + align - 1) // align * align
        out.append((offset, size))
        offset += size
    return out


def packed_bytes(types: list[Any]) -> int:
    """Bytes of a natively packed block."""
    offsets = packed_offsets(types)
    return offsets[-1][0] + offsets[-1][1] if offsets else 0
