"""C for what the parser takes from a packet and the deparser puts into it."""

from __future__ import annotations

from p4switch.codegen.c_expressions import c_place, c_value, saturating64
from p4switch.codegen.function_writer import FunctionWriter, StatementRules
from p4switch.codegen.layout import Place
from p4switch.codegen.packet_bits import load_fields, load_leaves, split_at_varbit, store_leaves
from p4switch.ir import expr as ir
from p4switch.ir import stmt as s
from p4switch.ir import types as irt


def parser_error(name: str) -> str:
    """C statement that stops the parser with one of core.p4's errors."""
    return f"{{ error = {name}; goto rejected; }}"


def render_extract(w: FunctionWriter, st: s.Extract) -> None:
    t = st.header.type
    assert isinstance(t, irt.HeaderType)
    place = c_place(w.unit, st.header)
    fixed = t.width_bits() // 8
    w.open("{")
    if st.varbit_bits is None:
        w.line(f"if (PS_UNLIKELY(ctx->packet_bytes - at < {fixed})) {parser_error('PS_ERROR_PACKET_TOO_SHORT')}")
        w.line("const uint8_t *from = ctx->packet + at;")
        for text in load_fields(place.f, t, "from"):
            w.line(text)
        w.line(f"at += {fixed};")
    else:
        _extract_varbit(w, t, place, fixed, st.varbit_bits)
    w.line(f"{place.z} = 1;")
    w.close()


def _extract_varbit(w: FunctionWriter, t: irt.HeaderType, place: Place, fixed: int, bits: ir.Expr) -> None:
    before, varbit, after = split_at_varbit(t)
    assert varbit is not None
    path, kind = varbit
    w.line(f"uint64_t varbits = {saturating64(w.unit, bits)};")
    w.line(f"if (PS_UNLIKELY(varbits % 8)) {parser_error('PS_ERROR_PARSER_INVALID_ARGUMENT')}")
    short = parser_error("PS_ERROR_PACKET_TOO_SHORT")
    w.line(f"if (PS_UNLIKELY(ctx->packet_bytes - at < {fixed} + varbits / 8)) {short}")
    w.line(f"if (PS_UNLIKELY(varbits > {kind.max_width})) {parser_error('PS_ERROR_HEADER_TOO_SHORT')}")
    w.line("const uint8_t *from = ctx->packet + at;")
    for text in load_leaves(place.f, before, "from"):
        w.line(text)
    start = sum(irt.width_of(leaf) for _, leaf in before) // 8
    w.line(f"from += {start};")
    w.line(f"memcpy({place.f}{path}.b, from, varbits / 8);")
    w.line(f"{place.f}{path}.bits = (uint32_t)varbits;")
    w.line("from += varbits / 8;")
    for text in load_leaves(place.f, after, "from"):
        w.line(text)
    w.line(f"at += {fixed} + (uint32_t)(varbits / 8);")


def render_lookahead(w: FunctionWriter, st: s.Lookahead) -> None:
    t = st.target.type
    place = c_place(w.unit, st.target)
    bits = irt.width_of(t)
    w.open("{")
    short = parser_error("PS_ERROR_PACKET_TOO_SHORT")
    w.line(f"if (PS_UNLIKELY((uint64_t)(ctx->packet_bytes - at) * 8 < {bits})) {short}")
    w.line("const uint8_t *from = ctx->packet + at;")
    for text in load_fields(place.f if isinstance(t, irt.HeaderType) else place.z, t, "from"):
        w.line(text)
    if isinstance(t, irt.HeaderType):
        w.line(f"{place.z} = 1;")
    w.close()


def render_advance(w: FunctionWriter, st: s.Advance) -> None:
    name = w.temporary("bits")
    w.line(f"{{ uint64_t {name} = {saturating64(w.unit, st.bits)};")
    w.line(f"  if (PS_UNLIKELY({name} % 8)) {parser_error('PS_ERROR_PARSER_INVALID_ARGUMENT')}")
    w.line(f"  if (PS_UNLIKELY(ctx->packet_bytes - at < {name} / 8)) {parser_error('PS_ERROR_PACKET_TOO_SHORT')}")
    w.line(f"  at += (uint32_t)({name} / 8); }}")


def render_parser_check(w: FunctionWriter, st: s.ParserCheck) -> None:
    error = c_value(w.unit, st.error)
    w.line(f"if (PS_UNLIKELY(!({c_value(w.unit, st.condition)}))) {{ error = (uint32_t){error}; goto rejected; }}")


# ---------------------------------------------------------------- deparsing


def render_emit(w: FunctionWriter, st: s.Emit) -> None:
    t = st.header.type
    assert isinstance(t, irt.HeaderType)
    place = c_place(w.unit, st.header)
    before, varbit, after = split_at_varbit(t)
    w.open(f"if ({place.z}) {{")
    for text in store_leaves([(place.f + path, leaf) for path, leaf in before], "out"):
        w.line(text)
    size = sum(irt.width_of(leaf) for _, leaf in before) // 8
    if size:
        w.line(f"out += {size};")
    if varbit is not None:
        field = place.f + varbit[0]
        w.line(f"memcpy(out, {field}.b, {field}.bits / 8);")
        w.line(f"out += {field}.bits / 8;")
        for text in store_leaves([(place.f + path, leaf) for path, leaf in after], "out"):
            w.line(text)
        w.line(f"out += {sum(irt.width_of(leaf) for _, leaf in after) // 8};")
    w.close()


RULES: StatementRules = {
    s.Extract: render_extract,
    s.Lookahead: render_lookahead,
    s.Advance: render_advance,
    s.ParserCheck: render_parser_check,
    s.Emit: render_emit,
}
