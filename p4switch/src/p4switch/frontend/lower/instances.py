"""Instances elaborated: externs, parsers and controls with their declarations."""

from __future__ import annotations

from p4switch.frontend import ast
from p4switch.frontend.callee import Callee
from p4switch.frontend.lower.annotations import qualified_name
from p4switch.frontend.lower.bindings import Env, Instance, Known
from p4switch.frontend.lower.declared_tables import make_table
from p4switch.frontend.lower.known_values import known_value
from p4switch.frontend.lower.lowering import Lowering
from p4switch.frontend.lower.named_objects import make_extern, make_value_set
from p4switch.frontend.lower.types_to_ir import ir_type
from p4switch.frontend.p4_types import TBlock


def make_block(low: Lowering, decl: ast.ParserDecl | ast.ControlDecl, callee: Callee, name: str) -> Instance:
    env = Env(low.globals, {v: low.concrete(t) for v, t in callee.bindings.items()}, prefix=name)
    for p, argument in callee.arguments:
        if argument is None:
            continue
        env.bind(p, _constructor_argument(low, p, argument, name))
    with low.within(env):
        for local in decl.locals:
            _declare_local(low, local)
    return Instance("control" if isinstance(decl, ast.ControlDecl) else "parser", name, decl=decl, env=env)


def _constructor_argument(low: Lowering, p: ast.Parameter, argument: ast.Expr, name: str) -> Instance | Known:
    instance = low.instance_of(argument)
    if instance is not None:
        return instance
    if isinstance(argument, ast.Call) and isinstance(low.types[argument], TBlock):
        return construct(
            low,
            low.facts.callees[argument],
            ast.Instantiation(at=argument.at, name=p.name, ref=ast.BaseType(argument.at, "_"), arguments=()),
            f"{name}.{p.name}",
        )
    value = known_value(low, argument)
    if value is None:
        raise low.unsupported(argument.at, "this constructor argument")
    return Known(value, low.concrete(low.types[argument]))


def construct(low: Lowering, callee: Callee, decl: ast.Declaration, name: str) -> Instance:
    """Make an instance of an extern, control or parser."""
    assert callee.block is not None
    block = callee.block.decl
    if isinstance(block, ast.ExternDecl):
        return make_extern(low, decl, callee, name)
    if isinstance(block, ast.PackageDecl):  # the architecture looks into those that it knows
        return Instance("package", name, decl=decl)
    return make_block(low, block, callee, name)


def _declare_local(low: Lowering, decl: ast.Declaration) -> None:
    """A declaration inside a parser or control, elaborated once for each instance."""
    name = qualified_name(low.env.prefix, decl)
    if isinstance(decl, ast.VariableDecl):
        low.env.bind(decl, low.new_variable(decl.name, ir_type(low, low.concrete(low.types[decl]), decl.at)))
    elif isinstance(decl, ast.Instantiation):
        low.env.bind(decl, construct(low, low.facts.callees[decl], decl, name))
    elif isinstance(decl, ast.ActionDecl):
        low.env.bind(decl, Instance("action", name, decl=decl))
    elif isinstance(decl, ast.TableDecl):
        low.env.bind(decl, make_table(low, decl, name))
    elif isinstance(decl, ast.ValueSetDecl):
        low.env.bind(decl, make_value_set(low, decl, name))
