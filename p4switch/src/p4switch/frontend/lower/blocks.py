"""Whole parsers and controls."""

from __future__ import annotations

from typing import Any

from p4switch.frontend import ast
from p4switch.frontend.callee import Callee
from p4switch.frontend.lower.bindings import Env, Instance
from p4switch.frontend.lower.inlining import initialise_locals
from p4switch.frontend.lower.instances import make_block
from p4switch.frontend.lower.lowering import Lowering
from p4switch.frontend.lower.parser_states import parser_states
from p4switch.ir import expr as ir
from p4switch.ir.program import ACCEPT, Block, Parser, ParserState, SelectCase, Transition
from p4switch.ir.stmt import Labelled


def _begin_block(low: Lowering, label: str) -> None:
    low.variables = []
    low.frames = []
    low.loops = []
    low.exit_flag = None
    low.block_label = low.fresh_name(label)


def _instance(low: Lowering, block: tuple[Callee, ast.Expr]) -> Instance:
    callee, argument = block
    if isinstance(argument, ast.Name):
        found = low.instance_of(argument)
        if found is not None:
            return found
    return make_block(low, callee.decl, callee, callee.decl.name)


def _bind(instance: Instance, values: tuple[ir.VarRef | None, ...]) -> Env:
    env = Env(instance.env)
    for p, value in zip(instance.decl.parameters, values, strict=False):
        env.bind(p, value if value is not None else Instance("packet", "packet"))
    return env


def lower_parser(low: Lowering, block: tuple[Callee, ast.Expr], values: tuple[ir.VarRef, ...]) -> Parser:
    """A parser; `values` are bound to its parameters behind the packet. It may leave out parameters at the end."""
    _begin_block(low, "parsed")
    low.states = []
    instance = _instance(low, block)
    env = _bind(instance, (None, *values))
    with low.body() as first, low.within(env):
        initialise_locals(low, instance.decl)
    low.out = []
    parser_states(low, instance.decl, env, "", ACCEPT)
    states = list(low.states)
    if first:
        start = states[0]
        states[0] = type(start)(start.name, (), start.transition, start.location)
        states = _with_prologue(low, start, tuple(first), states)
    return Parser(instance.name, tuple(low.variables), tuple(states))


def _with_prologue(low: Lowering, start: Any, first: tuple[Any, ...], states: list[Any]) -> list[Any]:
    """A state before `start` that runs the initialisers once (start may be entered again)."""
    entry = ParserState(low.fresh_name("entry"), first, Transition((), (SelectCase((), start.name),)), start.location)
    return [entry, start, *states[1:]]


def lower_control(low: Lowering, block: tuple[Callee, ast.Expr], values: tuple[ir.VarRef | None, ...]) -> Block:
    """A control, as lower_parser; None is bound to the packet."""
    _begin_block(low, "end")
    instance = _instance(low, block)
    env = _bind(instance, values)
    with low.body() as body, low.within(env):
        initialise_locals(low, instance.decl)
        low.statements(instance.decl.body.body)
    return Block(instance.name, tuple(low.variables), (Labelled(low.block_label, tuple(body)),))
