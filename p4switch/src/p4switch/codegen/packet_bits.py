"""Bits between packets and header fields: loads by shifted 64-bit words, stores by groups that end on a byte."""

from __future__ import annotations

from collections.abc import Callable

from p4switch.codegen.layout import bytes_of, leaves
from p4switch.ir import types as irt


def load_field(target: str, pointer: str, offset: int, t: irt.Type) -> str:
    """C statement that reads a scalar at a constant bit offset from `pointer` (which may be read beyond)."""
    bits = irt.width_of(t)
    at = f"{pointer} + {offset // 8}" if offset >= 8 else pointer
    shift = offset % 8
    if bits == 0:
        return f"{target} = 0;"
    if bits > 128:
        size = bytes_of(bits)
        if shift == 0 and bits % 8 == 0:
            return f"memcpy({target}.b, {at}, {size});"
        return f"ps_get_bits({target}.b, {size}, {at}, {shift}, {bits});"
    if bits > 64:
        return f"{target} = ps_bits128({at}, {shift}, {bits});"
    if shift == 0 and bits in (8, 16, 32, 64):
        return f"{target} = {f'*({at})' if bits == 8 else f'ps_load{bits}({at})'};"
    if shift + bits <= 8:
        return f"{target} = (*({at}) >> {8 - shift - bits}) & {(1 << bits) - 1:#x};"
    if shift + bits <= 16:
        return f"{target} = (uint16_t)(ps_load16({at}) << {shift}) >> {16 - bits};"
    if shift + bits <= 32:
        return f"{target} = (uint32_t)(ps_load32({at}) << {shift}) >> {32 - bits};"
    return f"{target} = ps_bits64({at}, {shift}, {bits});"


def load_fields(target: str, t: irt.Type, pointer: str) -> list[str]:
    """Read every leaf of a header (or struct, or one scalar) without varbits."""
    return load_leaves(target, list(leaves(t)), pointer)


def split_at_varbit(
    t: irt.HeaderType,
) -> tuple[list[tuple[str, irt.Type]], tuple[str, irt.Varbits] | None, list[tuple[str, irt.Type]]]:
    """Leaves before, at and after a header's varbit field."""
    before: list[tuple[str, irt.Type]] = []
    after: list[tuple[str, irt.Type]] = []
    varbit: tuple[str, irt.Varbits] | None = None
    for path, leaf in leaves(t):
        if isinstance(leaf, irt.Varbits):
            varbit = (path, leaf)
        else:
            (before if varbit is None else after).append((path, leaf))
    return before, varbit, after


def load_leaves(target: str, parts: list[tuple[str, irt.Type]], pointer: str) -> list[str]:
    """Read the given leaves from the start of `pointer`."""
    out: list[str] = []
    offset = 0
    for path, leaf in parts:
        out.append(load_field(target + path, pointer, offset, leaf))
        offset += irt.width_of(leaf)
    return out


def store_leaves(parts: list[tuple[str, irt.Type]], pointer: str) -> list[str]:
    """Write values (C expression, type), which together fill whole bytes or are padded on the right with zeros."""
    out: list[str] = []
    group: list[tuple[str, irt.Type]] = []
    offset = start = 0
    for text, t in parts:
        group.append((text, t))
        offset += irt.width_of(t)
        if offset % 8 == 0:
            out += _store_group(group, pointer, start, offset - start)
            group = []
            start = offset
    if group:
        out += _store_group(group, pointer, start, offset - start)
    return out


def _store_group(group: list[tuple[str, irt.Type]], pointer: str, start: int, bits: int) -> list[str]:
    at = f"{pointer} + {start // 8}" if start else pointer
    if bits == 0:
        return []
    if len(group) == 1 and bits % 8 == 0:
        return [_store_whole(group[0][0], bits, at)]
    size = bytes_of(bits)
    if size <= 8:
        return [f"ps_store_be({at}, {_joined(group, bits)}, {size});"]
    out = [f"memset({at}, 0, {size});"]
    offset = 0
    for text, t in group:
        w = irt.width_of(t)
        if w:
            out.append(_put(text, w, at, offset))
        offset += w
    return out


def _joined(group: list[tuple[str, irt.Type]], bits: int) -> str:
    """Up to 64 bits of fields as one number, padded on the right to whole bytes."""
    left = bytes_of(bits) * 8
    parts: list[str] = []
    for text, t in group:
        w = irt.width_of(t)
        left -= w
        if w:
            parts.append(f"(uint64_t)({text}) << {left}" if left else f"(uint64_t)({text})")
    return " | ".join(parts) or "0"


def _store_whole(text: str, bits: int, at: str) -> str:
    if bits <= 64:
        return f"ps_store_be({at}, {text}, {bits // 8});"
    if bits <= 128:
        return f"ps_store128({at}, {text}, {bits // 8});"
    return f"memcpy({at}, {text}.b, {bits // 8});"


def _put(text: str, w: int, at: str, offset: int) -> str:
    if w <= 64:
        return f"ps_put64({at}, {offset}, {text}, {w});"
    if w <= 128:
        return f"ps_put128({at}, {offset}, {text}, {w});"
    return f"ps_put_bits({at}, {offset}, {text}.b, {bytes_of(w)}, {w});"


def pack_dynamic(parts: list[tuple[str, irt.Type]], render: Callable[[str], str]) -> list[str]:
    """Append values to `buffer` at bit `at`, varbits with their run-time length; `buffer` is zero beforehand."""
    out: list[str] = []
    for text, t in parts:
        value = render(text)
        if isinstance(t, irt.Varbits):
            out.append(f"ps_put_bits(buffer, at, {value}.b, ({value}.bits + 7) / 8, {value}.bits); at += {value}.bits;")
            continue
        w = irt.width_of(t)
        if w:
            out.append(_put(value, w, "buffer", 0).replace("(buffer, 0,", "(buffer, at,") + f" at += {w};")
    return out
