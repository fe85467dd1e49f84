"""C for hashes and checksums, and for the bit strings that they take."""

from __future__ import annotations

from p4switch.codegen.c_control_flow import note_write
from p4switch.codegen.c_expressions import c_place, c_value, low64, masked, resized
from p4switch.codegen.function_writer import FunctionWriter, StatementRules
from p4switch.codegen.layout import bytes_of
from p4switch.codegen.packet_bits import pack_dynamic, store_leaves
from p4switch.ir import expr as ir
from p4switch.ir import stmt as s
from p4switch.ir import types as irt


def fields_buffer(w: FunctionWriter, fields: tuple[ir.Expr, ...], payload: bool) -> None:
    """Declares `buffer` and `length`: the fields as one bit string padded to bytes, then the payload if asked."""
    fixed = sum(irt.width_of(f.type) for f in fields)
    varbits = [f for f in fields if isinstance(f.type, irt.Varbits)]
    room = str(bytes_of(fixed))
    for v in varbits:
        room += f" + {c_value(w.unit, v)}.bits / 8 + 1"
    if payload:
        room += " + (ctx->packet_bytes - ctx->consumed)"
    if varbits or payload:
        w.line(f"uint32_t room = {room};")
        w.line("uint8_t buffer[room + 8];")
    else:
        w.line(f"uint8_t buffer[{bytes_of(fixed)} + 8];")
    if varbits:
        w.line("memset(buffer, 0, room);")
        w.line("uint64_t at = 0;")
        for text in pack_dynamic([(c_value(w.unit, f), f.type) for f in fields], lambda x: x):
            w.line(text)
        w.line("uint32_t length = (uint32_t)((at + 7) / 8);")
    else:
        for text in store_leaves([(c_value(w.unit, f), f.type) for f in fields], "buffer"):
            w.line(text)
        w.line(f"uint32_t length = {(fixed + 7) // 8};")
    if payload:
        w.line("memcpy(buffer + length, ctx->packet + ctx->consumed, ctx->packet_bytes - ctx->consumed);")
        w.line("length += ctx->packet_bytes - ctx->consumed;")


def hash_value(
    w: FunctionWriter, algorithm: s.HashAlgorithm, fields: tuple[ir.Expr, ...], payload: bool = False
) -> str:
    """Render the buffer; gives the C call that hashes it."""
    if algorithm is s.HashAlgorithm.RANDOM:
        return "ps_random64(ctx)"
    fields_buffer(w, fields, payload)
    if algorithm is s.HashAlgorithm.IDENTITY:
        return "ps_identity(buffer, length)"
    return f"ctx->api->{algorithm.value}(buffer, length)"


def render_hash(w: FunctionWriter, st: s.Hash) -> None:
    w.open("{")
    value = hash_value(w, st.algorithm, st.fields)
    bits = irt.width_of(st.target.type)
    w.line(f"uint64_t hashed = {value};")
    if isinstance(st.max, ir.Const):
        limit = st.max.value
        if limit == 0:
            w.line("hashed = 0;")
        elif limit & (limit - 1) == 0:
            w.line(f"hashed &= {limit - 1:#x}ull;")
        else:
            w.line(f"hashed %= {limit:#x}ull;")
    else:
        w.line(f"uint64_t limit = {low64(w.unit, st.max)};")
        w.line("hashed = limit ? hashed % limit : 0;")
    w.line(f"hashed += {low64(w.unit, st.base)};")
    w.line(f"{c_place(w.unit, st.target).z} = {masked(w.unit, resized(w.unit, 'hashed', 64, bits), bits)};")
    w.close()
    note_write(w, st.target)


def render_verify(w: FunctionWriter, st: s.VerifyChecksum) -> None:
    w.open(f"if ({c_value(w.unit, st.condition)}) {{")
    value = hash_value(w, st.algorithm, st.fields, st.with_payload)
    bits = irt.width_of(st.expected.type)
    found = masked(w.unit, f"(uint64_t){value}", min(bits, 64))
    w.line(f"if ({found} != {low64(w.unit, st.expected)}) p->standard_metadata.checksum_error = 1;")
    w.close()


def render_update(w: FunctionWriter, st: s.UpdateChecksum) -> None:
    w.open(f"if ({c_value(w.unit, st.condition)}) {{")
    value = hash_value(w, st.algorithm, st.fields, st.with_payload)
    bits = irt.width_of(st.target.type)
    w.line(f"{c_place(w.unit, st.target).z} = {masked(w.unit, resized(w.unit, f'(uint64_t){value}', 64, bits), bits)};")
    w.close()


def render_checksum_get(w: FunctionWriter, st: s.ChecksumGet) -> None:
    w.open("{")
    value = hash_value(w, s.HashAlgorithm.CSUM16, st.fields)
    w.line(f"{c_place(w.unit, st.target).z} = {value};")
    w.close()


RULES: StatementRules = {
    s.Hash: render_hash,
    s.VerifyChecksum: render_verify,
    s.UpdateChecksum: render_update,
    s.ChecksumGet: render_checksum_get,
}
