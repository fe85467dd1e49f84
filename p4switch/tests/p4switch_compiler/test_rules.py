"""The tables that say what a node becomes have an entry for every kind of node; what has none is an internal error."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from typing import get_args

import pytest

from p4switch.codegen.c_program import STATEMENTS
from p4switch.codegen.c_unit import CUnit
from p4switch.codegen.function_writer import FunctionWriter
from p4switch.errors import InternalError
from p4switch.frontend import ast
from p4switch.frontend.check_stmt import STATEMENTS as CHECKED_STATEMENTS
from p4switch.frontend.checker import RULES
from p4switch.frontend.lower.expressions import EXPRESSIONS
from p4switch.frontend.lower.statements import STATEMENTS as LOWERED_STATEMENTS
from p4switch.ir import types as irt
from p4switch.ir.program import Block, Parser, Program, Thread, Variable
from p4switch.ir.stmt import Leave, Stmt

NODES = [node for node in vars(ast).values() if is_dataclass(node) and isinstance(node, type)]


def test_every_statement_of_the_ir_has_a_rule_for_c() -> None:
    assert set(STATEMENTS) == set(get_args(Stmt))


def kinds(base: type) -> set[type]:
    """The kinds of node that a class stands for."""
    return {node for node in NODES if issubclass(node, base)} - {base}


def test_every_expression_and_statement_of_the_tree_has_a_rule_that_lowers_it() -> None:
    assert set(EXPRESSIONS) == kinds(ast.Expression)
    assert set(LOWERED_STATEMENTS) == kinds(ast.Statement)


def test_every_expression_and_statement_of_the_tree_has_a_rule_that_checks_it() -> None:
    assert set(RULES.expressions) == kinds(ast.Expression) - {ast.TupleKeyset}
    assert set(CHECKED_STATEMENTS) == kinds(ast.Statement)


def test_every_declaration_that_stands_alone_has_a_rule_that_checks_it() -> None:
    parts_of_others = {ast.FieldDecl, ast.ConstructorDecl, ast.StateDecl}
    assert set(RULES.declarations) == kinds(ast.Declaration) - parts_of_others


@pytest.mark.parametrize("node", sorted(NODES, key=lambda node: node.__name__))
def test_nodes_of_the_tree_are_immutable_keys(node: type) -> None:
    assert node.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert node.__eq__ is object.__eq__
    assert not hasattr(node, "__dict__") or "__slots__" in vars(node)
    mutable = [f.name for f in fields(node) if re.search(r"\b(list|dict|set)\b", str(f.type))]
    assert mutable == []


def test_a_statement_without_a_rule_is_an_internal_error() -> None:
    struct = irt.StructType("empty", ())
    thread = Thread("", Variable("h", struct), Variable("m", struct), (), Parser("P", (), ()), (), Block("D", (), ()))
    writer = FunctionWriter(CUnit(Program("some.p4", "v1model", (thread,))), thread, {}, "ingress")
    with pytest.raises(InternalError, match=r"Leave.*ingress of some\.p4"):
        writer.body((Leave("end"),))
