"""The parser as one C function: states as labels, transitions as jumps."""

from __future__ import annotations

from typing import Any

from p4switch.codegen.c_expressions import c_value
from p4switch.codegen.c_tables import pack_key
from p4switch.codegen.function_writer import FunctionWriter
from p4switch.codegen.packing import table_key_bytes
from p4switch.ir import expr as ir
from p4switch.ir import types as irt
from p4switch.ir.program import ACCEPT, REJECT, MatchOp, ParserState, SelectCase

MAX_PARSER_TURNS = 1 << 16
"""Backward steps of one packet through the parser before ParserTimeout."""


def render_parse(w: FunctionWriter) -> None:
    parser = w.thread.parser
    order = {state.name: i for i, state in enumerate(parser.states)}
    w.line("uint32_t at = 0, error = 0, turns = 0;")
    w.line("(void)turns;")
    for i, state in enumerate(parser.states):
        w.line(f"{_state_label(w, state.name)}: __attribute__((unused));")
        w.open(f"{{ /* state {i} */")
        w.line(f'if (PS_UNLIKELY(ctx->trace_enabled)) ps_trace(ctx, "parser state %s", {w.unit.text(state.name)});')
        w.body(state.body)
        _transition(w, state, i, order)
        w.close()
    w.line("rejected: __attribute__((unused));")
    if w.thread.name:  # a transition to reject is an error, too
        w.line("if (!error) error = PS_ERROR_NO_MATCH;")
    w.line("accepted: __attribute__((unused));")
    names = ", ".join(w.unit.text(name) for name in w.unit.program.errors.members)
    w.open("if (PS_UNLIKELY(ctx->trace_enabled && error)) {")
    w.line(f"static const char *const error_names[] = {{{names}}};")
    w.line('ps_trace(ctx, "parser error %s after %u bytes", error_names[error], (unsigned)at);')
    w.close()
    w.line("ctx->consumed = at;")
    if w.thread.name:
        w.line(f"p->{w.thread.name}_from_parser.parser_err = ps_tna_parser_error(error);")
    else:
        w.line("p->standard_metadata.parser_error = error;")


def _state_label(w: FunctionWriter, name: str) -> str:
    return w.label("state_" + name)


def _goto(w: FunctionWriter, name: str, here: int, order: dict[str, int]) -> str:
    if name == ACCEPT:
        return "goto accepted;"
    if name == REJECT:
        return "goto rejected;"
    jump = f"goto {_state_label(w, name)};"
    if order[name] <= here:
        return f"{{ if (++turns > {MAX_PARSER_TURNS}) {{ error = PS_ERROR_PARSER_TIMEOUT; goto rejected; }} {jump} }}"
    return jump


def _transition(w: FunctionWriter, state: ParserState, here: int, order: dict[str, int]) -> None:
    keys = state.transition.keys
    for case in state.transition.cases:
        condition = _case_condition(w, case, keys)
        jump = _goto(w, case.state, here, order)
        if condition == "1":
            w.line(jump)
            return
        w.line(f"if ({condition}) {jump}")
    w.line("error = PS_ERROR_NO_MATCH; goto rejected;")


def _case_condition(w: FunctionWriter, case: SelectCase, keys: tuple[ir.Expr, ...]) -> str:
    if len(case.matches) == 1 and case.matches[0].op is MatchOp.VALUE_SET:
        return _value_set(w, case.matches[0].first, keys)
    tests = [t for m, k in zip(case.matches, keys, strict=True) if (t := _match_test(w, m, k))]
    return " && ".join(tests) or "1"


def _match_test(w: FunctionWriter, m: Any, key: ir.Expr) -> str:
    def compare(op: ir.BinaryOp, left: ir.Expr, value: int) -> str:
        return c_value(w.unit, ir.Binary(op, left, ir.Const(value, left.type), irt.Bool()))

    if m.op is MatchOp.ANY:
        return ""
    if m.op is MatchOp.VALUE:
        return compare(ir.BinaryOp.EQ, key, m.first)
    if m.op is MatchOp.MASK:
        masked = ir.Binary(ir.BinaryOp.AND, key, ir.Const(m.second, key.type), key.type)
        return compare(ir.BinaryOp.EQ, masked, m.first)
    return f"{compare(ir.BinaryOp.GE, key, m.first)} && {compare(ir.BinaryOp.LE, key, m.second)}"


def _value_set(w: FunctionWriter, index: int, keys: tuple[ir.Expr, ...]) -> str:
    value_set = w.unit.program.value_sets[index]
    name = w.temporary("set_key")
    pack_key(w, name, table_key_bytes([k.type for k in value_set.keys]), [(c_value(w.unit, k), k.type) for k in keys])
    table = f"&ctx->tables[{len(w.unit.program.tables) + index}]"
    return f"ps_hit({table}, ps_lookup({table}, {name}))"
